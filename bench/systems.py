"""The file systems that are measured, each behind the same few calls.

A system has a `name`, a directory `mnt`, and `mount`, `unmount`, `remount_cold` (nothing of it remembers anything but
its store), `settled` (returns when all that was written and synced is in its store) and `abort` (for when it hangs).
Whatever processes a system starts are in `started`, and are ended by `end_all`.

Each peer has a bucket of its own on a server, as it is told to by its own manual; none keeps a cache of files across a
remount, and all of them keep what they must keep on files in tmpfs.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

from clouds import free_port
from harness import REPO, Failed
from s3 import ACCESS, REGION, SECRET
from world import drop_caches, wait_until

READY_LIMIT = 30
started = []


class Missing(Exception):
    """A system cannot run here; says why."""


class Late(Exception):
    """Work took longer than it may."""


def tool(name, script):
    """A program, where bench/install put it or the distribution has it."""
    found = shutil.which(name, path=":".join([os.path.join(REPO, ".tools/bin"), os.environ["PATH"]]))
    if not found:
        raise Missing(f"{name} is not installed: bench/install/{script}")
    return found


def start(command, log, **environment):
    # Certificates of the user's own are for stores elsewhere, and not every peer knows what to do with them.
    inherited = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**inherited, **environment})
    started.append(process)
    return process


def end(process, limit=20):
    """Ends a process that was started here."""
    process.terminate()
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process in started:
        started.remove(process)


def end_all():
    for process in list(started):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        started.remove(process)


@contextlib.contextmanager
def limited(system, seconds):
    """What is inside may take so long; then the system is killed, so that its calls return, and it is `Late`."""
    late = threading.Event()

    def give_up():
        late.set()
        system.abort()

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield
    except (OSError, subprocess.SubprocessError) as failed:
        if late.is_set():
            raise Late(f"no end after {seconds} s") from None
        raise Missing(f"{type(failed).__name__}: {failed}") from None
    finally:
        timer.cancel()
    if late.is_set():
        raise Late(f"no end after {seconds} s")


class System:
    """What the others begin with: a process in the foreground that mounts at `mnt`."""

    def __init__(self, name, root):
        self.name, self.root = name, os.path.join(root, name)
        self.mnt, self.log = os.path.join(self.root, "mnt"), os.path.join(self.root, "log")
        os.makedirs(self.mnt, exist_ok=True)
        self.process = None

    def mount(self):
        self.process = start(self.command(), self.log, **self.environment())
        end = time.monotonic() + READY_LIMIT
        while not os.path.ismount(self.mnt):
            if self.process.poll() is not None or time.monotonic() > end:
                with open(self.log, errors="replace") as file:
                    said = file.read()[-300:]
                raise Missing(f"{self.name} does not mount: {said.strip()}")
            time.sleep(0.02)

    def unmount(self):
        if not self.process:
            return
        self.settled()
        for _ in range(50):
            subprocess.run(["umount", self.mnt], capture_output=True)
            if not os.path.ismount(self.mnt):
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "-l", self.mnt], capture_output=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        end(self.process)
        self.process = None
        self.forget()

    def remount_cold(self):
        self.unmount()
        drop_caches()
        self.mount()

    def abort(self):
        if self.process:
            self.process.kill()
        subprocess.run(["umount", "-l", self.mnt], capture_output=True)

    def environment(self):
        return {}

    def settled(self):
        pass

    def forget(self):
        """Deletes what it kept beside its store."""
        shutil.rmtree(os.path.join(self.root, "kept"), ignore_errors=True)
        os.makedirs(os.path.join(self.root, "kept"))

    def close(self):
        self.unmount()


class Tarn:
    """A pool of the tests, as a system."""

    name = "tarn"

    def __init__(self, pool, *options):
        self.pool, self.mnt, self.options = pool, pool.mnt, options

    def mount(self):
        self.pool.mount(*self.options)

    def unmount(self):
        self.pool.umount()

    def remount_cold(self):
        self.pool.remount_cold(*self.options)

    def settled(self):
        pass

    def abort(self):
        with contextlib.suppress(Failed):
            self.pool.kill()

    def cost(self):
        """What its requests were since it was mounted, and their price."""
        return self.pool.host.json("cost", self.pool.name)[0]

    def close(self):
        self.unmount()


class Peer(System):
    """One that is over a bucket of its own on `store`, which is a server or a `Slow` before one."""

    def __init__(self, root, store, name=None):
        super().__init__(name or self.title, root)
        self.store, self.bucket = store, f"peer-{self.title}"
        os.makedirs(os.path.join(store.root, self.bucket), exist_ok=True)
        self.forget()


class S3fs(Peer):
    title = "s3fs"

    def command(self):
        options = [
            f"url={self.store.endpoint}", "use_path_request_style", f"endpoint={REGION}", "parallel_count=16",
            "multireq_max=64", f"tmpdir={self.root}/kept", "max_stat_cache_size=200000", "allow_other",
        ]
        return [tool("s3fs", "s3fs.sh"), self.bucket, self.mnt, "-f", "-o", ",".join(options)]

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}


class Rclone(Peer):
    """`--vfs-cache-mode writes`: without it files cannot be overwritten. Then fsync does not reach the store: what is
    waited for is that its own queue of uploads is empty. With a `--vfs-write-back` of 0 it uploads at unmount only."""

    title = "rclone"

    def command(self):
        self.port = free_port()
        return [
            tool("rclone", "rclone.sh"), "mount", f"bench:{self.bucket}", self.mnt, "--vfs-cache-mode", "writes",
            "--cache-dir", f"{self.root}/kept", "--vfs-write-back", "50ms", "--transfers", "16",
            "--s3-upload-concurrency", "8", "--buffer-size", "16M", "--config", "/dev/null", "--rc",
            "--rc-addr", f"127.0.0.1:{self.port}", "--rc-no-auth", "--allow-other",
        ]

    def environment(self):
        settings = {
            "TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": self.store.endpoint, "ACCESS_KEY_ID": ACCESS,
            "SECRET_ACCESS_KEY": SECRET, "REGION": REGION, "FORCE_PATH_STYLE": "true",
        }
        return {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in settings.items()}

    def waiting(self):
        """Uploads that are queued or under way."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/vfs/stats", data=b"{}", headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            cache = json.load(answer).get("diskCache") or {}
        return cache.get("uploadsInProgress", 0) + cache.get("uploadsQueued", 0)

    def settled(self):
        with contextlib.suppress(OSError):
            # A file is queued just after it is closed: one look is not enough.
            quiet = 0
            while quiet < 3:
                wait_until(lambda: self.waiting() == 0, 600, "uploads of rclone", step=0.02)
                time.sleep(0.02)
                quiet = quiet + 1 if self.waiting() == 0 else 0

    def unmount(self):
        if self.process:
            time.sleep(1)
        super().unmount()


