"""Crashes: what an fsync acknowledged is there afterwards, byte for byte, and the mountpoint is usable again."""
import concurrent.futures
import hashlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import hosts
import power
from harness import Failed, Skipped, test
from hosts import other_host, scan
from load import Mixed, Workers
from world import TARN, Host, wait_until

SMALL_RECORDS = ["-o", "rewind=0", "-O", "recordsize=4K"]


def finish(t, pool, loads):
    """Mounts cold, compares all that was acknowledged, and checks every byte in the buckets."""
    pool.remount_cold()
    checked = sum(load.verify(pool.mnt) for load in loads)
    pool.umount()
    pool.host.tarn("check", "--data", pool.name, limit=600)
    return checked


def remove(pool):
    """The pool is not wanted any more, nor the memory that its buckets take."""
    pool.host.tarn("pool", "destroy", pool.name)
    pool.gone = True
    for vdev in filter(os.path.isdir, pool.vdevs):
        shutil.rmtree(vdev)


def one_seed(t, seed):
    """A pool of its own, as the seed draws it; one to three lives, each ended by a kill at some moment of its load."""
    rng = random.Random(seed)
    options = [
        "-o", f"rewind={rng.choice(['0', '10m'])}", "-O", f"recordsize={rng.choice(['4K', '128K', '1M'])}",
        "-O", f"compression={rng.choice(['lz4', 'off', 'zstd'])}",
    ]
    if seed % 3 == 2:
        server = t.world.servers[0] if t.world.servers else t.world.s3(3)
        buckets = server.urls(prefix=f"seed{seed}")
    else:
        buckets = t.world.buckets(rng.randint(1, 4), prefix=f"seed{seed}-")
    pool = t.world.pool(name=f"tank{seed}", buckets=buckets, options=options)
    pool.mount()
    loads, kills = [], rng.randint(1, 3)
    for life in range(kills):
        loads.append(Mixed(pool.mnt, t.scratch, f"s{seed}l{life}", 100 * seed + life))
        time.sleep(rng.choice([rng.uniform(0.1, 1), rng.uniform(1, 4)]))
        pool.kill(signal.SIGKILL)
        loads[-1].end()
        pool.mount()
        loads[-1].verify(pool.mnt)
    checked = finish(t, pool, loads)
    remove(pool)
    return kills, checked


@test("kill -9 at moments of a mixed load, from seeds: all that was fsynced is there, nothing is torn, no damage",
      limit=180, long_limit=3600, needs="pool")
def seeds(t):
    kills = checked = 0
    count = t.pick(2, 40)
    # The last one of three has its buckets on an S3 server.
    for seed in range(1, 1 + count):
        print(f"-- seed {seed}", flush=True)
        done = one_seed(t, seed)
        kills, checked = kills + done[0], checked + done[1]
    t.check(checked > 0, "nothing was acknowledged before the kills")
    t.note(f"{count} seeds, {kills} kills, {checked} acknowledged files checked")


# Points that are passed many times in a second of load; the others are rare.
FREQUENT = ("segment.", "txg.", "metadata.", "fsync.")


