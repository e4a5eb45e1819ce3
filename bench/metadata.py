"""Rows of names: how many a second can be made, looked at and removed, by one process and by several."""
import multiprocessing
import os
import shutil
import time

from nothing import Nothing
from processor import settle
from systems import Ext4, Tarn

GIB = 1 << 30
# Names a process works on, and how often readdir lists all of them.
NAMES, LISTINGS = 2000, 10
# Seconds that one step may take.
STEP_LIMIT = 600
FORMS = ((1, False), (4, False), (16, False), (16, True))


def names(folder, number, each):
    return [os.path.join(folder, f"w{number}-{n}") for n in range(each)]


def create(paths):
    for path in paths:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    return len(paths)


def stat(paths):
    for path in paths:
        os.stat(path)
    return len(paths)


def open_(paths):
    for path in paths:
        os.close(os.open(path, os.O_RDONLY))
    return len(paths)


def readdir(paths, times=LISTINGS):
    """Names listed."""
    return sum(len(os.listdir(os.path.dirname(paths[0]))) for _ in range(times))


def rename(paths):
    for path in paths:
        os.rename(path, path + "-")
    return len(paths)


def unlink(paths):
    for path in paths:
        os.unlink(path + "-")
    return len(paths)


STEPS = {"create": create, "stat": stat, "open": open_, "readdir": readdir, "rename": rename, "unlink": unlink}


def write(paths):
    """Bytes written and made durable."""
    for path in paths:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(fd, BLOCK)
            os.fsync(fd)
        finally:
            os.close(fd)
    return len(paths) * len(BLOCK)


def read(paths):
    """Bytes read."""
    done = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            done += len(file.read())
    return done


# Of mdtest and IOR, as they are run on clusters: many in one directory, and files of a megabyte.
MDTEST = {**STEPS, "readdir": lambda paths: readdir(paths, 1)}
MANY, WRITERS, EACH = 64, 16, 16
BLOCK = os.urandom(1 << 20)


def work(index, paths, barrier, queue, steps):
    """One process: every step when all are ready for it; tells when it began and ended, and how much it did."""
    for what, step in steps.items():
        barrier.wait(STEP_LIMIT)
        start = time.monotonic()
        try:
            queue.put((what, start, step(paths), time.monotonic(), None))
        except OSError as error:
            queue.put((what, start, 0, time.monotonic(), str(error)))
    queue.close()


def measure(folder, workers, many, each, steps=STEPS, keep=False):
    """Of every step: operations a second of all processes together, or the words of its failure."""
    os.makedirs(folder, exist_ok=True)
    places = []
    for number in range(workers):
        place = os.path.join(folder, f"d{number}") if many else folder
        os.makedirs(place, exist_ok=True)
        places.append(names(place, number, each))
    fork = multiprocessing.get_context("fork")
    barrier, queue = fork.Barrier(workers), fork.Queue()
    running = [fork.Process(target=work, args=(n, paths, barrier, queue, steps)) for n, paths in enumerate(places)]
    for process in running:
        process.start()
    told = [queue.get(timeout=STEP_LIMIT) for _ in range(workers * len(steps))]
    for process in running:
        process.join(60)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    speeds = {}
    for what in steps:
        mine = [entry for entry in told if entry[0] == what]
        failed = next((entry[4] for entry in mine if entry[4]), None)
        if failed:
            speeds[what] = failed
            continue
        seconds = max(entry[3] for entry in mine) - min(entry[1] for entry in mine)
        speeds[what] = sum(entry[2] for entry in mine) / seconds
    return speeds


def tell(results, group, system, speeds, form=""):
    """Enters what `measure` gave, a row for each step."""
    for what, speed in speeds.items():
        row = f"{group}-{what}{form}"
        if isinstance(speed, str):
            results.blank(row, system.name, speed)
        else:
            results.add(row, system.name, speed)


