# Shared by the install scripts. They may be run again at any time, say what they install and why, and say nothing
# when it is there already. What is not a package of the distribution goes into .tools of this checkout.
# shellcheck shell=sh

repo=$(cd "$(dirname "$0")/../.." && pwd)
tools=$repo/.tools
mkdir -p "$tools/bin"

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# need COMMAND PACKAGE WHY: installs PACKAGE where COMMAND is missing. A command given as a path is looked for there.
wanted=""
need() {
    case $1 in
    /*) [ -e "$1" ] && return 0 ;;
    *) command -v "$1" >/dev/null 2>&1 && return 0 ;;
    esac
    echo "installing $2: $3"
    wanted="$wanted $2"
}

# Installs what need() collected, in one go.
install_wanted() {
    [ -n "$wanted" ] || return 0
    command -v apt-get >/dev/null || die "no apt-get here: install by hand:$wanted"
    [ "$(id -u)" = 0 ] || die "only root can install$wanted"
    log=$tools/apt.log
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get update && apt-get install -y --no-install-recommends $wanted; } >"$log" 2>&1 || {
        tail -20 "$log" >&2
        die "cannot install$wanted"
    }
    wanted=""
}

# cargo_tool NAME VERSION WHY: builds a crate's program into .tools/bin.
cargo_tool() {
    mark=$tools/bin/.$1-$2
    [ -x "$tools/bin/$1" ] && [ -e "$mark" ] && return 0
    echo "building $1 $2: $3"
    log=$tools/$1.log
    cargo install --quiet --locked --force --root "$tools" "$1@$2" >"$log" 2>&1 || {
        tail -20 "$log" >&2
        die "cannot build $1 $2"
    }
    touch "$mark"
}

# go_server NAME SCRIPT: has tests/servers/SCRIPT build the server NAME, with a Go that can.
go_server() {
    [ -x "$tools/bin/$1" ] && return 0
    sh "$repo/tests/install/go.sh"
    # Before an older Go of the distribution's.
    [ ! -x "$tools/go/bin/go" ] || export PATH="$tools/go/bin:$PATH"
    # GOTOOLCHAIN=local, where somebody set it, would keep an older Go from fetching the one it needs.
    export GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false
    sh "$repo/tests/servers/$2" install
}
