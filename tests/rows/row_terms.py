"""What a bucket's name says of how objects are kept, who pays, and which way requests take."""
import base64
import json
import os
import urllib.request

import gate
import tree
from harness import test
from refusal import Wrong, refuse
from sample import SECRET, no_secrets


def key_file(t, name="key"):
    """A customer's key in a file, and the key. Its bytes in the file are what must be found nowhere else."""
    key, file = os.urandom(32), os.path.join(t.scratch, name)
    with open(file, "w") as out:
        out.write(base64.b64encode(key).decode() + "\n")
    return key, file


def used(t, url, key):
    """Checks the bucket, makes a pool on it, fills it, mounts it cold and compares; the key must stand nowhere."""
    report = t.world.host.json("bucket", "check", url)
    t.check(report["ready"], f"{report['findings']}")
    t.world.host.environment["TARN_LOG"] = "debug"
    pool = t.world.pool(buckets=[url], options=["-o", "rewind=0"])
    pool.mount()
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=10)
    tree.make_big(os.path.join(pool.mnt, "big"), 40 << 20)
    before = tree.manifest(pool.mnt)
    pool.remount_cold()
    t.check(not tree.compare(before, tree.manifest(pool.mnt)), "names differ")
    os.unlink(os.path.join(pool.mnt, "big"))
    pool.umount()
    shown = pool.host.tarn("pool", "status", "tank", check=False).stdout + pool.host.tarn("pool", "history", "tank").stdout
    t.check(key not in shown, "the key is shown")
    no_secrets(t, pool.host, SECRET, key)
    return pool


@test("S3: storage class, a customer's key and a requester who pays are said with each request that needs them",
      limit=120, needs="pool")
def s3(t):
    server = t.world.s3(1)
    key, file = key_file(t)
    door = gate.S3Terms(server.port, key, "STANDARD_IA")
    t.world.servers.insert(0, door)
    plain = door.urls(server)[0]
    url = f"{plain}&storage_class=STANDARD_IA&requester_pays=true&customer_key_file={file}"
    used(t, url, base64.b64encode(key).decode())
    t.check({"GET", "HEAD", "PUT", "POST", "part", "upload"} <= door.seen, f"{door.seen}")
    t.check(door.refused == 0, f"{door.refused} requests did not say it")
    _, other = key_file(t, "other")
    for name, part in [
        (plain, "access denied"), (url.replace(file, other), "another key"), (url.replace("_IA", ""), "Another class"),
    ]:
        done = t.world.host.tarn("bucket", "check", name, check=False)
        t.check(done.returncode == 1 and part in done.stdout, f"{name}: {done.stdout.splitlines()[:2]}")


@test("GCS: storage class, a customer's key and a project that pays are said with each request that needs them",
      limit=120, needs="pool")
def gcs(t):
    server = t.world.gcs(1)
    key, file = key_file(t)

    def about(method, target, headers, _):
        paid = "userProject=p-1" in target or target.startswith("/batch")
        kind = "upload" if target.startswith("/upload") else "media" if "alt=media" in target else "other"
        keyed = headers.get("x-goog-encryption-key") == base64.b64encode(key).decode() and len(
            headers.get("x-goog-encryption-key-sha256", "")) == 44 and headers["x-goog-encryption-algorithm"] == "AES256"
        return kind, paid, keyed == (kind != "other"), kind != "upload" or "uploadType=multipart" in target

    door = gate.Watch(server.port, about)
    t.world.servers.insert(0, door)
    url = f"{door.urls(server)[0]}&storage_class=NEARLINE&billing_project=p-1&customer_key_file={file}"
    pool = used(t, url, base64.b64encode(key).decode())
    t.check({seen[0] for seen in door.seen} == {"upload", "media", "other"}, "not all was seen")
    wrong = [seen for seen in door.seen if not all(seen[1:])]
    t.check(not wrong, f"{len(wrong)} requests do not say it: {wrong[:3]}")
    with urllib.request.urlopen(f"{server.endpoint}/storage/v1/b/b01/o", timeout=20) as answer:
        classes = {item.get("storageClass") for item in json.load(answer)["items"]}
    t.check(classes == {"NEARLINE"}, f"{classes}")
    t.note(f"{len(door.seen)} requests")
    pool.mount()


