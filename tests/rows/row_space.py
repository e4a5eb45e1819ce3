"""Space: what is deleted comes back, and a full pool keeps its word."""
import contextlib
import errno
import hashlib
import os
import random
import shutil
import signal

from harness import test
from world import du, sync_all, wait_until

MIB = 1 << 20
NO_REWIND = ["-o", "rewind=0"]


def put(path, size):
    with open(path, "wb", buffering=0) as file:
        while size:
            size -= file.write(os.urandom(min(size, 4 * MIB)))


def live_bytes(folder):
    """Bytes of the files that are there; what the test writes cannot be compressed."""
    return du(folder)


@test("most of 1 GiB is deleted, every second small file among it: buckets within 5 % of live bytes in 180 s",
      limit=330, long_limit=1200, needs="pool")
def returns(t):
    pool = t.world.pool(buckets=4, options=NO_REWIND)
    pool.mount()
    small, large = os.path.join(pool.mnt, "small"), os.path.join(pool.mnt, "large")
    os.mkdir(small), os.mkdir(large)
    # Many small files share a segment; deleting every second one leaves each segment half dead.
    count, large_count = t.pick((4096, 4), (8192, 8))
    for n in range(count):
        put(os.path.join(small, f"{n:05}"), 64 * 1024)
    for n in range(large_count):
        put(os.path.join(large, str(n)), 64 * MIB)
    sync_all(pool.mnt)
    full = pool.used()
    t.check(full >= live_bytes(pool.mnt), f"the buckets hold {full} bytes, less than the files")
    for n in range(0, count, 2):
        os.unlink(os.path.join(small, f"{n:05}"))
    for n in range(1, large_count):
        os.unlink(os.path.join(large, str(n)))
    sync_all(pool.mnt)
    live = live_bytes(pool.mnt)

    def returned():
        print(f"  buckets {pool.used() / MIB:.1f} MiB, live {live / MIB:.1f} MiB", flush=True)
        return abs(pool.used() - live) <= 0.05 * live

    wait_until(returned, 180, "buckets within 5 % of live bytes", step=2)
    t.note(f"{full / MIB:.0f} MiB became {pool.used() / MIB:.1f} for {live / MIB:.1f} live")
    pool.remount_cold()
    for n in range(1, count, 2):
        with open(os.path.join(small, f"{n:05}"), "rb") as file:
            t.check(len(file.read()) == 64 * 1024, "a file that stayed is not whole")


