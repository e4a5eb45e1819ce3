#!/bin/sh
# A peer of the benchmark, from the distribution.
set -eu
. "$(dirname "$0")/lib.sh"
need rclone rclone "is measured beside Tarn"
install_wanted
