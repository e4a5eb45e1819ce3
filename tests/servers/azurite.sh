#!/bin/sh
# Microsoft's emulator of Azure Blob Storage, for tests.
#
#   azurite.sh install               fetches it into .tools/azurite (a minute, once)
#   azurite.sh start DIR PORT        starts it on 127.0.0.1:PORT and returns when it answers; installs it first
#   azurite.sh stop PORT             stops the one on PORT
#
# AZURITE_ACCOUNTS says which accounts there are, as NAME:KEY;NAME:KEY with keys in base64. DIR must exist; with `-` for
# it everything is in memory.
set -eu
. "$(dirname "$0")/lib.sh"

version=3.35.0
main=$tools/azurite/node_modules/azurite/dist/src/blob/main.js
mark=$tools/azurite/.$version

install_it() {
    [ -e "$mark" ] && return 0
    command -v npm >/dev/null || die "npm is missing: install Node.js 18 or later with npm"
    echo "azurite.sh: fetching azurite $version" >&2
    npm install --silent --no-audit --no-fund --no-update-notifier --prefix "$tools/azurite" "azurite@$version" \
        >"$tools/azurite.log" 2>&1 || {
        tail -20 "$tools/azurite.log" >&2
        die "cannot install azurite $version"
    }
    touch "$mark"
}

start() {
    where=$1 port=$2
    [ -n "${AZURITE_ACCOUNTS:-}" ] || die "set AZURITE_ACCOUNTS"
    once install_it
    case $where in
    -) set -- --inMemoryPersistence ;;
    *) set -- --location "$where" ;;
    esac
    launch "$port" "http://127.0.0.1:$port/" node "$main" --silent --disableTelemetry --skipApiVersionCheck \
        --blobHost 127.0.0.1 --blobPort "$port" "$@" && return
    cat "$run/$port.log" >&2
    die "azurite did not start on port $port"
}

case "${1:-} $#" in
"install 1") once install_it ;;
"start 3") start "$2" "$3" ;;
"stop 2") stop "$2" azurite ;;
*) die "usage: azurite.sh install | start DIR PORT | stop PORT" ;;
esac
