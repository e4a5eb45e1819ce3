"""A tree of real files and odd ones, copied to a pool and compared; and what must not be found where a host keeps what
it knows."""
import os
import shutil

import tree
from harness import Failed

SECRET = "tarn-test-secret"


def crates(count):
    """Directories of real sources: the crates that Cargo fetched to build Tarn, the largest first."""
    base = os.path.expanduser(os.environ.get("CARGO_HOME", "~/.cargo") + "/registry/src")
    found = []
    for index in sorted(os.listdir(base)):
        for name in sorted(os.listdir(os.path.join(base, index))):
            folder = os.path.join(base, index, name)
            found.append((sum(len(files) for _, _, files in os.walk(folder)), folder))
    # Neither the giants nor the crumbs: a few hundred files each at most.
    found = sorted((f for f in found if f[0] <= 400), reverse=True)
    if len(found) < count:
        raise Failed(f"only {len(found)} crates in {base}: build Tarn first")
    return [folder for _, folder in found[:count]]


class Sample:
    """A tree in the test's scratch folder: crates, extras and a big file of so many MiB."""

    def __init__(self, t, count, big):
        self.t, self.source = t, os.path.join(t.scratch, "tree")
        os.mkdir(self.source)
        for crate in crates(count):
            shutil.copytree(crate, os.path.join(self.source, os.path.basename(crate)), symlinks=True)
        tree.make_extras(os.path.join(self.source, "extras"), each=t.pick(20, 100))
        tree.make_big(os.path.join(self.source, "big"), big << 20)
        self.entries = tree.scan(self.source)
        t.note(f"{len(self.entries)} names")

    def copy(self, pool):
        tree.copy(self.source, pool.mnt, self.entries)

    def verify(self, pool):
        wrong = tree.verify(self.source, pool.mnt, self.entries)
        self.t.check(not wrong, f"{len(wrong)} names differ: {wrong[:3]}")


def no_secrets(t, host, *secrets):
    """No secret may stand in what the host keeps: its state and its logs."""
    secrets = [secret.encode() for secret in secrets or (SECRET,)]
    for folder, _, names in os.walk(host.state):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    found = file.read()
                for secret in secrets:
                    t.check(secret not in found, f"a secret stands in {path}")
