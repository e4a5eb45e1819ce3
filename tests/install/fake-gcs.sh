#!/bin/sh
# The GCS server of the tests, and the Go that builds it.
set -eu
. "$(dirname "$0")/lib.sh"
[ -x "$tools/bin/fake-gcs-server" ] && exit 0
sh "$(dirname "$0")/go.sh"
# Before an older Go of the distribution's.
[ ! -x "$tools/go/bin/go" ] || export PATH="$tools/go/bin:$PATH"
# GOTOOLCHAIN=local, where somebody set it, would keep an older Go from fetching the one it needs.
export GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false
exec sh "$repo/tests/servers/fake-gcs.sh" install
