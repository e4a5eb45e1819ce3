"""Who may pass to a server for tests, on what terms and for how long: as the clouds ask, where emulators do not."""
import base64
import hashlib
import http.server
import json
import os
import secrets
import threading
import time
import urllib.parse

import s3
import stub
from faults import Proxy


class Key:
    """Temporary credentials of S3's kind."""

    def __init__(self, seconds):
        self.id, self.secret, self.token = "ASIA" + secrets.token_hex(8).upper(), "tarn-test-secret", secrets.token_hex(40)
        self.end = time.time() + seconds


class S3Door(Proxy):
    """Passes on to an S3 server what is rightly signed, as the server's owner's. Who inherits says what else must be."""

    def __init__(self, port):
        self.refused = 0
        super().__init__(port)

    def secret(self, key):
        """The secret of an access key, or None."""
        return {s3.ACCESS: s3.SECRET}.get(key)

    def check(self, method, path, query, headers):
        """Why a request that is rightly signed may not pass: a status, words, a code and a message."""

    def admit(self, head):
        method, target, headers = read(head)
        path, _, query = target.partition("?")
        given = dict(word.strip().split("=", 1) for word in headers["authorization"].split(" ", 1)[1].split(","))
        key = given["Credential"].split("/")[0]
        secret = self.secret(key)
        signed = {name: headers[name] for name in given["SignedHeaders"].split(";")}
        if secret is None:
            refusal = 403, "Forbidden", "InvalidAccessKeyId", "The key does not exist in our records."
        elif headers["authorization"] != s3.authorization(method, path, query, signed, key, secret):
            refusal = 403, "Forbidden", "SignatureDoesNotMatch", "The signature is another."
        else:
            refusal = self.check(method, path, query, {**signed, "key": key})
        if refusal:
            status, words, code, message = refusal
            self.refused += 1
            return (b"%d %s" % (status, words.encode()), stub.error(code, message)), head
        # What the server behind does not know; every other word stays.
        for name in [name for name in signed if name.startswith(self.kept)]:
            del headers[name], signed[name]
        headers["authorization"] = s3.authorization(method, path, query, signed)
        return None, write(method, target, headers)

    # What the headers begin with that are not passed on.
    kept = ("x-amz-security-token",)


class S3Gate(S3Door):
    """Lets pass what is signed with a temporary key of its own that is valid."""

    def __init__(self, port):
        self.keys = {}
        super().__init__(port)

    def issue(self, seconds):
        key = Key(seconds)
        self.keys[key.id] = key
        return key

    def secret(self, key):
        return self.keys[key].secret if key in self.keys else None

    def check(self, method, path, query, headers):
        key = self.keys[headers["key"]]
        if headers.get("x-amz-security-token") != key.token:
            return 400, "Bad Request", "InvalidToken", "The provided token is malformed."
        if key.end < time.time():
            return 400, "Bad Request", "ExpiredToken", "The provided token has expired."
        return None


class S3Terms(S3Door):
    """A bucket whose requester pays, and whose objects have a storage class and a customer's key: refuses what does not
    say so, as S3 does."""

    kept = ("x-amz-security-token", "x-amz-server-side-encryption", "x-amz-storage-class", "x-amz-request-payer")

    def __init__(self, port, key, storage_class):
        self.key, self.storage_class, self.seen = key, storage_class, set()
        super().__init__(port)

    def check(self, method, path, query, headers):
        bare = path.count("/") < 2 or path.endswith("/")
        if headers.get("x-amz-request-payer") != "requester":
            return 403, "Forbidden", "AccessDenied", "Access Denied"
        begins = method == "POST" and query.startswith("uploads")
        writes = begins or method == "PUT"
        if not bare and (writes or method in ("GET", "HEAD")):
            sse = "x-amz-server-side-encryption-customer-"
            given = [headers.get(sse + name) for name in ("algorithm", "key", "key-md5")]
            digest = base64.b64encode(hashlib.md5(self.key).digest()).decode()
            if given != ["AES256", base64.b64encode(self.key).decode(), digest]:
                return 400, "Bad Request", "InvalidRequest", "The object was stored using another key."
        if writes and "partNumber" not in query and headers.get("x-amz-storage-class") != self.storage_class:
            return 400, "Bad Request", "InvalidStorageClass", "Another class."
        self.seen.add("part" if "partNumber" in query else "upload" if begins else method)
        return None


