"""A dataset on another host: the server and the client are processes of their own, with TCP between them."""
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import far
import row_pjdfstest
import row_programs
from harness import Failed, test
from hosts import refused
from load import Mixed, Workers
from world import TARN, Host, daemons, mounts_below, wait_until


def over_wire(t):
    """From here on the test's pools are served by one host and mounted by another."""
    t.world.pool_class = far.FarPool


def over_wire_with_credentials(t):
    """The test's directory is on a pool that one host serves, and the client reads and writes the buckets itself."""
    over_wire(t)
    server = t.world.s3(3)
    pool = t.world.pool(buckets=server.urls())
    pool.client.environment = server.credentials()
    pool.mount()
    t.check("reached without the server" in pool.client_log(), "the client goes by way of the server")
    t.use(pool)


@test("pjdfstest over TCP", limit=300)
def pjdfstest(t):
    over_wire(t)
    row_pjdfstest.all(t)


@test("pjdfstest over TCP, by a client with credentials", limit=300)
def own_pjdfstest(t):
    over_wire_with_credentials(t)
    row_pjdfstest.all(t)


@test("git, sqlite and fsx over TCP; the long form has rsync, tar, cargo and fio too", limit=300, long_limit=14400)
def programs(t):
    over_wire(t)
    t.dir
    row_programs.one_after_the_other(t)


@test("the same programs, by a client with credentials", limit=300, long_limit=14400)
def own_programs(t):
    over_wire_with_credentials(t)
    row_programs.one_after_the_other(t)


@test("32 processes append over TCP: locks, and O_APPEND alone", limit=120)
def appenders(t):
    over_wire(t)
    row_programs.appenders(t)


@test("the server is killed under load: the client waits and goes on, nothing is lost", limit=240)
def killed(t):
    over_wire(t)
    t.dir
    pool, seed = t.world.pools[0], 5
    load = Mixed(pool.mnt, t.scratch, "load", seed)
    workers = load.parts[0]
    waits = []
    for n in range(t.pick(4, 40)):
        done = workers.acknowledged()
        wait_until(lambda: workers.acknowledged() > done + 30, 60, f"the load goes on after {n} kills")
        start, done = time.monotonic(), workers.acknowledged()
        pool.restart()
        wait_until(lambda: workers.acknowledged() > done + len(workers.running), 60, "calls are answered again")
        waits.append(time.monotonic() - start)
    names = ended(t, load)
    pool.remount_cold()
    load.verify(pool.mnt)
    t.note(f"{len(waits)} kills, {names} acknowledged files, longest wait {max(waits):.1f} s")


@test("the connection is cut again and again: nothing is done twice, nothing is lost", limit=120)
def cut(t):
    over_wire(t)
    pool = t.world.pool()
    with Cutter(pool) as cutter:
        pool.mount()
        load = Mixed(pool.mnt, t.scratch, "load", 6)
        workers = load.parts[0]
        for n in range(t.pick(20, 200)):
            done = workers.acknowledged()
            wait_until(lambda: workers.acknowledged() > done + 5, 60, f"the load goes on after {n} cuts")
            cutter.cut()
        names = ended(t, load)
        pool.umount()
    pool.mount()
    load.verify(pool.mnt)
    t.note(f"{cutter.cuts} connections cut, {names} acknowledged files")


def ended(t, load):
    """How many files are there, after all programs went on until now."""
    workers, fsx, fio = load.parts
    alive = [process.poll() is None for process in workers.running]
    t.check(all(alive) and fsx.thread.is_alive() and fio.thread.is_alive(), "a program saw an error")
    workers.stop()
    fsx.end()
    fio.end()
    return load.verify(t.world.pools[0].mnt)


