"""Trouble with buckets under load: nothing wrong, nothing lost, no call without an end, and work goes on by itself."""
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from faults import Proxy
from harness import REPO, Failed, test
from hosts import refused
from load import acknowledgements
from world import wait_until

WORKER = os.path.join(REPO, "tests/posix/steady.py")
sys.path.insert(0, os.path.dirname(WORKER))

# Seconds that a call may take beyond the pool's deadline.
GRACE = 5


class Trouble:
    """A pool on an S3 server behind a proxy that fails as it is told to."""

    def __init__(self, t, buckets=3, deadline=60, failmode="wait", memory="64M"):
        self.t, self.deadline = t, deadline
        self.server = t.world.s3(buckets)
        self.proxy = Proxy(self.server.port)
        t.world.servers.insert(0, self.proxy)
        options = ["-o", f"deadline={deadline}s", "-o", f"failmode={failmode}", "-o", "rewind=0"]
        self.pool = t.world.pool(buckets=self.proxy.urls(self.server), options=options)
        self.pool.mount("-o", f"memory={memory}")
        self.workers, self.logs = [], []

    def load(self, seconds, count=4):
        """Starts workers that write and read."""
        for n in range(count):
            name = f"r{len(self.logs)}"
            log = os.path.join(self.t.scratch, f"log-{name}")
            command = [sys.executable, WORKER, self.pool.mnt, name, str(seconds), log]
            self.workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            self.logs.append(log)

    def finish(self, limit):
        """Waits for the workers, and adds up what they say."""
        reports = []
        for worker in self.workers:
            try:
                output = worker.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                worker.kill()
                raise Failed(f"a program is still in a call after {limit} s") from None
            if worker.returncode:
                raise Failed(f"exit status {worker.returncode}: {output.strip()[-300:]}")
            reports.append(json.loads(output.splitlines()[-1]))
        self.workers = []
        longest = max(reports, key=lambda r: r["longest"])
        errors = {}
        for report in reports:
            for name, count in report["errors"].items():
                errors[name] = errors.get(name, 0) + count
        stored, read = sum(r["stored"] for r in reports), sum(r["read"] for r in reports)
        self.t.note(f"{stored} stored, {read} read, errors {errors}, longest {longest['longest']} s ({longest['which']})")
        self.t.check(stored > 0 and read > 0, "the workers did nothing")
        return longest["longest"], errors, stored

    def verify(self):
        """Mounts cold and reads all: what was acknowledged is there; then checks every byte in the buckets."""
        import steady

        self.pool.remount_cold()
        checked = 0
        for log in self.logs:
            with open(log) as file:
                promised, begun = acknowledgements(file)
            for path, generation in promised.items():
                with open(os.path.join(self.pool.mnt, path), "rb") as file:
                    found = file.read()
                allowed = [steady.content(path, g) for g in range(generation, begun[path] + 1)]
                self.t.check(found in allowed, f"{path}: {len(found)} bytes, none of {generation} to {begun[path]}")
                checked += 1
        self.pool.umount()
        self.pool.host.tarn("check", "--data", self.pool.name, limit=600)
        self.t.note(f"{checked} files checked")

    def status(self):
        return self.pool.host.tarn("pool", "status", self.pool.name, quiet=True, limit=30).stdout

    def until_suspended(self, limit):
        return wait_until(lambda: (s := self.status()) and "SUSPENDED" in s and s, limit, "the pool is SUSPENDED", 0.5)


@contextlib.contextmanager
def call(function, *words):
    """A call in a thread, for a `with` block that changes things while it waits; its result is in the list given."""
    result = []

    def run():
        try:
            result.append(function(*words))
        except OSError as e:
            result.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.result = result
    yield thread


