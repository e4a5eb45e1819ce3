"""kill -9: what an fsync acknowledged is there afterwards, byte for byte, and the mountpoint is usable again."""
import hashlib
import os
import random
import signal
import subprocess
import sys
import time

from harness import REPO, Failed, test
from world import wait_until

WORKER = os.path.join(REPO, "tests/posix/fsyncer.py")


def acknowledgements(lines):
    """What the workers' logs promise: for each path the last generation acknowledged and the last one begun."""
    promised, begun = {}, {}
    for line in lines:
        word, path, generation = line.split()
        (promised if word == "durable" else begun)[path] = int(generation)
    return promised, begun


def verify(folder, logs):
    """Every acknowledged file must hold the generation acknowledged or a later one that was begun, whole."""
    sys.path.insert(0, os.path.dirname(WORKER))
    import fsyncer

    checked = 0
    for log in logs:
        with open(log) as file:
            # The last line may be torn: the worker was killed.
            promised, begun = acknowledgements(line for line in file if line.endswith("\n"))
        for path, generation in promised.items():
            last = max(generation, begun.get(path, 0))
            allowed = [fsyncer.content(path, g) for g in range(generation, last + 1)]
            try:
                with open(os.path.join(folder, path), "rb") as file:
                    found = file.read()
            except OSError as e:
                raise Failed(f"{path}: {e.strerror}, and generation {generation} was fsynced") from None
            if found not in allowed:
                raise Failed(f"{path}: {len(found)} bytes that are none of generations {generation} to {last}")
            checked += 1
    return checked


@test("rounds of fsync, rename, append under load, kill -9 and mounting again", limit=180, long_limit=3600, needs="pool")
def rounds(t):
    pool = t.world.pool(buckets=4)
    pool.mount()
    rng, checked, logs = random.Random(11), 0, []
    for number in range(t.pick(4, 40)):
        workers, new = [], []
        for n in range(4):
            new.append(os.path.join(t.scratch, f"log-{number}-{n}"))
            workers.append(subprocess.Popen([sys.executable, WORKER, pool.mnt, f"r{number}w{n}", new[-1]]))
        noise = subprocess.Popen(
            ["sh", "-c", f"cp -r {REPO}/tests {pool.mnt}/noise{number}; rm -r {pool.mnt}/noise{number}"],
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.5, 3.0))
        pool.kill(signal.SIGKILL)
        for process in [*workers, noise]:
            process.wait(timeout=60)
        logs += new
        pool.mount()
        checked += verify(pool.mnt, logs if number % 4 == 3 else new)
    t.check(checked > 0, "nothing was acknowledged before the kill")
    verify(pool.mnt, logs)
    t.note(f"{number + 1} kills, {checked} acknowledged files checked")


@test("SIGTERM writes everything and unmounts", limit=90, needs="pool")
def sigterm(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    data = {f"file{n}": os.urandom(300_000) for n in range(100)}
    for name, content in data.items():
        with open(os.path.join(pool.mnt, name), "wb") as file:
            file.write(content)
    pool.kill(signal.SIGTERM, wait=60)
    t.check(not os.path.ismount(pool.mnt), "it is still mounted")
    pool.mount()
    for name, content in data.items():
        with open(os.path.join(pool.mnt, name), "rb") as file:
            t.check(file.read() == content, f"{name} is not what was written")


@test("a mountpoint left dead is taken over by mounting again, and by umount", limit=90, needs="pool")
def dead_mountpoint(t):
    pool = t.world.pool(buckets=2)
    for way in ("mount", "umount"):
        pool.mount()
        with open(os.path.join(pool.mnt, way), "w") as file:
            file.write("kept")
            file.flush()
            os.fsync(file.fileno())
        pool.kill(signal.SIGKILL)
        try:
            os.listdir(pool.mnt)
            raise Failed("the mountpoint is not dead")
        except OSError:
            pass
        if way == "umount":
            pool.host.tarn("umount", pool.mnt)
            t.check(os.listdir(pool.mnt) == [], "something is still mounted")
        pool.mount()
        with open(os.path.join(pool.mnt, way)) as file:
            t.check(file.read() == "kept", "what was fsynced is gone")
        pool.umount()


@test("without fsync: after a kill the tree is one that existed, no file is torn", limit=120, needs="pool")
def prefix(t):
    """Files are written once and renamed into place in order, to names that are new; after the crash the names must
    be a prefix of that order. A file's data follows its name, so the last ones may still be empty, never torn."""
    pool = t.world.pool(buckets=3)
    for number in range(t.pick(2, 10)):
        pool.mount()
        folder = os.path.join(pool.mnt, f"round{number}")
        os.mkdir(folder)
        end = time.monotonic() + 7
        count = 0
        while time.monotonic() < end:
            body = hashlib.blake2b(str(count).encode()).digest() * 1000
            with open(os.path.join(folder, "new"), "wb") as file:
                file.write(body)
            os.rename(os.path.join(folder, "new"), os.path.join(folder, f"{count:06}"))
            count += 1
        pool.kill(signal.SIGKILL)
        pool.mount()
        names = sorted(n for n in os.listdir(folder) if n != "new") if os.path.isdir(folder) else []
        t.check(names == [f"{n:06}" for n in range(len(names))], f"names are no prefix: {names[-3:]} of {len(names)}")
        for n, name in enumerate(names):
            with open(os.path.join(folder, name), "rb") as file:
                body = file.read()
            whole = body == hashlib.blake2b(str(n).encode()).digest() * 1000
            t.check(whole or body == b"", f"{name} is torn: {len(body)} bytes")
        # Seven seconds are more than one transaction group.
        t.check(names, "nothing of seven seconds' work is there")
        t.note(f"{len(names)} of {count}")
        pool.umount()
