"""Rows of small files: a source tree unpacked, read and removed, and what that takes in requests."""
import contextlib
import json
import os
import subprocess
import time

import smallfiles
from harness import REPO
from nothing import Nothing
from processor import settle
from stores import requests
from systems import Ext4, Tarn
from work import shell, timed
from world import drop_caches

GIB = 1 << 30


def untar(system, archive, folder="small"):
    """Seconds until an archive is unpacked and in the store."""
    path = os.path.join(system.mnt, folder)
    start = shell(f"mkdir -p {path} && tar -xf {archive} -C {path} --no-same-owner && (sync {path} || true)")
    return start + waited(system)


def waited(system):
    """Seconds until all is in the store of a system whose fsync does not wait for it."""
    begin = time.monotonic()
    system.settled()
    return time.monotonic() - begin


def cat(system, folder="small"):
    """Seconds of finding every file and reading it."""
    return shell(f"find {system.mnt}/{folder} -type f -print0 | xargs -0 cat > /dev/null")


def remove(system, folder="small"):
    return timed(["rm", "-rf", os.path.join(system.mnt, folder)])


class Small:
    """5,000 files, by everybody."""

    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        self.archive = os.path.join(bench.root, "small.tar")
        smallfiles.make(self.archive)
        self.pools = {
            "local": Tarn(bench.pool("small-local", 12)),
            "s3": Tarn(bench.pool("small-s3", bench.server.urls("small"))),
        }
        self.ext4 = None if bench.floors else Ext4(bench.root, 4 * GIB)

    def round(self, number):
        turns = [lambda kind=kind, pool=pool: self.tarn(kind, pool) for kind, pool in self.pools.items()]
        if self.ext4:
            turns += [lambda: self.peer(self.ext4, "local"), self.nothing]
        turns += [lambda peer=peer: self.peer(peer, "s3") for peer in self.bench.peers()]
        for turn in self.bench.turned(turns, number):
            settle()
            turn()

    def tarn(self, kind, pool):
        self.results.add(f"{kind}-small-write", "tarn", untar(pool, self.archive))
        pool.remount_cold()
        self.results.add(f"{kind}-small-read", "tarn", cat(pool))
        took = remove(pool)
        if not self.bench.floors:
            self.results.add(f"{kind}-small-rm", "tarn", took)

    def nothing(self):
        with contextlib.closing(Nothing(self.bench.root)) as nothing:
            if nothing.mount():
                figures = {"write": untar(nothing, self.archive)}
                drop_caches()
                figures |= {"read": cat(nothing), "rm": remove(nothing)}
                for what, figure in figures.items():
                    for kind in self.pools:
                        self.results.add(f"{kind}-small-{what}", "nothing", figure)

    def peer(self, peer, kind):
        steps = [
            (f"{kind}-small-write", lambda: untar(peer, self.archive)),
            (f"{kind}-small-read", lambda: cat(peer)),
            (f"{kind}-small-rm", lambda: remove(peer)),
        ]
        self.bench.measured(peer, steps, cold=[f"{kind}-small-read"], drop=["small"])

    def close(self):
        for pool in self.pools.values():
            self.bench.finish(pool)
        if self.ext4:
            self.ext4.close()


