#!/bin/sh
# `make bench`: installs and builds what the benchmark and the peers need, runs it, and writes docs/PERFORMANCE.md. Words
# go to bench/run.
set -eu
cd "$(dirname "$0")/.."
sh tests/install/debian.sh
sh tests/install/versitygw.sh
sh bench/install/all.sh
cargo build --release --locked --quiet --workspace --bins --examples
export TARN_BIN="${TARN_BIN:-$PWD/target/release/tarn}"
exec python3 bench/run --page "$@"