class Cutter:
    """A way to a pool's server that can be cut."""

    def __init__(self, pool):
        self.pool, self.server = pool, pool.port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open, self.cuts = [], 0

    def __enter__(self):
        self.pool.serve()
        self.pool.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.pool.port = self.server

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                distant = socket.create_connection(("127.0.0.1", self.server))
            except OSError:
                return
            self.open = [near, distant]
            for source, sink in ((near, distant), (distant, near)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        self.close((source, sink))

    def close(self, ends):
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        self.close(self.open)
        self.cuts += 1


@test("one client at a time, and who is away keeps what it has", limit=120)
def one_client(t):
    over_wire(t)
    t.dir
    pool = t.world.pools[0]
    other = Host(t.world.path("other"))
    mnt = t.world.path("mnt", "other")
    os.makedirs(mnt)
    refused(t, other.tarn("mount", pool.address(), mnt, check=False), "another client", "one at a time")
    refused(t, pool.host.tarn("mount", "tank", mnt, check=False), "client on another host", "--give-up")
    # Others have datasets of their own.
    pool.host.tarn("fs", "create", "tank/second")
    other.tarn("mount", pool.address("tank/second"), mnt)
    with open(os.path.join(mnt, "file"), "w") as file:
        file.write("theirs")
    refused(t, pool.host.tarn("fs", "destroy", "tank/second", check=False), "client on another host")
    refused(t, pool.host.tarn("fs", "rename", "tank/second", "tank/x", check=False), "client on another host")
    refused(t, pool.host.tarn("pool", "export", "tank", check=False), "--stop")
    listed = {row["dataset"]: row["client"] for row in pool.host.json("serve", "--list", "tank")}
    t.check(listed == {"tank": "connected", "tank/second": "connected"}, f"listed: {listed}")
    # A client that goes without a word is known as long as nobody else asks, and for a minute.
    for pid in daemons(other.state):
        os.kill(pid, signal.SIGKILL)
    t.run("umount", "-l", mnt)
    again = Host(t.world.path("again"))
    wait_until(lambda: "away" in str(pool.host.json("serve", "--list", "tank")), 30, "the server knows that it is away")
    refused(t, again.tarn("mount", pool.address("tank/second"), mnt, check=False), "is away")
    pool.host.tarn("serve", "--give-up", "tank/second")
    again.tarn("mount", pool.address("tank/second"), mnt)
    t.check(os.listdir(mnt) in ([], ["file"]), "somebody else's files")
    # Nor is it destroyed while it is not served.
    pool.host.tarn("serve", "--stop", "tank")
    refused(t, pool.host.tarn("fs", "destroy", "tank/second", check=False), "client on another host", "--give-up")
    pool.serve()
    with open(os.path.join(mnt, "later"), "w") as file:
        file.write("ours")
    again.tarn("umount", mnt)
    pool.host.tarn("fs", "destroy", "tank/second")
    refused(t, other.tarn("mount", "localhost:1:/tank", mnt, check=False), "localhost:1:/tank", "refused")
    refused(t, other.tarn("mount", pool.address("tank/none"), mnt, check=False), "tank/none")


@test("verbs on the client: it lists, unmounts, shows and profiles what another host serves", limit=120)
def verbs(t):
    over_wire(t)
    pool = t.world.pool()
    pool.host.tarn("fs", "create", "tank/second")
    pool.mount()
    tarn, address = pool.client.tarn, pool.address()
    second, inner = t.world.path("mnt", "second"), os.path.join(pool.mnt, "inner")
    os.mkdir(second)
    os.mkdir(inner)

    def listed():
        return {tuple(line.split("\t")) for line in tarn("fs", "mount", "-H").stdout.splitlines()}

    def mount_second(at):
        tarn("mount", pool.address("tank/second"), at)

    mount_second(second)
    t.check(listed() == {(address, pool.mnt), (pool.address("tank/second"), second)}, f"{listed()}")
    with open(os.path.join(inner, "file"), "wb") as file:
        file.write(b"x" * 100_000)
    # By a directory in it, absolute and relative, and by its address.
    os.chdir(pool.mnt)
    for words in ([inner], ["inner"], [address]):
        shown = pool.client.json("stats", "-o", "name,writes,dirty", *words)
        t.check(shown[0]["name"] == address, f"stats {words}: {shown}")
    os.chdir("/")
    raw = json.loads(tarn("stats", "--raw", inner, quiet=True).stdout)
    t.check(raw["datasets"][address]["client"]["write_bytes"] == 100_000, "the client's counters")
    load = Workers(pool.mnt, t.scratch, "load", 1)
    wait_until(lambda: load.acknowledged() > 3, 30, "the load goes on")
    found = pool.client.json("profile", inner, "1")
    load.stop()
    t.check(any(line["operation"] == "write" for line in found["operations"]), f"profile: {found}")
    refused(t, tarn("stats", "localhost:1:/tank", check=False), "localhost:1:/tank", "not mounted here")
    tarn("fs", "unmount", second)
    t.check(listed() == {(address, pool.mnt)} and not os.path.ismount(second), "fs unmount DIR")
    mount_second(second)
    tarn("fs", "unmount", pool.address("tank/second"))
    t.check(not os.path.ismount(second), "fs unmount by its address")
    refused(t, tarn("fs", "unmount", pool.address("tank/second"), check=False), "tank/second", "tarn fs mount")
    # One lies in the other.
    below = os.path.join(pool.mnt, "below")
    os.mkdir(below)
    mount_second(below)
    tarn("fs", "unmount", "-a")
    t.check(listed() == set() and not mounts_below(pool.mnt) and not pool.clients(), "fs unmount -a")


@test("a client with credentials reads and writes the buckets itself, one without them by way of the server", limit=300)
def own_buckets(t):
    over_wire(t)
    server = t.world.s3(3)
    pool = t.world.pool(buckets=server.urls())
    body = os.urandom(t.pick(64, 1024) << 20)
    path = os.path.join(pool.mnt, "file")
    for credentials, options in (({}, []), (server.credentials(), []), (server.credentials(), ["-o", "buckets=server"])):
        own = bool(credentials) and not options
        pool.client.environment = credentials
        pool.mount(*options)
        with open(path, "wb") as file:
            file.write(body)
            os.fsync(file.fileno())
        pool.umount()
        pool.mount(*options)
        with open(path, "rb") as file:
            t.check(file.read() == body, "other bytes came back")
        said = pool.client_log()
        t.check(("reached without the server" in said) == own, f"with {list(credentials)} and {options}: {said[-300:]}")
        t.check("tarn-test-secret" not in said, "the secret key stands in the log")
        pool.umount()


@test("TLS: who has no certificate, or another's, is told so in a line", limit=120)
def tls(t):
    over_wire(t)
    ca, cert, key = far.certificates(t.world.path("tls"))
    _, stranger, stranger_key = far.certificates(t.world.path("stranger"))
    pool = t.world.pool()
    metrics = far.free_port()
    pool.serve_words = ["--cert", cert, "--key", key, "--client-ca", ca, "--metrics", metrics]
    pool.serve()
    mount = lambda *options: pool.client.tarn("mount", *options, pool.address(), pool.mnt, check=False)
    refused(t, mount(), pool.address())
    refused(t, mount("-o", f"ca={ca}"), pool.address())
    refused(t, mount("-o", f"ca={stranger}"), pool.address())
    refused(t, mount("-o", f"ca={ca},cert={stranger},key={stranger_key}"), pool.address())
    pool.mount_words = ["-o", f"ca={ca},cert={cert},key={key}"]
    pool.mount()
    body = os.urandom(20 << 20)
    with open(os.path.join(pool.mnt, "file"), "wb") as file:
        file.write(body)
    pool.remount_cold()
    with open(os.path.join(pool.mnt, "file"), "rb") as file:
        t.check(file.read() == body, "other bytes came back")
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as page:
        t.check(b"tarn_vdev_requests_total" in page.read(), "the server's metrics")


@test("garbage, half-open and idle connections: service goes on", limit=180)
def garbage(t):
    over_wire(t)
    t.dir
    pool, rng = t.world.pools[0], random.Random(11)
    load = Workers(pool.mnt, t.scratch, "load", 2)
    call = lambda: socket.create_connection(("127.0.0.1", pool.port), timeout=10)
    idle = [call() for _ in range(1000)]
    # What a client would begin with, to be damaged.
    hello = greeting(pool)
    for n in range(t.pick(500, 20_000)):
        bytes_sent = rng.randbytes(rng.randrange(200)) if n % 2 else damaged(hello, rng)
        with call() as caller:
            try:
                caller.sendall(bytes_sent)
                if n % 10 == 0:
                    caller.shutdown(socket.SHUT_WR)
                    caller.recv(100)
            except OSError:
                pass
    half = [call() for _ in range(50)]
    for caller in half:
        caller.sendall(hello[:20])
    done = load.acknowledged()
    wait_until(lambda: load.acknowledged() > done + 50, 30, "the load goes on")
    alive = [process.poll() is None for process in load.running]
    t.check(all(alive), "a program saw an error")
    load.stop()
    names = load.verify(pool.mnt)
    # Those that say nothing are sent away in time.
    wait_until(lambda: closed(idle[0]) and closed(half[0]), 30, "silent callers are sent away")
    for caller in idle + half:
        caller.close()
    t.note(f"1,000 idle connections, 50 half-open, {t.pick(500, 20_000)} times garbage, {names} files meanwhile")


def closed(caller):
    caller.settimeout(0.01)
    try:
        return caller.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def greeting(pool):
    """What a client begins with."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server, pool.port = pool.port, listener.getsockname()[1]
        words = [TARN, "mount", pool.address(), pool.mnt]
        mounting = subprocess.Popen(words, env=pool.client.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        caller, _ = listener.accept()
        with caller:
            caller.settimeout(10)
            said = caller.recv(1 << 16)
        listener.close()
        pool.port = server
        mounting.wait(timeout=60)
    if mounting.returncode == 0 or len(said) < 40:
        raise Failed("a client that is not answered should say hello and give up")
    return said


def damaged(bytes_sent, rng):
    """The same with a byte changed, cut off, or more behind it."""
    kind = rng.randrange(3)
    at = rng.randrange(len(bytes_sent))
    if kind == 0:
        return bytes_sent[:at] + rng.randbytes(1) + bytes_sent[at + 1 :]
    if kind == 1:
        return bytes_sent[:at]
    return bytes_sent + rng.randbytes(100)
