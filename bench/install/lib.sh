# What the tests' scripts share, for those of the benchmark.
# shellcheck shell=sh

. "$(dirname "$0")/../../tests/install/lib.sh"
