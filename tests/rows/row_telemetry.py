"""What a mount tells of itself: metrics for Prometheus, tarn stats, tarn cost, tarn profile, jobs."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request

from harness import REPO, Skipped, test
from stub import unused_port
from world import TARN, drop_caches, sync_all

MIB = 1 << 20


def parser():
    """The parser of Prometheus's own client library, in the strict form."""
    # Where Debian has it, whichever Python runs this.
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
    except ImportError:
        raise Skipped("python3-prometheus-client is not installed: tests/install/debian.sh") from None
    return text_string_to_metric_families


def page(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


class Scrape:
    """One scrape: {name: [(labels, value)]}, and the families' names and types."""

    def __init__(self, port):
        kind, text = page(port)
        assert kind.startswith("application/openmetrics-text"), kind
        self.samples, self.families = {}, {}
        for family in parser()(text):
            self.families[family.name] = family.type
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name, **labels):
        found = self.samples.get(name, [])
        return sum(value for own, value in found if all(own.get(k) == v for k, v in labels.items()))


def work(pool, files=40, size=300_000):
    """Writes and reads some files, so that every kind of request is made."""
    names = [os.path.join(pool.mnt, f"file{n}") for n in range(files)]
    for name in names:
        with open(name, "wb") as file:
            file.write(os.urandom(size))
    sync_all(pool.mnt)
    return names


def read_all(names):
    drop_caches()
    for name in names:
        with open(name, "rb") as file:
            while file.read(MIB):
                pass


def quiet_scrape(port, server):
    """A scrape while nothing is under way, with what the server had served by then."""
    while True:
        before = server.served()
        scrape = Scrape(port)
        time.sleep(1)
        if server.served() == before and not scrape.sum("tarn_queue_in_flight"):
            return scrape, before


@test("metrics: parsed by Prometheus's parser, and equal to what the S3 server and iostat count", limit=120, needs="pool")
def metrics(t):
    parser()
    server, port = t.world.s3(3, counting=True), unused_port()
    # A directory too: it has a size.
    pool = t.world.pool(buckets=[*server.urls(), *t.world.buckets(1)])
    pool.mount("-o", f"metrics={port},jobid=comm.uid")
    names = work(pool)
    pool.host.tarn("umount", pool.mnt)
    os.makedirs(t.world.path("nvme"))
    pool.host.tarn("pool", "add", "--size", "64M", pool.name, "cache", t.world.path("nvme"))
    # Cold, in a new process: everything is fetched again, and counts from nothing.
    served_before_mount = server.served()
    pool.mount("-o", f"metrics={port},jobid=comm.uid")
    read_all(names)
    os.unlink(names[0])
    sync_all(pool.mnt)
    after, served = quiet_scrape(port, server)
    charged = after.sum("tarn_charged_requests_total", provider="s3")
    t.note(f"{charged:.0f} requests, the server served {served - served_before_mount}")
    t.check(abs(charged - (served - served_before_mount)) <= 2, "the server counts otherwise than the metrics")
    received = after.sum("tarn_charged_received_bytes_total")
    t.check(charged > 20 and 40 * 300_000 * 0.9 < received < 80 * 300_000, f"{received} bytes came")
    s3 = [(labels, n) for labels, n in after.samples["tarn_vdev_requests_total"] if labels["vdev"].startswith("s3:")]
    made = sum(n for labels, n in s3 if labels["op"] != "sync")
    t.check(abs(made - charged) <= 6, f"{made} requests by operation, {charged} as charged")
    rows = {row["name"]: row for row in pool.host.json("pool", "iostat", "-r", "-v", pool.name)}
    for vdev, shown in rows.items():
        labels = {} if vdev == pool.name else {"vdev": vdev}
        for column, ops in (("get", ["get"]), ("put", ["put", "create"]), ("delete", ["delete"])):
            counted = sum(after.sum("tarn_vdev_requests_total", op=op, **labels) for op in ops)
            t.check(0 <= shown[f"{column}_requests"] - counted <= 4, f"{vdev} {column}: {shown} and {counted}")
    for op in ("get", "put"):
        count, made = (after.sum(f"tarn_vdev_{name}", op=op) for name in ("duration_seconds_count", "requests_total"))
        t.check(count == made, f"{op}: {count} times for {made} requests")
    fuse = after.sum("tarn_fuse_operations_total", op="read")
    t.check(fuse >= 40 and after.sum("tarn_fuse_duration_seconds_count", op="read") == fuse, f"{fuse} reads")
    t.check(after.sum("tarn_reads_total") == fuse, "the client counts otherwise than the door")
    fetched = after.sum("tarn_arc_misses_total") + after.sum("tarn_prefetch_issued_bytes_total")
    t.check(fetched > 0 and after.sum("tarn_txg_syncs_total") > 0, "ARC and txg")
    t.check(after.sum("tarn_vdev_state", state="ONLINE") == 4, "states")
    raw = json.loads(pool.host.tarn("stats", "--raw", pool.name, quiet=True).stdout)
    t.check(raw["memory"]["resident"] / after.sum("tarn_process_resident_bytes") < 1.5, "memory")
    # Every metric is in the documentation, and nothing else is.
    with open(os.path.join(REPO, "docs/MONITORING.md")) as file:
        told = set(re.findall(r"^\| `(tarn_\w+)`", file.read(), re.M))
    there = {name + ("_total" if kind == "counter" else "") for name, kind in after.families.items()}
    t.check(told == there, f"not documented: {sorted(there - told)}; not there: {sorted(told - there)}")