class Watch(Proxy):
    """Passes all on and remembers what was asked, by what it was about."""

    def __init__(self, port, about):
        self.about, self.seen = about, []
        super().__init__(port)

    def admit(self, head):
        # A request to a proxy names the server too.
        method, target, headers = read(head)
        place = target.removeprefix("http://")
        proxied = place != target
        if proxied:
            target = place[place.index("/"):]
        self.seen.append(self.about(method, target, headers, proxied))
        return None, write(method, target, headers)


def read(head):
    """A request's method, target and headers."""
    line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = line.split(" ")
    fields = [field.partition(":") for field in fields]
    return method, target, {name.strip().lower(): value.strip() for name, _, value in fields}


def write(method, target, headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


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
        bearer = read(head)[2].get("authorization", "").removeprefix("Bearer ")
        if self.tokens.get(bearer, 0) > time.time():
            return None, head
        self.refused += 1
        why = {"code": 401, "message": "Invalid Credentials", "errors": [{"reason": "authError"}]}
        return (b"401 Unauthorized", json.dumps({"error": why}).encode()), head


class Answers(http.server.BaseHTTPRequestHandler):
    def reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Service:
    """Something that is asked by HTTP, on a port of its own."""

    def serve(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Metadata(Service):
    """What a machine at a cloud can ask for its own credentials: EC2's second kind (IMDSv2), with keys of a gate that
    are valid for so many `seconds`."""

    ROLE = "tarn-role"

    def __init__(self, gate, seconds):
        self.given, self.down, self.seconds = 0, False, seconds
        metadata = self

        class Handler(Answers):
            def do_PUT(self):
                self.tell("session", self.path == "/latest/api/token")

            def do_GET(self):
                known = self.headers.get("X-aws-ec2-metadata-token") == "session"
                folder = "/latest/meta-data/iam/security-credentials/"
                if self.path == folder:
                    return self.tell(metadata.ROLE, known)
                key = gate.issue(metadata.seconds)
                metadata.given += 1
                end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(key.end))
                words = {"AccessKeyId": key.id, "SecretAccessKey": key.secret, "Token": key.token, "Expiration": end}
                self.tell(json.dumps(words), known and self.path == folder + metadata.ROLE)

            def tell(self, text, good):
                self.reply(503 if metadata.down else 200 if good else 403, text)

        self.serve(Handler)


def write_whole(path, text):
    """Puts a file in the place of another, as who renews credentials should."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


class Exchange(Service):
    """Google's Security Token Service and its impersonation of service accounts: gives a gate's tokens for `foreign`."""

    AUDIENCE = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"

    def __init__(self, gate, foreign):
        self.asked, self.federated = [], secrets.token_hex(16)
        exchange = self

        class Handler(Answers):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                if self.path == "/v1/token":
                    words = dict(urllib.parse.parse_qsl(body))
                    good = words.get("subject_token") == foreign and words.get("audience") == exchange.AUDIENCE
                    answer = {"access_token": exchange.federated, "expires_in": 3600, "token_type": "Bearer"}
                    what = "exchange"
                else:
                    good = self.headers.get("Authorization") == f"Bearer {exchange.federated}" and "scope" in body
                    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
                    answer = {"accessToken": gate.issue(3600), "expireTime": end}
                    what = "impersonate"
                if good:
                    exchange.asked.append(what)
                # A refusal quotes what it is about, as those of services do.
                self.reply(200 if good else 400, json.dumps(answer if good else {"error": "invalid", "about": body}))

        self.serve(Handler)