class Walk:
    """One point: a pool whose process ends when it passes the point, and what is there afterwards."""

    def __init__(self, t, point, number, nth):
        self.t, self.point, self.nth = t, point, nth
        self.name = f"p{number}"
        self.host = Host(t.world.path("state-" + self.name))
        rng = random.Random(number)
        authority = rng.choice(["host", "bucket"])
        self.pool = t.world.pool(
            self.name, t.world.buckets(2, self.name), [*SMALL_RECORDS, "-o", f"authority={authority}"], self.host
        )
        self.loads = []

    def armed(self, *words):
        """Runs a command in which the point is armed; what it starts inherits that."""
        self.host.environment["TARN_CRASH_AT"] = f"{self.point}:{self.nth}"
        try:
            return self.host.tarn(*words, check=False)
        finally:
            del self.host.environment["TARN_CRASH_AT"]

    def died_there(self, said):
        """The process says where it is before it ends."""
        return f"at the point {self.point}" in said

    def log(self):
        path = os.path.join(self.host.state, f"{self.name}.log")
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as file:
            return file.read()

    def before(self):
        """Something acknowledged, and the pool let go."""
        self.pool.mount()
        self.loads.append(Workers(self.pool.mnt, self.t.scratch, f"{self.name}b", 2))
        time.sleep(0.3)
        self.loads[-1].stop()
        self.pool.umount()

    def by_load(self):
        mounted = self.armed("mount", "-o", "allow_other,dev,suid", self.name, self.pool.mnt)
        if mounted.returncode:
            # Mounting passes some points, too.
            return self.log()
        self.loads.append(Workers(self.pool.mnt, self.t.scratch, f"{self.name}l", 3))
        self.loads.append(Workers(self.pool.mnt, self.t.scratch, f"{self.name}s", 1, ["sparse", "passing", "cut"]))
        try:
            wait_until(lambda: not self.pool.daemons(), 60, f"{self.point} is passed under load")
        except Failed:
            self.pool.kill()
            raise
        finally:
            for load in self.loads:
                load.end()
        return self.log()

    def by_mount(self):
        self.before()
        done = self.armed("mount", "-o", "allow_other,dev,suid", self.name, self.pool.mnt)
        self.t.check(done.returncode != 0, f"{self.point}: the mount did not fail")
        return self.log()

    def by_import(self):
        self.before()
        self.host.tarn("pool", "export", self.name)
        command = ["pool", "import", *scan(self.pool), self.name]
        done = self.armed(*command)
        self.killed(done)
        self.host.tarn(*command)
        return done.stderr

    def by_export(self):
        self.before()
        done = self.armed("pool", "export", self.name)
        self.killed(done)
        self.host.tarn("pool", "export", self.name)
        self.host.tarn("pool", "import", *scan(self.pool), self.name)
        return done.stderr

    def killed(self, done):
        self.t.check(done.returncode == -signal.SIGKILL, f"{self.point}: exit status {done.returncode}, and no end")

    def run(self):
        """Gives how many files were acknowledged before."""
        ways = {"import": self.by_import, "label": self.by_import, "export": self.by_export, "open": self.by_mount}
        said = ways.get(self.point.split(".")[0], self.by_load)()
        self.t.check(self.died_there(said), f"{self.point}: the process ended, but not there")
        self.pool.mount()
        for load in self.loads:
            load.verify(self.pool.mnt)
        checked = finish(self.t, self.pool, self.loads)
        remove(self.pool)
        return checked


@test("at every named point in commit, fsync, rename, truncate, reclaim, compaction, import, export: dies, loses nothing",
      limit=400, long_limit=3600, needs="pool")
def points(t):
    names, rng = hosts.points(t), random.Random(5)
    walks = []
    for round in range(t.pick(1, 5)):
        for name in names:
            once = name.split(".")[0] in ("import", "label", "export", "open")
            if once and round > 0:
                continue
            most = 1 if once else (t.pick(20, 200) if name.startswith(FREQUENT) else t.pick(1, 3))
            walks.append((name, rng.randint(1, most)))

    def walk(numbered):
        number, (name, nth) = numbered
        checked = Walk(t, name, number, nth).run()
        print(f"-- {name}:{nth}: {checked} files", flush=True)
        return checked

    # Several at a time: some wait for what happens every few seconds only.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        checked = sum(pool.map(walk, enumerate(walks)))
    t.note(f"{len(names)} points, {len(walks)} crashes, {checked} acknowledged files checked")


class Administrator:
    """Changes the pool's configuration, which is in its labels, again and again; knows what was acknowledged."""

    def __init__(self, pool):
        self.pool, self.done, self.lock = pool, [], threading.Lock()
        self.running, self.stopped = None, False
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while True:
            words = [TARN, "pool", "set", f"comment=n{len(self.done)}", self.pool.name]
            with self.lock:
                if self.stopped:
                    return
                self.running = subprocess.Popen(words, env=self.pool.host.env(), stderr=subprocess.DEVNULL)
            if self.running.wait() == 0:
                self.done.append(len(self.done))

    def stop(self):
        """Goes away in the middle of it. A command that found no daemon would open the pool itself."""
        with self.lock:
            self.stopped = True
            if self.running is not None:
                self.running.kill()
        self.thread.join(timeout=60)

    def allowed(self):
        """What the comment may be afterwards."""
        return [f"n{n}" for n in (len(self.done) - 1, len(self.done)) if n >= 0] + ["-", ""] * (not self.done)


