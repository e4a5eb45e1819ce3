"""Who may pass to a server for tests, for a time: keys and tokens that expire as those of the clouds do."""
import http.server
import json
import os
import secrets
import threading
import time

import s3
import stub
from faults import Proxy


class Key:
    """Temporary credentials of S3's kind."""

    def __init__(self, seconds):
        self.id, self.secret, self.token = "ASIA" + secrets.token_hex(8).upper(), "tarn-test-secret", secrets.token_hex(40)
        self.end = time.time() + seconds


class S3Gate(Proxy):
    """Passes on to a server what is signed with a key of its own that is valid, as the server's owner's."""

    def __init__(self, port):
        self.keys, self.refused = {}, 0
        super().__init__(port)

    def issue(self, seconds):
        key = Key(seconds)
        self.keys[key.id] = key
        return key

    def admit(self, head):
        line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        headers = [field.partition(":") for field in fields]
        headers = {name.strip().lower(): value.strip() for name, _, value in headers}
        given = dict(word.strip().split("=", 1) for word in headers["authorization"].split(" ", 1)[1].split(","))
        key = self.keys.get(given["Credential"].split("/")[0])
        signed = {name: headers[name] for name in given["SignedHeaders"].split(";")}
        if key is None:
            return self.refusal(403, "Forbidden", "InvalidAccessKeyId", "The key does not exist in our records."), head
        right = s3.authorization(method, path, query, signed, key.id, key.secret)
        if headers["authorization"] != right or signed.get("x-amz-security-token") != key.token:
            return self.refusal(403, "Forbidden", "SignatureDoesNotMatch", "The signature is another."), head
        if key.end < time.time():
            return self.refusal(400, "Bad Request", "ExpiredToken", "The provided token has expired."), head
        # The owner knows no token, and every other word stays.
        signed.pop("x-amz-security-token")
        headers.pop("x-amz-security-token")
        headers["authorization"] = s3.authorization(method, path, query, signed)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return None, f"{line}\r\n{lines}\r\n".encode("latin-1")

    def refusal(self, status, words, code, message):
        self.refused += 1
        return b"%d %s" % (status, words.encode()), stub.error(code, message)


class TokenGate(Proxy):
    """Passes on to a GCS server what bears a token that is valid."""

    def __init__(self, port):
        self.tokens, self.refused = {}, 0
        super().__init__(port)

    def issue(self, seconds):
        token = "tarn-test-secret-" + secrets.token_hex(8)
        self.tokens[token] = time.time() + seconds
        return token

    def admit(self, head):
        fields = [line.partition(b": ") for line in head.split(b"\r\n")]
        bearer = next((value for name, _, value in fields if name.lower() == b"authorization"), b"")
        if self.tokens.get(bearer.decode().removeprefix("Bearer "), 0) > time.time():
            return None, head
        self.refused += 1
        why = {"code": 401, "message": "Invalid Credentials", "errors": [{"reason": "authError"}]}
        return (b"401 Unauthorized", json.dumps({"error": why}).encode()), head


class Metadata:
    """What a machine at a cloud can ask for its own credentials: EC2's second kind (IMDSv2), with keys of a gate that
    are valid for so many `seconds`."""

    ROLE = "tarn-role"

    def __init__(self, gate, seconds):
        self.given, self.down, self.seconds = 0, False, seconds
        metadata = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                self.reply("session", self.path == "/latest/api/token")

            def do_GET(self):
                known = self.headers.get("X-aws-ec2-metadata-token") == "session"
                folder = "/latest/meta-data/iam/security-credentials/"
                if self.path == folder:
                    return self.reply(metadata.ROLE, known)
                key = gate.issue(metadata.seconds)
                metadata.given += 1
                end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(key.end))
                words = {"AccessKeyId": key.id, "SecretAccessKey": key.secret, "Token": key.token, "Expiration": end}
                self.reply(json.dumps(words), known and self.path == folder + metadata.ROLE)

            def reply(self, text, good):
                self.send_response(503 if metadata.down else 200 if good else 403)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def write_whole(path, text):
    """Puts a file in the place of another, as who renews credentials should."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
