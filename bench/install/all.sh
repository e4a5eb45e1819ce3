#!/bin/sh
# Everything that the benchmark needs beside what the tests need. A peer that cannot be had is no reason to stop: the
# report then says that it is missing.
set -eu
cd "$(dirname "$0")"
for peer in s3fs rclone gcsfuse; do
    sh "./$peer.sh" || echo "without $peer"
done
