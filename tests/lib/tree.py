"""Trees of files: make one that has everything a file system must keep, copy it, compare two byte for byte, and
write down all of one as a manifest. Paths are bytes, since names need not be UTF-8.

What is compared: kind, mode, owner, size, modification time to the nanosecond, content, the target of a symbolic
link, device numbers, which names are links of one file, and every extended attribute (ACLs are some of those).
Access times are not: reading changes them."""
import concurrent.futures
import contextlib
import hashlib
import os
import random
import stat
import struct
import threading

PIECE = 1 << 20
_buffers = threading.local()


class Entry:
    """One name of a tree."""

    __slots__ = ("path", "st", "first")

    def __init__(self, path, st, first):
        # Below the root; what lstat says; the first path that names the same file, this one or another.
        self.path, self.st, self.first = path, st, first


def scan(root):
    """Every name below `root`, the root itself as b"" among them, directories before what they hold."""
    root = os.fsencode(root)
    top = os.lstat(root)
    entries, seen, folders = [Entry(b"", top, b"")], {}, [b""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as found:
            inside = sorted(found, key=lambda entry: entry.name)
        for item in inside:
            path = os.path.join(folder, item.name)
            st = item.stat(follow_symlinks=False)
            first = path
            if stat.S_ISDIR(st.st_mode):
                folders.append(path)
            elif st.st_nlink > 1:
                first = seen.setdefault((st.st_dev, st.st_ino), path)
            entries.append(Entry(path, st, first))
    return entries


def is_data(entry):
    """True for the one name per regular file under which its bytes are copied and compared."""
    return stat.S_ISREG(entry.st.st_mode) and entry.first == entry.path


def xattrs(path):
    """Extended attributes, ACLs included. The kernel lists no ACL on a FUSE mount that it keeps itself, so they
    are asked for by name."""
    names = set(os.listxattr(path, follow_symlinks=False))
    names.update(("system.posix_acl_access", "system.posix_acl_default"))
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = os.getxattr(path, name, follow_symlinks=False)
    return found


# Making one.


def acl(entries):
    """A POSIX ACL in the kernel's form. Entries are (tag, permissions, id): 1 owner, 2 user, 4 group of the
    file, 8 group, 16 mask, 32 others."""
    nobody = 0xFFFFFFFF
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, perm, nobody if number is None else number) for tag, perm, number in entries
    )


