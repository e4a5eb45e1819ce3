"""Rows of streams: large files, from servers that share the cores with their clients."""
import contextlib
import os
import tempfile

import yardstick
from nothing import Nothing, mounted
from processor import Meter, settle
from systems import Tarn
from work import MIB, read_files, timed, write_files

FOUR = [f"four{n}" for n in range(4)]
READS = (("s3-read-buffered", False), ("s3-read-direct", True))


class Streams:
    """One file, and four, on S3 by everybody; one file on local buckets."""

    def __init__(self, bench):
        self.bench, self.results, self.size = bench, bench.results, bench.size
        self.server, self.pool = bench.server, Tarn(bench.pool("s3", bench.server.urls()))
        self.local = Tarn(bench.pool("local", 12))

    def round(self, number):
        turns = [self.tarn_and_raw, *(lambda peer=peer: self.peer(peer) for peer in self.bench.peers())]
        for turn in self.bench.turned(turns, number):
            turn()
        self.large_on_local()

    def tarn_and_raw(self):
        for name in ("large", *FOUR):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.pool.mnt, name))
        self.write("s3-write", ["large"])
        for row, direct in READS:
            self.read(row, ["large"], direct)
        if self.bench.floors:
            return
        os.unlink(os.path.join(self.pool.mnt, "large"))
        self.write("s3-write-four", FOUR)
        self.read("s3-read-four", FOUR, False)

    def write(self, row, names):
        settle()
        self.raw(row, yardstick.put(self.server, self.size))
        self.results.moved(row, "tarn", write_files(self.pool, names, self.size, self.bench.block))
        with contextlib.closing(Nothing(self.bench.root)) as nothing:
            if nothing.mount():
                moved = write_files(nothing, names, self.size, self.bench.block)
                self.results.moved(row, "nothing", moved)

    def read(self, row, names, direct):
        settle()
        self.raw(row, yardstick.get(self.server, yardstick.objects(self.server, MIB, "tarn")))
        self.bench.remount_cold(self.pool)
        self.results.moved(row, "tarn", read_files(self.pool.mnt, names, self.size, direct))
        if len(names) == 1:
            with mounted(self.bench.root, self.size) as file:
                if file:
                    moved = read_files(os.path.dirname(file), [os.path.basename(file)], self.size, direct)
                    self.results.moved(row, "nothing", moved)

    def raw(self, row, ways):
        """What the raw store reaches by each way, and what the client that knows nothing of Tarn does."""
        for way, moved in ways.items():
            self.results.moved(row, "raw", moved, way)
            if way.startswith("rawstore"):
                self.results.moved(row, "plain", moved, way)

    def peer(self, peer):
        """All rows of one peer, which then deletes what it wrote: there is not room for everybody's files at once."""
        steps = [("s3-write", lambda: write_files(peer, ["large"], self.size, self.bench.block))]
        for row, direct in READS:
            steps.append((row, lambda direct=direct: read_files(peer.mnt, ["large"], self.size, direct)))
        steps.append(("s3-write-four", lambda: write_files(peer, FOUR, self.size, self.bench.block)))
        steps.append(("s3-read-four", lambda: read_files(peer.mnt, FOUR, self.size, False)))
        self.bench.measured(peer, steps, cold=[row for row, _ in steps if "read" in row], drop=("large", *FOUR))

    def large_on_local(self):
        path = os.path.join(self.local.mnt, "large")
        if not os.path.exists(path):
            write_files(self.local, ["large"], self.size, self.bench.block)
        files = [os.path.join(d, n) for v in self.local.pool.vdevs for d, _, names in os.walk(v) for n in names]
        files = [f for f in files if os.stat(f).st_size >= MIB]
        total = sum(os.stat(f).st_size for f in files)
        with open(os.devnull, "wb") as null, tempfile.TemporaryFile() as names:
            names.write("\0".join(files).encode())
            names.seek(0)
            meter = Meter()
            timed(["xargs", "-0", "cat"], stdin=names, stdout=null)
            self.results.moved("local-read", "raw", meter.moved(total), "cat")
        self.bench.remount_cold(self.local)
        self.results.moved("local-read", "tarn", read_files(self.local.mnt, ["large"], self.size, False))

    def close(self):
        self.bench.finish(self.pool)
        self.bench.finish(self.local)


