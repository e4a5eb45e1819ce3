"""A proxy before an S3 server that fails as it is told to: requests that fail, replies that are lost after the request
was carried out, bodies that end early, buckets that are away, buckets that accept and never answer.

It speaks as much HTTP/1.1 as is needed to tell requests apart; bodies pass through as they are."""
import collections
import random
import socket
import threading
import time

PIECE = 1 << 18


class Ended(Exception):
    """The other side is gone."""


class Stream:
    """A socket with what was read from it too early."""

    def __init__(self, sock):
        self.sock, self.rest = sock, b""

    def more(self):
        piece = self.sock.recv(PIECE)
        if not piece:
            raise Ended
        return piece

    def head(self):
        """The bytes up to the empty line, with it."""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.more()
        at = self.rest.index(b"\r\n\r\n") + 4
        head, self.rest = self.rest[:at], self.rest[at:]
        return head

    def pieces(self, length):
        """The next `length` bytes."""
        while length:
            piece = self.rest or self.more()
            piece, self.rest = piece[:length], piece[length:]
            length -= len(piece)
            yield piece

    def chunks(self):
        """A chunked body, as it is on the wire."""
        while True:
            while b"\r\n" not in self.rest:
                self.rest += self.more()
            line, _, _ = self.rest.partition(b"\r\n")
            length = int(line.split(b";")[0], 16)
            yield b"".join(self.pieces(len(line) + 2 + length + 2))
            if length == 0:
                return


def field(head, name):
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def body(stream, head):
    """What follows a head: pieces."""
    if (field(head, b"transfer-encoding") or b"").lower() == b"chunked":
        return stream.chunks()
    return stream.pieces(int(field(head, b"content-length") or 0))


class Proxy:
    """Passes requests on to `port`. What goes wrong is in its attributes, which a test changes as it likes."""

    def __init__(self, port, seed=1):
        self.target = ("127.0.0.1", port)
        # For a request, from 0 to 1: fail (503, nothing done), lost (done, no reply), short (half a body).
        self.rates = {}
        # Buckets that close every connection, and those that take requests and never answer.
        self.away, self.silent = set(), set()
        self.happened = collections.Counter()
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        server = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Stream(sock)
            while True:
                head = client.head()
                if server is None:
                    server = Stream(socket.create_connection(self.target, timeout=120))
                    server.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                refusal, head = self.admit(head)
                if refusal is None:
                    self.request(client, server, head)
                else:
                    self.refuse(client, head, *refusal)
        except (Ended, OSError, ValueError):
            pass
        finally:
            sock.close()
            if server:
                server.sock.close()

    def admit(self, head):
        """Whether a request may pass: a status and a body instead of an answer, or None; and the head to pass on."""
        return None, head

    def refuse(self, client, head, status, text):
        for _ in body(client, head):
            pass
        if head.startswith(b"HEAD "):
            text = b""
        client.sock.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))

    def count(self, what):
        with self.lock:
            self.happened[what] += 1

    def choose(self, method, bucket):
        """What happens to this request."""
        if bucket in self.away:
            return "away"
        if bucket in self.silent:
            return "silent"
        with self.lock:
            dice = self.random.random()
        fits = {"fail": True, "lost": method in (b"PUT", b"POST", b"DELETE"), "short": method == b"GET"}
        for fault, rate in self.rates.items():
            dice -= rate
            if dice < 0:
                return fault if fits[fault] else None
        return None

    def request(self, client, server, head):
        method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
        bucket = target.split(b"?")[0].split(b"/")[1].decode()
        fault = self.choose(method, bucket)
        if fault:
            self.count(fault)
        if fault == "away":
            raise Ended
        if fault == "silent":
            for _ in body(client, head):
                pass
            while bucket in self.silent:
                time.sleep(0.05)
            raise Ended
        if fault == "fail":
            text = b"<Error><Code>SlowDown</Code><Message>a fault for the test</Message></Error>"
            return self.refuse(client, head, b"503 Slow Down", text)
        server.sock.sendall(head)
        for piece in body(client, head):
            server.sock.sendall(piece)
        self.reply(client, server, method, fault)

    def reply(self, client, server, method, fault):
        head = server.head()
        while head.split(b" ")[1] == b"100":
            head = server.head()
        bare = method == b"HEAD" or head.split(b" ")[1] in (b"204", b"304")
        pieces = iter(()) if bare else body(server, head)
        if fault == "lost":
            for _ in pieces:
                pass
            raise Ended
        client.sock.sendall(head)
        left = int(field(head, b"content-length") or 0) // 2
        for piece in pieces:
            if fault == "short":
                client.sock.sendall(piece[:left])
                left -= len(piece[:left])
                if not left:
                    raise Ended
            else:
                client.sock.sendall(piece)
        if (field(head, b"connection") or b"").lower() == b"close":
            raise Ended

    def urls(self, server, prefix="tarn"):
        """The server's buckets through this proxy."""
        return [url.replace(f":{server.port}", f":{self.port}") for url in server.urls(prefix)]

    def stop(self):
        self.silent.clear()
        self.listener.close()
