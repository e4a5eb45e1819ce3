"""Pools for tests: buckets in directories, a state directory for each pretended host, mounts, and the means to
break them. Everything lies below one directory, so that what a broken test leaves can be swept away."""
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time

from harness import REPO, Failed

TARN = os.environ.get("TARN_BIN") or os.path.join(REPO, "target/debug/tarn")


def mounts_below(root):
    """Mountpoints below `root`, innermost first."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4].encode().decode("unicode_escape") for line in file]
    return sorted((p for p in points if p == root or p.startswith(root + "/")), key=len, reverse=True)


def daemons(state_root):
    """Processes of the binary whose state directory is at or below `state_root`, by their environment: this
    also finds a daemon that outlived its mount."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if not os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("tarn"):
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = file.read().split(b"\0")
            state = next((os.fsdecode(p[15:]) for p in pairs if p.startswith(b"TARN_STATE_DIR=")), "")
            if state == state_root or state.startswith(state_root + "/"):
                found.append(int(pid))
    return found


def sweep(root):
    """Removes mounts, processes and files of the world at `root`."""
    for pid in daemons(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for point in mounts_below(root):
        subprocess.run(["umount", "-l", point], stderr=subprocess.DEVNULL)
    if os.path.isdir(root):
        shutil.rmtree(root, ignore_errors=True)


def wait_until(fact, limit, what, step=0.05):
    """Waits until `fact()` is true and returns what it gave; fails after `limit` seconds."""
    end = time.monotonic() + limit
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"not within {limit:g} s: {what}")
        time.sleep(step)


def du(path):
    """Bytes of the files below `path` by their length, as `du --apparent-size` counts without directories."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


class Host:
    """One host, as the pools see it: a state directory of its own."""

    def __init__(self, state, **environment):
        self.state, self.environment = state, environment
        os.makedirs(state, exist_ok=True)

    def env(self):
        return {**os.environ, **self.environment, "TARN_STATE_DIR": self.state}

    def tarn(self, *words, check=True, limit=120, quiet=False, **kw):
        """Runs `tarn WORDS...` and returns the finished process, with output as text."""
        print("$ tarn", *words, flush=True)
        done = subprocess.run(
            [TARN, *map(str, words)], env=self.env(), capture_output=True, text=True, timeout=limit, **kw
        )
        if not quiet or done.returncode:
            print(done.stdout + done.stderr, end="", flush=True)
        if check and done.returncode:
            raise Failed(f"exit status {done.returncode} of tarn {' '.join(map(str, words))}: {done.stderr.strip()[-300:]}")
        return done

    def json(self, *words):
        return json.loads(self.tarn(*words, "--json", quiet=True).stdout)


class World:
    """Where a test's pools, hosts and mountpoints lie."""

    def __init__(self, root):
        if not os.access(TARN, os.X_OK):
            raise Failed(f"{TARN} is not there: cargo build")
        sweep(root)
        self.root = root
        self.host = Host(os.path.join(root, "state"))
        self.pools, self.servers = [], []
        # Options of every mount beside those of the test.
        self.mount_words = shlex.split(os.environ.get("TARN_TEST_MOUNT", ""))
        # What pools are made as: far.FarPool, where another host is to mount them.
        self.pool_class = Pool

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def buckets(self, count, prefix="b"):
        """Makes empty directories to serve as buckets."""
        paths = [self.path("buckets", f"{prefix}{n:02}") for n in range(1, count + 1)]
        for path in paths:
            os.makedirs(path)
        return paths

    def pool(self, name="tank", buckets=3, options=(), host=None):
        """Creates a pool on `buckets` (a number of new directories, or a list of paths and URLs). `options` are
        words for `tarn pool create`, such as ["-o", "rewind=0"]."""
        vdevs = self.buckets(buckets) if isinstance(buckets, int) else list(buckets)
        pool = self.pool_class(self, host or self.host, name, vdevs)
        pool.host.tarn("pool", "create", *options, name, *vdevs)
        self.pools.append(pool)
        return pool

    def s3(self, buckets, **how):
        """Starts an S3 server; pools that are created from now on find its credentials in the environment."""
        import s3

        return self.serve(s3.Server(self.path("s3"), buckets, **how))

    def gcs(self, buckets):
        """Starts a GCS server, as s3() does an S3 server."""
        import clouds

        return self.serve(clouds.Gcs(self.path("gcs"), buckets))

    def azure(self, buckets, **how):
        """Starts an Azure server."""
        import clouds

        return self.serve(clouds.Azure(self.path("azure"), buckets, **how))

    def moto(self, buckets):
        """Starts another S3 server."""
        import clouds

        return self.serve(clouds.Moto(self.path("moto"), buckets))

    def serve(self, server):
        self.servers.append(server)
        self.host.environment.update(server.credentials())
        return server

    def close(self):
        """Ends a test that passed: every pool must unmount, and `tarn check` must find nothing wrong."""
        for pool in self.pools:
            if pool.gone:
                continue
            pool.umount()
            pool.host.tarn("check", pool.name, limit=600)
        for server in self.servers:
            server.stop()
        sweep(self.root)


class Pool:
    def __init__(self, world, host, name, vdevs):
        self.world, self.host, self.name, self.vdevs = world, host, name, vdevs
        self.mnt = world.path("mnt", name)
        # Set by tests that destroy the pool or hand it to another host.
        self.gone = False
        os.makedirs(self.mnt, exist_ok=True)

    def mount(self, *options, dataset=None, at=None):
        """Mounts as a local disk would be: open to every user, with devices and set-id bits honoured."""
        self.host.tarn("mount", "-o", "allow_other,dev,suid", *self.world.mount_words, *options, dataset or self.name, at or self.mnt)

    def umount(self):
        if os.path.ismount(self.mnt):
            self.host.tarn("umount", self.mnt, limit=600)

    def remount_cold(self, *options):
        """Unmounts, empties the kernel's caches and mounts again: nothing but the buckets remembers."""
        self.umount()
        drop_caches()
        self.mount(*options)

    def daemons(self):
        return daemons(self.host.state)

    def kill(self, sig=signal.SIGKILL, wait=30):
        """Sends the daemon a signal and waits for its end."""
        pids = self.daemons()
        if not pids:
            raise Failed("no daemon is running")
        for pid in pids:
            os.kill(pid, sig)
        wait_until(lambda: not self.daemons(), wait, f"end of the daemon after signal {sig}")

    def counters(self):
        """`tarn stats --raw` as {dotted.name: number}."""
        flat = {}

        def walk(value, name):
            if isinstance(value, dict):
                for key, inner in value.items():
                    walk(inner, f"{name}.{key}" if name else key)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                flat[name] = value

        walk(json.loads(self.host.tarn("stats", "--raw", self.name, quiet=True).stdout), "")
        return flat

    def used(self):
        """Bytes in all buckets that are directories."""
        return sum(du(v) for v in self.vdevs if os.path.isdir(v))


def sync_all(folder):
    """Makes everything durable that was written to the mount: by fsync of a directory, since the kernel passes no
    syncfs on to a FUSE file system (docs/SEMANTICS.md)."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def drop_caches():
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")
