"""The hot path: what is cached is answered on the thread that the kernel's request woke, without tokio and
SlateDB. Two witnesses: Tarn's own counters, and the kernel's count of how often tokio's threads were run."""
import ctypes
import mmap
import os
import random
import time

from harness import Skipped, test
from world import drop_caches, sync_all, wait_until

FILES = 2000
AT_FDCWD, FORCE_SYNC, BASIC_STATS = -100, 0x2000, 0x7FF
_libc = ctypes.CDLL(None, use_errno=True)


def getattr_of(path, room=ctypes.create_string_buffer(256)):
    """A getattr that the kernel passes on instead of answering by itself."""
    if _libc.statx(AT_FDCWD, os.fsencode(path), FORCE_SYNC, BASIC_STATS, room):
        raise OSError(ctypes.get_errno(), "statx", path)


def threads(pid):
    """Switches to each thread of the daemon so far, by the thread's kind: tokio's, FUSE's, others."""
    found = {"fuse": 0, "tokio": 0}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as file:
                name = file.read().strip()
            with open(f"/proc/{pid}/task/{task}/status") as file:
                switches = sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        except FileNotFoundError:
            continue
        kind = "fuse" if name.startswith("fuse") else "tokio"
        found[kind] += switches
    return found


def is_slow(name):
    """Counters that must stand still: what had to wait, and what SlateDB was asked."""
    last = name.lower()
    return "pending" in last or ("slatedb" in last and "get" in last) or "db_gets" in last


def measure(t, pool, about, work):
    """Runs `work` (which gives the number of requests it made) and holds it to the two witnesses."""
    pid = pool.daemons()[0]
    # `tarn stats` is itself served by tokio, so it stays outside the span.
    before = pool.counters()
    time.sleep(0.3)
    idle_start, idle_time = threads(pid), time.monotonic()
    time.sleep(1.5)
    # A thread that ends takes its count along.
    idle = max(0, threads(pid)["tokio"] - idle_start["tokio"]) / (time.monotonic() - idle_time)
    start, began = threads(pid), time.monotonic()
    count = work()
    took = time.monotonic() - began
    end = threads(pid)
    after = pool.counters()
    tokio = end["tokio"] - start["tokio"] - idle * took
    print(f"{about}: {count} requests in {took:.2f} s, {end['fuse'] - start['fuse']} switches to FUSE threads, "
          f"{tokio:.0f} to others beyond {idle:.0f} a second at rest")
    for name in sorted(after):
        if after[name] != before.get(name, 0) and not name.endswith("_ns"):
            print(f"    {name}: {after[name] - before.get(name, 0):+}")
    t.check(tokio < 0.02 * count + 50, f"{about}: {tokio:.0f} switches to tokio's threads for {count} requests")
    slow = {n: after[n] - before.get(n, 0) for n in after if is_slow(n)}
    t.check(all(d < 0.01 * count + 5 for d in slow.values()), f"{about}: {slow}")
    asked = sum(after[n] - before.get(n, 0) for n in after if ".fuse.operations." in n and n.endswith(".times.count"))
    t.check(asked >= count, f"{about}: the kernel asked {asked} times, and answered the rest by itself")
    t.note(f"{about} {took / count * 1e6:.0f} us")
    return before, after


