#!/bin/sh
set -eu
. "$(dirname "$0")/lib.sh"
cargo_tool fsx 0.3.2 "exercises one file with random operations and checks every byte"
