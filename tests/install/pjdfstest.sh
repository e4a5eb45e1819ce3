#!/bin/sh
set -eu
. "$(dirname "$0")/lib.sh"
cargo_tool pjdfstest 0.2.2 "tests what POSIX says of every call"
