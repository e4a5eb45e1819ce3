"""A pool on an S3 server."""
import os
import urllib.error

import tree
from faults import Proxy
from harness import Failed, test
from hosts import append, hand_over, lines, other_host, points, refused, resume, scan, stopped, take_over
from load import Workers
from row_ownership import races, sleeper
from sample import Sample, no_secrets
from world import du, sync_all, wait_until


@test("create, mount, copy a tree, mount cold, verify; no credentials in any log", limit=240, needs="pool")
def copy(t):
    pool = t.world.pool(buckets=t.world.s3(4).urls())
    pool.mount()
    sample = Sample(t, t.pick(5, 40), t.pick(128, 2048))
    sample.copy(pool)
    pool.remount_cold()
    sample.verify(pool)
    no_secrets(t, pool.host)
    history = pool.host.tarn("pool", "history", "tank").stdout
    t.check("pool create" in history and "secret" not in history, "history")


@test("objects bear a CRC-32C, by which the store refuses what was damaged on its way", limit=120, needs="pool")
def checksums(t):
    server = t.world.s3(3)
    pool = t.world.pool(buckets=server.urls())
    pool.mount()
    with open(os.path.join(pool.mnt, "file"), "wb") as file:
        file.write(os.urandom(12 << 20))
    sync_all(pool.mnt)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(server.root) for name in names]
    keys = ["/" + os.path.relpath(path, server.root) for path in paths if os.stat(path).st_size >= 1 << 20]
    t.check(keys, "no object was found")
    for key in keys:
        told = server.request("GET", key, "attributes", headers=[("x-amz-object-attributes", "Checksum")])
        t.check(b"<ChecksumCRC32C>" in told, f"{key} has no CRC-32C: {told!r}")
    try:
        server.request("PUT", "/b01/damaged", body=b"bytes", headers=[("x-amz-checksum-crc32c", "AAAAAA==")])
        raise Failed("the store took what does not have its checksum")
    except urllib.error.HTTPError as error:
        t.check(b"BadDigest" in error.read(), f"refused for another reason: {error}")


@test("deleted space returns to the buckets", limit=300, needs="pool")
def returns(t):
    server = t.world.s3(3)
    pool = t.world.pool(buckets=server.urls(), options=["-o", "rewind=0"])
    pool.mount()
    tree.make_big(os.path.join(pool.mnt, "big"), 128 << 20)
    sync_all(pool.mnt)
    t.check(du(server.root) >= 128 << 20, "the buckets hold less than was written")
    os.unlink(os.path.join(pool.mnt, "big"))
    wait_until(lambda: du(server.root) < 4 << 20, 180, "buckets below 4 MiB", step=1)


@test("import -f takes a pool over; the old host can acknowledge nothing any more", limit=180, needs="pool")
def takeover(t):
    pool = t.world.pool(buckets=t.world.s3(3).urls())
    there = other_host(t, pool)
    pool.mount()
    t.check(append(os.path.join(pool.mnt, "log"), 30) == 30, "the owner cannot write")
    refused(t, there.host.tarn("pool", "import", *scan(pool), "tank", check=False), "tank", "-f")
    there.host.tarn("pool", "import", "-f", *scan(pool), "tank")
    there.mount()
    t.check(lines(os.path.join(there.mnt, "log")) == 30, "acknowledged lines are lost")
    # The first host still has it mounted, and does not know: it must learn before it acknowledges.
    more = append(os.path.join(pool.mnt, "log"), 30)
    t.check(more == 0, f"the old owner acknowledged {more} lines after the takeover")
    t.check(append(os.path.join(there.mnt, "log"), 10) == 10, "the new owner cannot write")
    pool.host.tarn("umount", "-f", pool.mnt, check=False)
    there.remount_cold()
    t.check(lines(os.path.join(there.mnt, "log")) == 40, "the file is not what was acknowledged")
    hand_over(t, pool, there)


@test("an owner that was suspended and taken over acknowledges nothing when it wakes, and nothing of it reaches the pool",
      limit=180, needs="pool")
def suspended(t):
    sleeper(t, t.world.pool(buckets=t.world.s3(3).urls()))


@test("an owner that slept while it opened its database anew does no harm to who has taken the pool meanwhile",
      limit=180, needs="pool")
def slept(t):
    """Its buckets fail until the database closes itself; when they are back it asks whether it may open it, and sleeps."""
    points(t)
    server = t.world.s3(3)
    proxy = Proxy(server.port)
    t.world.servers.insert(0, proxy)
    pool = t.world.pool(buckets=proxy.urls(server), options=["-o", "deadline=1s", "-o", "failmode=continue"])
    there = other_host(t, pool)
    there.vdevs = server.urls()
    # The first time is the mount itself.
    pool.host.environment["TARN_STOP_AT"] = "open.confirmed:2"
    pool.mount()
    log = os.path.join(pool.mnt, "log")
    t.check(append(log, 20) == 20, "the owner cannot write")
    proxy.away = set(server.names)
    # A change of names alone, so that it is the database that cannot be written.
    os.mkdir(os.path.join(pool.mnt, "folder"))
    try:
        sync_all(pool.mnt)
        raise Failed("a name was acknowledged without buckets")
    except OSError as e:
        print(f"  {e}")
    proxy.away = set()
    # Whatever wants the database has it opened anew.
    late = Workers(pool.mnt, t.scratch, "late", 2)
    wait_until(lambda: stopped(pool), 60, "the owner sleeps where it opens its database")
    new = take_over(t, there)
    before = new.acknowledged()
    resume(pool)
    wait_until(lambda: new.acknowledged() > before + 20, 30, "the new owner goes on")
    late.end()
    new.stop()
    t.check(append(os.path.join(there.mnt, "log"), 10) == 10, "the new owner cannot write")
    del pool.host.environment["TARN_STOP_AT"]
    pool.host.tarn("umount", "-f", pool.mnt, check=False)
    there.remount_cold()
    found = lines(os.path.join(there.mnt, "log"))
    t.check(found == 30, f"{found} lines instead of the 30 acknowledged")
    t.note(f"{late.verify(there.mnt) + new.verify(there.mnt)} acknowledged files checked")
    there.umount()
    there.host.tarn("check", "--data", "tank")
    hand_over(t, pool, there)


@test("of two hosts that import at once one wins and the other is refused in a line", limit=240, needs="pool")
def race(t):
    races(t, t.world.pool(buckets=t.world.s3(2).urls()), t.pick(6, 200))
