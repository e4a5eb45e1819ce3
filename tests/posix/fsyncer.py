"""Changes files, makes each change durable, and says so: `fsyncer.py DIR NAME LOG [KIND...]`, until it is killed or the
mount goes.

The log gets `begun PATH GENERATION` before a file is touched and `durable PATH GENERATION` after its fsync came
back. It lies outside the mount. Whatever says `durable` must be there after a crash, that generation or a later
one that was begun: [`wrong`] says whether it is.

What generations are depends on the file's kind, the last part of its name:

    small, middle, large   written once
    renamed                written to another name and renamed over the one before; every second one is fsynced later
    log                    a line is appended
    passing                made, and removed by the next; every third has many records
    moved                  renamed from one directory to another and back
    cut                    grown, and truncated into the middle of a record by the next
    sparse                 as cut, with many records far from each other"""
import functools
import hashlib
import os
import random
import sys

SIZES = {"small": 500, "middle": 40_000, "large": 700_000, "renamed": 9_000, "passing": 2_900, "moved": 2_000}
# To which length a file is truncated; into no record's first or last byte.
CUT = 5_000
WHOLE = {"cut": 300_000, "sparse": None}
# Of a sparse file: bytes of a piece, from one to the next, and how many: each in a chunk of the block map of its own, where
# records have 4 KiB, and more of them than one step of a truncation frees.
PIECE, STRIDE, PIECES = 4096, 256 << 10, 200
RECORDS = [4096 << n for n in range(13)]


def kind_of(path):
    return path.rsplit("-", 1)[1]


def place(path, generation):
    """The path under which a generation lies."""
    if kind_of(path) == "moved":
        return f"{path.split('-')[0]}-folder{generation % 2}/{path}"
    return path


@functools.lru_cache(8)
def whole(path):
    """A cut or sparse file at its longest."""
    rng = random.Random(path)
    if kind_of(path) == "cut":
        return rng.randbytes(WHOLE["cut"])
    data = bytearray(STRIDE * (PIECES - 1) + PIECE)
    for n in range(PIECES):
        data[n * STRIDE:n * STRIDE + PIECE] = rng.randbytes(PIECE)
    return bytes(data)


def content(path, generation):
    """What generation N of a file holds; None where it is no more."""
    kind = kind_of(path)
    if kind == "log":
        # Appended to: each generation is the one before with a line more.
        return b"".join(hashlib.blake2b(f"{path} {n}".encode()).hexdigest().encode() + b"\n" for n in range(generation + 1))
    if kind in WHOLE:
        return whole(path)[:CUT] if generation % 2 else whole(path)
    if kind == "passing" and generation % 2:
        return None
    seed = f"{path} {0 if kind == 'moved' else generation}".encode()
    size = 300_000 if path.endswith("-2-passing") else SIZES[kind]
    return random.Random(seed).randbytes(size + len(seed) % 7)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def wrong(folder, path, low, high):
    """What is wrong with a file of which generation `low` is durable and `high` was begun; None if nothing is."""
    try:
        return differs(folder, path, low, high)
    except OSError as e:
        return f"it cannot be read: {e.strerror}"


def differs(folder, path, low, high):
    kind, span = kind_of(path), range(low, high + 1)
    if kind == "moved":
        found = {g % 2: read(os.path.join(folder, place(path, g))) for g in (low, low + 1)}
        there = [side for side, data in found.items() if data is not None]
        if len(there) != 1:
            return f"it is at {len(there)} places"
        if there[0] not in {g % 2 for g in span}:
            return "it is where it was before"
        return None if found[there[0]] == content(path, low) else "its content is another"
    found = read(os.path.join(folder, path))
    if found in [content(path, g) for g in span]:
        return None
    if low < high and between(path, found, low, high):
        return None
    return "it is gone" if found is None else f"it has {len(found)} bytes"


def between(path, found, low, high):
    """Whether a crash may leave this of generations under way (docs/SEMANTICS.md)."""
    kind = kind_of(path)
    if found is None:
        return False
    if kind == "log":
        return len(found) >= len(content(path, low)) and content(path, high).startswith(found)
    if kind == "passing":
        # Its name is there, and what it holds is there in part.
        return any(content(path, g).startswith(found) for g in range(low + 1, high + 1) if g % 2 == 0)
    if kind in WHOLE:
        full = whole(path)
        if CUT <= len(found) and full.startswith(found):
            return True
        # The record was cut, and the size not yet.
        ends = {-(-CUT // size) * size for size in RECORDS}
        cuts = (full[:CUT] + bytes(end - CUT) + full[end:] for end in ends if end <= len(full))
        return len(found) == len(full) and any(found == cut for cut in cuts)
    return False


def write_all(fd, data, at):
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path, data, number=0):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        write_all(fd, data, 0)
        os.fdatasync(fd) if number % 2 else os.fsync(fd)
    finally:
        os.close(fd)


def store(folder, path, generation):
    """Brings a file to a generation, durably, in the way its kind asks for."""
    kind, full, data = kind_of(path), os.path.join(folder, path), content(path, generation)
    if kind == "renamed":
        fd = os.open(full + ".new", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            write_all(fd, data, 0)
            if generation % 2:
                os.fsync(fd)
            os.rename(full + ".new", full)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync(folder)
    elif kind == "log":
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        line = data[data[:-1].rfind(b"\n") + 1:]
        assert os.write(fd, line) == len(line)
        os.fdatasync(fd) if generation % 2 else os.fsync(fd)
        os.close(fd)
    elif kind == "passing":
        write_durably(full, data) if data is not None else os.unlink(full)
        sync(folder)
    elif kind == "moved":
        move(folder, path, generation, data)
    elif kind in WHOLE:
        grow_or_cut(full, kind, generation, data)
    else:
        # Files of these kinds are written once: an overwrite in place may be torn by a crash on any file system.
        write_durably(full, data, generation)


def move(folder, path, generation, data):
    there = os.path.join(folder, place(path, generation))
    if generation == 0:
        for g in (0, 1):
            os.makedirs(os.path.join(folder, os.path.dirname(place(path, g))), exist_ok=True)
        write_durably(there, data)
    else:
        os.rename(os.path.join(folder, place(path, generation - 1)), there)
    sync(os.path.dirname(there))


def grow_or_cut(full, kind, generation, data):
    fd = os.open(full, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if generation % 2:
            os.ftruncate(fd, CUT)
        elif kind == "cut":
            start = CUT if generation else 0
            write_all(fd, data[start:], start)
        else:
            for n in range(1 if generation else 0, PIECES):
                write_all(fd, data[n * STRIDE:n * STRIDE + PIECE], n * STRIDE)
        os.fsync(fd)
    finally:
        os.close(fd)


KINDS = ["small", "small", "middle", "large", "renamed", "log", "passing", "moved", "cut"]


def main():
    folder, name, log = sys.argv[1:4]
    kinds = sys.argv[4:] or KINDS
    rng = random.Random(name)
    generations = {}
    out = open(log, "w", buffering=1)
    count = 0
    while True:
        kind = rng.choice(kinds)
        if kind in ("small", "middle", "large"):
            path, generation = f"{name}-{count}-{kind}", 0
            count += 1
        else:
            path = f"{name}-{rng.randrange(1 if kind == 'sparse' else 3)}-{kind}"
            generation = generations.get(path, -1) + 1
        out.write(f"begun {path} {generation}\n")
        try:
            store(folder, path, generation)
        except OSError:
            return  # The daemon was killed.
        generations[path] = generation
        out.write(f"durable {path} {generation}\n")


if __name__ == "__main__":
    main()