def lose_power(t, seed):
    """One run, and what three power losses at its end leave."""
    rng = random.Random(seed)
    name = f"tank{seed}"
    options = ["-o", f"rewind={rng.choice(['0', '10m'])}", "-O", f"recordsize={rng.choice(['4K', '128K'])}"]
    buckets = t.world.buckets(rng.randint(1, 3), f"power{seed}-")
    pool = t.world.pool(name, buckets, options)
    pool.mount()
    loads = [Workers(pool.mnt, t.scratch, f"s{seed}a", 2)]
    time.sleep(0.5)
    loads[0].stop()
    pool.umount()
    # All that is there now counts as durable.
    watch = power.Watch(buckets, t.world.path(f"kept{seed}"))
    trace = os.path.join(t.scratch, f"trace{seed}")
    with open(os.path.join(t.scratch, f"daemon{seed}.log"), "wb") as log:
        command = [*power.command(trace), TARN, "mount", "-f", "-o", "allow_other,dev,suid", name, pool.mnt]
        tracer = subprocess.Popen(command, env=pool.host.env(), stdout=log, stderr=log)
    wait_until(lambda: os.path.ismount(pool.mnt), 60, "the mount")
    loads.append(Workers(pool.mnt, t.scratch, f"s{seed}b", 3))
    admin = Administrator(pool)
    time.sleep(rng.uniform(1, 5))
    admin.stop()
    pool.kill(signal.SIGKILL)
    loads[-1].end()
    tracer.wait(timeout=60)
    watch.end()
    pool.host.tarn("umount", pool.mnt)
    pool.gone = True
    loss, lost, checked = power.Loss(watch, trace), 0, 0
    for number, how in enumerate(["all", "some", "after"]):
        copies = [t.world.path("copies", f"{seed}-{number}", os.path.basename(b)) for b in buckets]
        lost += loss.leave(rng, how, copies)
        checked += after_power_loss(t, pool, f"{seed}-{number}", copies, loads, admin)
    for vdev in buckets:
        shutil.rmtree(vdev)
    return lost, checked


def after_power_loss(t, pool, name, copies, loads, admin):
    """Imports what a power loss left, on another host, and finds all that was acknowledged."""
    there = other_host(t, pool, f"after-{name}")
    there.vdevs = copies
    there.host.tarn("pool", "import", "-f", *scan(there), pool.name)
    there.mount()
    checked = sum(load.verify(there.mnt) for load in loads)
    comment = there.host.tarn("pool", "get", "-H", "-o", "value", "comment", pool.name, quiet=True).stdout.strip()
    t.check(comment in admin.allowed(), f"the comment is {comment!r}, and should be one of {admin.allowed()}")
    there.umount()
    there.host.tarn("check", "--data", pool.name, limit=600)
    remove(there)
    return checked


@test("power loss on local buckets: what no sync covered is lost, and all that was acknowledged is there",
      limit=180, long_limit=3600, needs="pool")
def power_loss(t):
    if shutil.which("strace") is None:
        raise Skipped("strace is not installed: tests/install/debian.sh")
    lost = checked = 0
    for seed in range(t.pick(2, 20)):
        print(f"-- seed {seed}", flush=True)
        done = lose_power(t, seed)
        lost, checked = lost + done[0], checked + done[1]
    t.check(lost > 0 and checked > 0, f"{lost} names and contents lost, {checked} files acknowledged: it shows nothing")
    t.note(f"{3 * (seed + 1)} losses of {lost} names and contents, {checked} acknowledged files checked")


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
