"""One of many processes that append to the same file: `appender.py FILE posix|bsd|append WRITER COUNT`.

Under a lock the writer looks for the end itself and writes there, so that a lock that does not hold, or an end
that is out of date, loses lines. With O_APPEND the kernel and the file system must find the end."""
import fcntl
import hashlib
import os
import random
import sys


def main():
    path, way, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(writer)
    flags = os.O_RDWR | os.O_CREAT | (os.O_APPEND if way == "append" else 0)
    fd = os.open(path, flags, 0o644)
    for number in range(count):
        body = f"{writer} {number} {'x' * rng.randrange(300)}".encode()
        line = body + b" " + hashlib.blake2b(body, digest_size=8).hexdigest().encode() + b"\n"
        if way == "append":
            wrote = os.write(fd, line)
        else:
            lock = fcntl.lockf if way == "posix" else fcntl.flock
            lock(fd, fcntl.LOCK_EX)
            wrote = os.pwrite(fd, line, os.lseek(fd, 0, os.SEEK_END))
            lock(fd, fcntl.LOCK_UN)
        assert wrote == len(line), "short write"


main()
