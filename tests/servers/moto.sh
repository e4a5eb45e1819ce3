#!/bin/sh
# A second S3 server for tests: moto, which emulates AWS in memory.
#
#   moto.sh install             fetches it into .tools/moto (half a minute, once)
#   moto.sh start - PORT        starts it on 127.0.0.1:PORT and returns when it answers; installs it first
#   moto.sh stop PORT           stops the one on PORT
#
# It takes any credentials; buckets are made by PUT /BUCKET.
set -eu
. "$(dirname "$0")/lib.sh"

version=5.2.5
mark=$tools/moto/.$version

install_it() {
    [ -e "$mark" ] && return 0
    echo "moto.sh: fetching moto $version" >&2
    { python3 -m venv "$tools/moto" && "$tools/moto/bin/pip" install --quiet "moto[s3,server]==$version"; } \
        >"$tools/moto.log" 2>&1 || {
        tail -20 "$tools/moto.log" >&2
        die "cannot install moto $version"
    }
    touch "$mark"
}

start() {
    port=$1
    once install_it
    launch "$port" "http://127.0.0.1:$port/moto-api/" "$tools/moto/bin/moto_server" -H 127.0.0.1 -p "$port" && return
    cat "$run/$port.log" >&2
    die "moto did not start on port $port"
}

case "${1:-} $#" in
"install 1") once install_it ;;
"start 3") start "$3" ;;
"stop 2") stop "$2" moto_server ;;
*) die "usage: moto.sh install | start - PORT | stop PORT" ;;
esac
