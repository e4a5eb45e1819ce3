# make demo             a pool of 12 buckets, real files in it, verified byte for byte
# make test             everything, in short forms (about half an hour on 2 cores from a clean clone)
# make accept [N]       the long forms, all of them or row N (or fuzz); goes on where it stopped
# make bench            speed against the raw store and against peers; writes docs/PERFORMANCE.md
# make install          the program, its mount helpers, a systemd unit and completions

PREFIX ?= /usr/local
TARN ?= target/release/tarn

.PHONY: all build demo demo-clean test accept bench install uninstall clean

all: build

build:
	cargo build --release --locked

demo:
	@demo/demo.sh

demo-clean:
	@demo/demo.sh clean

test:
	@tests/gate

# `make accept 3`: the number is a goal of its own to make, which must then do nothing.
ifeq ($(firstword $(MAKECMDGOALS)),accept)
ROWS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(ROWS)
$(ROWS): ; @:
endif
accept:
	@tests/gate --accept $(ROWS)

bench:
	@bench/bench.sh

install: $(TARN)
	@PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) dist/install.sh $(TARN)

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/tarn $(DESTDIR)/sbin/mount.fuse.tarn $(DESTDIR)/sbin/umount.fuse.tarn
	rm -f $(DESTDIR)/etc/systemd/system/tarn@.service $(DESTDIR)$(PREFIX)/share/man/man1/tarn*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tarn
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tarn
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tarn.fish

target/release/tarn: build

clean: demo-clean
	cargo clean
	rm -rf .test .accept .tools bench/out
