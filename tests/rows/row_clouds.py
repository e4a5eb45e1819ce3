"""Pools on Google Cloud Storage and Azure Blob Storage, and on all clouds at once."""
import json
import os
import shutil
import time
import urllib.parse

import gate
import stub
import tree
from harness import test
from hosts import other_host, hand_over, scan
from load import Workers
from refusal import Wrong, refuse
from row_ownership import races
from sample import SECRET, Sample, no_secrets
from world import sync_all, wait_until


def striped(t, each=1):
    """A pool over buckets of an S3, a GCS and an Azure server; gives them too."""
    servers = [t.world.s3(each), t.world.gcs(each), t.world.azure(each)]
    return t.world.pool(buckets=[url for server in servers for url in server.urls()]), servers


@test("one pool over S3, GCS and Azure: copy a tree, mount cold, verify, check every byte, carry it to another host",
      limit=240, needs="pool")
def stripe(t):
    pool, servers = striped(t)
    pool.mount()
    sample = Sample(t, t.pick(2, 40), t.pick(96, 2048))
    sample.copy(pool)
    pool.remount_cold()
    sample.verify(pool)
    no_secrets(t, pool.host, SECRET, pool.host.environment["AZURE_STORAGE_ACCOUNT_KEY"])
    before = tree.manifest(pool.mnt)
    pool.umount()
    pool.host.tarn("check", "--data", "tank", limit=600)
    pool.host.tarn("pool", "export", "tank")
    there = other_host(t, pool)
    t.check("tank" in there.host.tarn("pool", "import", *scan(pool)).stdout, "import without a name does not show it")
    there.host.tarn("pool", "import", *scan(pool), "tank")
    there.mount()
    wrong = tree.compare(before, tree.manifest(there.mnt))
    t.check(not wrong, f"{len(wrong)} names differ on the other host: {wrong[:3]}")
    status = there.host.tarn("pool", "status", "tank").stdout
    t.check(all(word in status for word in ("s3://b01", "gs://b01", "az://b01")), "status does not show the buckets")
    hand_over(t, pool, there)


@test("a second S3 server does what Tarn needs: its bucket is checked, a pool on it filled, verified and read whole",
      limit=180, needs="pool")
def second(t):
    moto = t.world.moto(3)
    report = t.world.host.json("bucket", "check", moto.urls()[0])
    t.check(report["ready"], f"{report['findings']}")
    pool = t.world.pool(buckets=moto.urls(), options=["-o", "rewind=0"])
    pool.mount()
    sample = Sample(t, t.pick(1, 10), t.pick(32, 256))
    sample.copy(pool)
    pool.remount_cold()
    sample.verify(pool)
    shutil.rmtree(os.path.join(pool.mnt, "extras"))
    sync_all(pool.mnt)
    pool.umount()
    pool.host.tarn("check", "--data", "tank", limit=600)


@test("a server of three clouds is killed under load and comes back: work goes on, and nothing is lost",
      limit=240, needs="pool")
def kill(t):
    pool, (_, gcs, _) = striped(t)
    pool.mount()
    for number in range(t.pick(1, 10)):
        load = Workers(pool.mnt, t.scratch, f"round{number}", 3)
        wait_until(lambda: load.acknowledged() > 50, 60, "the load works")
        gcs.kill()
        time.sleep(t.pick(4, 15))
        during = load.acknowledged()
        gcs.start_again()
        wait_until(lambda: load.acknowledged() > during + 50, 90, "work goes on when the server is back")
        total = load.acknowledged()
        load.stop()
        sync_all(pool.mnt)
        pool.remount_cold()
        t.note(f"{total} acknowledged, {load.verify(pool.mnt)} files checked")
    pool.umount()
    pool.host.tarn("check", "--data", "tank", limit=600)


@test("of two hosts that import at once from GCS one wins", limit=120, needs="pool")
def race_gcs(t):
    races(t, t.world.pool(buckets=t.world.gcs(2).urls()), t.pick(3, 100))


@test("of two hosts that import at once from Azure one wins", limit=120, needs="pool")
def race_azure(t):
    races(t, t.world.pool(buckets=t.world.azure(2).urls()), t.pick(3, 100))