@test("lookup, getattr and read from memory", limit=120, needs="pool")
def cached(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    folder = os.path.join(pool.mnt, "folder")
    os.mkdir(folder)
    for n in range(FILES):
        with open(os.path.join(folder, f"file{n}"), "wb") as file:
            file.write(b"x" * 100)
    big, size = os.path.join(pool.mnt, "big"), 16 << 20
    with open(big, "wb") as file:
        file.write(os.urandom(size))
    sync_all(pool.mnt)
    time.sleep(2)

    def lookups():
        count = 0
        for _ in range(5):
            # The kernel forgets names and inodes, and asks again.
            drop_caches()
            for n in range(FILES):
                os.lstat(os.path.join(folder, f"file{n}"))
            count += FILES
        return count

    def getattrs():
        for _ in range(5):
            for n in range(FILES):
                getattr_of(os.path.join(folder, f"file{n}"))
        return 5 * FILES

    fd = os.open(big, os.O_RDONLY)
    rng = random.Random(1)

    def reads():
        for _ in range(10_000):
            at = rng.randrange(size // 4096) * 4096
            os.posix_fadvise(fd, at, 4096, os.POSIX_FADV_DONTNEED)
            os.pread(fd, 4096, at)
        return 10_000

    # Random reads: the kernel's readahead must not make one request of many.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    lookups(), getattrs(), reads()
    measure(t, pool, "lookup", lookups)
    measure(t, pool, "getattr", getattrs)
    before, after = measure(t, pool, "read", reads)
    ready = sum(after[n] - before.get(n, 0) for n in after if n.endswith("reads_ready"))
    t.check(ready > 9000, f"only {ready} of 10,000 reads were answered from memory")
    os.close(fd)


def bound_now():
    """How long the kernel may take to wake a processor, in microseconds, by all who have said so."""
    with open("/dev/cpu_dma_latency", "rb") as file:
        return int.from_bytes(file.read(4), "little", signed=True)


@test("processors are kept awake while a mount is busy, and no longer, however it ends", limit=120, needs="pool")
def awake(t):
    try:
        with open("/sys/devices/system/cpu/cpuidle/current_driver") as file:
            driver = file.read().strip()
        at_rest = bound_now()
    except OSError as reason:
        raise Skipped(str(reason)) from None
    if driver != "haltpoll" or at_rest < 1000:
        raise Skipped(f"the driver of idle processors is {driver}, and may take {at_rest} us")
    pool = t.world.pool(buckets=3)

    def least(ends):
        """The lowest bound while the mount is busy."""
        with open(os.path.join(pool.mnt, "file"), "wb"):
            pass
        least, end = at_rest, time.monotonic() + 30
        while not ends(least) and time.monotonic() < end:
            for _ in range(500):
                getattr_of(os.path.join(pool.mnt, "file"))
            least = min(least, bound_now())
        return least

    for word in ("auto", "on"):
        pool.mount("-o", f"awake={word}")
        t.check(least(lambda bound: bound == 0) == 0, f"awake={word}: processors may sleep while it is busy")
        wait_until(lambda: bound_now() == at_rest, 5, "sleep when it is busy no more")
        if word == "on":
            least(lambda bound: bound == 0)
            pool.kill()
            wait_until(lambda: bound_now() == at_rest, 5, "sleep when the process is gone")
        pool.umount()
    pool.mount("-o", "awake=off")
    began = time.monotonic()
    t.check(least(lambda _: time.monotonic() > began + 1) == at_rest, "awake=off: processors are kept awake")


def reads(pool):
    """Read requests that have reached the daemon."""
    return sum(n for name, n in pool.counters().items() if name.endswith("client.reads"))


@test("large files are first read around the page cache, then through it", limit=120, needs="pool")
def hybrid(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    large, small = (os.path.join(pool.mnt, name) for name in ("large", "small"))
    content = os.urandom(4 << 20)
    for path, size in ((large, len(content)), (small, len(content) // 2)):
        with open(path, "wb") as file:
            file.write(content[:size])
    pool.remount_cold("-o", "hybrid_io=4M")

    def asked(fd, at):
        """Requests that reach the daemon when the same page is read four times."""
        os.pread(fd, 4096, at)
        before = reads(pool)
        for _ in range(4):
            t.check(os.pread(fd, 4096, at) == content[at:at + 4096], f"wrong bytes at {at}")
        return reads(pool) - before

    def opened(path, flags=os.O_RDONLY):
        fd = os.open(path, flags)
        try:
            return asked(fd, 1 << 20)
        finally:
            os.close(fd)

    fd = os.open(large, os.O_RDONLY)
    t.check(asked(fd, 0) == 4, "the first pass went through the page cache")
    # What a mapping shows and what is read are the same, however they get there.
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        with mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ) as shown:
            t.check(shown[:] == content, "a mapping shows something else")
    with open(large, "r+b") as file, mmap.mmap(file.fileno(), 0) as shown:
        shown[5000:5003] = b"new"
        content = content[:5000] + b"new" + content[5003:]
        t.check(os.pread(fd, len(content), 0) == content, "a store through a mapping was not read")
    os.close(fd)
    t.check(opened(large) == 0, "the second pass went around the page cache")
    t.check(opened(small) == 0, "a smaller file went around the page cache")
    pool.remount_cold("-o", "hybrid_io=4M")
    t.check(opened(large, os.O_RDWR) == 0, "a writer went around the page cache")
    pool.remount_cold("-o", "hybrid_io=off")
    t.check(opened(large) == 0, "hybrid_io=off went around the page cache")
