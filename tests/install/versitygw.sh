#!/bin/sh
# The S3 server of the tests, and what its makers' Go builds it with.
set -eu
. "$(dirname "$0")/lib.sh"
[ -x "$tools/bin/versitygw" ] && exit 0
sh "$(dirname "$0")/go.sh"
# Before an older Go of the distribution's.
[ ! -x "$tools/go/bin/go" ] || export PATH="$tools/go/bin:$PATH"
# GOTOOLCHAIN=local, where somebody set it, would keep an older Go from fetching the one it needs.
export GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false
exec sh "$repo/tests/servers/versitygw.sh" install
