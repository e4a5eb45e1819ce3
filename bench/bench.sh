#!/bin/sh
# `make bench`: installs and builds what the benchmark needs, and runs it. Words go to bench/run.
set -eu
cd "$(dirname "$0")/.."
sh tests/install/debian.sh
sh tests/install/versitygw.sh
cargo build --release --locked --quiet --workspace --bins --examples
export TARN_BIN="${TARN_BIN:-$PWD/target/release/tarn}"
exec python3 bench/run "$@"