def write_durably(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


@test("5 % failed requests, replies lost after the PUT, short bodies: nobody notices", limit=180, needs="pool")
def rates(t):
    trouble = Trouble(t)
    trouble.proxy.rates = {"fail": 0.05, "lost": 0.02, "short": 0.02}
    trouble.load(t.pick(15, 300))
    _, errors, _ = trouble.finish(t.pick(100, 500))
    t.check(not errors, f"errors reached programs: {errors}")
    happened = dict(trouble.proxy.happened)
    t.check(all(happened.get(fault) for fault in ("fail", "lost", "short")), f"not every fault happened: {happened}")
    t.note(f"faults {happened}")
    status = trouble.status()
    t.check("ONLINE" in status.splitlines()[1], f"status: {status}")
    trouble.verify()


@test("a bucket is away for a while: calls wait, and all goes on by itself", limit=240, needs="pool")
def outage(t):
    trouble = Trouble(t, deadline=t.pick(3, 60))
    away = t.pick(12, 90)
    trouble.load(away + 20)
    time.sleep(4)
    trouble.proxy.away = {"b02"}
    status = trouble.until_suspended(away)
    print(status)
    t.check("b02" in status and "since" in status and "action:" in status, f"status: {status}")
    time.sleep(away)
    trouble.proxy.away = set()
    back = time.monotonic()
    wait_until(lambda: "SUSPENDED" not in trouble.status(), 15, "the pool goes on", 0.2)
    t.note(f"goes on {time.monotonic() - back:.1f} s after the bucket is back")
    _, errors, _ = trouble.finish(away + 60)
    t.check(not errors, f"errors reached programs although failmode is wait: {errors}")
    trouble.verify()


@test("a bucket accepts and never answers, failmode=continue: EIO within the deadline", limit=240, needs="pool")
def silent(t):
    deadline = t.pick(4, 30)
    trouble = Trouble(t, deadline=deadline, failmode="continue")
    trouble.load(deadline * 4 + 15)
    time.sleep(4)
    trouble.proxy.silent = {"b01"}
    time.sleep(deadline * 3)
    start = time.monotonic()
    status = trouble.status()
    t.check(time.monotonic() - start < 8, "status takes long")
    t.check("b01" in status and "failmode" in status, f"status: {status}")
    trouble.proxy.silent = set()
    longest, errors, _ = trouble.finish(deadline * 4 + 60)
    t.check(set(errors) <= {"EIO"}, f"errors other than EIO: {errors}")
    t.check(errors.get("EIO"), "nobody was told")
    t.check(longest <= deadline + GRACE, f"a call took {longest} s, with a deadline of {deadline} s")
    wait_until(lambda: "ONLINE" in trouble.status().splitlines()[1], 30, "the pool is ONLINE again", 0.5)
    write_durably(os.path.join(trouble.pool.mnt, "after"), b"works again")
    trouble.verify()


@test("a bucket accepts and never answers, failmode=wait: writers at the dirty limit and readers wait", limit=240, needs="pool")
def waits(t):
    trouble = Trouble(t, deadline=2)
    mnt = trouble.pool.mnt
    cold = os.urandom(3 << 20)
    write_durably(os.path.join(mnt, "cold"), cold)
    # Elsewhere: while a directory is synced, the kernel looks nothing up in it.
    names = os.path.join(mnt, "names")
    os.mkdir(names)
    old, new = os.path.join(names, "old"), os.path.join(names, "new")
    write_durably(new, b"what is to be replaced")
    trouble.pool.umount()
    trouble.pool.mount("-o", "memory=128M")
    # What names need is in memory.
    os.listdir(names)
    os.stat(new)
    trouble.proxy.silent = {"b01", "b02", "b03"}
    with open(old, "wb") as file:
        file.write(b"what replaces it")
    big = os.urandom(1 << 20)

    def fill():
        with open(os.path.join(mnt, "big"), "wb", buffering=0) as file:
            for _ in range(100):
                file.write(big)
            os.fsync(file.fileno())

    def read():
        with open(os.path.join(mnt, "cold"), "rb") as file:
            return file.read() == cold

    with call(fill) as writer, call(read) as reader:
        trouble.until_suspended(30)
        time.sleep(8)
        t.check(writer.is_alive() and reader.is_alive(), f"did not wait: {writer.result} {reader.result}")
        victim = subprocess.Popen(["dd", f"if={mnt}/cold", "of=/dev/null", "iflag=direct", "bs=1M"], stderr=subprocess.DEVNULL)
        creator = subprocess.Popen(["sh", "-c", f"echo x > {mnt}/cold.new && sync {mnt}"])
        mover = subprocess.Popen(["mv", old, new])
        time.sleep(1)
        for process in (victim, creator, mover):
            process.kill()
            process.wait(timeout=10)
        t.note("programs that wait can be killed")
        t.check(os.path.exists(old) and os.path.getsize(new) == 22, "the rename that waits is done already")
        trouble.proxy.silent = set()
        writer.join(60)
        reader.join(60)
        t.check(writer.result == [None] and reader.result == [True], f"{writer.result} {reader.result}")
        # The kernel has seen both names since the program died that renames one to the other.
        wait_until(lambda: not os.path.exists(old) and os.path.getsize(new) == 16, 10, "the late rename is seen", 0.2)
    trouble.pool.remount_cold()
    with open(os.path.join(mnt, "big"), "rb") as file:
        t.check(all(file.read(1 << 20) == big for _ in range(100)), "the data is not what was written")
    trouble.verify()


@test("a suspended pool: verbs say why not, umount -f lets go of all, ^C works, set failmode frees", limit=240, needs="pool")
def forced(t):
    trouble = Trouble(t, deadline=2)
    mnt, host = trouble.pool.mnt, trouble.pool.host
    write_durably(os.path.join(mnt, "kept"), b"durable")
    for name in ("nested", "idle"):
        host.tarn("fs", "create", f"tank/{name}")
    write_durably(os.path.join(mnt, "nested/kept"), b"durable")
    host.tarn("umount", "tank/idle")
    trouble.proxy.silent = {"b01", "b02", "b03"}
    with call(write_durably, os.path.join(mnt, "lost"), b"x" * 100_000) as writer:
        trouble.until_suspended(30)
        for words in (["fs", "destroy", "tank/nested"], ["fs", "rename", "tank/idle", "tank/other"], ["check", "tank"],
                      ["pool", "history", "tank"]):
            refused(t, host.tarn(*words, check=False, limit=20), "suspended", "since")
        blocked = host.tarn("umount", mnt, check=False, limit=40)
        blocked.stderr = blocked.stderr.strip().splitlines()[-1]  # What comes before is progress.
        refused(t, blocked, "suspended", "b01", "since", "-f")
        t.check(os.path.ismount(mnt), "it was unmounted")
        refused(t, host.tarn("fs", "create", "tank/new", check=False, limit=20), "suspended", "since")
        # Who runs the tests in the background may have them ignore an interrupt.
        tarn = os.environ.get("TARN_BIN") or os.path.join(REPO, "target/debug/tarn")
        mounting = [tarn, "mount", "tank/idle", os.path.join(mnt, "idle")]
        waiting = subprocess.Popen(["env", "--default-signal=INT", *mounting], env=host.env())
        time.sleep(2)
        t.check(waiting.poll() is None, "a command did not wait for the pool")
        waiting.send_signal(signal.SIGINT)
        waiting.wait(timeout=5)
        start = time.monotonic()
        gone = host.tarn("umount", "-f", mnt, check=False, limit=40)
        t.note(f"umount -f took {time.monotonic() - start:.1f} s")
        t.check("lost" in gone.stderr, f"it does not say what was lost: {gone.stderr}")
        t.check(not os.path.ismount(mnt), "it is still mounted")
        t.check("tank/nested" not in host.tarn("fs", "mount", check=False).stdout, "what lies below it is still mounted")
        wait_until(lambda: not trouble.pool.daemons(), 30, "the process ends")
        writer.join(10)
        t.check(writer.result and isinstance(writer.result[0], OSError), f"the writer: {writer.result}")
    trouble.proxy.silent = set()
    trouble.pool.mount()
    with open(os.path.join(mnt, "kept"), "rb") as file:
        t.check(file.read() == b"durable", "what was durable is gone")
    # Not the bucket that says who holds the pool: without it nothing about the pool can be changed for good.
    trouble.proxy.silent = {"b02"}

    def write_others():
        # What one of them needs may lie in the other two buckets.
        for n in range(100):
            write_durably(os.path.join(mnt, f"other{n}"), b"y" * 100_000)

    with call(write_others) as writer:
        trouble.until_suspended(30)
        host.tarn("pool", "set", "failmode=continue", "tank", limit=30)
        writer.join(15)
        t.check(isinstance((writer.result or [0])[0], OSError), f"the writer was not let go: {writer.result}")
    trouble.proxy.silent = set()
    wait_until(lambda: "ONLINE" in trouble.status().splitlines()[1], 30, "the pool is ONLINE", 0.5)
    write_durably(os.path.join(mnt, "other"), b"z")
    trouble.verify()


@test("tarn bench on a suspended pool, and on one whose bucket goes away meanwhile, says so and ends", limit=180, needs="pool")
def bench(t):
    trouble = Trouble(t, deadline=2)
    mnt, host = trouble.pool.mnt, trouble.pool.host
    trouble.proxy.silent = {"b02"}

    def write_all():
        for n in range(30):
            write_durably(os.path.join(mnt, f"file{n}"), b"x" * 100_000)

    with call(write_all) as writer:
        trouble.until_suspended(30)
        start = time.monotonic()
        refused(t, host.tarn("bench", "--size", "64M", mnt, check=False, limit=30), "'tank' is suspended", "b02", "reachable")
        t.check(time.monotonic() - start < 5, "it took long to say so")
        trouble.proxy.silent = set()
        writer.join(60)
        t.check(writer.result == [None], f"the writer: {writer.result}")
    wait_until(lambda: "ONLINE" in trouble.status().splitlines()[1], 30, "the pool is ONLINE", 0.5)
    before = set(os.listdir(mnt))
    tarn = os.environ.get("TARN_BIN") or os.path.join(REPO, "target/debug/tarn")
    words = [tarn, "bench", "--size", "512M", mnt]
    with subprocess.Popen(words, env=host.env(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        path = wait_until(lambda: set(os.listdir(mnt)) - before, 20, "it begins").pop()
        stream = os.path.join(mnt, path, "stream")
        wait_until(lambda: os.path.exists(stream), 90, "it writes files")
        trouble.proxy.silent = {"b02"}
        said = running.communicate(timeout=60)[1].strip().splitlines()[-1]
        print(said)
    t.check(running.returncode == 1 and "b02" in said and "is " in said and path in said, f"{running.returncode}: {said}")
    trouble.proxy.silent = set()
    wait_until(lambda: "ONLINE" in trouble.status().splitlines()[1], 60, "the pool is ONLINE", 0.5)
    shutil.rmtree(os.path.join(mnt, path))
    trouble.verify()


@test("local buckets refuse writes for a while: reads go on, writes wait, nothing is lost", limit=180, needs="pool")
def read_only(t):
    pool = t.world.pool(buckets=2, options=["-o", "deadline=3s"])
    pool.mount()
    folders = [os.path.join(vdev, ".tarn-tmp") for vdev in pool.vdevs]

    def immutable(how):
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            t.run("chattr", how, folder)

    try:
        refuse_writes(t, pool, immutable)
    finally:
        immutable("-i")


def refuse_writes(t, pool, immutable):
    data = os.urandom(2 << 20)
    write_durably(os.path.join(pool.mnt, "a"), data)
    immutable("+i")
    with call(write_durably, os.path.join(pool.mnt, "b"), data) as writer:
        status = wait_until(
            lambda: (s := pool.host.tarn("pool", "status", "tank", quiet=True).stdout) and "SUSPENDED" in s and s,
            30, "the pool is SUSPENDED", 0.5)
        t.check("refuses writes" in status, f"status: {status}")
        with open(os.path.join(pool.mnt, "a"), "rb") as file:
            t.check(file.read() == data, "wrong data while nothing can be written")
        t.check(writer.is_alive(), f"the writer did not wait: {writer.result}")
        immutable("-i")
        writer.join(20)
        t.check(writer.result == [None], f"the writer: {writer.result}")
    pool.remount_cold()
    for name in ("a", "b"):
        with open(os.path.join(pool.mnt, name), "rb") as file:
            t.check(file.read() == data, f"{name} is not what was written")
    pool.umount()
    pool.host.tarn("check", "--data", "tank")


@test("an upload in parts that a crash left is ended when the pool is opened; others' are left alone", limit=90, needs="pool")
def uploads(t):
    server = t.world.s3(1)
    pool = t.world.pool(buckets=server.urls())
    for key in ("tarn/d/00/0000-00000001-00000001/00000000", "tarn/notes/mine", "other/d/x"):
        begin_upload(server, "b01", key)
    t.check(count_uploads(server, "b01") == 3, "no uploads to begin with")
    pool.mount()
    wait_until(lambda: count_uploads(server, "b01") == 2, 20, "the pool's own upload is ended", 0.2)
    time.sleep(1)
    t.check(count_uploads(server, "b01") == 2, "uploads of others were ended too")


def s3_request(server, method, path, query=""):
    """One signed request, by curl; gives the body."""
    import s3

    nothing = "x-amz-content-sha256: " + hashlib.sha256(b"").hexdigest()
    command = ["curl", "--silent", "--fail", "-H", nothing, "--aws-sigv4", f"aws:amz:{s3.REGION}:s3", "--user", f"{s3.ACCESS}:{s3.SECRET}",
               "-X", method, f"{server.endpoint}/{path}{query}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def begin_upload(server, bucket, key):
    s3_request(server, "POST", f"{bucket}/{key}", "?uploads=")


def count_uploads(server, bucket):
    return s3_request(server, "GET", bucket, "?uploads=").count("<UploadId>")


@test("requests that wait and that are under way are shown by class", limit=120, needs="pool")
def queues(t):
    trouble = Trouble(t, deadline=30)
    host = trouble.pool.host
    trouble.proxy.silent = {"b01"}
    with call(write_durably, os.path.join(trouble.pool.mnt, "file"), os.urandom(30 << 20)) as writer:
        def busy():
            rows = host.json("pool", "iostat", "-q", "-v", "tank")
            row = next(r for r in rows if "b01" in r["name"])
            return row if row["put_active"] > 0 else None

        row = wait_until(busy, 20, "a PUT to b01 is under way", 0.2)
        for kind in ("get", "put", "delete", "list", "sync"):
            t.check({f"{kind}_pending", f"{kind}_active"} <= set(row), f"columns: {row}")
        fields = host.tarn("pool", "iostat", "-q", "-H", "-p", "tank").stdout.rstrip("\n").split("\t")
        t.check(len(fields) == 17 and int(fields[10]) > 0, f"scripted: {fields}")
        t.check("activ" in host.tarn("pool", "iostat", "-q", "tank").stdout, "no header")
        trouble.proxy.silent = set()
        writer.join(60)
        t.check(writer.result == [None], f"the writer: {writer.result}")
