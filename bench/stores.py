"""Stores to measure on: servers of the tests as they are, or behind a proxy that makes them as slow as a real one."""
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request

from clouds import Gcs, free_port
from harness import REPO, Failed

READY_LIMIT = 10


def go_program(name):
    """A program of bench/NAME/main.go, built when it is missing or older than its source."""
    source, binary = os.path.join(REPO, "bench", name, "main.go"), os.path.join(REPO, ".tools/bin", name)
    if not os.path.exists(binary) or os.stat(binary).st_mtime < os.stat(source).st_mtime:
        go = shutil.which("go") or os.path.join(REPO, ".tools/go/bin/go")
        env = {**os.environ, "GO111MODULE": "off", "GOFLAGS": ""}
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        subprocess.run([go, "build", "-o", binary, source], check=True, env=env)
    return binary


class MemoryGcs(Gcs):
    """The tests' GCS server with everything in memory: on files it cannot keep an object whose name ends with a slash,
    which is what gcsfuse makes of a directory."""

    def command(self):
        words = super().command()
        words[words.index("filesystem")] = "memory"
        at = words.index("-filesystem-root")
        return words[:at] + words[at + 2:]


class Slow:
    """A server seen through bench/slowstore: as `server`, and so slow. Rates are bytes a second, 0 for no limit; with
    none of them it only counts."""

    def __init__(self, server, first_byte_ms=0, connection=0, bucket=0, fail_rate=0):
        self.server, self.port = server, free_port()
        self.names, self.root = server.names, server.root
        words = [f"127.0.0.1:{self.port}", f"127.0.0.1:{server.port}", "--first-byte", f"{first_byte_ms}ms"]
        words += ["--connection", str(connection), "--bucket", str(bucket), "--fail-rate", str(fail_rate)]
        if isinstance(server, Gcs):
            # It knows what to do with a download by the name of its host.
            words += ["--host", f"127.0.0.1:{server.port}"]
        self.process = subprocess.Popen([go_program("slowstore"), *words])
        end = time.monotonic() + READY_LIMIT
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise Failed("slowstore does not answer") from None
                time.sleep(0.02)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def urls(self, prefix="tarn", buckets=None):
        """The URLs of so many buckets, all of them if it is not said."""
        names = self.names[:buckets]
        return [f"s3://{name}/{prefix}?endpoint={self.endpoint}&region=us-east-1" for name in names]

    def credentials(self):
        return self.server.credentials()

    def counts(self):
        """For each bucket and method: requests, bytes up, bytes down, since the last forget()."""
        with urllib.request.urlopen(f"{self.endpoint}/-/counts", timeout=20) as answer:
            return json.load(answer)

    def forget(self):
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/-/counts", method="DELETE"), timeout=20).close()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def requests(counts):
    """Of what a `Slow` counted: requests by method, bytes up, bytes down, for all buckets."""
    methods, up, down = {}, 0, 0
    for bucket in counts.values():
        for method, counted in bucket.items():
            methods[method] = methods.get(method, 0) + counted["requests"]
            up, down = up + counted["up"], down + counted["down"]
    return methods, up, down
