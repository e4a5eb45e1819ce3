"""The register of tests and what runs them: each in a process of its own, under a time limit, with its output in
a log. A test that hangs in a call on the mount can so be ended from outside, mount and all."""
import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(os.path.dirname(HERE))
LOGS = os.path.join(REPO, ".test/logs")
MEMORY = os.path.join(REPO, ".accept")


# Where a test may leave files, unless TARN_TEST_WORK says another place.
WORK = os.environ.get("TARN_TEST_WORK") or os.path.join(REPO, ".test")


def world_root():
    """Where pools are made: in memory if there is room, so that a busy or slow disk under the buckets does not
    decide how long a test takes (each fsync is a syncfs of it), else beside the logs."""
    chosen = WORK
    if not os.environ.get("TARN_TEST_WORK") and os.path.isdir("/dev/shm"):
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize > 16 << 30:
            chosen = "/dev/shm/tarn-test"
    return os.path.join(chosen, "world")


@contextlib.contextmanager
def alone():
    """Nobody else runs tests in the same place meanwhile: each would sweep away the other's pools."""
    place = os.path.dirname(world_root())
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"tests/run: other tests run in {place}; set TARN_TEST_WORK to another directory")
        yield


# In the order in which they run; the number is what `make accept N` takes.
ROWS = [
    ("pjdfstest", "POSIX by the pjdfstest suite"),
    ("programs", "real programs on the mount"),
    ("balance", "equal load on all buckets"),
    ("portability", "the buckets alone are enough"),
    ("speed", "first figures against the raw store"),
    ("hotpath", "what is cached is answered without tokio and SlateDB"),
    ("posix", "calls and corners that programs rely on"),
    ("space", "deleted space returns, full pools"),
    ("crash", "kill -9 and what was acknowledged"),
    ("integrity", "damage is found, and is never wrong data"),
    ("ownership", "one host at a time"),
    ("cli", "verbs and columns"),
    ("s3", "a pool on an S3 server"),
    ("input", "wrong input: one clear line, nothing half made"),
    ("faults", "buckets that fail under load"),
    ("sim", "seeds of faults and crashes against a model"),
    ("bounds", "memory, listings and requests stay within bounds"),
    ("clouds", "pools on GCS and Azure, and on all clouds at once"),
    ("terms", "storage classes, customers' keys, who pays, certificates and proxies"),
    ("renewal", "credentials that expire, a clock that is off, a store that asks to be asked less"),
    ("telemetry", "metrics, tarn stats, tarn cost, tarn profile, jobs"),
    ("wire", "a dataset on another host"),
    ("caches", "small caches, and none: the same answers"),
]


class Row:
    def __init__(self, number, name, about):
        self.number, self.name, self.about = number, name, about


class Test:
    def __init__(self, row, name, about, body, limit, long_limit, needs):
        self.row, self.about, self.body, self.needs = row, about, body, needs
        self.name = f"{row.name}.{name}"
        self.limit, self.long_limit = limit, long_limit


class Failed(Exception):
    """A test's own verdict: shown without a traceback."""


class Skipped(Exception):
    """The machine cannot run the test; shown, and not counted as passed."""


_tests = []
_row = None


def test(about, limit=120, long_limit=3600, needs="dir", name=None):
    """Registers a test. Limits are in seconds, for the short and the long form. `needs` is "dir" when any
    directory will do (the runner gives one on a fresh pool), "pool" when the test makes its own pools."""

    def register(body):
        _tests.append(Test(_row, name or body.__name__, about, body, limit, long_limit, needs))
        return body

    return register


def load():
    """Imports every row's module, in order."""
    global _row
    if _tests:
        return _tests
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "rows"))
    for number, (name, about) in enumerate(ROWS, 1):
        _row = Row(number, name, about)
        importlib.import_module(f"row_{name}")
    return _tests


# Inside a test.


class Context:
    """What a test gets: its form, a directory, commands with limits, and a place for its figures."""

    def __init__(self, test, long):
        self.test, self.long = test, long
        self.scratch = os.path.join(WORK, "scratch")
        self.notes = []
        self._world = None
        self._dir = None

    def pick(self, short, long):
        return long if self.long else short

    @property
    def local(self):
        """The directory of another file system to try the test itself on, or None."""
        return os.environ.get("TARN_TEST_DIR")

    @property
    def world(self):
        """The world in which the test's pools live, made at first use."""
        if self._world is None:
            import world

            self._world = world.World(world_root())
        return self._world

    @property
    def dir(self):
        """An empty directory: on a mounted pool of 3 buckets, or below TARN_TEST_DIR."""
        if self._dir is None:
            if self.local:
                self._dir = os.path.join(self.local, "tarn-test")
                subprocess.run(["rm", "-rf", self._dir], check=True)
                os.makedirs(self._dir)
            else:
                pool = self.world.pool(buckets=3)
                pool.mount()
                self._dir = pool.mnt
        return self._dir

    def use(self, pool):
        """The directory is that of a pool which the test has made itself."""
        self._dir = pool.mnt

    def run(self, *command, limit=600, check=True, quiet=False, **kw):
        """Runs a command; its output goes to the log, and comes back as text. Lists and words may be mixed."""
        words = [word for part in command for word in ([part] if isinstance(part, (str, bytes)) else part)]
        shown = " ".join(w if isinstance(w, str) else repr(w) for w in words)
        print(f"$ {shown}", flush=True)
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)
        timer = threading.Timer(limit, child.kill)
        timer.start()
        lines = []
        # Line by line, so that the log of a test that had to be ended shows how far it came.
        for line in child.stdout:
            lines.append(line.decode(errors="replace"))
            if not quiet:
                print(lines[-1], end="", flush=True)
        late = child.wait() == -signal.SIGKILL and not timer.is_alive()
        timer.cancel()
        output = "".join(lines)
        if late:
            raise Failed(f"no end after {limit} s: {shown[:200]}")
        if quiet and child.returncode:
            print(output, end="", flush=True)
        if check and child.returncode:
            raise Failed(f"exit status {child.returncode} of: {shown[:200]}")
        return output

    def check(self, fact, otherwise):
        if not fact:
            raise Failed(otherwise)

    def note(self, text):
        """A figure for the line that reports the test."""
        self.notes.append(text)
        print(f"note: {text}", flush=True)

    def close(self):
        if self._world is not None:
            self._world.close()


