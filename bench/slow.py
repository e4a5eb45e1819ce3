"""Rows of a store that is far away: 20 ms to the first byte, and limits of connections and buckets."""
import mmap
import os
import random
import statistics
import time

import yardstick
from processor import Meter
from stores import go_program
from systems import Tarn
from work import MIB, read_files, read_whole, write_files

FIRST_BYTE = 20
CONNECTION, BUCKET = 60e6, 40e6
BUCKETS = (1, 2, 4, 8, 12)
# How long a stream of a row takes at its limit.
SECONDS = 6
RECORD = 128 << 10
# Of the rows without limits on buckets.
LARGE = 64 * MIB
# Of the raw store, at once.
PUTS = 48
# Of the file that is overwritten here and there, and how often; one by one, so many tell.
OVERWRITTEN, OVERWRITES, ONE_BY_ONE = 256 * MIB, 2000, 50
# Of the files that are read in shuffled order, and how many readers share them.
SHUFFLED, READERS = 256 << 10, 4


class Slowness:
    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        self.capped = bench.slow(first_byte_ms=FIRST_BYTE, connection=CONNECTION, bucket=BUCKET)
        self.far = bench.slow(first_byte_ms=FIRST_BYTE, connection=CONNECTION)
        self.pools = {}
        for buckets in BUCKETS:
            pool = Tarn(bench.pool(f"scale{buckets}", self.capped.urls(f"scale{buckets}", buckets)))
            # As much as there is room for, and no less than shows a speed.
            size = min(int(BUCKET * SECONDS * buckets) // MIB * MIB, max(bench.size, 128 * MIB))
            write_files(pool, ["large"], size, bench.block)
            self.pools[buckets] = (pool, size)
        self.pool = Tarn(bench.pool("far", self.far.urls("far")))
        self.size = min(bench.size, 8 * LARGE)
        write_files(self.pool, ["large"], self.size, bench.block)
        # Now: what is written and freed later is not there for long.
        self.objects = yardstick.objects(bench.server, MIB, "far")
        # It has its own file: what the other rows read should lie as it was written.
        self.overwritten = min(self.size, OVERWRITTEN)
        write_files(self.pool, ["overwritten"], self.overwritten, bench.block)
        self.without = Tarn(self.pool.pool, "-o", "prefetch=off")
        self.set = os.path.join(self.pool.mnt, "set")
        os.mkdir(self.set)
        self.shuffled_names = [f"file{n}" for n in range(self.size // 2 // SHUFFLED)]
        for n, name in enumerate(self.shuffled_names):
            with open(os.path.join(self.set, name), "wb") as file:
                file.write(memoryview(bench.block)[n % 16 * SHUFFLED:][:SHUFFLED])

    def round(self, number):
        for buckets in self.bench.turned(BUCKETS, number):
            pool, size = self.pools[buckets]
            pool.remount_cold()
            self.results.moved(f"scale-{buckets}", "tarn", read_files(pool.mnt, ["large"], size, True))
            self.results.add(f"scale-{buckets}", "cap", buckets * BUCKET)
        for peer in self.bench.peers(first_byte_ms=FIRST_BYTE, connection=CONNECTION, bucket=BUCKET):
            self.peer(peer)
        rows = (self.prefetch, self.shuffled, self.batching, self.files, self.overwrite, self.large, self.fsync)
        for row in self.bench.turned(rows, number):
            row()

    def peer(self, peer):
        """A peer has one bucket."""
        size = self.pools[1][1]
        steps = [
            (None, lambda: write_files(peer, ["large"], size, self.bench.block)),
            ("scale-1", lambda: read_files(peer.mnt, ["large"], size, True)),
        ]
        self.bench.measured(peer, steps, cold=["scale-1"], drop=["large"])

    def prefetch(self):
        """The same calls in the same order, with prefetch and without."""
        self.pool.remount_cold()
        self.results.moved("slow-prefetch", "tarn", read_files(self.pool.mnt, ["large"], self.size, True, "128K"))
        self.without.remount_cold()
        path, block = os.path.join(self.without.mnt, "large"), 128 << 10
        # A shorter piece of the file: it is slow.
        size = min(self.size, 16 * MIB)
        with mmap.mmap(-1, block) as room:
            meter = Meter()
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            for at in range(0, size, block):
                os.preadv(fd, [room], at)
            os.close(fd)
            self.results.moved("slow-prefetch", "single", meter.moved(size))

    def shuffled(self):
        """Each file once. Without prefetch only some: it is slow."""
        paths = [os.path.join(self.set, name) for name in self.shuffled_names]
        random.shuffle(paths)
        for system, name, some in ((self.pool, "tarn", paths), (self.without, "single", paths[: len(paths) // 4])):
            system.remount_cold()
            self.results.moved("slow-shuffled", name, read_whole(some, SHUFFLED, READERS))

    def batching(self):
        """Writes of one file, all synced at the end, and each."""
        path, data = os.path.join(self.pool.mnt, "batch"), self.bench.block[:4096]
        for sync, count, system in ((False, 50_000, "tarn"), (True, 50, "single")):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            start = time.monotonic()
            for n in range(count):
                os.pwrite(fd, data, n * len(data))
                if sync:
                    os.fsync(fd)
            os.fsync(fd)
            self.results.add("slow-batching", system, count / (time.monotonic() - start))
            os.close(fd)
        os.unlink(path)

    def files(self):
        """Small files, all synced at the end, and each."""
        def write(name, sync):
            fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT)
            os.write(fd, data)
            if sync:
                os.fsync(fd)
            os.close(fd)

        folder, data = os.path.join(self.pool.mnt, "files"), self.bench.block[:4096]
        os.makedirs(folder, exist_ok=True)
        for sync, count, system in ((False, 20_000, "tarn"), (True, 50, "single")):
            start = time.monotonic()
            for n in range(count):
                write(f"{system}{n}", sync)
            fd = os.open(folder, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            self.results.add("slow-files", system, count / (time.monotonic() - start))
        for entry in os.scandir(folder):
            os.unlink(entry.path)

    def overwrite(self):
        """Writes into a cold file, an fsync after the last; and requests for the records that they lie in."""
        self.pool.remount_cold()
        data, blocks = self.bench.block[:4096], self.overwritten // 4096
        start = time.monotonic()
        fd = os.open(os.path.join(self.pool.mnt, "overwritten"), os.O_WRONLY)
        for _ in range(OVERWRITES):
            os.pwrite(fd, data, random.randrange(blocks) * 4096)
        os.fsync(fd)
        os.close(fd)
        self.results.add("slow-overwrite", "tarn", OVERWRITES / (time.monotonic() - start))
        ways = yardstick.parts(self.far, self.objects, RECORD, ONE_BY_ONE, 1, OVERWRITES)
        for way, moved in ways.items():
            self.results.add("slow-overwrite", "single", moved.speed / RECORD, way=way)

    def large(self):
        """Calls of 64 MiB, and a client that asks for 1 MiB after 1 MiB."""
        self.pool.remount_cold()
        self.results.moved("slow-large-read", "tarn", read_files(self.pool.mnt, ["large"], self.size, True, "64M"))
        path = os.path.join(self.pool.mnt, "written")
        with mmap.mmap(-1, LARGE) as room:
            room.write(self.bench.block[:LARGE].ljust(LARGE, b"\1"))
            meter = Meter()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            for at in range(0, self.size, LARGE):
                os.pwrite(fd, room, at)
            os.fsync(fd)
            os.close(fd)
            self.results.moved("slow-large-write", "tarn", meter.moved(self.size // LARGE * LARGE or LARGE))
        os.unlink(path)
        objects, names = 64, self.far.names
        binary = go_program("rawstore")
        put = yardstick.run(binary, ["put", self.far.endpoint, 1, objects, MIB, *names])
        keys = [f"{names[n % len(names)]}/raw/{n % 256:02x}/object-{n}" for n in range(objects)]
        self.results.moved("slow-large-read", "single", yardstick.run(binary, ["get", self.far.endpoint, 1], keys))
        self.results.moved("slow-large-write", "single", put)
        yardstick.forget(self.far)
        words = ["put", self.far.endpoint, PUTS, max(PUTS, self.size // yardstick.OBJECT), yardstick.OBJECT, *names]
        self.results.moved("slow-large-write", "raw", yardstick.run(binary, words))
        yardstick.forget(self.far)

    def fsync(self, count=30):
        """The median of writes of 4 KiB with fsync, in medians of a plain client's PUT of as much."""
        took, path = [], os.path.join(self.pool.mnt, "synced")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        for n in range(count):
            start = time.monotonic()
            os.pwrite(fd, self.bench.block[:4096], n * 4096)
            os.fsync(fd)
            took.append(time.monotonic() - start)
        os.close(fd)
        os.unlink(path)
        words = ["put", self.far.endpoint, 1, count, 4096, *self.far.names]
        trip = 4096 / yardstick.run(go_program("rawstore"), words).speed
        yardstick.forget(self.far)
        middle = statistics.median(took)
        self.results.add("slow-fsync", "tarn", middle / trip)
        self.results.note("slow-fsync", "tarn", f"{middle * 1000:.1f} ms, where a PUT takes {trip * 1000:.1f} ms")

    def close(self):
        for pool, _ in self.pools.values():
            self.bench.finish(pool)
        self.bench.finish(self.pool)
