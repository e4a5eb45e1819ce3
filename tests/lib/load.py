"""A load that remembers what was acknowledged: to be cut off by a crash, and compared with what is there afterwards.

It is of three kinds, all at once. Workers of `tests/posix/fsyncer.py` write, rename, unlink and truncate, with fsync of
file and directory. fsx does all it can to one file, with fsync now and then; what it did is known from its log, and
what the file may hold after a crash from running it again as far as that. fio writes files in blocks with
checksums, with fsync on the way and at the end, and verifies them later."""
import os
import re
import subprocess
import sys
import threading

from harness import REPO, Failed

WORKER = os.path.join(REPO, "tests/posix/fsyncer.py")
FSX, FSX_CONFIG = os.path.join(REPO, ".tools/bin/fsx"), os.path.join(REPO, "tests/config/fsx-crash.toml")
sys.path.insert(0, os.path.dirname(WORKER))


def acknowledgements(lines):
    """What a worker's log promises: for each path the last generation acknowledged and the last one begun."""
    promised, begun = {}, {}
    for line in lines:
        word, path, generation = line.split()
        (promised if word == "durable" else begun)[path] = int(generation)
    return promised, begun


class Workers:
    """Processes of fsyncer.py."""

    def __init__(self, folder, scratch, name, count=3, kinds=()):
        self.logs = [os.path.join(scratch, f"log-{name}w{n}") for n in range(count)]
        for log in self.logs:
            open(log, "w").close()
        start = [sys.executable, WORKER, folder]
        self.running = [
            subprocess.Popen([*start, f"{name}w{n}", log, *kinds]) for n, log in enumerate(self.logs)
        ]

    def end(self):
        """Waits for their end, which that of the mount brings."""
        for process in self.running:
            process.wait(timeout=60)

    def stop(self):
        """Ends them, whatever they are about."""
        for process in self.running:
            process.kill()
        self.end()

    def acknowledged(self):
        """How many changes were, so far."""
        count = 0
        for log in self.logs:
            with open(log) as file:
                count += sum(line.startswith("durable ") for line in file)
        return count

    def verify(self, folder):
        """Compares; gives how many files were acknowledged."""
        import fsyncer

        checked = 0
        for log in self.logs:
            with open(log) as file:
                # The last line may be torn: the worker was killed.
                promised, begun = acknowledgements(line for line in file if line.endswith("\n"))
            for path, low in promised.items():
                high = max(low, begun.get(path, 0))
                problem = fsyncer.wrong(folder, path, low, high)
                if problem:
                    raise Failed(f"{path}: {problem}; durable is generation {low}, begun was {high}")
                checked += 1
        return checked