@test("Azure: an access tier is given, and a customer's key said with each request that needs it", limit=120, needs="pool")
def azure(t):
    # It knows no keys of customers, and is told not to mind them.
    server = t.world.azure(1, loose=True)
    key, file = key_file(t)

    def about(method, target, headers, _):
        path, _, query = target.partition("?")
        blob = path.count("/") > 2 and "comp=list" not in query and "comp=batch" not in query
        keyed = headers.get("x-ms-encryption-key") == base64.b64encode(key).decode()
        writes = method == "PUT" and blob and not query
        return keyed or not blob or method == "DELETE", not writes or headers.get("x-ms-access-tier") == "Cool", method

    door = gate.Watch(server.port, about)
    t.world.servers.insert(0, door)
    url = f"{door.urls(server)[0]}&storage_class=Cool&customer_key_file={file}"
    used(t, url, base64.b64encode(key).decode())
    wrong = [seen for seen in door.seen if not all(seen[:2])]
    t.check(not wrong, f"{len(wrong)} of {len(door.seen)} requests do not say it: {wrong[:3]}")
    t.check({"GET", "HEAD", "PUT"} <= {seen[2] for seen in door.seen}, "not all was seen")


@test("an authority of one's own is trusted by ca_file; without it the server is not", limit=90, needs="pool")
def certificates(t):
    authority, ca_key, certificate, key = (
        os.path.join(t.scratch, name) for name in ("ca.pem", "ca.key", "server.pem", "server.key")
    )
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    t.run(*new, "-subj", "/CN=authority", "-keyout", ca_key, "-out", authority, quiet=True)
    t.run(*new, "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
          "basicConstraints=critical,CA:FALSE", "-CA", authority, "-CAkey", ca_key, "-keyout", key, "-out", certificate,
          quiet=True)
    url = t.world.s3(1, tls=(certificate, key)).urls()[0]
    pool = t.world.pool(buckets=[f"{url}&ca_file={authority}"])
    pool.mount()
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=10)
    before = tree.manifest(pool.mnt)
    pool.remount_cold()
    t.check(not tree.compare(before, tree.manifest(pool.mnt)), "names differ")
    damaged = os.path.join(t.scratch, "damaged.pem")
    with open(damaged, "w") as file:
        file.write("nothing\n")
    refuse(t, t.world.host, [
        Wrong("an authority that nobody trusts", ["pool", "create", "other", url], "127.0.0.1", "ca_file"),
        Wrong("a file without certificates", ["pool", "create", "other", f"{url}&ca_file={damaged}"], damaged, "PEM"),
        Wrong("no such file", ["pool", "create", "other", f"{url}&ca_file=/nowhere"], "/nowhere", "ca_file"),
        Wrong("no such key", ["pool", "create", "other", f"{url}&customer_key_file=/nowhere"], "/nowhere", "put it there"),
        Wrong("no key", ["pool", "create", "other", f"{url}&customer_key_file={damaged}"], damaged, "openssl rand"),
    ])


@test("requests go by a proxy where the bucket's name or the environment says so", limit=90, needs="pool")
def proxy(t):
    server = t.world.s3(1)
    door = gate.Watch(server.port, lambda method, target, headers, proxied: proxied)
    t.world.servers.insert(0, door)
    url, host = server.urls()[0], t.world.host
    pool = t.world.pool(buckets=[f"{url}&proxy=http://127.0.0.1:{door.port}"])
    pool.mount()
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=5)
    before = tree.manifest(pool.mnt)
    pool.remount_cold()
    t.check(not tree.compare(before, tree.manifest(pool.mnt)), "names differ")
    t.check(len(door.seen) > 20 and all(door.seen), f"{len(door.seen)} requests came by the proxy")
    for environment, proxied in [({}, True), ({"NO_PROXY": "127.0.0.1"}, False)]:
        door.seen.clear()
        host.environment.update(HTTP_PROXY=f"http://127.0.0.1:{door.port}", **environment)
        host.tarn("bucket", "check", url)
        t.check(bool(door.seen) == proxied, f"{environment}: {len(door.seen)} requests came by the proxy")
    del host.environment["HTTP_PROXY"], host.environment["NO_PROXY"]
