#!/bin/sh
# Go in .tools/go, where the machine has none or one that is too old for versitygw and cannot fetch a newer one by
# itself (Debian 12's). It comes from Go's module proxy, which is where newer Go fetches its successors from.
set -eu
. "$(dirname "$0")/lib.sh"

version=1.26.8
sha256=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7

# From 1.21 on Go fetches the version that a module asks for.
new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" version | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])'
}

new_enough go && exit 0
new_enough "$tools/go/bin/go" && exit 0
[ "$(uname -m)" = x86_64 ] || die "install Go 1.21 or later: versitygw is built with it"
echo "fetching Go $version: versitygw, the S3 server of the tests, is built with it"
name=golang.org/toolchain@v0.0.1-go$version.linux-amd64
zip=$tools/go.zip
curl --silent --show-error --fail --location --output "$zip" \
    "https://proxy.golang.org/golang.org/toolchain/@v/v0.0.1-go$version.linux-amd64.zip"
echo "$sha256  $zip" | sha256sum --check --quiet || die "what the proxy sent is not Go $version"
rm -rf "$tools/go" "$tools/golang.org"
python3 -c "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])" "$zip" "$tools"
mv "$tools/$name" "$tools/go"
rm -rf "$tools/golang.org" "$zip"
chmod +x "$tools"/go/bin/* "$tools"/go/pkg/tool/*/*
