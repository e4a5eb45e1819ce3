"""The demonstration's input and its proof: `demo.py make DIR`, `demo.py copy DIR MOUNT`, `demo.py verify DIR MOUNT`."""
import collections
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(REPO, "tests/lib"))

import tree  # noqa: E402

BIG = 2 << 30
ENOUGH = 6000


class Progress:
    """A bar with rate and time left on a terminal, a line now and then elsewhere."""

    def __init__(self, about, total_bytes, total_names=0):
        self.about, self.total, self.names_total = about, max(total_bytes, 1), total_names
        self.bytes = self.names = 0
        self.start = self.shown = time.monotonic()
        self.lock = threading.Lock()
        self.live = sys.stdout.isatty()

    def add(self, names, size):
        with self.lock:
            self.names += names
            self.bytes += size
            now = time.monotonic()
            if now - self.shown > (0.1 if self.live else 5):
                self.shown = now
                self.show(now)

    def show(self, now):
        share = min(self.bytes / self.total, 1)
        spent = max(now - self.start, 1e-3)
        left = spent / share - spent if share > 0.01 else None
        names = f"{self.names:,} of {self.names_total:,} names, " if self.names_total else ""
        text = f"{names}{self.bytes / 1e6:,.0f} of {self.total / 1e6:,.0f} MB, {self.bytes / spent / 1e6:,.0f} MB/s"
        if left is not None:
            text += f", {left:.0f} s left"
        if self.live:
            bar = "#" * int(24 * share)
            print(f"\r  {self.about:9} [{bar:24}] {text}\033[K", end="", flush=True)
        else:
            print(f"  {self.about}: {share:.0%}, {text}", flush=True)

    def end(self):
        spent = max(time.monotonic() - self.start, 1e-3)
        names = f"{self.names:,} names and " if self.names else ""
        print(f"{chr(13) if self.live else ''}  {self.about}: {names}{self.bytes / 1e6:,.0f} MB in {spent:.1f} s, "
              f"{self.bytes / spent / 1e6:,.0f} MB/s{chr(27) + '[K' if self.live else ''}", flush=True)


def sources():
    """Directories of the crates that Tarn is built from, as Cargo fetched them."""
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    done = subprocess.run(words, cwd=REPO, capture_output=True)
    if done.returncode:
        # Crates for other platforms were never fetched; then ask for this one's alone.
        host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
        target = next(line.split()[1] for line in host.splitlines() if line.startswith("host:"))
        done = subprocess.run([*words, "--filter-platform", target], cwd=REPO, capture_output=True, check=True)
    packages = json.loads(done.stdout)["packages"]
    folders = [os.path.dirname(p["manifest_path"]) for p in packages if p["source"]]
    return sorted(f for f in folders if os.path.isdir(f))


def make(originals):
    os.makedirs(originals)
    count = 0
    for folder in sources():
        shutil.copytree(folder, os.path.join(originals, "crates", os.path.basename(folder)), symlinks=True)
        count += sum(len(names) for _, _, names in os.walk(folder))
        if count >= ENOUGH:
            break
    if count < 5000:
        sys.exit(f"demo: only {count} source files found; 5,000 are wanted")
    tree.make_extras(os.path.join(originals, "extras"), each=100)
    progress = Progress("generated", BIG)
    tree.make_big(os.path.join(originals, "large-file"), BIG, lambda done: progress.add(0, done - progress.bytes))
    progress.end()
    print_contents(tree.scan(originals))


def print_contents(entries):
    kinds = collections.Counter()
    for entry in entries:
        mode = entry.st.st_mode
        regular = stat.S_ISREG(mode)
        kinds["directories"] += stat.S_ISDIR(mode)
        kinds["files"] += regular and entry.first == entry.path
        kinds["further hard links"] += entry.first != entry.path
        kinds["symbolic links"] += stat.S_ISLNK(mode)
        kinds["sparse files"] += regular and entry.st.st_blocks * 512 + 65536 < entry.st.st_size
        kinds["files of other owners"] += regular and entry.st.st_uid != 0 and entry.path.startswith(b"extras")
        kinds["devices, fifos and sockets"] += not (regular or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    print("  " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))


def total_bytes(entries):
    return sum(e.st.st_size for e in entries if tree.is_data(e))


def copy(originals, mount):
    entries = tree.scan(originals)
    # Holes are not copied: what counts is what is written.
    data = sum(min(e.st.st_size, e.st.st_blocks * 512) for e in entries if tree.is_data(e))
    progress = Progress("copied", data, len(entries))
    tree.copy(originals, mount, entries, done=progress.add)
    subprocess.run(["sync", mount], check=True)
    progress.end()


def verify(originals, mount):
    entries = tree.scan(originals)
    progress = Progress("verified", total_bytes(entries), len(entries))
    wrong = tree.verify(originals, mount, entries, done=progress.add)
    progress.end()
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    if wrong:
        sys.exit(f"demo: {len(wrong)} names are not what they were")
    print("  everything is as it was: bytes, modes, owners, times, links, attributes, ACLs, holes")


if __name__ == "__main__":
    {"make": make, "copy": copy, "verify": verify}[sys.argv[1]](*sys.argv[2:])
