#!/bin/sh
# The second S3 server of the tests, and what Python needs to install it.
set -eu
. "$(dirname "$0")/lib.sh"
python3 -c "import ensurepip" 2>/dev/null || need /usr/share/python-wheels python3-venv "keeps moto, a server of the tests, apart"
install_wanted
exec sh "$repo/tests/servers/moto.sh" install