@test("a shared access signature is enough for a pool on Azure, and stands in no log", limit=120, needs="pool")
def signature(t):
    azure, host = t.world.azure(1), t.world.host
    host.environment["AZURE_STORAGE_SAS_TOKEN"] = azure.signature("b01")
    del host.environment["AZURE_STORAGE_ACCOUNT_KEY"]
    host.environment["TARN_LOG"] = "debug"
    pool = t.world.pool(buckets=azure.urls(), options=["-o", "rewind=0"])
    pool.mount()
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=20)
    before = tree.manifest(pool.mnt)
    pool.remount_cold()
    t.check(not tree.compare(before, tree.manifest(pool.mnt)), "names differ")
    shutil.rmtree(os.path.join(pool.mnt, "extras"))
    pool.umount()
    secret = dict(urllib.parse.parse_qsl(host.environment["AZURE_STORAGE_SAS_TOKEN"]))["sig"]
    no_secrets(t, pool.host, secret, urllib.parse.quote(secret, safe=""))
    # Rights that are missing are told one by one.
    host.environment["AZURE_STORAGE_SAS_TOKEN"] = azure.signature("b01", "rl")
    done = host.tarn("bucket", "check", azure.urls()[0], check=False)
    t.check(done.returncode == 1 and "missing  put" in done.stdout and "sig=" not in done.stdout, done.stdout.splitlines()[0])
    host.environment["AZURE_STORAGE_SAS_TOKEN"] = azure.signature("b01")


@test("Google's credentials are found where its tools keep them: the machine's, a service account's key",
      limit=120, needs="pool")
def identity(t):
    gcs, host = t.world.gcs(1), t.world.host
    url = gcs.urls()[0]
    del host.environment["GOOGLE_BEARER_TOKEN"]
    # No gcloud has left anything here.
    host.environment["HOME"] = t.scratch
    nobody = f"127.0.0.1:{stub.unused_port()}"
    host.environment.update(GCE_METADATA_HOST=nobody, GCE_METADATA_IP=nobody)
    done = host.tarn("bucket", "check", url, check=False)
    t.check(done.returncode == 1 and "no credentials" in done.stdout, done.stdout.splitlines()[0])
    token = json.dumps({"access_token": "tarn-test-secret", "expires_in": 3600, "token_type": "Bearer"})
    metadata = stub.Http(200, token.encode(), "application/json")
    t.world.servers.append(metadata)
    host.environment["GCE_METADATA_HOST"] = f"127.0.0.1:{metadata.port}"
    host.tarn("bucket", "check", url)
    host.environment["GCE_METADATA_HOST"] = nobody
    key = t.run("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", quiet=True)
    account = {"type": "service_account", "private_key_id": "k", "client_email": "tarn@example.com"}
    file = os.path.join(t.scratch, "key.json")
    for private, status, part in [
        (key[key.index("-----BEGIN"):], 0, "nothing that Tarn needs is missing"), ("damaged", 1, "cannot be used")
    ]:
        with open(file, "w") as out:
            json.dump({**account, "private_key": private}, out)
        host.environment["GOOGLE_APPLICATION_CREDENTIALS"] = file
        done = host.tarn("bucket", "check", url, check=False)
        said = done.stdout + done.stderr
        t.check(done.returncode == status and part in said and "PRIVATE" not in said, said.splitlines()[0])


@test("tarn bucket check finds that each store does what Tarn needs, says what is missing, and leaves nothing behind",
      limit=180, needs="pool")
def bucket_check(t):
    host, servers = t.world.host, [t.world.s3(1), t.world.gcs(1), t.world.azure(1)]
    for url in [*(server.urls()[0] for server in servers), *t.world.buckets(1)]:
        report = host.json("bucket", "check", url)
        words = {finding["what"]: finding["verdict"] for finding in report["findings"]}
        # A token of GCS in the environment is not renewed.
        lasts = "warning" if url.startswith("gs:") else "ok"
        t.check(words.pop("credentials", lasts) == lasts, f"{url}: {report['findings']}")
        t.check(report["ready"] and set(words.values()) == {"ok"}, f"{url}: {words}")
        speeds = [f["figures"]["mib_s"] for f in report["findings"] if "mib_s" in f.get("figures", {})]
        t.check(len(speeds) == 2 and min(speeds) > 1, f"{url}: {speeds}")
        t.note(f"{url.partition(':')[0][:2]} put {speeds[0]:.0f} get {speeds[1]:.0f} MiB/s")
        # What is there is refused nothing by what is left.
        host.tarn("pool", "create", "-n", "tank", url)
    s3, gcs, azure = servers
    kept = [os.path.join(folder, n) for s in (s3, gcs) for folder, _, names in os.walk(s.root) for n in names]
    t.check(not [path for path in kept if "tarn-check" in path], f"objects are left: {kept[:3]}")
    missing = azure.urls()[0].replace("b01", "not-there")
    done = host.tarn("bucket", "check", missing, check=False)
    t.check(done.returncode == 1 and "no such container" in done.stdout, "a container that is not there is not told")
    t.check(done.stdout.startswith("missing  list"), done.stdout.splitlines()[0])
    host.environment["AZURE_STORAGE_ACCOUNT_KEY"] = "aHVzaA=="
    done = host.tarn("bucket", "check", azure.urls()[0], check=False)
    t.check(done.returncode == 1 and "not accepted" in done.stdout and "aHVzaA" not in done.stdout, done.stdout.splitlines()[0])