@test("overwriting and truncating give space back too", limit=240, needs="pool")
def overwritten(t):
    pool = t.world.pool(buckets=3, options=NO_REWIND)
    pool.mount()
    path, size = os.path.join(pool.mnt, "file"), 64 * MIB
    put(path, size)
    rng = random.Random(1)
    with open(path, "r+b", buffering=0) as file:
        for _ in range(4):
            for _ in range(200):
                file.seek(rng.randrange(size // 131072) * 131072)
                file.write(os.urandom(131072))
            os.fsync(file.fileno())
    os.truncate(path, size // 2)
    sync_all(pool.mnt)
    limit = size // 2 * 1.05 + 4 * MIB
    wait_until(lambda: pool.used() <= limit, 180, f"buckets below {limit / MIB:.0f} MiB", step=1)
    t.note(f"{pool.used() / MIB:.1f} MiB for {size // 2 // MIB} MiB")


@test("an unlinked file that was open when the daemon was killed is reclaimed at the next mount", limit=240, needs="pool")
def orphan(t):
    pool = t.world.pool(buckets=3, options=NO_REWIND)
    pool.mount()
    keep = os.open(os.path.join(pool.mnt, "file"), os.O_RDWR | os.O_CREAT)
    for _ in range(32):
        os.write(keep, os.urandom(4 * MIB))
    os.fsync(keep)
    os.unlink(os.path.join(pool.mnt, "file"))
    sync_all(pool.mnt)
    t.check(pool.used() >= 128 * MIB, "the open file has no room")
    t.check(os.pread(keep, 1, 0) != b"", "the open file cannot be read")
    pool.kill(signal.SIGKILL)
    # The mountpoint is dead now; mounting again takes it over.
    pool.mount()
    t.check(os.listdir(pool.mnt) == [], "the unlinked file has a name again")
    wait_until(lambda: pool.used() < 8 * MIB, 180, "buckets below 8 MiB", step=1)
    t.note(f"128 MiB became {pool.used() / MIB:.1f}")
    with contextlib.suppress(OSError):
        os.close(keep)


def small_stores(t, kind, count, mib):
    """Directories on file systems of their own with `mib` MiB each, on tmpfs or on ext4 in a file."""
    paths = []
    for n in range(count):
        path = t.world.path("small", f"{kind}{n}")
        os.makedirs(path)
        if kind == "tmpfs":
            t.run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tarn-test", path)
        else:
            image = t.world.path(f"{kind}{n}.img")
            t.run("truncate", "-s", f"{mib}M", image)
            t.run("mkfs.ext4", "-q", "-F", "-m", "0", image)
            t.run("mount", "-o", "loop", image, path)
        paths.append(os.path.join(path, "bucket"))
        os.mkdir(paths[-1])
    return paths


def fill(folder, acknowledged, size):
    """Writes files with fsync until there is no room; returns the errno that ended it. `acknowledged` gets the
    hash of each file whose fsync came back."""
    for n in range(100_000):
        data = os.urandom(size)
        path = os.path.join(folder, f"file{n}")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view):]
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            # As a program does that could not finish its file.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return e.errno
        acknowledged[path] = hashlib.blake2b(data).hexdigest()
    return None


def full(t, kind):
    stores = small_stores(t, kind, 3, t.pick(96, 256))
    pool = t.world.pool(buckets=stores, options=NO_REWIND)
    pool.mount()
    acknowledged = {}
    for size in (3 * MIB, 50_000):
        folder = os.path.join(pool.mnt, f"of-{size}")
        with_room = True
        try:
            os.mkdir(folder)
        except OSError as e:
            with_room = False
            t.check(e.errno == errno.ENOSPC, f"mkdir ended with {errno.errorcode[e.errno]}")
        if with_room:
            ended = fill(folder, acknowledged, size)
            t.check(ended == errno.ENOSPC, f"filling ended with {errno.errorcode.get(ended, ended)} instead of ENOSPC")
    t.check(len(acknowledged) > 50, "the pool was full at once")
    t.note(f"{len(acknowledged)} files until ENOSPC")

    def verify():
        for path, digest in acknowledged.items():
            with open(path, "rb") as file:
                if hashlib.blake2b(file.read()).hexdigest() != digest:
                    return path
        return None

    t.check(verify() is None, "an acknowledged file is not what was written")
    pool.remount_cold()
    t.check(verify() is None, "an acknowledged file is not what was written, after mounting again")
    # What is there can be checked, though nothing more can be written.
    said = pool.host.tarn("check", pool.name, check=False).stdout
    findings = [line for line in said.splitlines() if line.startswith("  ") and "written last" not in line]
    t.check(" inodes, " in said and not findings, f"check of a full pool says: {said[-500:]}")
    # Deleting works on a full pool, and what it frees can be written again.
    for path in list(acknowledged)[::2]:
        os.unlink(path)
        del acknowledged[path]
    t.check(os.statvfs(pool.mnt).f_bsize > 0, "statfs")

    def room():
        try:
            put(os.path.join(pool.mnt, "again"), 20 * MIB)
            sync_all(pool.mnt)
            return True
        except OSError:
            return False

    wait_until(room, 180, "room for 20 MiB after half was deleted", step=2)
    t.check(os.stat(os.path.join(pool.mnt, "again")).st_size == 20 * MIB, "the new file is not whole")
    t.check(verify() is None, "a file that stayed changed")
    pool.umount()
    pool.host.tarn("check", pool.name)
    pool.gone = True


@test("buckets on small tmpfs: ENOSPC, nothing acknowledged is lost, deleting makes room", limit=330, needs="pool")
def full_tmpfs(t):
    full(t, "tmpfs")


@test("the same on small ext4 in loop devices", limit=330, needs="pool")
def full_ext4(t):
    if not os.path.exists("/dev/loop-control") or shutil.which("mkfs.ext4") is None:
        from harness import Skipped

        raise Skipped("no loop devices or no mkfs.ext4 here")
    full(t, "ext4")


@test("a quota ends writing with EDQUOT and lifts again", limit=120, needs="pool")
def quota(t):
    pool = t.world.pool(buckets=2, options=NO_REWIND)
    pool.host.tarn("fs", "create", "-o", "quota=32M", "tank/small")
    pool.mount()
    folder, acknowledged = os.path.join(pool.mnt, "small"), {}
    ended = fill(folder, acknowledged, MIB)
    t.check(ended == errno.EDQUOT, f"filling ended with {errno.errorcode.get(ended, ended)} instead of EDQUOT")
    t.check(16 <= len(acknowledged) <= 33, f"{len(acknowledged)} MiB fitted into a quota of 32 MiB")
    put(os.path.join(pool.mnt, "outside"), 40 * MIB)
    st = os.statvfs(folder)
    t.check(st.f_blocks * st.f_frsize <= 33 * MIB, "statfs does not show the quota")
    for path in acknowledged:
        os.unlink(path)

    def room():
        try:
            put(os.path.join(folder, "again"), 8 * MIB)
            return True
        except OSError:
            return False

    wait_until(room, 60, "room after deleting", step=1)
    pool.host.tarn("fs", "set", "quota=none", "tank/small")
    put(os.path.join(folder, "more"), 64 * MIB)
