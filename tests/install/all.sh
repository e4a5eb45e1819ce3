#!/bin/sh
# Everything that the tests need.
set -eu
cd "$(dirname "$0")"
sh ./debian.sh
sh ./pjdfstest.sh
sh ./fsx.sh
sh ./versitygw.sh
sh ./azurite.sh
sh ./fake-gcs.sh
sh ./moto.sh
