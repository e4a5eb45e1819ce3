"""The raw store: how fast the same bytes move without Tarn's file system, by the better of two clients."""
import os
import shutil
import subprocess

from harness import REPO, Failed
from processor import Meter
from s3 import ACCESS, SECRET

OBJECT = 4 << 20


def rawstore():
    """The plain Go client, built when it is missing or older than its source."""
    source, binary = os.path.join(REPO, "bench/rawstore/main.go"), os.path.join(REPO, ".tools/bin/rawstore")
    if not os.path.exists(binary) or os.stat(binary).st_mtime < os.stat(source).st_mtime:
        go = shutil.which("go") or os.path.join(REPO, ".tools/go/bin/go")
        env = {**os.environ, "GO111MODULE": "off", "GOFLAGS": ""}
        subprocess.run([go, "build", "-o", binary, source], check=True, env=env)
    return binary


def example(name):
    """An example of Tarn's crates, where it has been built."""
    for profile in ("release", "debug"):
        binary = os.path.join(REPO, "target", profile, "examples", name)
        if os.path.exists(binary):
            return binary
    return None


def clients():
    """The two clients; the second is Tarn's bucket crate."""
    found = {"rawstore": rawstore(), "bucket crate": example("raw")}
    return {name: path for name, path in found.items() if path}


def run(binary, words, keys=()):
    env = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    meter = Meter()
    done = subprocess.run([binary, *map(str, words)], input="\n".join(keys), env=env, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{binary}: {done.stderr.strip()}")
    moved, seconds = done.stdout.split()
    return meter.moved(int(moved), float(seconds))


def objects(server, at_least):
    """The objects in all buckets that have at least so many bytes, as lines "bucket/key<TAB>size", by looking at the
    server's files."""
    keys = []
    for name in server.names:
        for folder, _, names in os.walk(os.path.join(server.root, name)):
            sized = [(os.path.join(folder, n), os.stat(os.path.join(folder, n)).st_size) for n in names]
            keys += [f"{os.path.relpath(p, server.root)}\t{size}" for p, size in sized if size >= at_least]
    return sorted(keys)


def get(server, keys):
    """Reading the objects, by each client at several numbers of connections."""
    return {
        f"{name}, {connections} connections": run(path, ["get", server.endpoint, connections], keys)
        for name, path in clients().items()
        for connections in (8, 12, 16)
    }


def put(server, size):
    """Writing `size` bytes in objects of 4 MiB over all buckets, in the same ways."""
    tries = {}
    for name, path in clients().items():
        for connections in (8, 16):
            words = ["put", server.endpoint, connections, size // OBJECT, OBJECT, *server.names]
            tries[f"{name}, {connections} connections"] = run(path, words)
            for bucket in server.names:
                shutil.rmtree(os.path.join(server.root, bucket, "raw"), ignore_errors=True)
    return tries
