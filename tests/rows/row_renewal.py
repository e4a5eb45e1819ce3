"""Credentials that expire, a clock that is off, a store that asks to be asked less: what a pool does meanwhile."""
import os
import threading
import time

import gate
from harness import Skipped, test
from row_faults import Trouble
from sample import no_secrets
from world import sync_all, wait_until

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


class Writing:
    """A file that is written from random bytes in a thread, `size` MiB of them, at so many MiB a second at the most."""

    def __init__(self, t, path, size, rate):
        self.t, self.path, self.size, self.done, self.error = t, path, size, 0, None
        self.piece, self.pause = os.urandom(1 << 20), 1 / rate
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            with open(self.path, "wb", buffering=0) as file:
                for n in range(self.size):
                    start = time.monotonic()
                    file.write(n.to_bytes(8, "big") + self.piece[8:])
                    if n % 64 == 63:
                        os.fsync(file.fileno())
                    self.done = n + 1
                    time.sleep(max(0, self.pause - (time.monotonic() - start)))
                os.fsync(file.fileno())
        except OSError as e:
            self.error = e

    def finish(self, limit):
        self.thread.join(limit)
        self.t.check(not self.thread.is_alive(), f"still writing after {limit} s: {self.done} of {self.size} MiB")
        self.t.check(self.error is None, f"the write failed: {self.error}")

    def verify(self):
        with open(self.path, "rb", buffering=0) as file:
            for n in range(self.size):
                found = b""
                while len(found) < 1 << 20 and (more := file.read((1 << 20) - len(found))):
                    found += more
                self.t.check(found == n.to_bytes(8, "big") + self.piece[8:], f"MiB {n} is not what was written")


def until_told(t, pool, *words):
    """Waits until the pool's status says that calls wait for credentials; it must say so in a line with these words."""
    def told():
        return next((line for line in status(pool).splitlines() if "does not take the credentials" in line), None)

    line = wait_until(told, 30, "the status tells of the credentials", 0.3)
    print(status(pool))
    t.check(all(word in line for word in words), f"status: {line}")
    t.check("renew the credentials" in status(pool), "status does not say what to do")
    log = next(os.path.join(pool.host.state, n) for n in os.listdir(pool.host.state) if n.endswith(".log"))
    with open(log) as file:
        told = [line for line in file if "wait for credentials" in line]
    t.check(told and all(word in told[0] for word in words[1:]), f"log: {told}")


def status(pool):
    return pool.host.tarn("pool", "status", pool.name, quiet=True, limit=30).stdout


def goes_through(t, pool, renew, words):
    """Writes while credentials are renewed by `renew(seconds they are valid)`: in time, and once too late."""
    valid = t.pick(4, 20)
    renew(valid)
    pool.mount()
    writing = Writing(t, os.path.join(pool.mnt, "big"), t.pick(96, 2048), t.pick(8, 24))
    for _ in range(t.pick(1, 3)):
        time.sleep(valid - 1)
        renew(valid)
    # Now nobody renews them.
    until_told(t, pool, *words)
    held = writing.done
    time.sleep(t.pick(2, 30))
    renew(600)
    back = time.monotonic()
    wait_until(lambda: "does not take" not in status(pool), 20, "the pool goes on", 0.2)
    t.note(f"goes on {time.monotonic() - back:.1f} s after they were renewed, at {held} of {writing.size} MiB")
    writing.finish(t.pick(60, 400))
    pool.remount_cold()
    writing.verify()
    no_secrets(t, pool.host)


@test("S3: keys of the credentials file expire during a write, are renewed in time and too late: it goes through",
      limit=120, needs="pool")
def keys(t):
    server = t.world.s3(2)
    door = gate.S3Gate(server.port)
    t.world.servers.insert(0, door)
    file = os.path.join(t.scratch, "credentials")
    environment = t.world.host.environment
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del environment[name]
    environment["AWS_SHARED_CREDENTIALS_FILE"] = file

    def renew(seconds):
        key = door.issue(seconds)
        words = {"aws_access_key_id": key.id, "aws_secret_access_key": key.secret, "aws_session_token": key.token}
        gate.write_whole(file, "[default]\n" + "".join(f"{name} = {value}\n" for name, value in words.items()))

    renew(60)
    pool = t.world.pool(buckets=door.urls(server))
    goes_through(t, pool, renew, ("s3://b0", "ExpiredToken"))
    t.check(door.refused, "nothing was refused")


@test("S3: an instance's role hands out keys that are valid for seconds; a key that is taken back is replaced",
      limit=90, needs="pool")