def make_extras(root, each=100, seed=1):
    """Makes below `root` what a checkout of sources lacks: `each` hard links, symbolic links, sparse files, files
    with attributes, with ACLs and of other owners, and a handful of oddities. Wants root. The same every time."""
    rng = random.Random(seed)

    def put(*parts, size=None):
        path = os.path.join(root, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(rng.randbytes(rng.randrange(20_000) if size is None else size))
        os.utime(path, ns=(1, rng.randrange(2**31) * 10**9 + rng.randrange(10**9)))
        return path

    for n in range(each):
        os.link(put("links", f"file{n}"), os.path.join(root, "links", f"second name of {n}"))

        os.makedirs(os.path.join(root, "symlinks"), exist_ok=True)
        target = [f"../links/file{n}", f"/nowhere/{n}", "x" * (1 + 40 * n), f"symlink{n}"][n % 4]
        os.symlink(target, os.path.join(root, "symlinks", f"symlink{n}"))

        with open(put("sparse", f"file{n}", size=0), "r+b") as file:
            for _ in range(3):
                file.seek(rng.randrange(4 << 20))
                file.write(rng.randbytes(rng.randrange(1, 9000)))
            file.truncate(4 << 20)

        path = put("attributes", f"file{n}")
        for k in range(1 + n % 5):
            os.setxattr(path, f"user.attribute-{k}", rng.randbytes(rng.randrange(300)))
        os.setxattr(path, "trusted.of-root", b"\0\xff")

        path = put("acl", f"file{n}")
        os.chmod(path, 0o640)
        rights = [(1, 6, None), (2, n % 8, 1000 + n), (4, 4, None), (8, 4, 2000 + n), (16, 7, None), (32, 0, None)]
        os.setxattr(path, "system.posix_acl_access", acl(rights))
        if n % 10 == 0:
            folder = os.path.join(root, "acl", f"inherits{n}")
            os.mkdir(folder)
            os.setxattr(folder, "system.posix_acl_default", acl(rights))
            put("acl", f"inherits{n}", "child")

        path = put("owners", f"file{n}")
        os.chown(path, 1000 + n, 2000 + n % 7)
        os.chmod(path, [0o600, 0o4755, 0o2755, 0o000, 0o1777, 0o444][n % 6])

    odd = os.fsencode(os.path.join(root, "odd"))
    os.makedirs(odd)
    for name in (b"\xff\xfe not UTF-8", b"new\nline", b"n" * 255, b"  ", b"-rf", "\u00e9".encode(), "e\u0301".encode()):
        with open(os.path.join(odd, name), "wb") as file:
            file.write(name)
    os.mkfifo(os.path.join(odd, b"fifo"), 0o640)
    os.mknod(os.path.join(odd, b"null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(os.path.join(odd, b"disk"), 0o600 | stat.S_IFBLK, os.makedev(259, 1234))
    os.mknod(os.path.join(odd, b"socket"), 0o755 | stat.S_IFSOCK)
    os.makedirs(os.path.join(odd, *[b"deep"] * 40))
    os.utime(os.path.join(odd, b"  "), ns=(0, -1_500_000_001))
    os.utime(os.path.join(odd, b"-rf"), ns=(0, 2**33 * 10**9 + 7))


def make_big(path, size, step=lambda n: None):
    """Writes `size` random bytes: nothing that compression could make easy."""
    with open(path, "wb", buffering=0) as file:
        left = size
        while left:
            left -= file.write(os.urandom(min(left, 4 << 20)))
            step(size - left)


# Copying.


def copy(source, target, entries, threads=4, done=lambda files, size: None):
    """Copies what `scan` gave of `source` to the existing directory `target`. `done` hears of every name and of
    bytes as they go."""
    source, target = os.fsencode(source), os.fsencode(target)
    for entry in entries:
        if stat.S_ISDIR(entry.st.st_mode) and entry.path:
            os.mkdir(os.path.join(target, entry.path), 0o700)

    def one(entry):
        from_path, to_path = os.path.join(source, entry.path), os.path.join(target, entry.path)
        make_node(entry, from_path, to_path, lambda size: done(0, size))
        set_attributes(entry, from_path, to_path)
        done(1, 0)

    plain = [e for e in entries if e.first == e.path and not stat.S_ISDIR(e.st.st_mode)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(one, plain):
            pass
    for entry in entries:
        if entry.first != entry.path:
            os.link(os.path.join(target, entry.first), os.path.join(target, entry.path), follow_symlinks=False)
            done(1, 0)
    # Directories last and from the inside: making names in them changed their times.
    for entry in reversed(entries):
        if stat.S_ISDIR(entry.st.st_mode):
            set_attributes(entry, os.path.join(source, entry.path), os.path.join(target, entry.path))
            done(1, 0)


def make_node(entry, from_path, to_path, done):
    mode = entry.st.st_mode
    if stat.S_ISREG(mode):
        copy_data(from_path, to_path, entry.st.st_size, done)
    elif stat.S_ISLNK(mode):
        os.symlink(os.readlink(from_path), to_path)
    else:
        os.mknod(to_path, mode, entry.st.st_rdev)


def copy_data(from_path, to_path, size, done):
    """Copies bytes and leaves holes where the source has them."""
    from_fd = os.open(from_path, os.O_RDONLY)
    to_fd = os.open(to_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for start, end in data_ranges(from_fd, size):
            while start < end:
                piece = os.pread(from_fd, min(PIECE, end - start), start)
                if not piece:
                    break
                os.pwrite(to_fd, piece, start)
                start += len(piece)
                done(len(piece))
        if os.fstat(to_fd).st_size < size:
            os.ftruncate(to_fd, size)
    finally:
        os.close(from_fd)
        os.close(to_fd)


def data_ranges(fd, size):
    """Where a file has data, as (start, end)."""
    if size <= PIECE:
        yield 0, size
        return
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # No data from here on.
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def set_attributes(entry, from_path, to_path):
    st = entry.st
    os.chown(to_path, st.st_uid, st.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(st.st_mode):
        os.chmod(to_path, stat.S_IMODE(st.st_mode))
        for name, value in xattrs(from_path).items():
            os.setxattr(to_path, name, value)
    os.utime(to_path, ns=(st.st_atime_ns, st.st_mtime_ns), follow_symlinks=False)


# Comparing.


def verify(source, target, entries, threads=4, done=lambda files, size: None):
    """Compares `target` with what `scan` gave of `source`, bytes with bytes. Returns what differs, a line each."""
    source, target = os.fsencode(source), os.fsencode(target)
    there = {entry.path: entry for entry in scan(target)}
    wrong = [f"{path!r}: not in the original" for path in there.keys() - {e.path for e in entries}]

    def one(entry):
        copied = there.get(entry.path)
        if copied is None:
            return [f"{entry.path!r}: missing"]
        found = [f"{entry.path!r}: {text}" for text in differences(source, target, entry, copied)]
        if not found and is_data(entry):
            at = first_difference(os.path.join(source, entry.path), os.path.join(target, entry.path), done)
            if at is not None:
                found.append(f"{entry.path!r}: differs from byte {at} on")
        done(1, 0)
        return found

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for found in pool.map(one, entries):
            wrong.extend(found)
    return wrong


def differences(source, target, entry, copied):
    """What is otherwise with one name, its content apart."""
    a, b = entry.st, copied.st
    fields = ["st_mode", "st_uid", "st_gid", "st_mtime_ns"]
    if stat.S_ISREG(a.st_mode):
        fields += ["st_size", "st_nlink"]
    if stat.S_ISBLK(a.st_mode) or stat.S_ISCHR(a.st_mode):
        fields += ["st_rdev"]
    for field in fields:
        if getattr(a, field) != getattr(b, field):
            yield f"{field} {getattr(b, field)} instead of {getattr(a, field)}"
    if entry.first != copied.first:
        yield f"a link of {copied.first!r} instead of {entry.first!r}"
    from_path, to_path = os.path.join(source, entry.path), os.path.join(target, entry.path)
    if stat.S_ISLNK(a.st_mode) and os.readlink(from_path) != os.readlink(to_path):
        yield "another target"
    if xattrs(from_path) != xattrs(to_path):
        yield f"attributes {xattrs(to_path)} instead of {xattrs(from_path)}"
    if stat.S_ISREG(a.st_mode) and a.st_blocks * 512 + (1 << 20) < a.st_size <= b.st_blocks * 512:
        yield "holes were filled"


def _buffer(which):
    """A thread's own buffer: fresh memory for every piece would cost more than the reading."""
    if not hasattr(_buffers, which):
        setattr(_buffers, which, bytearray(PIECE))
    return getattr(_buffers, which)


def first_difference(a_path, b_path, done):
    """Offset of the first byte in which two files differ, or None."""
    with open(a_path, "rb", buffering=0) as a, open(b_path, "rb", buffering=0) as b:
        at = 0
        while True:
            left, right = _buffer("left"), _buffer("right")
            n, m = a.readinto(left), b.readinto(right)
            if n == m == PIECE and left == right:
                at += PIECE
                done(0, PIECE)
                continue
            if n != m or left[:n] != right[:m]:
                same = min(n, m)
                return at + next((i for i in range(same) if left[i] != right[i]), same)
            if n == 0:
                return None
            at += n
            done(0, n)


def manifest(root, threads=4):
    """All of a tree as {path: description}, content as a hash: equal manifests mean equal trees."""
    root = os.fsencode(root)

    def one(entry):
        st, path = entry.st, os.path.join(root, entry.path)
        about = [oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns, entry.first, sorted(xattrs(path).items())]
        if stat.S_ISLNK(st.st_mode):
            about.append(os.readlink(path))
        elif stat.S_ISREG(st.st_mode):
            about += [st.st_size, st.st_nlink, content_hash(path) if is_data(entry) else None]
        elif not stat.S_ISDIR(st.st_mode):
            about.append(st.st_rdev)
        return entry.path, about

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(one, scan(root)))


def content_hash(path):
    digest = hashlib.blake2b(digest_size=16)
    buffer = _buffer("left")
    with open(path, "rb", buffering=0) as file:
        while n := file.readinto(buffer):
            digest.update(memoryview(buffer)[:n])
    return digest.hexdigest()


def compare(before, after):
    """What differs between two manifests, a line each."""
    lines = [f"{path!r}: missing" for path in before.keys() - after.keys()]
    lines += [f"{path!r}: new" for path in after.keys() - before.keys()]
    lines += [f"{p!r}: {after[p]} instead of {before[p]}" for p in before.keys() & after.keys() if before[p] != after[p]]
    return sorted(lines)
