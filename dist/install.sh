#!/bin/sh
# Installs Tarn: the program, the helpers of mount(8) and umount(8), manual pages, completions, the systemd unit.
#
#   dist/install.sh [BINARY]            BINARY defaults to target/release/tarn
#
# DESTDIR   prepended to every path, for packages
# PREFIX    default /usr/local
# SBINDIR   where mount(8) looks for helpers, default /sbin
# UNITDIR   systemd units, default /etc/systemd/system (below /usr: PREFIX/lib/systemd/system)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../target/release/tarn}
prefix=${PREFIX:-/usr/local}
sbin=${SBINDIR:-/sbin}
dest=${DESTDIR:-}
case $prefix in
    /usr) unit=${UNITDIR:-/usr/lib/systemd/system} ;;
    *) unit=${UNITDIR:-/etc/systemd/system} ;;
esac

if [ ! -x "$binary" ]; then
    echo "install.sh: $binary is not there: build it with 'cargo build --release'" >&2
    exit 1
fi

say() { echo "  $1"; }

install -Dm755 "$binary" "$dest$prefix/bin/tarn"
say "$prefix/bin/tarn"

mkdir -p "$dest$sbin"
for helper in mount.fuse.tarn umount.fuse.tarn; do
    ln -sf "$prefix/bin/tarn" "$dest$sbin/$helper"
    say "$sbin/$helper"
done

man=$prefix/share/man/man1
mkdir -p "$dest$man"
"$binary" man "$dest$man"
say "$man/tarn*.1"

mkdir -p "$dest$prefix/share/bash-completion/completions" "$dest$prefix/share/zsh/site-functions" \
    "$dest$prefix/share/fish/vendor_completions.d"
"$binary" completions bash > "$dest$prefix/share/bash-completion/completions/tarn"
"$binary" completions zsh > "$dest$prefix/share/zsh/site-functions/_tarn"
"$binary" completions fish > "$dest$prefix/share/fish/vendor_completions.d/tarn.fish"
say "completions for bash, zsh and fish"

mkdir -p "$dest$unit"
sed "s|@BINDIR@|$prefix/bin|" "$here/tarn@.service" > "$dest$unit/tarn@.service"
say "$unit/tarn@.service (systemctl enable --now tarn@POOL)"
