"""Bounds that hold however much there is: memory, listings whose names collide, requests while nothing happens, and
what metadata costs."""
import contextlib
import ctypes
import json
import os
import resource
import threading
import time

from harness import test
from hosts import points
from world import Host, drop_caches, sync_all

MIB = 1 << 20
# What the process may have beyond what was given: the allocator, and what is too small to be counted.
SLACK = 1.3


def stats(pool):
    return json.loads(pool.host.tarn("stats", "--raw", pool.name, quiet=True).stdout)


class Watch:
    """Samples the memory of a pool's daemon, phase by phase, and what it says of it."""

    def __init__(self, t, pool, limit):
        self.t, self.pool, self.limit = t, pool, limit
        self.pid = pool.daemons()[0]
        self.peak, self.ended, self.over = 0, threading.Event(), {}
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def status(self, name):
        with open(f"/proc/{self.pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))

    def sample(self):
        beat = 0
        while not self.ended.wait(0.05):
            with contextlib.suppress(FileNotFoundError):
                self.peak = max(self.peak, self.status("VmRSS"))
            beat += 1
            if beat % 20 == 0:
                self.books()

    def books(self):
        """No part of the memory may be used beyond its share."""
        memory = stats(self.pool)["memory"]
        for name, part in memory["parts"].items():
            if part["used"] is not None and part["used"] > part["limit"] * 1.1 + MIB:
                self.over[name] = part

    @contextlib.contextmanager
    def phase(self, what):
        self.peak = 0
        yield
        memory = stats(self.pool)["memory"]
        parts = {n: round(p["used"] / MIB, 1) for n, p in memory["parts"].items() if p["used"]}
        print(f"{what}: peak {self.peak >> 20} MiB of {self.limit >> 20}; accounted {memory['used'] >> 20}: {parts}")
        self.t.check(self.peak <= self.limit * SLACK, f"{what}: {self.peak >> 20} MiB are resident")
        self.t.note(f"{what} {self.peak >> 20} MiB")

    def end(self):
        self.ended.set()
        self.thread.join()
        most = self.status("VmHWM")
        self.t.note(f"most {most >> 20} of {self.limit >> 20} MiB")
        self.t.check(not self.over, f"parts beyond their share: {self.over}")
        self.t.check(most <= self.limit * SLACK, f"{most >> 20} MiB were resident")
        # A load that does not come near the bound shows nothing.
        self.t.check(most >= self.limit * 0.5, f"only {most >> 20} MiB were ever resident")


def write_large(path, size, seed):
    """Data that does not compress, of which no two blocks are the same."""
    block = bytearray(os.urandom(4 * MIB))
    with open(path, "wb", buffering=0) as file:
        for n in range(size // len(block)):
            for at in range(0, len(block), 64 << 10):
                block[at:at + 16] = (seed << 64 | n << 32 | at).to_bytes(16, "little")
            file.write(block)


def read_all(paths, step=MIB):
    """Reads the files at the same time, each in a thread of its own; gives the bytes."""
    total = [0] * len(paths)

    def read(place):
        with open(paths[place], "rb", buffering=0) as file:
            while part := file.read(step):
                total[place] += len(part)

    readers = [threading.Thread(target=read, args=(place,)) for place in range(len(paths))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return sum(total)


def rate(count, start):
    return count / (time.monotonic() - start)


@test("memory: streams, files in one directory, open handles", limit=180, long_limit=3600, needs="pool")
def memory(t):
    limit = t.pick(256, 1024) * MIB
    pool = t.world.pool(buckets=3)
    pool.mount("-o", f"memory={limit}")
    watch = Watch(t, pool, limit)
    large = [os.path.join(pool.mnt, f"large{n}") for n in range(4)]
    size = t.pick(1 << 30, 10 << 30) // len(large)
    with watch.phase("written"):
        for n, path in enumerate(large):
            write_large(path, size, n)
        sync_all(pool.mnt)
    with watch.phase("read"):
        for _ in range(2):
            drop_caches()
            t.check(read_all(large) == size * len(large), "a file is short")
    folder = os.path.join(pool.mnt, "folder")
    os.mkdir(folder)
    count = t.pick(20_000, 1_000_000)
    with watch.phase("files made"):
        start = begin = time.monotonic()
        for n in range(count):
            fd = os.open(os.path.join(folder, f"file{n:07}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            if n % 10 == 0:
                os.write(fd, b"x" * 700)
            os.close(fd)
            if n % 100_000 == 99_999:
                print(f"  {n + 1} files: the last hundred thousand at {rate(100_000, begin):.0f} a second", flush=True)
                begin = time.monotonic()
        t.note(f"{rate(count, start):.0f} creates/s")
        sync_all(folder)
    with watch.phase("listed"):
        for how in ("warm", "cold"):
            drop_caches()
            start = time.monotonic()
            t.check(len(os.listdir(folder)) == count, "a listing is not whole")
            t.note(f"{how} listing {time.monotonic() - start:.1f} s")
            if how == "warm":
                # Only the buckets know them now; another dataset's rows could not do it better.
                read_all(large)
        start = time.monotonic()
        with os.scandir(folder) as entries:
            seen = sum(entry.stat(follow_symlinks=False).st_nlink for entry in entries)
        t.check(seen == count, "a listing with attributes is not whole")
        t.note(f"with attributes {time.monotonic() - start:.1f} s")
    handles = t.pick(2000, 10_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles + 1000,) * 2)
    with watch.phase(f"{handles} handles"), contextlib.ExitStack() as opened:
        drop_caches()
        for n in range(handles):
            fd = os.open(large[n % len(large)], os.O_RDONLY)
            opened.callback(os.close, fd)
            # Two reads that follow each other are a stream, which is fetched ahead of.
            for step in range(2):
                os.pread(fd, 128 << 10, (n * 977 % (size >> 20) << 20) + (step * 128 << 10))
        time.sleep(1)
    watch.end()


# Names that collide.

_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = ctypes.c_void_p
_libc.telldir.restype = ctypes.c_long
_libc.telldir.argtypes = _libc.closedir.argtypes = _libc.readdir.argtypes = [ctypes.c_void_p]
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
_libc.readdir.restype = ctypes.c_void_p
# Of struct dirent: d_ino, d_off, d_reclen, d_type, then the name.
NAME_AT = 19


class Folder:
    """A directory stream of the C library."""

    def __init__(self, path):
        self.stream = _libc.opendir(os.fsencode(path))

    def read(self):
        """The next name, or None at the end; `.` and `..` are passed over."""
        while entry := _libc.readdir(self.stream):
            name = ctypes.string_at(entry + NAME_AT).decode()
            if name not in (".", ".."):
                return name
        return None

    def rest(self):
        return list(iter(self.read, None))

    def tell(self):
        return _libc.telldir(self.stream)

    def seek(self, place):
        _libc.seekdir(self.stream, place)

    def close(self):
        _libc.closedir(self.stream)


def each_once(t, names, expected, what):
    t.check(len(names) == len(set(names)), f"{what}: names come twice")
    t.check(set(names) == set(expected), f"{what}: {len(set(names) ^ set(expected))} names are missing or too many")


@test("names whose hashes collide are listed once each", limit=60, needs="pool")
def collisions(t):
    # Hashes of 4 bits: with 47 no test would ever see two that are the same. Only a build that has points does it.
    points(t)
    host = Host(t.world.path("narrow"), TARN_TEST_HASH_BITS="4")
    pool = t.world.pool(buckets=2, host=host)
    pool.mount()
    folder = os.path.join(pool.mnt, "folder")
    os.mkdir(folder)
    names = [f"name{n}" for n in range(t.pick(2000, 20_000))]
    for name in names:
        open(os.path.join(folder, name), "x").close()

    def listed():
        stream = Folder(folder)
        places, got = [stream.tell()], []
        while (name := stream.read()) is not None:
            got.append(name)
            places.append(stream.tell())
        return stream, places, got

    for how in ("from memory", "from the buckets"):
        each_once(t, os.listdir(folder), names, f"ls {how}")
        stream, places, got = listed()
        each_once(t, got, names, f"readdir {how}")
        for at in range(0, len(places), len(places) // 97):
            stream.seek(places[at])
            t.check(stream.rest() == got[at:], f"seekdir to entry {at} {how} goes on elsewhere")
        stream.close()
        pool.remount_cold()
    cookies = places[1:]
    t.check(len(set(place >> 16 for place in cookies)) <= 16, "the hashes were not narrowed")
    t.note(f"{len(names)} names, {len(set(place >> 16 for place in cookies))} hashes")
    # Removal while listing: what stays is listed once, however much goes around it.
    stream, got, gone = Folder(folder), [], set()
    while (name := stream.read()) is not None:
        got.append(name)
        number = int(name[4:])
        # The one just given, its neighbours, and some that may be next or behind.
        for victim in {number, number ^ 1, (number * 7 + 1) % len(names)}:
            if victim % 5 and victim not in gone:
                os.unlink(os.path.join(folder, names[victim]))
                gone.add(victim)
    stream.close()
    t.check(len(got) == len(set(got)), "a name came twice while others went")
    kept = {name for n, name in enumerate(names) if n not in gone}
    t.check(kept <= set(got), f"{len(kept - set(got))} names were passed over while others went")
    t.check(len(gone) > len(names) // 2, "too few went")
    each_once(t, os.listdir(folder), kept, "what is left")
    pool.remount_cold()
    each_once(t, os.listdir(folder), kept, "what is left, from the buckets")
    t.note(f"{len(gone)} removed meanwhile")


# What an idle pool costs, and what metadata does.


def requests(pool):
    """Requests of each bucket so far, by kind, as the daemon counts them."""
    shown = stats(pool)["pool"]["vdevs"]
    return {v["url"].split("?")[0]: {k: o["requests"] for k, o in v["stats"]["operations"].items()} for v in shown}


def tally(pool, server):
    """What the daemon and the server have counted, of a moment in which nothing is on its way."""
    end = time.monotonic() + 20
    while True:
        served, counted = server.served(), requests(pool)
        if server.served() == served or time.monotonic() > end:
            return counted, served
        time.sleep(0.2)


def between(after, before):
    """What was counted in between: {bucket: {kind: count}} without zeros."""
    found = {}
    for bucket, kinds in after.items():
        more = {kind: n - before[bucket].get(kind, 0) for kind, n in kinds.items()}
        found[bucket] = {kind: n for kind, n in more.items() if n}
    return found


def total(found):
    return sum(sum(kinds.values()) for kinds in found.values())


def settle(pool, seconds):
    """Waits until nothing has been written or deleted for so long."""
    def changes():
        now = requests(pool).values()
        return sum(kinds.get(kind, 0) for kinds in now for kind in ("put", "create", "delete"))

    last, since = changes(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(min(seconds / 5, 10))
        if changes() != last:
            last, since = changes(), time.monotonic()


def size_of(root, folder):
    """Bytes of the objects in a folder of each bucket."""
    total = 0
    for bucket in os.listdir(root):
        for path, _, names in os.walk(os.path.join(root, bucket, "tarn", folder)):
            total += sum(os.path.getsize(os.path.join(path, name)) for name in names)
    return total


@test("an idle pool makes few requests; metadata is a small part", limit=180, long_limit=4200, needs="pool")
def idle(t):
    server = t.world.s3(3, counting=True)
    pool = t.world.pool(buckets=server.urls())
    pool.mount()
    before = requests(pool)
    small, large = os.path.join(pool.mnt, "small"), os.path.join(pool.mnt, "large")
    os.mkdir(small)
    files, each = t.pick(1000, 50_000), 4096
    for n in range(files):
        with open(os.path.join(small, f"file{n}"), "wb") as file:
            file.write(os.urandom(each))
    sync_all(pool.mnt)
    # The log of the database goes after a minute and more; before that there is all of it twice.
    time.sleep(t.pick(0, 400))
    of_small = size_of(server.root, "m")
    data_small = size_of(server.root, "d")
    size = t.pick(256 << 20, 4 << 30)
    write_large(large, size, 0)
    sync_all(pool.mnt)
    busy = between(requests(pool), before)
    t.note(f"busy {total(busy)} requests")
    # Nothing more is written but what a database that was busy tidies up.
    settle(pool, t.pick(10, 600))
    # Whether a round of its tidying falls into the short form depends on how fast the machine is: such steps are
    # left out there. An hour has its share of them.
    steps, step = t.pick(4, 25), t.pick(10, 60)
    start, first, taken, quiet = time.monotonic(), tally(pool, server), 0, []
    last = first
    while len(quiet) < steps and taken < 3 * steps:
        time.sleep(step)
        taken, now = taken + 1, tally(pool, server)
        found = between(now[0], last[0])
        print(f"  {time.monotonic() - start:5.0f} s: {found}", flush=True)
        if t.long or not any(kinds.keys() & {"put", "create", "delete"} for kinds in found.values()):
            quiet.append(total(found))
        last = now
    counted, served = total(between(last[0], first[0])), last[1] - first[1]
    hour = sum(quiet) * 3600 / (len(quiet) * step) if quiet else 0
    print(f"idle for {taken} times {step} s: {counted} requests; the server served {served}")
    t.note(f"idle {sum(quiet)} requests in {len(quiet)} times {step} s, {hour:.0f} an hour")
    t.check(abs(served - counted) <= 2, "the server counts otherwise than the daemon")
    t.check(len(quiet) == steps, "an idle pool does not come to rest")
    # In the first minutes each kind of poll still comes once or twice, and ever less often after that. With polls
    # at their fixed intervals the short form counts 36.
    t.check(hour < 500 if t.long else sum(quiet) <= 24, "too many")
    parts = (("small", of_small, data_small, files * each),
             ("large", size_of(server.root, "m") - of_small, size_of(server.root, "d") - data_small, size))
    for name, metadata, stored, data in parts:
        t.note(f"metadata of {name} files {metadata / data:.3%}, directories of segments {stored / data - 1:.3%}")
    # Two copies of each row. What the segments say of themselves is not read but to compact and to rescue.
    t.check(parts[1][1] < 0.0005 * size, "metadata of large files is more than 0.05 %")
