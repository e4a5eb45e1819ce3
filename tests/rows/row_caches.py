"""Caches and prefetch change how fast an answer is, never what it is."""
import os
import random

import row_pjdfstest
import row_programs
from harness import test
from world import drop_caches

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
