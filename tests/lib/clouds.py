"""Emulators of Google Cloud Storage and Azure Blob Storage for tests, on files: what is acknowledged is there after a
kill. And a second one of S3, in memory."""
import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request

from harness import REPO, Failed, Skipped


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Emulator:
    """A server on a port of its own that can be killed and started again. Who inherits says `command` and
    `environment`."""

    def __init__(self, root, buckets):
        self.root, self.port = root, free_port()
        self.names = [f"b{n:02}" for n in range(1, buckets + 1)]
        os.makedirs(root)
        self.log = open(root.rstrip("/") + ".log", "wb")
        self.start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        env = {**os.environ, **self.environment()}
        self.process = subprocess.Popen(self.command(), env=env, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            time.sleep(0.05)
        raise Failed(f"{self.command()[0]} does not answer: see {self.log.name}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(timeout=20)
        self.log.close()

    def environment(self):
        return {}


class Moto(Emulator):
    """moto, a second emulator of S3, in memory."""

    def __init__(self, root, buckets):
        super().__init__(root, buckets)
        for name in self.names:
            request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
            with urllib.request.urlopen(request, timeout=20):
                pass

    def command(self):
        found = os.path.join(REPO, ".tools/moto/bin/moto_server")
        if not os.path.exists(found):
            raise Skipped("moto is not installed: tests/servers/moto.sh")
        return [found, "-H", "127.0.0.1", "-p", str(self.port)]

    def urls(self, prefix="tarn"):
        return [f"s3://{name}/{prefix}?endpoint={self.endpoint}&region=us-east-1" for name in self.names]

    def credentials(self):
        return {"AWS_ACCESS_KEY_ID": "tarn-test", "AWS_SECRET_ACCESS_KEY": "tarn-test-secret"}


class Gcs(Emulator):
    """fake-gcs-server: each directory below `root` is a bucket."""

    # What it keeps of an object besides its bytes; an upload that was cut off before it is there does not count.
    ATTRIBUTES = "user.metadata"

    def __init__(self, root, buckets):
        super().__init__(root, buckets)
        for name in self.names:
            self.ask("/storage/v1/b", {"name": name})

    def command(self):
        places = [os.path.join(REPO, ".tools/bin"), os.environ["PATH"]]
        found = shutil.which("fake-gcs-server", path=":".join(places))
        if not found:
            raise Skipped("fake-gcs-server is not installed: tests/servers/fake-gcs.sh")
        return [
            found, "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-public-host",
            f"127.0.0.1:{self.port}", "-log-level", "error", "-backend", "filesystem", "-filesystem-root", self.root,
        ]

    def ask(self, place, body):
        request = urllib.request.Request(
            self.endpoint + place, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def start_again(self):
        """After a kill. The emulator renames an object and then says what it is; GCS shows all of it or nothing."""
        for folder, _, names in os.walk(self.root):
            for path in (os.path.join(folder, name) for name in names if folder != self.root):
                if self.ATTRIBUTES not in os.listxattr(path):
                    os.unlink(path)
        self.start()

    def urls(self, prefix="tarn"):
        return [f"gs://{name}/{prefix}?endpoint={self.endpoint}" for name in self.names]

    def credentials(self):
        return {"GOOGLE_BEARER_TOKEN": "tarn-test-secret"}


class Azure(Emulator):
    """azurite. It writes down what it has some seconds later, so that it is not for killing."""

    ACCOUNT, KEY = "tarntest", base64.b64encode(b"tarn-test-secret").decode()

    def __init__(self, root, buckets, loose=False):
        # Whether it passes over what it does not know.
        self.loose = loose
        super().__init__(root, buckets)
        for name in self.names:
            self.request("PUT", f"/{name}", "restype:container")

    def command(self):
        main = os.path.join(REPO, ".tools/azurite/node_modules/azurite/dist/src/blob/main.js")
        if not os.path.exists(main) or not shutil.which("node"):
            raise Skipped("azurite is not installed: tests/servers/azurite.sh")
        return [
            "node", main, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", self.root,
            "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *(["--loose"] if self.loose else []),
        ]

    def environment(self):
        return {"AZURITE_ACCOUNTS": f"{self.ACCOUNT}:{self.KEY}"}

    def request(self, method, path, query):
        """A request of the account's owner, signed as Azure documents it (Shared Key); `query` is `name:value`."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{now}\nx-ms-version:2023-11-03\n"
        # An emulator's path begins with the account, which the signature has before the path.
        text = f"{method}{chr(10) * 12}{headers}/{self.ACCOUNT}/{self.ACCOUNT}{path}\n{query}"
        digest = hmac.new(base64.b64decode(self.KEY), text.encode(), hashlib.sha256).digest()
        sent = {
            "x-ms-date": now, "x-ms-version": "2023-11-03",
            "authorization": f"SharedKey {self.ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        url = f"{self.endpoint}/{self.ACCOUNT}{path}?{query.replace(':', '=')}"
        request = urllib.request.Request(url, headers=sent, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def signature(self, name, rights="rwdlc", seconds=3600):
        """A shared access signature for one container, as Azure documents it (service SAS), for so long."""
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        end = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        version = "2023-11-03"
        fields = [rights, "", end, f"/blob/{self.ACCOUNT}/{name}", "", "", "", version, "c", *[""] * 7]
        digest = hmac.new(base64.b64decode(self.KEY), "\n".join(fields).encode(), hashlib.sha256).digest()
        return urllib.parse.urlencode(
            {"sp": rights, "se": end, "sv": version, "sr": "c", "sig": base64.b64encode(digest).decode()}
        )

    def urls(self, prefix="tarn"):
        place = f"account={self.ACCOUNT}&endpoint={self.endpoint}/{self.ACCOUNT}"
        return [f"az://{name}/{prefix}?{place}" for name in self.names]

    def credentials(self):
        return {"AZURE_STORAGE_ACCOUNT_KEY": self.KEY}
