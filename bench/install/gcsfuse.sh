#!/bin/sh
# A peer of the benchmark, by Go: Google's file system over GCS. The GCS server that it is given is the tests' own.
set -eu
. "$(dirname "$0")/lib.sh"
version=v3.11.5
sh "$repo/tests/install/fake-gcs.sh"
[ -x "$tools/bin/gcsfuse" ] && exit 0
sh "$repo/tests/install/go.sh"
[ ! -x "$tools/go/bin/go" ] || export PATH="$tools/go/bin:$PATH"
# It asks for a newer Go than some have; that comes from Go's module proxy as its other modules do.
export GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false
echo "building gcsfuse $version, which takes some minutes: it is measured beside Tarn"
GOBIN=$tools/bin go install "github.com/googlecloudplatform/gcsfuse/v3@$version" >"$tools/gcsfuse.log" 2>&1 || {
    tail -20 "$tools/gcsfuse.log" >&2
    die "cannot build gcsfuse $version"
}
