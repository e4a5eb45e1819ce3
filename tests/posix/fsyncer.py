"""Writes files, makes them durable, and says so: `fsyncer.py DIR NAME LOG`, until it is killed or the mount goes.

The log gets `begun PATH GENERATION` before a file is touched and `durable PATH GENERATION` after its fsync came
back. It lies outside the mount. Whatever says `durable` must be there after a crash, that generation or a later
one that was begun."""
import hashlib
import os
import random
import sys


def content(path, generation):
    """What generation N of a file holds: from a few bytes to a few records, depending on its name."""
    seed = f"{path} {generation}".encode()
    kind = path.rsplit("-", 1)[1]
    if kind == "log":
        # Appended to: each generation is the one before with a line more.
        return b"".join(hashlib.blake2b(f"{path} {n}".encode()).hexdigest().encode() + b"\n" for n in range(generation + 1))
    size = {"small": 500, "middle": 40_000, "large": 700_000, "renamed": 9_000}[kind]
    return random.Random(seed).randbytes(size + len(seed) % 7)


def write_all(fd, data, at):
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n


def store(folder, path, generation):
    """Brings a file to a generation, durably, in the way its kind asks for."""
    full, data = os.path.join(folder, path), content(path, generation)
    if path.endswith("-renamed"):
        fd = os.open(full + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        write_all(fd, data, 0)
        os.fsync(fd)
        os.close(fd)
        os.rename(full + ".new", full)
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return
    if path.endswith("-log"):
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        line = data[data[:-1].rfind(b"\n") + 1:]
        assert os.write(fd, line) == len(line)
    else:
        # Files of these kinds are written once: an overwrite in place may be torn by a crash on any file system.
        fd = os.open(full, os.O_WRONLY | os.O_CREAT, 0o644)
        write_all(fd, data, 0)
    os.fdatasync(fd) if generation % 2 else os.fsync(fd)
    os.close(fd)


def main():
    folder, name, log = sys.argv[1:4]
    rng = random.Random(name)
    generations = {}
    out = open(log, "w", buffering=1)
    count = 0
    while True:
        kind = rng.choice(["small", "small", "middle", "large", "renamed", "log"])
        if kind in ("renamed", "log"):
            path = f"{name}-{rng.randrange(3)}-{kind}"
            generation = generations.get(path, -1) + 1
        else:
            path, generation = f"{name}-{count}-{kind}", 0
            count += 1
        out.write(f"begun {path} {generation}\n")
        try:
            store(folder, path, generation)
        except OSError:
            return  # The daemon was killed.
        generations[path] = generation
        out.write(f"durable {path} {generation}\n")


if __name__ == "__main__":
    main()