class Tree:
    """70,000 files, by Tarn and by ext4: peers that take a request or more for each file would take many minutes."""

    WHY_NOT = "not measured: see the 5,000 files, and multiply"

    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        share = bench.tree / 70_000
        self.archive = os.path.join(bench.root, "tree.tar")
        smallfiles.make(self.archive, bench.tree, max(1, int(4600 * share)), int(900_000_000 * share))
        self.source = os.path.join(bench.root, "tree-source")
        os.makedirs(self.source)
        shell(f"tar -xf {self.archive} -C {self.source} --no-same-owner")
        self.pool = Tarn(bench.pool("tree", bench.server.urls("tree")))
        self.ext4 = Ext4(bench.root, 4 * GIB)
        for row in ("tree-untar", "tree-rsync-same", "tree-rsync-changed", "tree-rm"):
            for name in bench.chosen:
                self.results.blank(row, name, self.WHY_NOT)
            if bench.tree < 70_000:
                self.results.unjudged[row] = f"{bench.tree} files only"

    def round(self, number):
        for system in self.bench.turned([self.pool, self.ext4], number):
            settle()
            self.one(system, number)
        with contextlib.closing(Nothing(self.bench.root)) as nothing:
            if nothing.mount():
                self.results.add("tree-untar", "nothing", untar(nothing, self.archive, "tree"))

    def one(self, system, number):
        if system is self.ext4:
            system.mount()
        add = lambda row, value: self.results.add(row, system.name, value)  # noqa: E731
        add("tree-untar", untar(system, self.archive, "tree"))
        add("tree-rsync-same", self.rsync(system))
        self.change(number)
        add("tree-rsync-changed", self.rsync(system))
        add("tree-rm", remove(system, "tree"))
        if system is self.ext4:
            system.unmount()

    def rsync(self, system):
        target = os.path.join(system.mnt, "tree")
        return shell(f"rsync -a --no-owner --no-group {self.source}/ {target}/ && sync {target}")

    def change(self, number):
        """Adds a line to one file in a hundred."""
        count = 0
        for folder, folders, names in os.walk(self.source):
            folders.sort()
            for name in sorted(names):
                count += 1
                if count % 100 == 0:
                    with open(os.path.join(folder, name), "a") as file:
                        file.write(f"// changed in round {number}\n")

    def close(self):
        self.bench.finish(self.pool)
        self.ext4.close()
        os.unlink(self.archive)
        subprocess.run(["rm", "-rf", self.source], check=True)


class Requests:
    """What 5,000 files take in requests, by a proxy that counts; once, in the first round."""

    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        self.archive = os.path.join(bench.root, "small.tar")
        if not os.path.exists(self.archive):
            smallfiles.make(self.archive)
        with open(os.path.join(REPO, "crates/tarn/prices.json")) as file:
            self.prices = json.load(file)["s3"]
        # A pool of its own: its buckets are reached by the proxy alone.
        self.store = bench.slow(bucket=0)
        self.pool = Tarn(bench.pool("requests", self.store.urls("requests")))

    def round(self, number):
        if number > 0:
            return
        self.counted(self.pool, self.store)
        for peer in self.bench.peers(bucket=0):
            self.counted(peer, getattr(peer, "store", None))

    def counted(self, system, store):
        works = {
            "requests-untar": lambda: untar(system, self.archive), "requests-read": lambda: cat(system),
            "requests-rm": lambda: remove(system),
        }

        def step(row):
            """The work, between a mount and an unmount, and what the proxy has seen of it."""
            store.forget()
            if not os.path.ismount(system.mnt):
                drop_caches()
                system.mount()
            works[row]()
            system.unmount()
            methods, _, _ = requests(store.counts())
            shown = ", ".join(f"{count} {method}" for method, count in sorted(methods.items()))
            self.results.note(row, system.name, f"{shown}; ${self.price(methods):.4f}")
            return sum(methods.values())

        if system is self.pool:
            for row in works:
                self.results.add(row, "tarn", step(row))
        else:
            self.bench.measured(system, [(row, lambda row=row: step(row)) for row in works])

    def price(self, methods):
        """At the list of S3, by kind of request; what is left of POST is part of an upload."""
        prices = {
            "PUT": "put_1000", "POST": "put_1000", "GET": "get_1000", "HEAD": "head_1000", "LIST": "list_1000",
            "DELETE": "delete_1000", "DELETE-MANY": "delete_1000",
        }
        return sum(count * self.prices[prices[method]] / 1000 for method, count in methods.items() if method in prices)

    def close(self):
        self.bench.finish(self.pool)
