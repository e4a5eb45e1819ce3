#!/bin/sh
# The S3 server of the tests.
set -eu
. "$(dirname "$0")/lib.sh"
go_server versitygw versitygw.sh
