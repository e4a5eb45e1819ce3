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


def read(path):
    """An object; None where it is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def spoil(way, paths):
    """Does that to every object; the last of an odd number cannot be swapped."""
    if way == "swapped":
        for one, other in zip(paths[::2], paths[1::2]):
            os.rename(one, one + ".away")
            os.rename(other, one)
            os.rename(one + ".away", other)
        return
    for path in paths:
        if way == "missing":
            os.unlink(path)
        elif way == "cut short":
            os.truncate(path, os.path.getsize(path) * 2 // 3)
        else:
            flip(path, os.path.getsize(path) // 3)


def no_panic(t, pool):
    with open(os.path.join(pool.host.state, f"{pool.name}.log")) as log:
        lines = [line for line in log if "panicked" in line]
    t.check(not lines, f"a panic: {lines[:2]}")


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


@test("what is cut short is told by a check that reads no data; a bad copy of metadata is found and made anew", limit=120,
      needs="pool")
def checked(t):
    pool = t.world.pool(buckets=2)
    pool.mount()
    fill(pool, 10)
    pool.umount()
    victim = objects(pool.vdevs[0], data=True)[0]
    whole = read(victim)
    os.truncate(victim, 0)
    found = pool.host.tarn("check", pool.name, check=False)
    t.check(found.returncode == 1 and "has 0 bytes" in found.stdout, f"check says: {found.stdout[-300:]}")
    with open(victim, "wb") as file:
        file.write(whole)
    # Both have all of it, and reads ask for one of them.
    relative = [{os.path.relpath(path, vdev) for path in objects(vdev, data=False)} for vdev in pool.vdevs]
    tables = [path for path in sorted(relative[0] & relative[1]) if "/db/" in path and path.endswith(".sst")]
    t.check(tables, f"no copies of tables: {relative}")
    for vdev in pool.vdevs:
        copies = {path: read(os.path.join(vdev, path)) for path in tables}
        for path, body in copies.items():
            flip(os.path.join(vdev, path), len(body) // 3)
        said = pool.host.tarn("check", pool.name).stdout
        # Those that are read when the pool is opened are made anew by that.
        t.check("repaired from the other copy" in said, f"check says: {said[-500:]}")
        bad = [path for path, body in copies.items() if read(os.path.join(vdev, path)) not in (body, None)]
        t.check(not bad, f"not repaired: {bad}")
        t.check("repaired" not in pool.host.tarn("check", pool.name).stdout, "it finds something again")
    pool.mount()
    t.check("No known data errors" in pool.host.tarn("pool", "status", pool.name).stdout, "what was repaired is an error")


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
    for way in ("damaged", "missing", "cut short", "swapped"):
        victims = [p for p in objects(pool.vdevs[0], data=False) if os.path.getsize(p) > 200]
        # What says which pool this is, and who holds it, is tested elsewhere.
        victims = [p for p in victims if os.path.relpath(p, pool.vdevs[0]).split(os.sep)[0] == "m"]
        t.check(victims, "no metadata in the first bucket")
        t.run("cp", "-a", pool.vdevs[0], keep + way)
        spoil(way, victims)
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


@test("data swapped, cut short, missing, damaged: EIO, and status -v names file and bucket", limit=180, needs="pool")
def named(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    os.mkdir(os.path.join(pool.mnt, "folder"))
    content = {os.path.join("folder", name): data for name, data in fill(pool, 20).items()}
    for name in content:
        os.rename(os.path.join(pool.mnt, os.path.basename(name)), os.path.join(pool.mnt, name))
    pool.umount()
    keep = os.path.join(t.scratch, "keep")
    t.run("cp", "-a", pool.vdevs[1], keep)
    for way in ("swapped", "cut short", "missing", "damaged"):
        spoil(way, objects(pool.vdevs[1], data=True))
        pool.mount()
        bad = read_all(t, pool, content)
        t.check(bad > 0, f"{way}: every record could be read")
        text = pool.host.tarn("pool", "status", "-v", pool.name, quiet=True).stdout
        lines = [line for line in text.splitlines() if f"{pool.name}:/folder/file" in line]
        t.check(lines and all(pool.vdevs[1] in line for line in lines), f"{way}: status -v says: {text[-600:]}")
        t.note(f"{way}: {bad} bad records")
        no_panic(t, pool)
        # Whoever writes anew has whole files again, whatever lies beside them.
        name = next(iter(content))
        with open(os.path.join(pool.mnt, name), "wb") as file:
            file.write(content[name])
        with open(os.path.join(pool.mnt, name), "rb") as file:
            t.check(file.read() == content[name], f"{way}: a new file is wrong")
        pool.umount()
        shutil.copytree(os.path.join(keep, "d"), os.path.join(pool.vdevs[1], "d"), dirs_exist_ok=True)


@test("both copies of metadata are damaged: an error in one line or EIO, never wrong data or a panic", limit=180, needs="pool")
def both_copies(t):
    pool = t.world.pool(buckets=2)
    pool.mount()
    content = fill(pool, 10)
    pool.umount()
    keep = os.path.join(t.scratch, "keep")
    t.run("cp", "-a", t.world.path("buckets"), keep)
    for way in ("swapped", "cut short", "missing", "damaged"):
        for vdev in pool.vdevs:
            folder = os.path.join(vdev, "m")
            spoil(way, [p for p in objects(vdev, data=False) if p.startswith(folder) and p.endswith(".sst")])
        done = pool.host.tarn("mount", pool.name, pool.mnt, check=False)
        if done.returncode:
            t.check(len(done.stderr.strip().splitlines()) == 1, f"{way}: more than a line: {done.stderr}")
            t.note(f"{way}: refused")
        else:
            for name, data in content.items():
                try:
                    with open(os.path.join(pool.mnt, name), "rb") as file:
                        t.check(file.read() == data, f"{way}: {name} is wrong")
                except OSError as e:
                    t.check(e.errno in (errno.EIO, errno.ENOENT), f"{way}: {name}: errno {e.errno}")
            t.note(f"{way}: mounted")
            pool.host.tarn("umount", "-f", pool.mnt, check=False)
        no_panic(t, pool)
        for vdev in pool.vdevs:
            shutil.rmtree(vdev)
            shutil.copytree(os.path.join(keep, os.path.basename(vdev)), vdev)
