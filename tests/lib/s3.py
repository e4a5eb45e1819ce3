"""An S3 server for tests: versitygw over a directory, each directory below it a bucket."""
import datetime
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.request

from harness import REPO, Failed, Skipped

ACCESS, SECRET, REGION = "tarn-test", "tarn-test-secret", "us-east-1"


def authorization(method, path, query, headers, key=ACCESS, secret=SECRET):
    """The header that signs a request with these headers, as AWS documents it (Signature Version 4). Path and query are
    as they are sent."""
    date, names = headers["x-amz-date"], ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    words = "&".join(sorted(word if "=" in word else word + "=" for word in query.split("&") if word))
    canonical = f"{method}\n{path}\n{words}\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{date[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    digest = b"AWS4" + secret.encode()
    for word in (*scope.split("/"), text):
        digest = hmac.new(digest, word.encode(), hashlib.sha256).digest()
    return f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={digest.hex()}"


def binary():
    """Where tests/servers/versitygw.sh put the server, or wherever it already was."""
    places = [os.path.join(REPO, ".tools/bin/versitygw"), os.path.expanduser("~/go/bin/versitygw")]
    found = shutil.which("versitygw", path=":".join([os.path.dirname(p) for p in places] + [os.environ["PATH"]]))
    if not found:
        raise Skipped("versitygw is not installed: tests/servers/versitygw.sh")
    return found


class Server:
    """A running server with `buckets` empty buckets, on files below `root`; it can keep versions if `versions`, counts
    what it serves if `counting`, and speaks TLS with the files of a certificate and its key if `tls`."""

    def __init__(self, root, buckets, versions=False, counting=False, tls=None):
        self.root = root
        self.names = [f"b{n:02}" for n in range(1, buckets + 1)]
        for name in self.names:
            os.makedirs(os.path.join(root, name))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        # Requests it does not answer at once are no errors of Tarn's; connections stay open, as S3 keeps them.
        # Objects' metadata goes into extended attributes, which tmpfs has only since Linux 6.6.
        beside = []
        try:
            os.setxattr(root, "user.probe", b"")
            os.removexattr(root, "user.probe")
        except OSError:
            os.makedirs(root + ".metadata")
            beside = ["--sidecar", root + ".metadata"]
        command = [binary(), "--port", f"127.0.0.1:{self.port}", "--region", REGION, "--quiet", "--keep-alive"]
        env = {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
        self.log = open(root.rstrip("/") + ".log", "wb")
        if versions:
            os.makedirs(root + ".versions")
            beside += ["--versioning-dir", root + ".versions"]
        self.accesses = root.rstrip("/") + ".access"
        if counting:
            command += ["--access-log", self.accesses]
        self.tls = tls
        if tls:
            command += ["--cert", tls[0], "--key", tls[1]]
        self.process = subprocess.Popen([*command, "posix", *beside, root], env=env, stdout=self.log, stderr=self.log)
        self.wait()

    def wait(self):
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise Failed(f"versitygw does not answer: see {self.log.name}")

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def urls(self, prefix="tarn"):
        return [f"s3://{name}/{prefix}?endpoint={self.endpoint}&region={REGION}" for name in self.names]

    def credentials(self):
        """Where Tarn looks for them: the environment."""
        return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}

    def request(self, method, path, query="", body=b"", headers=()):
        """A request of the server's owner; `query` is one name."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        sent = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": now, **dict(headers)}
        sent["authorization"] = authorization(method, path, f"{query}{'=' if query else ''}", sent)
        url = f"{self.endpoint}{path}{'?' if query else ''}{query}"
        request = urllib.request.Request(url, data=body or None, headers=sent, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def served(self):
        """Requests so far, by the server's own log: a line each."""
        with open(self.accesses, "rb") as file:
            return sum(1 for _ in file)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        self.log.close()