class Metadata:
    """Everybody on buckets that are directories or a server as near; names are what is measured, not the store."""

    def __init__(self, bench):
        self.bench, self.results = bench, bench.results
        self.pool = Tarn(bench.pool("metadata", bench.server.urls("metadata")))
        self.ext4, self.nothing = Ext4(bench.root, 2 * GIB), Nothing(bench.root)

    def round(self, number):
        self.ext4.mount()
        systems = [self.pool, self.ext4] + [self.nothing] * self.nothing.mount()
        try:
            for workers, many in FORMS:
                for system in self.bench.turned(systems, number):
                    settle()
                    self.one(system, workers, many)
        finally:
            self.ext4.unmount()
            self.nothing.unmount()
        if number == 0:
            for peer in self.bench.peers():
                self.peer(peer)
        self.cold(number)

    def one(self, system, workers, many):
        speeds = measure(os.path.join(system.mnt, "names"), workers, many, NAMES // (4 if workers > 4 else 1))
        tell(self.results, "meta", system, speeds, f"-{workers}{'-many' * many}")

    def peer(self, peer):
        """Once, alone, and with fewer names: a peer takes a request or more for each."""
        def run():
            speeds = measure(os.path.join(peer.mnt, "names"), 1, False, NAMES // 10)
            tell(self.results, "meta", peer, speeds, "-1")

        self.bench.measured(peer, [(None, run)], drop=["names"])

    def cold(self, number):
        """The first stat of every file after a mount."""
        def prepare(system):
            folder = os.path.join(system.mnt, "cold")
            os.makedirs(folder)
            create(names(folder, 0, NAMES // 4))
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            except OSError:
                pass
            finally:
                os.close(fd)
            system.settled()
            return 0

        def look(system):
            start = time.monotonic()
            count = stat(names(os.path.join(system.mnt, "cold"), 0, NAMES // 4))
            return count / (time.monotonic() - start)

        row = "meta-stat-cold"
        prepare(self.pool)
        self.pool.remount_cold()
        self.results.add(row, "tarn", look(self.pool))
        for path in names(os.path.join(self.pool.mnt, "cold"), 0, NAMES // 4):
            os.unlink(path)
        os.rmdir(os.path.join(self.pool.mnt, "cold"))
        others = [self.ext4, *(self.bench.peers() if number == 0 else ())]
        for peer in others:
            steps = [(None, lambda: prepare(peer)), (row, lambda: look(peer))]
            self.bench.measured(peer, steps, cold=[row], drop=["cold"])

    def close(self):
        self.bench.finish(self.pool)
        self.ext4.close()


class Mdtest:
    """Many processes in one directory, and files of a megabyte: the shapes of mdtest and IOR."""

    def __init__(self, bench):
        self.bench, self.results, self.each = bench, bench.results, max(bench.mdtest // MANY, 1)
        self.pool = Tarn(bench.pool("mdtest", bench.server.urls("mdtest")))
        self.ext4, self.nothing = Ext4(bench.root, 4 * GIB, inodes=2 * bench.mdtest), Nothing(bench.root)

    def round(self, number):
        self.ext4.mount()
        systems = [self.pool, self.ext4] + [self.nothing] * self.nothing.mount()
        try:
            for system in self.bench.turned(systems, number):
                settle()
                speeds = measure(os.path.join(system.mnt, "names"), MANY, False, self.each, MDTEST)
                tell(self.results, "mdtest", system, speeds)
            for system in (self.pool, self.ext4):
                settle()
                folder = os.path.join(system.mnt, "files")
                speeds = measure(folder, WRITERS, False, EACH, {"write": write}, keep=True)
                tell(self.results, "ior", system, speeds)
                system.remount_cold()
                tell(self.results, "ior", system, measure(folder, WRITERS, False, EACH, {"read": read}))
        finally:
            self.ext4.unmount()
            self.nothing.unmount()

    def close(self):
        self.bench.finish(self.pool)
        self.ext4.close()
