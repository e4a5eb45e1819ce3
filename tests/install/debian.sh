#!/bin/sh
# What Tarn and its tests need of the distribution (Debian 12 or Ubuntu). With `run`, only what running needs.
set -eu
. "$(dirname "$0")/lib.sh"

need cc gcc "compiles the C parts of zstd and of the TLS library"
need fusermount3 fuse3 "mounts file systems in user space"
need python3 python3 "runs the demonstration and the tests"
if [ "${1:-}" != run ]; then
    need git git "is run on the mount"
    need rsync rsync "is run on the mount"
    need fio fio "is run on the mount"
    need tar tar "is run on the mount"
    need make make "runs make install in a test"
    need getfacl acl "shows and sets ACLs"
    need getfattr attr "shows and sets extended attributes"
    need mkfs.ext4 e2fsprogs "makes small file systems that fill up"
    need findmnt util-linux "says what is mounted"
    need mount mount "mounts by fstab"
    need strace strace "tells what was synced, to lose the rest as a power loss does"
    need /usr/lib/python3/dist-packages/prometheus_client python3-prometheus-client "reads metrics as Prometheus does"
    need faketime faketime "sets a clock wrong"
    need openssl openssl "makes certificates"
    need curl curl "asks servers whether they are up"
    need /etc/ssl/certs/ca-certificates.crt ca-certificates "lets tools be fetched by HTTPS"
fi
install_wanted