@test("servers that speak neither GCS nor Azure, and names that cannot be: one line, nothing half made", limit=180, needs="pool")
def answers(t):
    host = t.world.host
    host.environment.update(GOOGLE_BEARER_TOKEN="hush", AZURE_STORAGE_ACCOUNT_KEY="aHVzaA==")
    html = b"<html><body><h1>It works!</h1></body></html>"
    servers = [
        ("a web server", stub.Http(200, html, "text/html"), "127.0.0.1", "check the endpoint"),
        ("a web server without the page", stub.Http(404, html, "text/html"), "127.0.0.1", "no such"),
        ("a proxy in trouble", stub.Http(502, html, "text/html"), "b01", "502"),
        ("an SSH server", stub.Tcp(b"SSH-2.0-OpenSSH_9.2\r\n"), "127.0.0.1", "check the endpoint"),
        ("one that hangs up", stub.Tcp(b""), "127.0.0.1", "check the endpoint"),
    ]
    cases = []
    for about, server, names, remedy in servers:
        t.world.servers.append(server)
        for url in ("gs://b01/p?endpoint=http://127.0.0.1:{}", "az://b01/p?account=abc&endpoint=http://127.0.0.1:{}/abc"):
            cases.append(Wrong(about, ["pool", "create", "tank", url.format(server.port)], names, remedy))
    for about, url, names, remedy in [
        ("no account", "az://b01/p", "az://b01", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("a secret in a name", "az://b01?sig=hush", "sig", "AZURE_STORAGE_SAS_TOKEN"),
        ("a token by plain HTTP", "gs://b01?endpoint=http://192.0.2.1", "gs://b01", "https://"),
        ("an unknown parameter", "gs://b01?region=x", "region", "endpoint"),
    ]:
        cases.append(Wrong(about, ["pool", "create", "tank", url], names, remedy))
    t.note(f"{refuse(t, host, cases)} lines")


@test("workload identity federation at Google: a foreign token is exchanged, and a service account impersonated",
      limit=60, needs="pool")
def federation(t):
    gcs, host = t.world.gcs(1), t.world.host
    door = gate.TokenGate(gcs.port)
    exchange = gate.Exchange(door, "foreign-hush")
    t.world.servers[:0] = [door, exchange]
    del host.environment["GOOGLE_BEARER_TOKEN"]
    foreign, file = (os.path.join(t.scratch, name) for name in ("foreign", "external.json"))
    gate.write_whole(foreign, "foreign-hush\n")
    account = {
        "type": "external_account", "audience": exchange.AUDIENCE, "token_url": exchange.endpoint + "/v1/token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "credential_source": {"file": foreign},
        "service_account_impersonation_url": exchange.endpoint + "/v1/tarn:generateAccessToken",
    }
    gate.write_whole(file, json.dumps(account))
    host.environment["GOOGLE_APPLICATION_CREDENTIALS"] = file
    url = door.urls(gcs)[0]
    report = host.json("bucket", "check", url)
    t.check(report["ready"] and exchange.asked == ["exchange", "impersonate"], f"{exchange.asked} {report['findings']}")
    # What was given is taken back: it is asked for anew.
    pool = t.world.pool(buckets=[url])
    pool.mount()
    door.tokens.clear()
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=5)
    sync_all(pool.mnt)
    pool.umount()
    no_secrets(t, host, SECRET, "foreign-hush")
    # Whoever issues it lets it end.
    gate.write_whole(foreign, "old-hush\n")
    done = host.tarn("bucket", "check", url, check=False)
    t.check(done.returncode == 1 and "no token was given" in done.stdout and "hush" not in done.stdout, done.stdout)
    gate.write_whole(foreign, "foreign-hush\n")
