# Shared by the scripts of the servers: where they are installed, and how one is started and stopped.
# shellcheck shell=sh

repo=$(cd "$(dirname "$0")/../.." && pwd)
tools=$repo/.tools
run=$repo/.tools/run
me=$(basename "$0")

die() {
    echo "$me: $*" >&2
    exit 1
}

# once COMMAND...: runs it unless another process does already, and then waits for that one. Two tests that start at
# once must not install twice.
once() {
    mkdir -p "$tools/bin"
    exec 9>"$tools/bin/.$me.lock"
    flock 9
    "$@"
    exec 9>&-
}

answers() {
    curl --silent --output /dev/null --max-time 2 "$1"
}

# launch PORT URL COMMAND...: starts a server that is up when URL answers at all; false when it ended instead.
launch() {
    port=$1 url=$2
    shift 2
    command -v curl >/dev/null || die "curl is missing: install it"
    ! answers "$url" || die "something answers on port $port already"
    mkdir -p "$run"
    setsid "$@" >"$run/$port.log" 2>&1 9>&- </dev/null &
    pid=$!
    tries=0
    while [ $tries -lt 300 ]; do
        kill -0 "$pid" 2>/dev/null || return 1
        if answers "$url"; then
            echo "$pid" >"$run/$port.pid"
            return 0
        fi
        sleep 0.1
        tries=$((tries + 1))
    done
    kill "$pid" 2>/dev/null || true
    return 1
}

# is_running PORT WORD: whether the server that was started on PORT is there, with WORD in its command line: its number
# may have gone to another process since.
is_running() {
    [ -e "$run/$1.pid" ] || return 1
    pid=$(cat "$run/$1.pid")
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q "$2"
}

# stop PORT WORD: ends that server.
stop() {
    is_running "$1" "$2" || pid=
    rm -f "$run/$1.pid" "$run/$1.log"
    [ -n "$pid" ] || return 0
    kill "$pid" 2>/dev/null || return 0
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ $tries -lt 50 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -9 "$pid" 2>/dev/null || true
}
