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

version=v1.8.0
repo=$(cd "$(dirname "$0")/../.." && pwd)
tools=$repo/.tools/bin
run=$repo/.tools/run
binary=$tools/versitygw

die() {
    echo "versitygw.sh: $*" >&2
    exit 1
}

install_it() {
    mkdir -p "$tools"
    # Two tests that start at once must not build twice.
    exec 9>"$tools/.versitygw.lock"
    flock 9
    if [ ! -x "$binary" ]; then
        command -v go >/dev/null || die "go is missing: install Go 1.24 or later, or put versitygw $version into $tools"
        echo "versitygw.sh: building versitygw $version, which takes some minutes" >&2
        GOBIN=$tools go install "github.com/versity/versitygw/cmd/versitygw@$version"
    fi
    exec 9>&-
}

answers() {
    curl --silent --fail --max-time 2 "http://127.0.0.1:$1/health" >/dev/null 2>&1
}

# launch DIR PORT [FLAG...]: true when it answers, false when it ended instead.
launch() {
    dir=$1 port=$2
    shift 2
    # shellcheck disable=SC2086
    setsid "$binary" --port "127.0.0.1:$port" --keep-alive --quiet --health /health \
        posix ${VERSITYGW_POSIX_FLAGS:-} "$@" "$dir" >"$run/$port.log" 2>&1 9>&- </dev/null &
    pid=$!
    tries=0
    while [ $tries -lt 150 ]; do
        kill -0 "$pid" 2>/dev/null || return 1
        if answers "$port"; then
            echo "$pid" >"$run/$port.pid"
            return 0
        fi
        sleep 0.1
        tries=$((tries + 1))
    done
    kill "$pid" 2>/dev/null || true
    return 1
}

start() {
    dir=$1 port=$2
    [ -d "$dir" ] || die "$dir: no such directory"
    ROOT_ACCESS_KEY_ID=${ROOT_ACCESS_KEY_ID:-${AWS_ACCESS_KEY_ID:-}}
    ROOT_SECRET_ACCESS_KEY=${ROOT_SECRET_ACCESS_KEY:-${AWS_SECRET_ACCESS_KEY:-}}
    [ -n "$ROOT_ACCESS_KEY_ID" ] && [ -n "$ROOT_SECRET_ACCESS_KEY" ] ||
        die "set ROOT_ACCESS_KEY_ID and ROOT_SECRET_ACCESS_KEY"
    export ROOT_ACCESS_KEY_ID ROOT_SECRET_ACCESS_KEY
    command -v curl >/dev/null || die "curl is missing: install it"
    install_it
    mkdir -p "$run"
    answers "$port" && die "something answers on port $port already"
    launch "$dir" "$port" && return
    # Metadata goes into extended attributes, which not every file system has: then beside the directory.
    if grep -qi xattr "$run/$port.log"; then
        mkdir -p "$dir.metadata"
        launch "$dir" "$port" --sidecar "$dir.metadata" && return
    fi
    cat "$run/$port.log" >&2
    die "versitygw did not start on port $port"
}

stop() {
    for file in "$run"/${1:-*}.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        rm -f "$file" "${file%.pid}.log"
        # The number may have gone to another process since.
        [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$binary" ] || continue
        kill "$pid" 2>/dev/null || continue
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ $tries -lt 50 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

case "${1:-} $#" in
"install 1") install_it ;;
"start 3") start "$2" "$3" ;;
"stop 1" | "stop 2") stop "${2:-}" ;;
*) die "usage: versitygw.sh install | start DIR PORT | stop [PORT]" ;;
esac
