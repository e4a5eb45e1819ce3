#!/bin/sh
# The GCS server of the tests.
set -eu
. "$(dirname "$0")/lib.sh"
go_server fake-gcs-server fake-gcs.sh
