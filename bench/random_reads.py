"""Rows of random reads, by fio, and of overwrites."""
import json
import os
import random
import subprocess

import nothing
import yardstick
from processor import settle
from systems import Tarn
from work import MIB, write_files

FILE = "random"
# Overwrites have a file of their own: they leave its records in many places, and what is read should lie as it was written.
OVERWRITTEN = "overwritten"
SIZES, DEPTHS = (4096, 131072), (1, 32)
OVERWRITES = 256


def fio(path, size, block, depth, reads, limit):
    """Reads a second at random places, none twice, by `depth` threads with a part of the reads each."""
    each = max(1, min(reads, size // block) // depth)
    words = [
        "fio", "--name=reads", f"--filename={path}", "--rw=randread", f"--bs={block}", f"--size={size}", "--direct=1",
        "--ioengine=psync", "--thread", f"--numjobs={depth}", f"--number_ios={each}", "--norandommap=0",
        "--randrepeat=0", "--group_reporting", "--output-format=json", "--fallocate=none", "--invalidate=0",
        f"--runtime={limit}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit + 60)
    if done.returncode:
        raise OSError((done.stderr or done.stdout).strip()[:200])
    text = done.stdout[done.stdout.index("{"):]
    return json.loads(text)["jobs"][0]["read"]["iops"]


class Far:
    """Random reads from a store across a network."""

    NAME, LIMITS, LARGEST = "random-far", {"first_byte_ms": 20, "connection": 60e6, "bucket": 100e6}, 256 * MIB
    # By depth: enough to tell, and few enough that most fall on what no earlier one has fetched.
    READS = {1: 200, 32: 3200}

    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        self.size = min(bench.size, self.LARGEST)
        self.store = bench.slow(**self.LIMITS) if self.LIMITS else bench.server
        self.pool = Tarn(bench.pool(self.NAME, self.store.urls(self.NAME)))
        write_files(self.pool, [FILE], self.size, bench.block)
        # Now: what is written and freed later is not there for long.
        self.objects = yardstick.objects(bench.server, MIB, self.NAME)

    def round(self, number):
        turns = [self.tarn, lambda: self.raw(number)]
        turns += [lambda peer=peer: self.peer(peer) for peer in self.bench.peers(**self.LIMITS)]
        for turn in self.bench.turned(turns, number):
            settle()
            turn()

    def rows(self):
        return [(f"{self.NAME}-{block}-{depth}", block, depth) for block in SIZES for depth in DEPTHS]

    def reads(self, folder, block, depth):
        return fio(os.path.join(folder, FILE), self.size, block, depth, self.READS[depth], 60)

    def tarn(self):
        for row, block, depth in self.rows():
            self.pool.remount_cold()
            self.results.add(row, "tarn", self.reads(self.pool.mnt, block, depth))

    def raw(self, number):
        """Requests for as much as is read, of the objects in which it lies."""
        for row, block, depth in self.rows():
            ways = yardstick.parts(self.store, self.objects, block, self.READS[depth], depth, number)
            for way, moved in ways.items():
                self.results.add(row, "raw", moved.speed / block, way=way)

    def peer(self, peer):
        steps = [(None, lambda: write_files(peer, [FILE], self.size, self.bench.block))]
        for row, block, depth in self.rows():
            steps.append((row, lambda block=block, depth=depth: self.reads(peer.mnt, block, depth)))
        self.bench.measured(peer, steps, cold=[row for row, *_ in self.rows()], drop=[FILE])

    def close(self):
        self.bench.finish(self.pool)


class Near(Far):
    """The same from a server on this machine; and hot reads, and overwrites."""

    NAME, LIMITS, LARGEST = "random", {}, 1024 * MIB
    READS = {1: 500, 32: 3200}

    def __init__(self, bench):
        super().__init__(bench)
        write_files(self.pool, [OVERWRITTEN], self.size, bench.block)

    def round(self, number):
        super().round(number)
        self.hot()
        self.core()
        self.overwrite(number)

    def hot(self):
        """4 KiB from the ARC: of an eighth of the file, read whole at random places before: what a stream has left behind
        makes room first."""
        path, size = os.path.join(self.pool.mnt, FILE), self.size // 8
        fio(path, size, SIZES[-1], 1, size // SIZES[-1], 60)
        self.results.add("random-hot", "tarn", fio(path, size, 4096, 1, 20_000, 20))
        with nothing.mounted(self.bench.root, size) as file:
            if file:
                self.results.add("random-hot", "nothing", fio(file, size, 4096, 1, 20_000, 20))

    def core(self):
        """The same without FUSE."""
        done = subprocess.run([yardstick.example("hot")], capture_output=True, text=True, check=True, timeout=120)
        rates = json.loads(done.stdout)
        self.results.add("random-hot-core", "tarn", rates["one"])
        self.results.note("random-hot-core", "tarn", f"two threads: {rates['two']:,.0f}/s")

    def overwrite(self, number):
        """Single bytes at random places, each in a record of its own as good as always, and one fsync."""
        chance = random.Random(number)
        self.pool.remount_cold()
        before = self.pool.cost()["sent"]
        fd = os.open(os.path.join(self.pool.mnt, OVERWRITTEN), os.O_WRONLY)
        try:
            for _ in range(OVERWRITES):
                os.pwrite(fd, b"!", chance.randrange(self.size))
            os.fsync(fd)
        finally:
            os.close(fd)
        self.results.add("overwrite-one-byte", "tarn", (self.pool.cost()["sent"] - before) / OVERWRITES)