class Fsx:
    """Runs of fsx, a file and a seed each, one after the other, each with an fsync at its end."""

    # Operations of a run: to know what it did it is done again.
    COUNT = 300

    def __init__(self, folder, scratch, name, seed):
        self.folder, self.scratch, self.name, self.seed = folder, scratch, name, seed
        self.finished, self.stopped = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def path(self, folder, number):
        return os.path.join(folder, f"{self.name}-fsx{number}")

    def log(self, number):
        return os.path.join(self.scratch, f"log-{self.name}-fsx{number}")

    def command(self, path, number, count):
        seed = str(self.seed * 1000 + number)
        return [FSX, "-v", "-f", FSX_CONFIG, "-S", seed, "-P", self.scratch, "-N", str(count), path]

    def run(self):
        number = 0
        while not self.stopped.is_set():
            path = self.path(self.folder, number)
            with open(self.log(number), "wb") as out:
                done = subprocess.run(self.command(path, number, self.COUNT), stdout=out, stderr=out)
            if done.returncode:
                return  # The daemon was killed, or fsx has found something wrong: the log says which.
            try:
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            except OSError:
                return
            self.finished.append(number)
            number += 1

    def end(self):
        self.stopped.set()
        self.thread.join(timeout=60)

    def operations(self, number):
        """The operations that a log tells of, by number. The last one shown may not have come to its end."""
        if not os.path.exists(self.log(number)):
            return {}
        with open(self.log(number), errors="replace") as file:
            text = file.read()
        if "miscompare" in text.lower():
            raise Failed(f"fsx read something else than it wrote: {text[-500:]}")
        return {int(n): word for n, word in re.findall(r"^\[INFO +fsx\] +(\d+) (\S+)", text, re.M)}

    def states(self, number, first, last):
        """What a file holds after each of these operations."""
        path = os.path.join(self.scratch, f"replayed-{self.name}")
        for count in range(first, last + 1):
            subprocess.run(self.command(path, number, count), check=True, capture_output=True, timeout=60)
            with open(path, "rb") as file:
                yield file.read()
            os.unlink(path)

    def verify(self, folder):
        for number in self.finished:
            self.compare(folder, number, self.COUNT, self.COUNT)
        # The one that was cut off.
        number = len(self.finished)
        done = self.operations(number)
        last = max(done, default=0)
        first = max((n for n, word in done.items() if word in ("fsync", "fdatasync") and n < last), default=0)
        if first == 0:
            return number
        # The operation after the last one shown may have been under way.
        self.compare(folder, number, first, min(last + 1, self.COUNT))
        return number + 1

    def compare(self, folder, number, first, last):
        """Whether each byte is what it was after one of these operations, the first of which was durable."""
        name = os.path.basename(self.path(folder, number))
        try:
            with open(self.path(folder, number), "rb") as file:
                found = file.read()
        except OSError as e:
            raise Failed(f"{name}: {e.strerror}, and operation {first} of fsx was durable") from None
        states = list(self.states(number, first, last))
        if found in states:
            return
        shortest, longest = min(map(len, states)), max(map(len, states))
        if not shortest <= len(found) <= longest:
            raise Failed(f"{name}: {len(found)} bytes, and it had {shortest} to {longest} since its fsync")
        for at, byte in enumerate(found):
            # Behind the shortest end it may have been lengthened, and not yet filled.
            if all(at >= len(s) or s[at] != byte for s in states) and not (byte == 0 and at >= shortest):
                raise Failed(f"{name}: byte {at} is what it was at no time from operation {first} to {last}")


class Fio:
    """Runs of fio, a file each, one after the other."""

    def __init__(self, folder, name, seed):
        self.folder, self.name, self.seed = folder, name, seed
        self.acknowledged, self.stopped = [], threading.Event()
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    def command(self, folder, number, *words):
        return [
            "fio", "--name=job", f"--filename={os.path.join(folder, f'{self.name}-fio{number}')}", "--rw=randwrite",
            "--bsrange=4k-64k", "--size=2m", "--fsync=16", "--end_fsync=1", "--verify=crc32c", "--verify_state_save=0",
            "--verify_fatal=1", "--fallocate=none", f"--randseed={self.seed * 1000 + number}", "--output-format=terse",
            *words,
        ]

    def write(self):
        number = 0
        while not self.stopped.is_set():
            done = subprocess.run(self.command(self.folder, number, "--do_verify=0"), capture_output=True)
            if done.returncode:
                return  # The daemon was killed.
            self.acknowledged.append(number)
            number += 1

    def end(self):
        self.stopped.set()
        self.thread.join(timeout=60)

    def verify(self, folder):
        for number in self.acknowledged:
            done = subprocess.run(
                self.command(folder, number, "--verify_only=1"), capture_output=True, text=True, timeout=120
            )
            if done.returncode:
                raise Failed(f"{self.name}-fio{number}: {(done.stderr or done.stdout).strip()[:300]}")
        return len(self.acknowledged)


class Mixed:
    """All three."""

    def __init__(self, folder, scratch, name, seed, workers=3):
        self.parts = [
            Workers(folder, scratch, name, workers), Fsx(folder, scratch, name, seed), Fio(folder, name, seed)
        ]

    def end(self):
        """Waits for the end of all, which the end of the mount brings."""
        for part in self.parts:
            part.end()

    def verify(self, folder):
        """Everything acknowledged is in `folder`; gives how many files."""
        return sum(part.verify(folder) for part in self.parts)
