"""Caches and prefetch change how fast an answer is, never what it is."""
import json
import os
import random
import time

import row_pjdfstest
import row_programs
from harness import test
from world import drop_caches, wait_until

SMALL = "memory=128M,arc=16M,prefetch=8M"
OFF = "memory=128M,arc=off,prefetch=off,hybrid_io=off"


@test("git and sqlite with 16 MiB of records in memory; the long form has all programs", limit=300, long_limit=14400)
def small(t):
    t.world.mount_words = ["-o", SMALL]
    row_programs.one_after_the_other(t, (row_programs.git, row_programs.sqlite))


@test("sqlite and fsx with nothing kept and nothing fetched ahead; the long form has all", limit=300, long_limit=14400)
def off(t):
    t.world.mount_words = ["-o", OFF]
    row_programs.one_after_the_other(t, (row_programs.sqlite, row_programs.fsx))


@test("pjdfstest with nothing kept and nothing fetched ahead", limit=300)
def pjdfstest(t):
    t.world.mount_words = ["-o", OFF]
    row_pjdfstest.all(t)


@test("what is kept and fetched ahead stays within what a mount was given", needs="pool")
def bounds(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    path, size = os.path.join(pool.mnt, "file"), 48 << 20
    content = random.Random(3).randbytes(size)
    with open(path, "wb") as file:
        file.write(content)

    def read(*options):
        """Reads it once in order and once here and there, cold: what was fetched ahead, and what is kept."""
        pool.remount_cold(*options)
        with open(path, "rb", buffering=0) as file:
            t.check(file.read(size) == content, f"{options}: wrong bytes in order")
            drop_caches()
            for at in random.Random(4).sample(range(0, size, 128 << 10), 100):
                t.check(os.pread(file.fileno(), 4096, at) == content[at:at + 4096], f"{options}: wrong bytes at {at}")
        counters = pool.counters()
        ahead = sum(n for name, n in counters.items() if name.endswith("prefetch_issued_bytes"))
        return ahead, counters["arc.arc"], counters["arc.arc_max"]

    ahead, kept, _ = read()
    t.check(ahead > size / 2 and kept > 0, f"{ahead} bytes were fetched ahead, {kept} are kept")
    ahead, kept, most = read("-o", "arc=16M")
    t.check(ahead > size / 2 and most == 16 << 20 and 0 < kept <= most, f"{ahead} ahead, {kept} of {most} kept")
    ahead, kept, most = read("-o", "arc=off")
    t.check((ahead, kept, most) == (0, 0, 0), f"{ahead} ahead, {kept} of {most} kept with arc=off")
    ahead, kept, _ = read("-o", "prefetch=off")
    t.check(ahead == 0 and kept > 0, f"{ahead} ahead, {kept} kept with prefetch=off")


MIB = 1 << 20


class Cached:
    """A pool with a cache vdev, and files on it whose bytes are known. Little is kept in memory."""

    def __init__(self, t, pool):
        self.t, self.pool = t, pool
        rng = random.Random(7)
        self.files = {"large": rng.randbytes(48 * MIB)}
        self.files |= {f"small{n}": rng.randbytes(20_000) for n in range(50)}
        self.size = sum(map(len, self.files.values()))
        pool.mount()
        for name, content in self.files.items():
            with open(os.path.join(pool.mnt, name), "wb") as file:
                file.write(content)

    def remount(self):
        self.pool.remount_cold("-o", "arc=16M")

    def fetched(self):
        """Bytes that GETs have brought since the pool was opened."""
        raw = json.loads(self.pool.host.tarn("stats", "--raw", self.pool.name, quiet=True).stdout)
        operations = [vdev["stats"]["operations"] for vdev in raw["pool"]["vdevs"]]
        return sum(stats["bytes"] for each in operations for name, stats in each.items() if name.lower() == "get")

    def read(self):
        """Reads every file and gives how many bytes GETs brought meanwhile."""
        drop_caches()
        before = self.fetched()
        for name, content in self.files.items():
            with open(os.path.join(self.pool.mnt, name), "rb") as file:
                self.t.check(file.read() == content, f"{name}: wrong bytes")
        return self.fetched() - before

    def read_until_there(self):
        """Reads until the cache has everything: it takes what it can keep up with, and what is in memory is not offered."""
        for _ in range(20):
            if self.read() < MIB:
                return
            time.sleep(0.5)
            self.remount()
        self.t.check(False, f"the cache does not fill: {self.status()}")

    def status(self):
        return self.pool.host.json("pool", "status", self.pool.name)[0]["caches"]

    def becomes(self, state, limit=60):
        wait_until(lambda: self.status()[0]["state"] == state, limit, f"the cache's being {state}")


@test("a cache vdev gives what was read without GETs, after a restart and a kill; it can vanish", limit=300, needs="pool")
def vdev(t):
    pool = t.world.pool(buckets=3, options=["-O", "compression=off", "-o", "secondarycache=all"])
    tarn, place = pool.host.tarn, t.world.path("nvme")
    os.makedirs(place)
    cached = Cached(t, pool)
    cached.remount()
    t.check(cached.read() > 0.9 * cached.size, "without a cache, what is not in memory is fetched")
    tarn("pool", "add", "--size", "256M", pool.name, "cache", place)
    t.check([c["state"] for c in cached.status()] == ["ONLINE"], f"{cached.status()}")
    cached.remount()
    cached.read_until_there()
    cached.remount()
    t.check(cached.status()[0]["state"] == "ONLINE", f"{cached.status()}")
    fetched = cached.read()
    t.check(fetched < MIB, f"{fetched} bytes were fetched after a restart")
    hit = cached.status()[0]["read"]["bytes"]
    t.check(hit > 0.9 * cached.size, f"{hit} bytes came from the cache")
    pool.kill()
    pool.mount("-o", "arc=16M")
    fetched = cached.read()
    t.check(fetched < MIB, f"{fetched} bytes were fetched after a kill")
    lines = [line.strip() for line in tarn("pool", "status", pool.name).stdout.splitlines()]
    t.check(lines[lines.index("cache") + 1].startswith(place) if "cache" in lines else False, f"{lines}")

    os.rename(place, place + ".away")
    cached.read()
    cached.becomes("UNAVAIL")
    t.check(cached.read() > 0.5 * cached.size, "a cache that is not there was read from")
    pool.umount()
    pool.mount("-o", "arc=16M")
    t.check(cached.status()[0]["state"] == "UNAVAIL", f"{cached.status()}")
    cached.read()
    os.rename(place + ".away", place)
    cached.remount()
    fetched = cached.read()
    t.check(fetched < MIB, f"{fetched} bytes were fetched when the cache was back")
    tarn("pool", "remove", pool.name, place)
    t.check(os.listdir(place) == [] and cached.status() == [], f"{os.listdir(place)} is left of {cached.status()}")
    t.check(cached.read() > 0.5 * cached.size, "a cache that was taken away was read from")


@test("a cache vdev on a full disk is put aside, and nobody notices", limit=240, needs="pool")
def vdev_full(t):
    pool = t.world.pool(buckets=3, options=["-O", "compression=off", "-o", "secondarycache=all"])
    place = t.world.path("nvme")
    os.makedirs(place)
    t.run("mount", "-t", "tmpfs", "-o", "size=200m", "tarn-test", place)
    os.makedirs(os.path.join(place, "cache"))
    cached = Cached(t, pool)
    cached.remount()
    pool.host.tarn("pool", "add", "--size", "128M", pool.name, "cache", os.path.join(place, "cache"))
    with open(os.path.join(place, "ballast"), "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536):
                pass
        except OSError:
            pass
    cached.read()
    cached.becomes("FAULTED")
    t.check(cached.status()[0]["write_errors"] > 0, f"{cached.status()}")
    cached.read()
    os.unlink(os.path.join(place, "ballast"))
    cached.remount()
    cached.becomes("ONLINE")
    cached.read_until_there()
    pool.umount()