class Gcsfuse(Peer):
    """Over a GCS server, which is another than the others have."""

    title = "gcsfuse"

    def __init__(self, root, store, name=None):
        super().__init__(root, store, name)
        with contextlib.suppress(OSError):
            getattr(store, "server", store).ask("/storage/v1/b", {"name": self.bucket})

    def command(self):
        return [
            tool("gcsfuse", "gcsfuse.sh"), "--foreground", "--anonymous-access", "--implicit-dirs",
            "--enable-hns=false", "--custom-endpoint", f"{self.store.endpoint}/storage/v1/", "--temp-dir",
            f"{self.root}/kept", "-o", "allow_other", self.bucket, self.mnt,
        ]


class Ext4(System):
    """On a file in tmpfs: what a local disk would do if it took no time."""

    def __init__(self, root, size, inodes=None):
        super().__init__("ext4", root)
        self.image = os.path.join(self.root, "image")
        with open(self.image, "wb") as file:
            file.truncate(size)
        words = ["-N", str(inodes)] if inodes else []
        command = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", *words, self.image]
        subprocess.run(command, check=True, timeout=120)

    def mount(self):
        subprocess.run(["mount", "-o", "loop", self.image, self.mnt], check=True, timeout=60)

    def unmount(self):
        if os.path.ismount(self.mnt):
            subprocess.run(["umount", self.mnt], check=True, timeout=120)

    def abort(self):
        subprocess.run(["umount", "-l", self.mnt], capture_output=True)

    def close(self):
        self.unmount()
        os.unlink(self.image)


PEERS = {peer.title: peer for peer in (S3fs, Rclone, Gcsfuse)}


class Absent(System):
    """One that cannot be had here."""

    def __init__(self, name, reason):
        self.name, self.reason, self.mnt = name, reason, "/nonexistent"

    def mount(self):
        raise Missing(self.reason)

    def unmount(self):
        pass

    abort = unmount