@test("metrics: garbage on the port, a port in use, another port", limit=120, needs="pool")
def garbage(t):
    parser()
    port = unused_port()
    pool = t.world.pool(buckets=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        there = taken.getsockname()[1]
        refused = pool.host.tarn("mount", "-o", f"metrics={there}", pool.name, pool.mnt, check=False)
        t.check(refused.returncode == 1 and f":{there}: name another port" in refused.stderr, refused.stderr)
        t.check(not os.path.ismount(pool.mnt) and not pool.daemons(), "half mounted")
    wrong = pool.host.tarn("mount", "-o", "metrics=here", pool.name, pool.mnt, check=False)
    t.check(wrong.returncode == 2 and "metrics=PORT" in wrong.stderr, wrong.stderr)
    pool.mount("-o", f"metrics={port}")
    daemon = pool.daemons()
    pool.host.tarn("fs", "create", "-o", f"mountpoint={t.world.path('mnt', 'a')}", "tank/a")
    pool.host.tarn("fs", "unmount", "tank/a")
    other = pool.host.tarn("fs", "mount", "-o", f"metrics={unused_port()}", "tank/a", check=False)
    t.check(other.returncode and f":{port} already" in other.stderr, other.stderr)
    sent = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500), b"GET " + b"/" * 200_000,
            os.urandom(1 << 16), b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 99999,
            b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", b"\n" * 5000, b""]
    for garbage in sent * t.pick(3, 300):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as stream:
            try:
                stream.sendall(garbage)
                stream.shutdown(socket.SHUT_WR)
                said = stream.recv(64)
            except OSError:
                continue
            t.check(b" 200 " not in said, f"{garbage[:20]}: {said}")
    # Those who say nothing hold others up for some seconds at most.
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    scrape = None
    end = time.monotonic() + 45
    while scrape is None and time.monotonic() < end:
        try:
            scrape = Scrape(port)
        except OSError:
            pass
    t.check(scrape is not None and scrape.sum("tarn_pool_state", state="ONLINE") == 1, "no scrape any more")
    for stream in silent:
        stream.close()
    with open(os.path.join(pool.mnt, "file"), "w") as file:
        file.write("still there")
    t.check(pool.daemons() == daemon, "the daemon ended")
    pool.umount()
    with socket.socket() as probe:
        t.check(probe.connect_ex(("127.0.0.1", port)) != 0, "the port outlives the mount")


