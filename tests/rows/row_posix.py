"""The programs of tests/posix: calls and corners that real programs rely on and pjdfstest does not reach."""
import os
import re
import sys

from harness import REPO, Failed, test


def program(t, name):
    command = [sys.executable, os.path.join(REPO, f"tests/posix/{name}.py"), t.dir] + (["--local"] if t.local else [])
    out = t.run(command, limit=200, check=False)
    failed = re.findall(r"^FAILED  (\S+)", out, re.M)
    done = re.search(r"^(\d+ of \d+) checks hold$", out, re.M)
    if failed or not done:
        raise Failed(f"failed: {', '.join(failed)}" if failed else "the program broke off")
    t.note(f"{done.group(1)} checks")


@test("names of any bytes, large directories, rename and links")
def names(t):
    program(t, "names")


@test("holes, fallocate, truncation, direct I/O, O_TMPFILE, copy_file_range")
def files(t):
    program(t, "files")


@test("memory maps, shared and private")
def maps(t):
    program(t, "maps")


@test("BSD, POSIX and OFD locks with waits")
def locks(t):
    program(t, "locks")


@test("extended attributes, ACLs, inheritance, special files, times")
def attributes(t):
    program(t, "attributes")


@test("copy_file_range shares records: the buckets do not grow", needs="pool")
def reflink(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    size = 64 << 20
    source, copy = os.path.join(pool.mnt, "source"), os.path.join(pool.mnt, "copy")
    with open(source, "wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    before = pool.used()
    with open(source, "rb") as a, open(copy, "wb") as b:
        left = size
        while left:
            left -= os.copy_file_range(a.fileno(), b.fileno(), left)
        os.fsync(b.fileno())
    grown = pool.used() - before
    t.note(f"{size >> 20} MiB copied, buckets grew by {grown >> 10} KiB")
    t.check(grown < size // 20, f"the buckets grew by {grown} bytes")
    # Shared records outlive either file.
    os.unlink(source)
    pool.remount_cold()
    t.check(os.stat(copy).st_size == size, "the copy is not whole")
    with open(copy, "rb") as file:
        while file.read(1 << 20):
            pass
