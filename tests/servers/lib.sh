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

# launch PORT URL COMMAND...: starts a server that is up when URL answers at all; false when it ended instead.
launch() {
    port=$1 url=$2
    shift 2
    mkdir -p "$run"
    setsid "$@" >"$run/$port.log" 2>&1 9>&- </dev/null &
    pid=$!
    tries=0
    while [ $tries -lt 300 ]; do
        kill -0 "$pid" 2>/dev/null || return 1
        if curl --silent --output /dev/null --max-time 2 "$url"; then
            echo "$pid" >"$run/$port.pid"
            return 0
        fi
        sleep 0.1
        tries=$((tries + 1))
    done
    kill "$pid" 2>/dev/null || true
    return 1
}

# stop PORT WORD: ends the server on PORT, if WORD stands in its command line: its number may have gone to another
# process since.
stop() {
    file=$run/$1.pid
    [ -e "$file" ] || return 0
    pid=$(cat "$file")
    rm -f "$file" "$run/$1.log"
    tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "$2" || return 0
    kill "$pid" 2>/dev/null || return 0
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ $tries -lt 50 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -9 "$pid" 2>/dev/null || true
}