def on_terminal(host, *words, seconds=5, size=(24, 80)):
    """What a command draws on a terminal of that size."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(TARN, [TARN, *words], {**host.env(), "TERM": "xterm"})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    drawn, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                drawn += os.read(fd, 65536)
            except OSError:
                break
    os.kill(pid, 15)
    os.waitpid(pid, 0)
    os.close(fd)
    return drawn.decode()


@test("tarn stats: lines, columns, JSON, a directory, and a terminal of 80 by 24 with 12 vdevs", limit=120, needs="pool")
def stats(t):
    pool = t.world.pool(buckets=12)
    pool.mount()
    names = work(pool)
    read_all(names)
    tarn = pool.host.tarn

    def out(*words):
        return tarn("stats", *words).stdout

    lines = out("tank").splitlines()
    t.check(len(lines) == 2 and lines[0].split()[:3] == ["NAME", "READS", "WRITES"], f"{lines}")
    t.check(all(len(line) <= 100 for line in lines), "too wide")
    t.check(len(out("-v", "tank").splitlines()) == 14, "-v: the pool and 12 vdevs")
    row = dict(zip(("name", "put", "errors"), out("-H", "-p", "-o", "name,put,errors", "tank").split("\t")))
    t.check(row["name"] == "tank" and int(row["put"]) >= 0 and int(row["errors"]) == 0, f"{row}")
    began = time.monotonic()
    three = out("-H", "tank", "0.5", "3").splitlines()
    t.check(len(three) == 3 and 0.9 < time.monotonic() - began < 5, f"{three}")
    shown = json.loads(out("--json", "-v", "tank"))
    t.check(len(shown) == 13 and shown[0]["write"] > 0 and shown[0]["hit"] is not None, f"{shown[0]}")
    os.mkdir(os.path.join(pool.mnt, "deep"))
    t.check(out("-H", "-o", "name", os.path.join(pool.mnt, "deep")) == "tank\n", "by a directory")
    for words, status, text in ((["/"], 2, "in no mounted dataset"), (["tank/none"], 1, "no dataset 'tank/none'"),
                                (["tank", "tank"], 2, "name one"), (["-o", "nope", "tank"], 2, "'nope'")):
        wrong = tarn("stats", *words, check=False)
        t.check(wrong.returncode == status and text in wrong.stderr, f"{words}: {wrong.stderr}")
    # What is counted in an interval is what was done in it.
    writer = subprocess.Popen([sys.executable, "-c", f"import time\nwith open({names[0]!r}, 'wb') as f:\n"
                               " for n in range(40):\n  f.write(bytes(1 << 20)); f.flush(); time.sleep(0.1)"])
    rows = [json.loads(text) for text in re.split(r"(?<=\])\n", out("--json", "-o", "write,writes", "tank", "2", "2")) if text]
    writer.wait()
    t.note(f"{rows[1][0]['write'] / MIB:.1f} MiB/s seen of about 10")
    t.check(3 * MIB < rows[1][0]["write"] < 12 * MIB, f"{rows}")
    drawn = on_terminal(pool.host, "stats", "tank", "1")
    pages = drawn.split("\x1b[H")[1:]
    t.check(len(pages) >= 3, f"{len(pages)} pages were drawn")
    for shown in pages[:-1]:
        lines = [re.sub(r"\x1b\[[0-9]*[A-Z]", "", line).rstrip("\r") for line in shown.split("\n")]
        lines = [line for line in lines if line]
        t.check(len(lines) <= 23 and all(len(line) <= 80 for line in lines), f"{len(lines)} lines: {lines}")
        t.check(lines[-1].startswith("total") and sum("/b" in line for line in lines) == 12, f"{lines}")
    print("\n".join(lines))


def by_hand(row, prices):
    counts = sum(row[name] * prices[f"{name}_1000"] for name in ("put", "list", "get", "head", "delete"))
    return counts / 1000


@test("tarn cost: adds up by hand, with prices of one's own, and directories cost nothing", limit=120, needs="pool")
def cost(t):
    server = t.world.s3(2)
    pool = t.world.pool(buckets=[*server.urls(), *t.world.buckets(1, prefix="d")])
    pool.mount()
    read_all(work(pool))
    with open(os.path.join(REPO, "crates/tarn/prices.json")) as file:
        prices = json.load(file)
    total, *vdevs = pool.host.json("cost", "-v", "tank")
    t.check(total["put"] > 5 and len(vdevs) == 3, f"{total}")
    for name in ("put", "list", "get", "head", "delete", "sent", "received", "stored"):
        t.check(total[name] == sum(vdev[name] for vdev in vdevs), f"{name} does not add up: {total} {vdevs}")
    for vdev in vdevs:
        paid = vdev["provider"] == "s3"
        want = by_hand(vdev, prices["s3"]) if paid else 0
        t.check(abs(vdev["price"] - want) < 1e-8, f"{vdev}: {want} by hand")
        want = vdev["stored"] / (1 << 30) * prices["s3"]["stored_gib_month"] if paid else 0
        t.check(abs(vdev["month"] - want) < 1e-8, f"{vdev}: {want} a month by hand")
    t.check(abs(total["price"] - sum(vdev["price"] for vdev in vdevs)) < 1e-8 and total["price"] > 0, "the sum")
    t.check(sum(vdev["provider"] == "local" for vdev in vdevs) == 1, "providers")
    prices["s3"]["put_1000"] = 1000
    own = os.path.join(t.scratch, "prices.json")
    with open(own, "w") as file:
        json.dump(prices, file)
    dear = pool.host.json("cost", "--prices", own, "--internet", "tank")[0]
    t.check(dear["price"] > sum(vdev["put"] for vdev in vdevs if vdev["provider"] == "s3"), f"{dear}")
    t.check(json.loads(pool.host.tarn("cost", "--show-prices").stdout)["date"] == prices["date"], "built-in prices")
    text = pool.host.tarn("cost", "tank").stdout
    t.check("https://aws.amazon.com/s3/pricing/" in text and prices["date"] in text, text)
    fields = pool.host.tarn("cost", "-H", "-p", "-o", "name,price", "tank").stdout.rstrip("\n").split("\t")
    t.check(fields[0] == "tank" and float(fields[1]) > 0, f"{fields}")
    with open(own, "w") as file:
        file.write("{}")
    wrong = pool.host.tarn("cost", "--prices", own, "tank", check=False)
    t.check(wrong.returncode and own in wrong.stderr and wrong.stderr.count("\n") == 1, wrong.stderr)


LOAD = """
import os, sys
folder, n = sys.argv[1], 0
while True:
    path = os.path.join(folder, f"load{n % 50}")
    with open(path, "wb") as file:
        file.write(os.urandom(20_000))
        os.fsync(file.fileno())
    os.stat(path)
    with open(os.path.join(folder, "large"), "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(n % 64 << 20)
        file.read(1 << 20)
    n += 1
"""
LAYERS = ("client", "mdt", "pool", "bucket")


def check_profile(t, found):
    """Layers add up, in each operation and in each slow request."""
    for line in found["operations"]:
        summed = sum(line[f"{layer}_time"] for layer in LAYERS)
        t.check(summed == line["total"] and line["count"] > 0, f"the layers do not add up: {line}")
        t.check(abs(sum(line[layer] for layer in LAYERS) - 100) <= 2, f"not 100 percent: {line}")
        t.check(line["p50"] <= line["p99"] <= line["max"] <= line["total"], f"{line}")
    for line in found["slowest"]:
        t.check(sum(line[layer] for layer in LAYERS) == line["took"], f"the layers do not add up: {line}")
        t.check(line["at"] / 1e6 <= found["took_ms"] + 1000, f"it came after the end: {line}")
    took = [line["took"] for line in found["slowest"]]
    t.check(took == sorted(took, reverse=True), "the slowest are in disorder")
    totals = [line["total"] for line in found["operations"]]
    t.check(totals == sorted(totals, reverse=True), "operations are in disorder")


@test("tarn profile: operations by layer, the slowest, two at once, an early end, and what nobody mounts", limit=120, needs="pool")
def profile(t):
    server = t.world.s3(2)
    pool = t.world.pool(buckets=[*server.urls(), *t.world.buckets(1)])
    tarn = pool.host.tarn
    # What nobody serves is refused in one line that says what to do.
    refused = tarn("profile", "tank", check=False)
    t.check(refused.returncode == 1 and refused.stderr.count("\n") == 1, refused.stderr)
    t.check("'tank'" in refused.stderr and "tarn mount tank" in refused.stderr, refused.stderr)
    pool.mount()
    with open(os.path.join(pool.mnt, "large"), "wb") as file:
        for _ in range(64):
            file.write(os.urandom(MIB))
    sync_all(pool.mnt)
    # Little is kept in memory, so that reads ask the buckets.
    pool.remount_cold("-o", "arc=4M")
    every = "operation,count,total,p50,p99,max," + ",".join((*LAYERS, *(f"{layer}_time" for layer in LAYERS)))
    with subprocess.Popen([sys.executable, "-c", LOAD, pool.mnt]) as load:
        try:
            time.sleep(1)
            began = time.monotonic()
            found = pool.host.json("profile", "-o", every, pool.mnt, "3")
            t.check(2.5 < time.monotonic() - began < 15, "it took another time than it was told")
            check_profile(t, found)
            operations = {line["operation"]: line for line in found["operations"]}
            for name, line in operations.items():
                t.note(f"{name}: {line['count']}, " + " ".join(f"{layer} {line[layer]}%" for layer in LAYERS))
            t.check({"fsync", "write", "read", "open"} <= set(operations), f"{list(operations)}")
            fsync, read = operations["fsync"], operations["read"]
            t.check(fsync["mdt_time"] + fsync["bucket_time"] > 0, f"{fsync}")
            t.check(read["bucket_time"] > 0, f"{read}")
            t.check(len(found["slowest"]) == 10, f"{len(found['slowest'])} slow requests")
            inodes = {os.stat(os.path.join(pool.mnt, name)).st_ino for name in os.listdir(pool.mnt)}
            inodes.add(os.stat(pool.mnt).st_ino)
            t.check({line["inode"] for line in found["slowest"]} & inodes, f"no inode that is there: {found['slowest']}")
            # Two at once, of which one is ended early, and shows what came until then.
            words = [TARN, "profile", "--json", "-o", every, "--slowest", "3", "tank", "600"]
            with subprocess.Popen(words, env=pool.host.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as long:
                time.sleep(1)
                short = pool.host.json("profile", "-o", every, "--slowest", "64", "tank", "1")
                long.send_signal(signal.SIGINT)
                out, said = long.communicate(timeout=30)
            t.check(long.returncode == 0, f"interrupted, it ended with {long.returncode}: {said}")
            ended = json.loads(out)
            check_profile(t, short)
            check_profile(t, ended)
            t.check(900 < short["took_ms"] < 10_000 and 1500 < ended["took_ms"] < 60_000, "times")
            t.check(len(ended["slowest"]) == 3, f"{ended['slowest']}")
            counts = [sum(line["count"] for line in one["operations"]) for one in (short, ended)]
            t.check(0 < counts[0] < counts[1], f"{counts}")
            # For people, and for scripts.
            text = tarn("profile", "--slowest", "2", "tank", "1").stdout.splitlines()
            t.check(text[0].split()[:3] == ["OPERATION", "COUNT", "TOTAL"], f"{text}")
            rest = text[text.index("") + 1:]
            t.check(rest[0].split()[:4] == ["AT", "OPERATION", "INODE", "TOOK"] and len(rest) >= 3, f"{rest}")
            fields = tarn("profile", "-H", "-p", "--slowest", "0", "-o", "operation,mdt_time", "tank", "1").stdout.splitlines()
            t.check(all(len(line.split("\t")) == 2 and line.split("\t")[1].isdigit() for line in fields), f"{fields}")
        finally:
            load.kill()
    # Nothing is entered any more: a new profile begins with nothing.
    idle = pool.host.json("profile", pool.mnt, "0.5")
    t.check(sum(line["count"] for line in idle["operations"]) < 100, f"{idle}")
    tarn("fs", "create", "tank/empty")
    tarn("umount", "tank/empty")
    for words, status, text in ((["tank/none"], 1, "no dataset 'tank/none'"), (["tank/empty"], 1, "nothing of 'tank/empty' is mounted"), ([t.scratch], 2, "no mounted dataset"),
                                (["tank", "1", "2"], 2, "SECONDS"), (["tank", "9999"], 2, "3600"), (["-o", "nope", "tank"], 2, "'nope'")):
        wrong = tarn("profile", *words, check=False)
        t.check(wrong.returncode == status and text in wrong.stderr, f"{words}: {wrong.stderr}")
    pool.umount()


READER = """
import os, sys
mode, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(count):
    path = os.path.join(folder, f"{mode}{n}")
    if mode == "w":
        with open(path, "wb") as file:
            file.write(os.urandom(1 << 20))
    else:
        with open(os.path.join(folder, f"w{n}"), "rb") as file:
            while file.read(1 << 20):
                pass
if mode == "w":
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
"""


def run_as(name, *words, **environment):
    """Runs the reader or writer under that name and environment."""
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n{READER}"
    env = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", code, *map(str, words)], env=env, check=True, timeout=60)


@test("jobs: two processes are told apart, their requests charged, and all of it adds up", limit=120, needs="pool")
def jobs(t):
    server = t.world.s3(2)
    pool = t.world.pool(buckets=server.urls())
    count = 12

    def listed(*words):
        return {row["name"]: row for row in pool.host.json("stats", "--jobs", "-o", "name,reads,writes,operations,put,get", *words)}

    def raw():
        jobs = json.loads(pool.host.tarn("stats", "--raw", "tank", quiet=True).stdout)["jobs"]
        return {job["name"]: job for job in jobs}

    pool.mount("-o", "jobid=comm.uid")
    run_as("writer", "w", pool.mnt, count)
    pool.remount_cold("-o", "jobid=comm.uid")
    run_as("reader", "r", pool.mnt, count)
    run_as("writer", "w", pool.mnt, 3)
    sync_all(pool.mnt)
    found = raw()
    print(json.dumps(found, indent=1))
    reader, writer = found["reader.0"], found["writer.0"]
    t.check(reader["read_bytes"] == count * MIB and not reader["writes"], f"{reader}")
    t.check(writer["write_bytes"] == 3 * MIB and not writer["reads"], f"{writer}")
    of = {name: {key: sum(tally[key] for tally in job["tallies"]) for key in ("put", "get", "sent_bytes", "received_bytes")}
          for name, job in found.items()}
    t.check(of["reader.0"]["received_bytes"] > count * MIB * 0.9 and not of["reader.0"]["put"], f"{of}")
    t.check(of["writer.0"]["sent_bytes"] > 3 * MIB * 0.9 and of["writer.0"]["received_bytes"] < MIB, f"{of}")
    shown = listed("tank")
    t.check({"reader.0", "writer.0"} <= set(shown), f"{list(shown)}")
    lines = pool.host.json("cost", "--jobs", "tank")
    *parts, rest, total = lines
    t.check(rest["name"].startswith("(metadata") and total["name"] == "tank", f"{lines}")
    for column in ("put", "get", "list", "head", "delete", "received", "price"):
        summed = sum(part[column] for part in parts) + rest[column]
        t.check(abs(summed - total[column]) < 1e-8, f"{column}: {summed} and {total[column]}")
    prices = {part["name"]: part["price"] for part in parts}
    t.check(prices["reader.0"] > 0 and prices["writer.0"] > 0, f"{prices}")
    # Other ways to tell them apart.
    pool.umount()
    pool.mount("-o", "jobid=env:MY_JOB")
    run_as("one", "w", pool.mnt, 2, MY_JOB="4711")
    run_as("one", "r", pool.mnt, 2, MY_JOB="4712")
    run_as("one", "w", pool.mnt, 1)
    found = raw()
    t.check(found["4711"]["writes"] and found["4712"]["reads"] and found["one.0"]["writes"], f"{list(found)}")
    pool.umount()
    pool.mount("-o", "jobid=nightly")
    run_as("one", "w", pool.mnt, 1)
    t.check(list(raw()) == ["nightly"], f"{list(raw())}")
    pool.umount()
    pool.mount("-o", "jobid=off")
    run_as("one", "w", pool.mnt, 1)
    t.check(raw() == {}, f"{list(raw())}")
    pool.umount()
    pool.mount("-o", "jobid=cgroup")
    run_as("one", "w", pool.mnt, 1)
    with open("/proc/self/cgroup") as file:
        groups = dict(reversed([line.rstrip("\n").split(":", 2)[::2] for line in file]))
    t.check((groups.get("0") or list(groups.values())[-1])[-64:] in raw(), f"{list(raw())}: {groups}")
