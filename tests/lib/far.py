"""Pools that one host serves and another mounts, over TCP on this machine."""
import os
import socket
import subprocess

from harness import Failed
from world import Host, Pool, daemons, wait_until


def free_port():
    """A port that nobody listens at. Somebody may take it before it is used; then the test says so."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class FarPool(Pool):
    """A pool as a client on another host has it: `host` serves it, `client` mounts it."""

    def __init__(self, world, host, name, vdevs):
        super().__init__(world, host, name, vdevs)
        # It has no credentials: those of a test are in the environment of its host.
        self.client = Host(world.path("client"))
        self.port = free_port()
        self.serve_words, self.mount_words = [], []

    def serve(self):
        self.host.tarn("serve", "--listen", f"127.0.0.1:{self.port}", *self.serve_words, self.name)

    def address(self, dataset=None):
        return f"localhost:{self.port}:/{dataset or self.name}"

    def mount(self, *options, dataset=None, at=None):
        if not self.daemons():
            self.serve()
        words = ["-o", "allow_other,dev,suid", *self.world.mount_words, *self.mount_words, *options]
        self.client.tarn("mount", *words, self.address(dataset), at or self.mnt)

    def umount(self):
        if os.path.ismount(self.mnt):
            self.client.tarn("umount", self.mnt, limit=600)
        if self.daemons():
            self.host.tarn("serve", "--stop", self.name)
            wait_until(lambda: not self.daemons(), 60, "end of the server")

    def clients(self):
        return daemons(self.client.state)

    def client_log(self):
        """What the client said since it was last asked."""
        log = os.path.join(self.client.state, f"@localhost:{self.port}:{self.name}.log")
        with open(log) as file:
            said = file.read()
        os.unlink(log)
        return said

    def restart(self):
        """Ends the server's process as a crash does, and starts another."""
        self.kill()
        self.serve()


def certificates(folder):
    """A certificate authority, and a certificate of it for `localhost`, made by openssl. Gives the three files."""
    os.makedirs(folder, exist_ok=True)
    ca, cert, key = (os.path.join(folder, name) for name in ("ca.pem", "cert.pem", "key.pem"))
    ca_key, request, names = (os.path.join(folder, name) for name in ("ca.key", "request.pem", "names"))
    with open(names, "w") as file:
        file.write("subjectAltName=DNS:localhost\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for words in (
        ["req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-subj", "/CN=test authority", "-days", "2"],
        ["req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert, "-days", "2",
         "-extfile", names],
    ):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"openssl {words[0]}: {done.stderr[-300:]}")
    return ca, cert, key
