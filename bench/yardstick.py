"""The raw store: how fast the same bytes move without Tarn's file system, by the better of two clients."""
import os
import random
import shutil
import subprocess

from harness import REPO, Failed
from processor import Meter
from s3 import ACCESS, SECRET
from stores import go_program

OBJECT = 4 << 20


def example(name):
    """An example of Tarn's crates, where it has been built."""
    for profile in ("release", "debug"):
        binary = os.path.join(REPO, "target", profile, "examples", name)
        if os.path.exists(binary):
            return binary
    return None


def clients():
    """The two clients; the second is Tarn's bucket crate."""
    found = {"rawstore": go_program("rawstore"), "bucket crate": example("raw")}
    return {name: path for name, path in found.items() if path}


def run(binary, words, keys=()):
    env = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    meter = Meter()
    done = subprocess.run([binary, *map(str, words)], input="\n".join(keys), env=env, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{binary}: {done.stderr.strip()}")
    moved, seconds = done.stdout.split()
    return meter.moved(int(moved), float(seconds))


def objects(server, at_least, prefix=""):
    """The objects in all buckets that have at least so many bytes, as lines "bucket/key<TAB>size", by looking at the
    server's files; buckets take turns, so that whoever reads them in this order reads from all at once."""
    found = []
    for name in server.names:
        keys = []
        for folder, _, names in os.walk(os.path.join(server.root, name, prefix)):
            sized = [(os.path.join(folder, n), os.stat(os.path.join(folder, n)).st_size) for n in names]
            keys += [f"{os.path.relpath(p, server.root)}\t{size}" for p, size in sized if size >= at_least]
        found += enumerate(sorted(keys))
    return [key for _, key in sorted(found)]


def get(server, keys, numbers=(8, 12, 16)):
    """Reading the objects, by each client at several numbers of connections."""
    return {
        f"{name}, {connections} connections": run(path, ["get", server.endpoint, connections], keys)
        for name, path in clients().items()
        for connections in numbers
    }


def parts(server, keys, size, number, connections, seed):
    """Parts of `size` bytes at random places of the objects, so many of them, by Tarn's bucket crate."""
    chance, lines = random.Random(seed), []
    for _ in range(number):
        key, whole = chance.choice(keys).split("\t")
        lines.append(f"{key}\t{size}\t{chance.randrange(max(1, int(whole) // size)) * size}")
    path = clients().get("bucket crate")
    return {"bucket crate, of just these bytes": run(path, ["get", server.endpoint, connections], lines)} if path else {}


def put(server, size):
    """Writing `size` bytes in objects of 4 MiB over all buckets, in the same ways."""
    tries = {}
    for name, path in clients().items():
        for connections in (8, 16):
            words = ["put", server.endpoint, connections, size // OBJECT, OBJECT, *server.names]
            tries[f"{name}, {connections} connections"] = run(path, words)
            forget(server)
    return tries


def forget(server):
    """Deletes what the clients have put."""
    for bucket in server.names:
        shutil.rmtree(os.path.join(server.root, bucket, "raw"), ignore_errors=True)
