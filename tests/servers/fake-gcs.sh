#!/bin/sh
# An emulator of Google Cloud Storage for tests: fake-gcs-server.
#
#   fake-gcs.sh install              fetches and builds it into .tools/bin (some minutes, once)
#   fake-gcs.sh start DIR PORT       starts it on 127.0.0.1:PORT and returns when it answers; installs it first
#   fake-gcs.sh stop PORT            stops the one on PORT
#
# Each folder in DIR, which must exist, is a bucket; with `-` for it everything is in memory, and buckets are made by
# POST /storage/v1/b.
set -eu
. "$(dirname "$0")/lib.sh"

version=v1.56.1
binary=$tools/bin/fake-gcs-server

install_it() {
    [ -x "$binary" ] && return 0
    command -v go >/dev/null || die "go is missing: install Go 1.24 or later, or put fake-gcs-server into $tools/bin"
    echo "fake-gcs.sh: building fake-gcs-server $version, which takes some minutes" >&2
    GOBIN=$tools/bin go install "github.com/fsouza/fake-gcs-server@$version"
}

start() {
    where=$1 port=$2
    once install_it
    case $where in
    -) set -- -backend memory ;;
    *) set -- -backend filesystem -filesystem-root "$where" ;;
    esac
    launch "$port" "http://127.0.0.1:$port/_internal/healthcheck" "$binary" -scheme http -host 127.0.0.1 -port "$port" \
        -public-host "127.0.0.1:$port" -log-level error "$@" && return
    cat "$run/$port.log" >&2
    die "fake-gcs-server did not start on port $port"
}

case "${1:-} $#" in
"install 1") once install_it ;;
"start 3") start "$2" "$3" ;;
"stop 2") stop "$2" fake-gcs-server ;;
*) die "usage: fake-gcs.sh install | start DIR PORT | stop PORT" ;;
esac
