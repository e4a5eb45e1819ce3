#!/bin/sh
# A real S3 server for tests: versitygw over a directory, each folder in it a bucket.
#
#   versitygw.sh install             fetches and builds it into .tools/bin (some minutes, once)
#   versitygw.sh start DIR PORT      starts it on 127.0.0.1:PORT and returns when it answers; installs it first
#   versitygw.sh stop [PORT]         stops the one on PORT, or all that were started from this checkout
#
# The root account comes from ROOT_ACCESS_KEY_ID and ROOT_SECRET_ACCESS_KEY, or else from AWS_ACCESS_KEY_ID and
# AWS_SECRET_ACCESS_KEY. DIR must exist. More flags for `versitygw posix` may be given in VERSITYGW_POSIX_FLAGS.
set -eu
. "$(dirname "$0")/lib.sh"

version=v1.8.0
binary=$tools/bin/versitygw

install_it() {
    [ -x "$binary" ] && return 0
    command -v go >/dev/null || die "go is missing: install Go 1.24 or later, or put versitygw $version into $tools/bin"
    echo "versitygw.sh: building versitygw $version, which takes some minutes" >&2
    GOBIN=$tools/bin go install "github.com/versity/versitygw/cmd/versitygw@$version"
}

# serve DIR PORT [FLAG...]: true when it answers, false when it ended instead.
serve() {
    dir=$1 port=$2
    shift 2
    # shellcheck disable=SC2086
    launch "$port" "http://127.0.0.1:$port/health" "$binary" --port "127.0.0.1:$port" --keep-alive --quiet \
        --health /health posix ${VERSITYGW_POSIX_FLAGS:-} "$@" "$dir"
}

start() {
    dir=$1 port=$2
    [ -d "$dir" ] || die "$dir: no such directory"
    ROOT_ACCESS_KEY_ID=${ROOT_ACCESS_KEY_ID:-${AWS_ACCESS_KEY_ID:-}}
    ROOT_SECRET_ACCESS_KEY=${ROOT_SECRET_ACCESS_KEY:-${AWS_SECRET_ACCESS_KEY:-}}
    [ -n "$ROOT_ACCESS_KEY_ID" ] && [ -n "$ROOT_SECRET_ACCESS_KEY" ] ||
        die "set ROOT_ACCESS_KEY_ID and ROOT_SECRET_ACCESS_KEY"
    export ROOT_ACCESS_KEY_ID ROOT_SECRET_ACCESS_KEY
    once install_it
    serve "$dir" "$port" && return
    # Metadata goes into extended attributes, which not every file system has: then beside the directory.
    if grep -qi xattr "$run/$port.log"; then
        mkdir -p "$dir.metadata"
        serve "$dir" "$port" --sidecar "$dir.metadata" && return
    fi
    cat "$run/$port.log" >&2
    die "versitygw did not start on port $port"
}

stop_all() {
    for file in "$run"/*.pid; do
        [ -e "$file" ] || continue
        port=$(basename "$file" .pid)
        if is_running "$port" versitygw; then stop "$port" versitygw; fi
    done
}

case "${1:-} $#" in
"install 1") once install_it ;;
"start 3") start "$2" "$3" ;;
"stop 1") stop_all ;;
"stop 2") stop "$2" versitygw ;;
*) die "usage: versitygw.sh install | start DIR PORT | stop [PORT]" ;;
esac