class Capped:
    """Streams from twelve buckets that let through less than the cores can move."""

    RATES = (60, 100)
    WAYS = (16, 24, 48)

    def __init__(self, bench):
        self.bench, self.results, self.size = bench, bench.results, bench.size
        self.limits = {rate: {"first_byte_ms": 20, "bucket": rate * 1e6} for rate in self.RATES}
        self.stores = {rate: bench.slow(**limits) for rate, limits in self.limits.items()}
        self.pools = {}
        for rate, store in self.stores.items():
            pool = Tarn(bench.pool(f"capped{rate}", store.urls(f"capped{rate}")))
            write_files(pool, ["large"], self.size, bench.block)
            self.pools[rate] = pool

    def round(self, number):
        for rate in self.bench.turned(self.RATES, number):
            for how, direct in self.bench.turned((("buffered", False), ("direct", True)), number):
                self.tarn_and_raw(f"capped-{rate}-{how}", rate, direct)
            for peer in self.bench.peers(**self.limits[rate]):
                self.peer(peer, rate)

    def tarn_and_raw(self, row, rate, direct):
        settle()
        objects = yardstick.objects(self.bench.server, MIB, f"capped{rate}")
        for way, moved in yardstick.get(self.stores[rate], objects, self.WAYS).items():
            self.results.moved(row, "raw", moved, way)
        self.bench.remount_cold(self.pools[rate])
        self.results.moved(row, "tarn", read_files(self.pools[rate].mnt, ["large"], self.size, direct))
        self.results.add(row, "cap", 12 * rate * 1e6)

    def peer(self, peer, rate):
        # One bucket is slow: an eighth of the file tells as much.
        size = self.size // 8
        rows = {how: f"capped-{rate}-{how}" for how in ("buffered", "direct")}
        steps = [(None, lambda: write_files(peer, ["large"], size, self.bench.block))]
        for how, row in rows.items():
            steps.append((row, lambda how=how: read_files(peer.mnt, ["large"], size, how == "direct")))
        self.bench.measured(peer, steps, cold=rows.values(), drop=["large"])

    def close(self):
        for pool in self.pools.values():
            self.bench.finish(pool)


class Sustained:
    """Minutes of reading from twelve buckets of 40 MB/s; once, in the first round."""

    RATE = 40e6

    def __init__(self, bench):
        self.bench, self.results, self.size = bench, bench.results, bench.size
        self.store = bench.slow(first_byte_ms=20, connection=60e6, bucket=self.RATE)
        # Too little to keep the file, and enough for what is on its way.
        memory = f"memory={max(self.size // MIB // 2, 256)}M"
        self.pool = Tarn(bench.pool("sustained", self.store.urls("sustained"), "-o", memory), "-o", memory)
        write_files(self.pool, ["large"], self.size, bench.block)

    def round(self, number):
        if number > 0:
            return
        self.bench.remount_cold(self.pool)
        self.store.forget()
        meter, moved = Meter(), 0
        while meter.seconds() < self.bench.sustained:
            read_files(self.pool.mnt, ["large"], self.size, True)
            moved += self.size
        self.results.moved("sustained-read", "tarn", meter.moved(moved))
        self.results.add("sustained-read", "cap", 12 * self.RATE)
        given = [methods.get("GET", {"down": 0})["down"] for methods in self.store.counts().values()]
        self.results.add("sustained-balance", "tarn", min(given) / (sum(given) / len(given)))

    def close(self):
        self.bench.finish(self.pool)