def role(t):
    server = t.world.s3(2)
    door = gate.S3Gate(server.port)
    metadata = gate.Metadata(door, 4)
    t.world.servers[:0] = [door, metadata]
    environment = t.world.host.environment
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del environment[name]
    environment.update(HOME=t.scratch, AWS_METADATA_ENDPOINT=metadata.endpoint)
    pool = t.world.pool(buckets=door.urls(server))
    pool.mount()
    writing = Writing(t, os.path.join(pool.mnt, "big"), t.pick(96, 2048), t.pick(12, 24))
    time.sleep(3)
    # The next ones are kept, until somebody revokes the role's sessions.
    metadata.seconds = 3600
    time.sleep(1)
    metadata.down = True
    door.keys.clear()
    time.sleep(3)
    metadata.down = False
    writing.finish(t.pick(60, 400))
    pool.remount_cold()
    writing.verify()
    no_secrets(t, pool.host)
    t.check(door.refused, "nothing was refused")
    t.note(f"{metadata.given} keys were given, {door.refused} requests refused")


@test("GCS: a token expires during a write, is renewed in time and too late: it goes through", limit=120, needs="pool")
def token(t):
    server = t.world.gcs(2)
    door = gate.TokenGate(server.port)
    t.world.servers.insert(0, door)
    file = os.path.join(t.scratch, "token")
    del t.world.host.environment["GOOGLE_BEARER_TOKEN"]
    t.world.host.environment["GOOGLE_BEARER_TOKEN_FILE"] = file

    def renew(seconds):
        gate.write_whole(file, door.issue(seconds) + "\n")

    renew(60)
    pool = t.world.pool(buckets=door.urls(server))
    goes_through(t, pool, renew, ("gs://b0", "authError"))


@test("Azure: a shared access signature expires during a write, is renewed in time and too late: it goes through",
      limit=120, needs="pool")
def signature(t):
    azure = t.world.azure(1)
    file = os.path.join(t.scratch, "sas")
    del t.world.host.environment["AZURE_STORAGE_ACCOUNT_KEY"]
    t.world.host.environment["AZURE_STORAGE_SAS_TOKEN_FILE"] = file

    def renew(seconds):
        gate.write_whole(file, azure.signature("b01", seconds=seconds))

    renew(60)
    goes_through(t, t.world.pool(buckets=azure.urls()), renew, ("az://b0", "Authori"))


@test("a clock that is 20 minutes off, on either side: S3 takes requests all the same, and it is told", limit=120, needs="pool")
def clock(t):
    if not os.path.exists(FAKETIME):
        raise Skipped("libfaketime is not installed: tests/install/debian.sh")
    pool = t.world.pool(buckets=t.world.s3(2).urls())
    for minutes in ("-20", "+20"):
        pool.host.environment.update(
            LD_PRELOAD=FAKETIME, FAKETIME=f"{minutes}m", FAKETIME_DONT_FAKE_MONOTONIC="1", NO_FAKE_STAT="1"
        )
        pool.mount()
        writing = Writing(t, os.path.join(pool.mnt, f"file{minutes}"), 24, 100)
        writing.finish(60)
        pool.umount()
        del pool.host.environment["LD_PRELOAD"]
        pool.mount()
        writing.verify()
        pool.umount()
    told = []
    for name in os.listdir(pool.host.state):
        if name.endswith(".log"):
            with open(os.path.join(pool.host.state, name)) as file:
                told += [line for line in file if "clock is" in line]
    t.check(any("behind the store" in line for line in told), f"log: {told[:3]}")
    t.check(any("ahead of the store" in line for line in told), f"log: {told[:3]}")


@test("a storm of 503 under load: fewer requests are made, nothing fails, and status tells", limit=120, needs="pool")
def storm(t):
    trouble = Trouble(t, deadline=t.pick(20, 60))
    seconds = t.pick(5, 60)
    trouble.load(seconds + t.pick(8, 30))
    time.sleep(3)
    trouble.proxy.rates = {"fail": 0.8}
    told = wait_until(lambda: (s := status(trouble.pool)) and "asks to be asked less" in s and s, 20, "status tells", 0.2)
    print(told)
    before = trouble.proxy.happened["fail"]
    time.sleep(seconds)
    rate = (trouble.proxy.happened["fail"] - before) / seconds
    t.note(f"{rate:.0f} refused a second")
    trouble.proxy.rates = {}
    wait_until(lambda: "asks to be asked less" not in status(trouble.pool), 30, "the bucket is asked as before", 0.2)
    _, errors, _ = trouble.finish(t.pick(60, 120))
    t.check(not errors, f"errors reached programs: {errors}")
    trouble.verify()
