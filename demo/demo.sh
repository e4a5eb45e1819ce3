#!/bin/sh
# `make demo`: a pool of 12 buckets (local directories), mounted, filled with real files, unmounted, mounted again
# with nothing in any cache, and verified byte for byte. It stays mounted; `make demo-clean` removes everything.
# All of it lies in .demo of this checkout. Running it again starts anew. TARN names a binary to use instead of
# building one.
set -eu
cd "$(dirname "$0")/.."
demo=$PWD/.demo
tarn=${TARN:-$PWD/target/release/tarn}
export TARN_STATE_DIR="$demo/state"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

run() {
    printf '  $ %s\n' "$(echo "$*" | sed "s|$tarn|tarn|g; s|$demo|.demo|g")"
    "$@"
}

clean() {
    if grep -q " $demo/mnt fuse" /proc/self/mounts; then
        "$tarn" umount "$demo/mnt" || "$tarn" umount -f "$demo/mnt" || umount -l "$demo/mnt" || true
    fi
    # Nothing below may be mounted when it is deleted.
    if grep -q " $demo/" /proc/self/mounts; then
        echo "demo: something is still mounted below $demo" >&2
        exit 1
    fi
    rm -rf "$demo"
}

if [ "$(id -u)" != 0 ]; then
    echo "demo: it makes files of other owners and empties the kernel's caches: run it as root" >&2
    exit 1
fi
if [ "${1:-}" = clean ]; then
    clean
    echo "removed .demo"
    exit 0
fi

sh tests/install/debian.sh run
if [ -z "${TARN:-}" ] && ! command -v cargo >/dev/null; then
    echo "demo: there is no Rust toolchain here: see https://rustup.rs" >&2
    exit 1
fi
if [ -z "${TARN:-}" ]; then
    say "Building Tarn"
    cargo build --release --locked
fi
began=$(date +%s)
clean
mkdir -p "$demo/mnt" "$demo/state"

say "A pool of 12 buckets: local directories here; s3://bucket/prefix would do as well"
buckets=""
for n in 01 02 03 04 05 06 07 08 09 10 11 12; do
    mkdir -p "$demo/buckets/$n"
    buckets="$buckets $demo/buckets/$n"
done
# shellcheck disable=SC2086
run "$tarn" pool create demo $buckets
run "$tarn" mount -o allow_other demo "$demo/mnt"

say "Real input: sources that Cargo fetched, a hundred each of what else a file system must keep, and 2 GiB in one file"
python3 demo/demo.py make "$demo/originals"
say "Copying it in"
python3 demo/demo.py copy "$demo/originals" "$demo/mnt"
say "Unmounting, emptying the kernel's caches, mounting again: now only the buckets remember"
run "$tarn" umount "$demo/mnt"
sync
echo 3 >/proc/sys/vm/drop_caches
run "$tarn" mount -o allow_other demo "$demo/mnt"
say "Verifying every byte, mode, owner, time, link, attribute and ACL against the originals"
python3 demo/demo.py verify "$demo/originals" "$demo/mnt"

say "The pool"
run "$tarn" pool status demo
say "The balance over the buckets"
run "$tarn" pool iostat -v demo

cat >"$demo/env" <<END
export TARN_STATE_DIR=$demo/state
export PATH=$(dirname "$tarn"):\$PATH
END
say "Done in $(($(date +%s) - began)) seconds after the build. It is still mounted. What to type next:"
cat <<'END'
  . .demo/env                                  so that 'tarn' is found, and the pool by its name
  ls -l .demo/mnt                              look around; write to it, run programs on it
  tarn pool iostat -v demo 1                   what the buckets do, every second
  tarn fs create -o compression=zstd demo/x    a file system of its own in the same pool
  tarn check demo                              walk all metadata and segments
  tarn pool history demo                       every command that changed the pool
  make demo-clean                              remove it all
END
