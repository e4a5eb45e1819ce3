#!/bin/sh
# A peer of the benchmark, from the distribution.
set -eu
. "$(dirname "$0")/lib.sh"
need s3fs s3fs "is measured beside Tarn"
install_wanted
