"""Writes and reads for some seconds and goes on after errors: `steady.py DIR NAME SECONDS LOG`.

A file is written beside its place, fsynced, renamed there, and its folder fsynced. The log gets `begun PATH
GENERATION` before and `durable PATH GENERATION` afterwards; it lies outside the mount. What is read must be the last
generation that is durable, or one begun since. The last line of output is JSON: calls, errors by name, the longest
call in seconds and which it was. Exit status 3: wrong data."""
import collections
import errno
import json
import os
import random
import sys
import time

FILES = 24
SIZES = [700, 30_000, 300_000, 2_500_000]


class Calls:
    """Counts and times system calls, and lets their errors through."""

    def __init__(self):
        self.count, self.errors, self.longest, self.which = 0, collections.Counter(), 0.0, ""

    def __call__(self, call, *words):
        start = time.monotonic()
        try:
            return call(*words)
        except OSError as e:
            self.errors[errno.errorcode.get(e.errno, str(e.errno))] += 1
            raise
        finally:
            took = time.monotonic() - start
            self.count += 1
            if took > self.longest:
                self.longest, self.which = took, call.__name__


def content(path, generation):
    rng = random.Random(f"{path} {generation}")
    return rng.randbytes(rng.choice(SIZES) + rng.randrange(5000))


def store(calls, folder, path, generation):
    full = os.path.join(folder, path)
    fd = calls(os.open, full + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view, at = memoryview(content(path, generation)), 0
        while view:
            n = calls(os.pwrite, fd, view[:262144], at)
            view, at = view[n:], at + n
        calls(os.fsync, fd)
    finally:
        os.close(fd)
    calls(os.rename, full + ".new", full)
    fd = calls(os.open, folder, os.O_RDONLY)
    try:
        calls(os.fsync, fd)
    finally:
        os.close(fd)


def load(calls, folder, path):
    fd = calls(os.open, os.path.join(folder, path), os.O_RDONLY)
    try:
        # Not from the kernel's memory.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = b""
        while piece := calls(os.pread, fd, 262144, len(found)):
            found += piece
        return found
    finally:
        os.close(fd)


def main():
    folder, name, seconds, log = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    rng, calls = random.Random(name), Calls()
    durable, begun, stored, read = {}, {}, 0, 0
    out = open(log, "w", buffering=1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path = f"{name}-{rng.randrange(FILES)}"
        try:
            if path in durable and rng.random() < 0.5:
                found = load(calls, folder, path)
                if all(found != content(path, g) for g in range(durable[path], begun[path] + 1)):
                    print(f"{path}: {len(found)} bytes that are none of {durable[path]} to {begun[path]}")
                    sys.exit(3)
                read += 1
            else:
                generation = begun.get(path, -1) + 1
                out.write(f"begun {path} {generation}\n")
                begun[path] = generation
                store(calls, folder, path, generation)
                durable[path] = generation
                out.write(f"durable {path} {generation}\n")
                stored += 1
        except OSError:
            time.sleep(0.05)
    print(json.dumps({"calls": calls.count, "stored": stored, "read": read, "errors": calls.errors,
                      "longest": round(calls.longest, 2), "which": calls.which}))


if __name__ == "__main__":
    main()