def run_here(name, long):
    """Runs one test in this process. Its last line of output tells the parent what to print."""
    test = next(t for t in load() if t.name == name)
    context = Context(test, long)
    subprocess.run(["rm", "-rf", context.scratch], check=True)
    os.makedirs(context.scratch)
    try:
        test.body(context)
        context.close()
    except Skipped as reason:
        print(f"::skip {reason}", flush=True)
        return 0
    except Failed as reason:
        print(f"::fail {reason}", flush=True)
        return 1
    except subprocess.TimeoutExpired as late:
        print(f"::fail no end after {late.timeout:.0f} s: {late.cmd}", flush=True)
        return 1
    print(f"::pass {', '.join(context.notes)}", flush=True)
    return 0


# Around the tests.


def sources_key():
    """Names what is under test: the crates as they lie in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", "crates", "Cargo.lock"],
        cwd=REPO, capture_output=True, check=True,
    ).stdout
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(filter(None, listed.split(b"\0"))):
        try:
            with open(os.path.join(os.fsencode(REPO), path), "rb") as file:
                digest.update(path + b"\0" + file.read())
        except FileNotFoundError:
            continue
    return digest.hexdigest()


def remembered(test, key):
    try:
        with open(os.path.join(MEMORY, test.name)) as file:
            return file.read().strip() == key
    except FileNotFoundError:
        return False


def remember(test, key):
    os.makedirs(MEMORY, exist_ok=True)
    with open(os.path.join(MEMORY, test.name), "w") as file:
        file.write(key + "\n")


def keep_logs(log):
    """Puts what the daemons of a failed test had to say beside the test's own log."""
    with open(os.path.splitext(log)[0] + ".daemon.log", "wb") as out:
        for folder, folders, names in os.walk(world_root()):
            # A mount may hang, and holds no logs of Tarn's; buckets are large.
            folders[:] = [f for f in folders if f not in ("mnt", "buckets", "s3", "gcs", "azure", "small")]
            for path in (os.path.join(folder, n) for n in names if n.endswith(".log")):
                with open(path, "rb") as file:
                    out.write(f"== {path}\n".encode() + file.read()[-200_000:])


def run_one(test, long):
    """Runs a test in a child and returns (verdict, text, seconds)."""
    log = os.path.join(LOGS, f"{test.name}.log")
    os.makedirs(LOGS, exist_ok=True)
    limit = test.long_limit if long else test.limit
    command = [sys.executable, os.path.join(REPO, "tests/run"), "--one", test.name] + (["--long"] if long else [])
    start = time.monotonic()
    with open(log, "wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=REPO)
        try:
            child.wait(timeout=limit)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(child.pid, signal.SIGKILL)
    if late or child.returncode:
        keep_logs(log)
    # Even after a crash of the test nothing of it may stay mounted or running (an S3 server, say); a process that
    # hangs in a call on the mount goes only when the mount does.
    import world

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)

    world.sweep(world_root())
    if late:
        child.wait(timeout=60)
    seconds = time.monotonic() - start
    with open(log, errors="replace") as file:
        lines = file.read().splitlines()
    last = lines[-1] if lines else ""
    if late:
        return "fail", f"no end after {limit} s", seconds, lines
    if child.returncode == 0 and last.startswith("::pass"):
        return "pass", last[len("::pass"):].strip(), seconds, lines
    if child.returncode == 0 and last.startswith("::skip"):
        return "skip", last[len("::skip"):].strip(), seconds, lines
    text = last[len("::fail"):].strip() if last.startswith("::fail") else "the test itself broke"
    return "fail", text, seconds, lines


def run_all(tests, long, resume, totals):
    key = sources_key() if resume else None
    counts = {"pass": 0, "fail": 0, "skip": 0}
    failures = []
    row = None
    for test in tests:
        if os.environ.get("TARN_TEST_DIR") and test.needs != "dir":
            continue
        if test.row is not row:
            row = test.row
            print(f"{row.number}. {row.name}: {row.about}", flush=True)
        if resume and remembered(test, key):
            counts["pass"] += 1
            print(f"  {test.name:28} passed before", flush=True)
            continue
        print(f"  {test.name:28} ", end="", flush=True)
        verdict, text, seconds, lines = run_one(test, long)
        counts[verdict] += 1
        word = {"pass": "ok", "fail": "FAILED", "skip": "skipped"}[verdict]
        print(f"{word:8}{seconds:7.1f} s  {text}", flush=True)
        if verdict == "fail":
            for line in lines[-30:]:
                print(f"      | {line}", flush=True)
            print(f"      (all of it: {os.path.join(LOGS, test.name)}.log)", flush=True)
            failures.append([test.name, text, lines[-12:]])
        if verdict == "pass" and resume:
            remember(test, key)
    if counts["skip"]:
        print(f"{counts['skip']} skipped: this machine cannot run them")
    if totals:
        with open(totals, "w") as file:
            json.dump({"passed": counts["pass"], "failures": failures}, file)
    else:
        print(f"{counts['pass']} passed, {counts['fail']} failed")
    return 1 if counts["fail"] else 0
