"""Damage in a bucket: it is found when it is read, it is never wrong data, and metadata has a second copy."""
import errno
import os
import shutil

import tree
from harness import test

MIB = 1 << 20


def objects(vdev, data):
    """Objects of file data in a bucket, or all the others; data lies below d/ (docs/FORMAT.md)."""
    found = []
    for folder, _, names in os.walk(vdev):
        inside = os.path.relpath(folder, vdev).split(os.sep)[0]
        if (inside == "d") == data:
            found += [os.path.join(folder, n) for n in names]
    return sorted(found)


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def fill(pool, count=40):
    """Files that cannot be compressed; returns what they hold."""
    content = {f"file{n}": os.urandom(MIB + n) for n in range(count)}
    for name, data in content.items():
        with open(os.path.join(pool.mnt, name), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
    return content


def read_all(t, pool, content):
    """Reads every file record by record: each must be right or an error. Returns how many gave an error."""
    bad = 0
    for name, data in content.items():
        fd = os.open(os.path.join(pool.mnt, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(0, len(data), 131072):
            try:
                t.check(os.pread(fd, 131072, at) == data[at:at + 131072], f"{name}: wrong data at {at}")
            except OSError as e:
                t.check(e.errno == errno.EIO, f"{name}: errno {e.errno} instead of EIO")
                bad += 1
        os.close(fd)
    return bad


@test("a flipped byte is EIO and counted, and the rest is right", limit=120, needs="pool")
def flipped(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    content = fill(pool)
    pool.umount()
    victims = objects(pool.vdevs[1], data=True)
    t.check(victims, "no data in the second bucket")
    for path in victims:
        flip(path, os.path.getsize(path) // 2)
    pool.mount()
    bad = read_all(t, pool, content)
    t.check(0 < bad <= 2 * len(victims), f"{bad} records are bad after {len(victims)} flipped bytes")
    status = pool.host.tarn("pool", "status", "-v", pool.name).stdout
    row = next(line.split() for line in status.splitlines() if pool.vdevs[1] in line)
    t.check(int(row[4]) > 0, f"status counts no checksum errors: {row}")
    pool.umount()
    for path in victims:
        flip(path, os.path.getsize(path) // 2)
    pool.mount()
    t.check(read_all(t, pool, content) == 0, "errors after the bytes were put right")
    t.note(f"{bad} bad records of {len(victims)} objects")


@test("a missing object is EIO, and tarn check says so", limit=120, needs="pool")
def missing(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    content = fill(pool)
    pool.umount()
    victim = objects(pool.vdevs[0], data=True)[0]
    shutil.move(victim, os.path.join(t.scratch, "object"))
    found = pool.host.tarn("check", pool.name, check=False)
    t.check(found.returncode == 1, "check found nothing wrong")
    t.check(any(word in found.stdout for word in ("missing", "not there", "gone")), f"check says: {found.stdout[-300:]}")
    pool.mount()
    t.check(read_all(t, pool, content) > 0, "every record could be read")
    pool.umount()
    shutil.move(os.path.join(t.scratch, "object"), victim)
    pool.mount()
    t.check(read_all(t, pool, content) == 0, "errors after the object came back")


@test("an object that nothing points at: tarn check says leaked", limit=120, needs="pool")
def leaked(t):
    pool = t.world.pool(buckets=2)
    pool.mount()
    fill(pool, 10)
    pool.umount()
    model = objects(pool.vdevs[0], data=True)[0]
    # A segment that was never made, under a grant that is in use.
    stray = model[:-8] + "00ffff00"
    with open(stray, "wb") as file:
        file.write(b"no segment")
    found = pool.host.tarn("check", pool.name, check=False)
    t.check(found.returncode == 1 and "leak" in found.stdout, f"check says: {found.stdout[-300:]}")
    t.check(os.path.exists(stray), "a check without --repair deletes nothing")
    repaired = pool.host.tarn("check", "--repair", pool.name).stdout
    t.check("1 leaked segment freed" in repaired and not os.path.exists(stray), f"repair says: {repaired[-300:]}")
    pool.host.tarn("check", "--data", pool.name)


@test("metadata in one of two buckets is damaged, then missing: the other copy serves", limit=120, needs="pool")
def metadata(t):
    pool = t.world.pool(buckets=2)
    pool.mount()
    source = os.path.join(t.scratch, "tree")
    tree.make_extras(source, each=20)
    entries = tree.scan(source)
    tree.copy(source, pool.mnt, entries)
    pool.umount()
    keep = os.path.join(t.scratch, "keep")
    for way in ("damaged", "missing"):
        victims = [p for p in objects(pool.vdevs[0], data=False) if os.path.getsize(p) > 200]
        # What says which pool this is, and who holds it, is tested elsewhere.
        victims = [p for p in victims if os.path.relpath(p, pool.vdevs[0]).split(os.sep)[0] == "m"]
        t.check(victims, "no metadata in the first bucket")
        t.run("cp", "-a", pool.vdevs[0], keep + way)
        for path in victims:
            os.unlink(path) if way == "missing" else flip(path, os.path.getsize(path) // 3)
        pool.mount()
        wrong = tree.verify(source, pool.mnt, entries)
        t.check(not wrong, f"{way}: {len(wrong)} names differ: {wrong[:3]}")
        with open(os.path.join(pool.mnt, way), "w") as file:
            file.write("written with half of the metadata gone")
        pool.umount()
        t.note(f"{len(victims)} objects {way}")
        entries = tree.scan(source)
        pool.mount()
        os.unlink(os.path.join(pool.mnt, way))
        # Removing a name changed the root's time.
        os.utime(pool.mnt, ns=(0, os.stat(source).st_mtime_ns))
        pool.umount()
