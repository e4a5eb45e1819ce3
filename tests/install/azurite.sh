#!/bin/sh
# The Azure server of the tests, and Node.js, which runs it.
set -eu
. "$(dirname "$0")/lib.sh"
need node nodejs "runs azurite, the Azure server of the tests"
need npm npm "fetches it"
install_wanted
exec sh "$repo/tests/servers/azurite.sh" install
