"""Wrong input: all that a newcomer may get wrong, and what the machine may lack. What each refusal must be is in
`refusal.py`. Wrong input that other rows test is in `ELSEWHERE`, so that this file lists all of it."""
import os
import shutil
import struct
import subprocess
import tempfile

import harness
import stub
from harness import test
from hosts import scan
from refusal import Wrong, refuse, state_of, told, unchanged
from world import TARN, daemons, du, sweep

ELSEWHERE = {
    "pool held by another host": ["ownership.export", "ownership.force", "s3.takeover"],
    "two hosts import at once": ["ownership.race", "s3.race"],
    "full quota": ["space.quota"],
    "full disk below the buckets of a mounted pool": ["space.full_tmpfs", "space.full_ext4"],
    "file name of 256 bytes": ["posix.names"],
    "damaged, missing and leaked objects": ["integrity.flipped", "integrity.missing", "integrity.metadata"],
    "a user without rights who does it right": ["cli.not_root"],
}


@test("every kind of wrong input that another row tests is still tested there", limit=30, needs="pool")
def elsewhere(t):
    names = {one.name for one in harness.load()}
    for about, tests in ELSEWHERE.items():
        for name in tests:
            t.check(name in names, f"{about}: there is no test {name}")
    t.note(f"{len(ELSEWHERE)} kinds")


@test("wrong lines: verbs, options, numbers", limit=120, needs="pool")
def lines(t):
    a, = t.world.buckets(1)
    long = "x" * 256
    cases = [
        Wrong("typo in a verb", ["pool", "crate", "tank", a], "'crate'", "create", status=2),
        Wrong("typo in a noun", ["pol", "list"], "'pol'", "pool", status=2),
        Wrong("unknown option", ["pool", "list", "--verbose"], "--verbose", "--help", status=2),
        Wrong("option without its value", ["mount", "tank", "/mnt", "-o"], "-o", "--help", status=2),
        Wrong("argument missing", ["pool", "create", "tank"], "URLS", "usage: tarn pool create", status=2),
        Wrong("two arguments missing", ["mount"], "<DIR>", "usage: tarn mount", status=2),
        Wrong("verb without what it is for", ["fs", "get"], "PROPERTIES", "usage: tarn fs get", status=2),
        Wrong("one argument too many", ["version", "please"], "please", "--help", status=2),
        Wrong("negative interval", ["pool", "iostat", "tank", "-1"], "-1", "usage: tarn pool iostat", status=2),
        Wrong("no interval", ["pool", "iostat", "0"], "'0'", "0.1 to 86400 seconds", status=2),
        Wrong("no report", ["pool", "iostat", "1", "0"], "'0'", "1 or more", status=2),
        Wrong("an interval instead of a name", ["stats", "5"], "'5'", "name a pool", status=2),
        Wrong("a time instead of a name", ["profile", "0"], "'0'", "name a pool", status=2),
        Wrong("a profile of no time", ["profile", "tank", "0"], "'0'", "0.1 to 3600 seconds", status=2),
        Wrong("figures of no pool", ["stats", "tnak/a"], "tnak", "tarn pool list"),
        Wrong("figures of no directory", ["stats", "./tnak"], "./tnak", "name one in a mounted dataset", status=2),
        Wrong("a profile of a plain directory", ["profile", a], a, "tarn fs mount", status=2),
        Wrong("size of a few bytes", ["pool", "create", "-O", "quota=1B", "tank", a], "quota", "at least 4K", status=2),
        Wrong("negative time", ["pool", "create", "-o", "rewind=-5", "tank", a], "rewind", "0 to 30d", status=2),
        Wrong("negative size", ["pool", "create", "-O", "quota=-5G", "tank", a], "quota", "10G", status=2),
        Wrong("size without unit", ["pool", "create", "-O", "quota=10", "tank", a], "quota", "unit", status=2),
        Wrong("memory without unit", ["mount", "--memory", "4", "tank", a], "--memory", "4G", status=2),
        Wrong("memory option without unit", ["mount", "-o", "memory=4", "tank", a], "memory=4", "unit", status=2),
        Wrong("unknown unit", ["pool", "create", "-O", "quota=10Q", "tank", a], "quota", "10G", status=2),
        Wrong("property without value", ["pool", "create", "-o", "rewind", "tank", a], "rewind", "PROPERTY=VALUE"),
        Wrong("unknown pool property", ["pool", "create", "-o", "colour=red", "tank", a], "colour", "there are"),
        Wrong("bad pool property", ["pool", "create", "-o", "failmode=panic", "tank", a], "failmode", "continue"),
        Wrong("read-only property", ["pool", "create", "-o", "size=5", "tank", a], "size", "read-only"),
        Wrong("unknown property", ["pool", "create", "-O", "colour=red", "tank", a], "colour", "there are"),
        Wrong("no power of two", ["pool", "create", "-O", "recordsize=100K", "tank", a], "recordsize", "power of two"),
        Wrong("unknown compression", ["pool", "create", "-O", "compression=rot13", "tank", a], "rot13", "lz4"),
        Wrong("pool name with a digit first", ["pool", "create", "7up", a], "7up", "letter"),
        Wrong("reserved pool name", ["pool", "create", "mirror", a], "mirror", "reserved"),
        Wrong("pool name with a slash", ["pool", "create", "a/b", a], "a/b", "allowed"),
        Wrong("pool name of 256 bytes", ["pool", "create", long, a], "xxx", "255 bytes"),
        Wrong("pool that is not there", ["pool", "status", "tnak"], "tnak", "tarn pool list"),
        Wrong("dataset of no pool", ["fs", "list", "nowhere/x"], "nowhere", "tarn pool list"),
        Wrong("export of no pool", ["pool", "export", "tnak"], "tnak", "tarn pool list"),
        Wrong("check of no pool", ["check", "tnak"], "tnak", "tarn pool list"),
        Wrong("umount of what is not mounted", ["umount", t.world.root], t.world.root, "tarn fs mount"),
        Wrong("umount of another file system", ["umount", "/proc"], "/proc", "tarn fs mount"),
        Wrong("umount of nothing", ["umount", t.world.path("none")], "none", "tarn fs mount"),
    ]
    t.note(f"{refuse(t, t.world.host, cases)} lines")
    t.check(not os.listdir(a), "a refused line left something in a bucket")
    t.world.pool(buckets=[a])


@test("wrong buckets: schemes, paths, links, twice the same", limit=120, needs="pool")
def buckets(t):
    host, world = t.world.host, t.world
    a, b = world.buckets(2)
    file, link, dangling = world.path("a-file"), world.path("link"), world.path("dangling")
    with open(file, "w") as f:
        f.write("no directory")
    os.symlink(a, link)
    os.symlink(world.path("nothing"), dangling)

    def create(*urls):
        return ["pool", "create", "tank", *urls]

    cases = [
        Wrong("unknown scheme", create("ftp://somewhere/else"), "ftp://", "s3://bucket/prefix"),
        Wrong("another cloud's scheme", create("b2://bucket"), "b2://", "gs://bucket/prefix"),
        Wrong("an endpoint as a bucket", create("http://localhost:9000/b"), "http://", "s3://bucket/prefix"),
        Wrong("one slash", create("s3:/bucket"), "s3:/bucket", "two slashes"),
        Wrong("no bucket in the URL", create("s3://"), "s3://", "s3://bucket/prefix"),
        Wrong("a port in the bucket's name", create("s3://host:9000/b"), "host:9000", "endpoint=http://"),
        Wrong("unknown parameter", create("s3://b?regoin=x"), "regoin", "region"),
        Wrong("a key in the URL", create("s3://AK:hush@b"), "in front of", "AWS_ACCESS_KEY_ID"),
        Wrong("no directory", create(world.path("missing", "deep")), "missing/deep", "mkdir"),
        Wrong("no relative directory", create("buckets/none"), "buckets/none", "mkdir"),
        Wrong("a file", create(file), "a-file", "a directory of its own"),
        Wrong("a file in the path", create(os.path.join(file, "deep")), "a-file/deep", "a directory of its own"),
        Wrong("a dangling link", create(dangling), "dangling", "mkdir"),
        Wrong("one bucket twice", create(a, a), "b01", "name it once"),
        Wrong("one bucket twice, once by a link", create(a, link), "link", "name it once"),
        Wrong("nothing to import", ["pool", "import"], "no buckets", "-d"),
        Wrong("import from an empty directory", ["pool", "import", "-d", a], "b01", "-d"),
        Wrong("import by name from an empty directory", ["pool", "import", "-d", a, "tank"], "tank", "-d"),
        Wrong("import from no directory", ["pool", "import", "-d", world.path("none")], "none", "name a bucket"),
        Wrong("import from a file", ["pool", "import", "-d", file], "a-file", "name a bucket"),
    ]
    os.chdir(world.root)
    t.note(f"{refuse(t, host, cases)} lines")
    t.check(not os.listdir(a) and not os.listdir(b), "a refused line left something in a bucket")
    # Relative paths and links are right, and mean what they meant when they were typed.
    pool = world.pool(buckets=["link", "buckets/b02"])
    os.chdir("/")
    pool.mount()
    pool.umount()
    urls = host.json("pool", "status", "tank")
    t.check(os.path.join(world.root, "buckets/b02") in str(urls), f"the paths did not become absolute: {urls}")


@test("what is there already: pools, names, datasets, mounts in use", limit=180, needs="pool")
def existing(t):
    host, world = t.world.host, t.world
    a, b, c = world.buckets(3)
    pool = world.pool(buckets=[a, b])
    host.tarn("fs", "create", "tank/a")
    long = "tank/" + "x" * 256
    cases = [
        Wrong("pool name taken", ["pool", "create", "tank", c], "tank", "choose another"),
        Wrong("bucket in a pool", ["pool", "create", "second", c, b], "b02", "-f"),
        Wrong("adding a bucket of the pool", ["pool", "add", "tank", a], "b01", "already"),
        Wrong("adding nothing", ["pool", "add", "tank"], "BUCKET", "usage: tarn pool add"),
        Wrong("adding what is not there", ["pool", "add", "tank", world.path("missing")], "missing", "mkdir"),
        Wrong("adding to no pool", ["pool", "add", "tnak", c], "tnak", "tarn pool list"),
        Wrong("import of what is here", ["pool", "import", "-d", a, "-d", b, "tank"], "tank", "already"),
        Wrong("bad time", ["pool", "set", "rewind=soon", "tank"], "rewind", "0 to 30d"),
        Wrong("read-only pool property", ["pool", "set", "size=5", "tank"], "size", "read-only"),
        Wrong("too late for a property", ["pool", "set", "authority=bucket", "tank"], "authority", "created"),
        Wrong("dataset that is there", ["fs", "create", "tank/a"], "tank/a", "exists"),
        Wrong("dataset in no dataset", ["fs", "create", "tank/x/y"], "tank/x", "-p"),
        Wrong("dataset with a wrong name", ["fs", "create", "tank/.."], "tank/..", "letters"),
        Wrong("dataset name of 256 bytes", ["fs", "create", long], "tank/xxx", "255"),
        Wrong("pool as a dataset", ["fs", "create", "other"], "other", "pool"),
        Wrong("no power of two", ["fs", "set", "recordsize=3", "tank/a"], "recordsize", "power of two"),
        Wrong("read-only property", ["fs", "set", "used=3", "tank/a"], "used", "read-only"),
        Wrong("relative mountpoint", ["fs", "set", "mountpoint=mnt", "tank/a"], "mountpoint", "absolute"),
        Wrong("unknown property", ["fs", "get", "colour", "tank/a"], "colour", "there are"),
        Wrong("set without datasets", ["fs", "set", "atime=off"], "PROPERTY=VALUE", "datasets"),
        Wrong("rename into another pool", ["fs", "rename", "tank/a", "other/a"], "other", "copy the files"),
        Wrong("rename to a bare name", ["fs", "rename", "tank/a", "b"], "'b'", "as in tank/NAME"),
        Wrong("rename of a pool", ["fs", "rename", "tank", "tank/b"], "'tank'", "pool import -N"),
        Wrong("figures of no dataset", ["stats", "tank/none"], "tank/none", "tarn fs list"),
        Wrong("figures of what nobody uses", ["stats", "tank/a"], "tank/a", "tarn mount tank/a DIR"),
        Wrong("a profile of no dataset", ["profile", "tank/none"], "tank/none", "tarn fs list"),
        Wrong("unmount of no pool", ["fs", "unmount", "tnak"], "tnak", "tarn pool list"),
        Wrong("listing of no dataset", ["fs", "list", "tank/none"], "tank/none", "tarn fs list"),
        Wrong("destroy of no dataset", ["fs", "destroy", "tank/none"], "tank/none", "tarn fs list"),
        Wrong("destroy of a pool as a dataset", ["fs", "destroy", "tank"], "tank", "tarn pool destroy"),
    ]
    count = refuse(t, host, cases)
    pool.mount()
    used = [
        Wrong("mounted twice", ["mount", "tank", pool.mnt], pool.mnt, "already"),
        Wrong("destroy of a mounted pool", ["pool", "destroy", "tank"], "tank", "unmount"),
    ]
    count += refuse(t, host, used)
    with open(os.path.join(pool.mnt, "a", "open"), "w"):
        # As in zpool, export unmounts; what is in use it leaves alone.
        busy = [
            Wrong("destroy of a dataset in use", ["fs", "destroy", "tank/a"], "tank/a", "-f"),
            Wrong("export of a pool in use", ["pool", "export", "tank"], "tank", "unmount"),
            Wrong("umount of a dataset in use", ["umount", pool.mnt], "in use", "-f"),
        ]
        count += refuse(t, host, busy)
    t.check(not os.listdir(c), "a refused line left something in a bucket")
    names = host.tarn("fs", "list", "-H", "-o", "name").stdout.split()
    t.check(names == ["tank", "tank/a"], f"a refused line changed datasets: {names}")
    pool.umount()
    host.tarn("fs", "destroy", "tank/a")
    host.tarn("pool", "add", "tank", c)
    t.note(f"{count} lines")


@test("wrong mounts: directories, options, no /dev/fuse, no rights", limit=180, needs="pool")
def mounts(t):
    host, world = t.world.host, t.world
    pool = world.pool(buckets=2)
    full, file = world.path("full"), world.path("a-file")
    os.mkdir(full)
    for path in (os.path.join(full, "file"), file):
        open(path, "w").close()
    cases = [
        Wrong("not empty", ["mount", "tank", full], "full", "-o nonempty"),
        Wrong("not a directory", ["mount", "tank", file], "a-file", "not a directory"),
        Wrong("a file in the path", ["mount", "tank", os.path.join(file, "x")], "a-file/x", "name a directory"),
        Wrong("no directory", ["mount", "tank", world.path("missing")], "missing", "name a directory"),
        Wrong("no dataset", ["mount", "tank/none", pool.mnt], "tank/none", "tarn fs list"),
        Wrong("no pool", ["mount", "tnak", pool.mnt], "tnak", "tarn pool list"),
        Wrong("unknown option", ["mount", "-o", "colour=red", "tank", pool.mnt], "colour", "there are"),
        Wrong("umount of what is not mounted", ["umount", pool.mnt], pool.mnt, "tarn fs mount"),
        Wrong("umount of a dataset not mounted", ["umount", "tank"], "tank", "not mounted"),
    ]
    count = refuse(t, host, cases)

    # A device directory of its own, without the device, in a mount namespace of its own.
    case = Wrong("no /dev/fuse", [], "/dev/fuse", "modprobe fuse")
    bare = "mkdir -p $1 && mount -t tmpfs none $1 && touch $1/null && mount --bind /dev/null $1/null && " \
        "mkdir $1/shm && mount --rbind /dev/shm $1/shm && mount --rbind $1 /dev && shift && exec \"$@\""
    before = state_of(world, host)
    words = ["unshare", "-m", "sh", "-ec", bare, "sh", world.path("dev"), TARN, "mount", "tank", pool.mnt]
    told(t, subprocess.run(words, env=host.env(), capture_output=True, text=True, timeout=60), case)
    unchanged(t, host, before, case.about)
    pool.mount()
    pool.umount()
    t.note(f"{count + 1} lines")


@test("a user who is not root: no helper, a closed device, another's directories", limit=120, needs="pool")
def not_root(t):
    home = tempfile.mkdtemp(prefix="tarn-test-", dir="/var/tmp")
    try:
        shutil.copy(TARN, os.path.join(home, "tarn"))
        for name in ("bucket", "mnt", "state", "empty"):
            os.mkdir(os.path.join(home, name))
            os.chown(os.path.join(home, name), 65534, 65534)
        os.mkdir(os.path.join(home, "roots"), 0o700)
        os.chmod(home, 0o755)
        env = {"PATH": os.environ["PATH"], "HOME": home, "TARN_STATE_DIR": f"{home}/state"}

        def user(*words, **changed):
            return subprocess.run(
                [f"{home}/tarn", *words], cwd=home, env={**env, **changed}, capture_output=True, text=True,
                timeout=60, user=65534, group=65534, extra_groups=[],
            )

        told(t, user("pool", "create", "mine", "roots"), Wrong("root's bucket", [], "roots", "may not open"))
        refused = user("pool", "list", TARN_STATE_DIR=f"{home}/roots/state")
        told(t, refused, Wrong("root's state", [], "roots/state", "TARN_STATE_DIR"))
        t.check(user("pool", "create", "mine", "bucket").returncode == 0, "cannot create")
        refused = user("mount", "mine", "mnt", PATH=f"{home}/empty")
        told(t, refused, Wrong("no fusermount3", [], "fusermount3", "install the package"))
        if os.stat("/dev/fuse").st_mode & 0o006 == 0:
            told(t, user("mount", "mine", "mnt"), Wrong("a closed device", [], "/dev/fuse", "chmod"))
        t.check(not daemons(home), "a process is left")
        t.check(user("pool", "destroy", "mine").returncode == 0, "cannot destroy")
    finally:
        sweep(home)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def label_of(bucket):
    return os.path.join(bucket, "tarn/label")


def change_label(bucket, change):
    """Changes a label's version, or its body, and mends its checksums (docs/FORMAT.md, Frames)."""
    with open(label_of(bucket), "rb") as file:
        bytes_ = file.read()
    version, body = change(bytes_[32:])
    header = bytes_[:8] + struct.pack("<HHII8x", version, 0, len(body), crc32c(body))
    with open(label_of(bucket), "wb") as file:
        file.write(header + struct.pack("<I", crc32c(header)) + body)


@test("wrong labels: newer formats, unknown features, copies, damage, names that lead elsewhere", limit=180,
      needs="pool")
def labels(t):
    host, world = t.world.host, t.world
    pool = world.pool(buckets=2)
    host.tarn("pool", "export", "tank")
    a, b = pool.vdevs
    everywhere = ["pool", "import", *scan(pool), "tank"]
    good = {path: open(label_of(path), "rb").read() for path in pool.vdevs}

    def restore():
        for path, bytes_ in good.items():
            with open(label_of(path), "wb") as file:
                file.write(bytes_)

    def with_body(old, new):
        def change(body):
            t.check(old in body, f"no {old} in the label")
            return 1, body.replace(old, new)

        return change

    count = 0
    for about, change, names, remedy in [
        ("a newer format", lambda body: (2, body), "format 2", "use a newer one"),
        ("a feature", with_body(b'"incompatible":[]', b'"incompatible":["org:new"]'), "org:new", "use a newer one"),
        ("no JSON", lambda body: (1, body[:-1]), "label", "cannot be understood"),
        ("a dataset outside", with_body(b'"name":"tank","guid"', b'"name":"tank/../x","guid"'), "tank/../x",
         "cannot be"),
        ("a pool outside", with_body(b'"name":"tank"', b'"name":"../tank"'), "../tank", "letter"),
    ]:
        for path in pool.vdevs:
            change_label(path, change)
        count += refuse(t, host, [Wrong(about, everywhere, names, remedy)])
        taken = Wrong(f"{about}, taken as new", ["pool", "create", "new", a], "b01", "-f")
        if about in ("a newer format", "no JSON"):
            count += refuse(t, host, [taken])
        restore()
    spare = os.path.join(b, "tarn/spare-label")
    for path in (label_of(b), spare):
        os.truncate(path, 40)
    count += refuse(t, host, [Wrong("a damaged label", ["pool", "import", "-d", b], "b02", "damaged")])
    # One good copy is enough, and of it the other is made anew.
    with open(spare, "wb") as file:
        file.write(good[b])
    host.tarn(*everywhere)
    said = host.tarn("check", "tank").stdout
    t.check("no problems" in said, f"check says: {said}")
    with open(label_of(b), "rb") as one, open(spare, "rb") as two:
        t.check(one.read() == two.read(), "the label was not written anew")
    host.tarn("pool", "export", "tank")
    good = {path: open(label_of(path), "rb").read() for path in pool.vdevs}

    one = Wrong("a vdev missing", ["pool", "import", "-d", a, "tank"], "1 of 2", "name their buckets too")
    copy = world.path("buckets", "copy")
    shutil.copytree(b, copy)
    twice = Wrong("a copied bucket", [*everywhere[:-1], "-d", copy, "tank"], "copy", "leave it out")
    count += refuse(t, host, [one, twice])
    wrong = Wrong("another name", [*everywhere[:-1], "tnak"], "tnak", "there is: tank")
    count += refuse(t, host, [wrong])
    shutil.rmtree(copy)
    host.tarn(*everywhere)
    t.note(f"{count} lines")


@test("a pool whose bucket is lost goes off this host's list by force, and comes back with the bucket", limit=120,
      needs="pool")
def lost(t):
    host, world = t.world.host, t.world
    pool = world.pool(buckets=2)
    away = world.path("buckets", "away")
    os.rename(pool.vdevs[1], away)
    count = refuse(t, host, [
        Wrong("a lost pool, destroyed", ["pool", "destroy", "-f", "tank"], "b02", "pool export -f tank"),
        Wrong("a lost pool, exported", ["pool", "export", "tank"], "b02", ""),
    ])
    said = host.tarn("pool", "export", "-f", "tank").stderr
    t.check("only taken off this host's list" in said, f"export -f says: {said}")
    t.check("tank" not in host.tarn("pool", "list", "-H").stdout, "it is still listed")
    other = world.path("buckets", "other")
    os.mkdir(other)
    host.tarn("pool", "create", "tank", other)
    host.tarn("pool", "destroy", "tank")
    os.rename(away, pool.vdevs[1])
    host.tarn("pool", "import", *scan(pool), "tank")
    t.check("no problems" in host.tarn("check", "tank").stdout, "it came back with problems")
    t.note(f"{count} lines")


@test("a bucket on a disk that is full is refused; with room the same line works", limit=120, needs="pool")
def full_disk(t):
    small = t.world.path("buckets")
    os.makedirs(small)
    t.run("mount", "-t", "tmpfs", "-o", "size=1m", "tarn-test", small)
    bucket = os.path.join(small, "b01")
    os.mkdir(bucket)
    ballast = os.path.join(small, "ballast")
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    create = ["pool", "create", "tank", bucket]
    refuse(t, t.world.host, [Wrong("a full disk", create, "tank", "space")])
    left = [name for _, _, names in os.walk(bucket) for name in names]
    t.check(not left, f"a refused create left {left}")
    os.unlink(ballast)
    t.world.host.tarn(*create)
    t.world.host.tarn("pool", "destroy", "tank")


@test("wrong S3: buckets, credentials, endpoints", limit=240, needs="pool")
def s3(t):
    server = t.world.s3(2)
    host, there = t.world.host, server.urls()[0]
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

    def create(url):
        return ["pool", "create", "tank", url]

    closed = stub.unused_port()
    cases = [
        Wrong("no such bucket", create(there.replace("b01", "nowhere")), "nowhere", "create it"),
        Wrong("wrong key", create(there), "b01", "AWS_ACCESS_KEY_ID", env={keys[0]: "nobody"}),
        Wrong("wrong secret", create(there), "b01", "AWS_SECRET_ACCESS_KEY", env={keys[1]: "wrong"}),
        Wrong("wrong region", create(there.replace("us-east-1", "eu-north-7")), "b01", "region="),
        Wrong("no secret", create(there), keys[1], "set both", without=keys[1:]),
        Wrong("no key", create(there), keys[0], "set both", without=keys[:1]),
        Wrong("no credentials", create(there), "credentials", "set AWS_ACCESS_KEY_ID", without=keys),
        Wrong("a profile that is not there", create(f"{there}&profile=lab"), "lab", "~/.aws/credentials"),
        Wrong("nobody listens", create(there.replace(str(server.port), str(closed))), f":{closed}", "check"),
        Wrong("no such host", create("s3://b?endpoint=http://no-such-host.invalid"), "no-such-host", "check"),
        Wrong("TLS where there is none", create(there.replace("http:", "https:")), "https://127", "check"),
        Wrong("import from no bucket", ["pool", "import", "-d", there.replace("b01", "none")], "none", "create it"),
    ]
    count = refuse(t, host, cases)
    t.check(du(server.root) == 0, "a refused create left objects")
    host.tarn("pool", "create", "tank", *server.urls())
    count += refuse(t, host, [Wrong("a bucket in a pool", ["pool", "create", "second", there], "tank", "-f")])
    host.tarn("pool", "destroy", "tank")
    t.note(f"{count} lines")


@test("answers of S3 that a test's server does not give, and servers that speak no S3", limit=240, needs="pool")
def answers(t):
    host = t.world.host
    host.environment.update({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    html = b"<html><body><h1>It works!</h1></body></html>"
    region = "<Region>eu-west-3</Region>"
    servers = [
        ("expired credentials", stub.Http(400, stub.error("ExpiredToken", "The provided token has expired.")),
         "expired", "renew them"),
        ("wrong region", stub.Http(400, stub.error("AuthorizationHeaderMalformed", "expecting 'eu-west-3'", region)),
         "eu-west-3", "AWS_REGION"),
        ("moved bucket", stub.Http(301, stub.error("PermanentRedirect", "Use the specified endpoint.")),
         "region", "AWS_REGION"),
        ("no rights", stub.Http(403, stub.error("AccessDenied", "Access Denied")), "AccessDenied", "policy"),
        ("wrong clock", stub.Http(403, stub.error("RequestTimeTooSkewed", "The difference is too large.")),
         "clock", "set it"),
        ("a bucket name that cannot be", stub.Http(400, stub.error("InvalidBucketName", "The bucket is not valid.")),
         "InvalidBucketName", "correct the bucket's name"),
        ("a web server", stub.Http(200, html, "text/html"), "127.0.0.1", "is no object store"),
        ("a web server without the page", stub.Http(404, html, "text/html"), "127.0.0.1", "no such bucket"),
        ("an SSH server", stub.Tcp(b"SSH-2.0-OpenSSH_9.2\r\n"), "127.0.0.1", "check the endpoint"),
        ("one that hangs up", stub.Tcp(b""), "127.0.0.1", "check the endpoint"),
        ("one that never answers", stub.Tcp(b"", hang_up=False), "b01", "no answer"),
    ]
    cases = []
    for about, server, names, remedy in servers:
        url = f"s3://b01/p?endpoint=http://127.0.0.1:{server.port}"
        cases.append(Wrong(about, ["pool", "create", "tank", url], names, remedy))
    try:
        t.note(f"{refuse(t, host, cases)} lines")
    finally:
        for _, server, _, _ in servers:
            server.stop()


@test("buckets with versioning or object lock are taken with a warning, others without", limit=120, needs="pool")
def keeps(t):
    server = t.world.s3(4, versions=True)
    host, urls = t.world.host, server.urls()
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    for name in ("/b02", "/b04"):
        server.request("PUT", name, "versioning", enabled)
    server.request("PUT", "/locked", headers={"x-amz-bucket-object-lock-enabled": "true"})
    locked = urls[0].replace("b01", "locked")
    done = host.tarn("pool", "create", "tank", urls[0])
    t.check(not done.stderr, f"a warning about a bucket that keeps nothing: {done.stderr}")
    for url, word in ((urls[1], "versioning"), (locked, "object lock")):
        done = host.tarn("pool", "add", "tank", url)
        lines = done.stderr.splitlines()
        t.check(len(lines) == 1 and lines[0].startswith("tarn: warning: "), f"{word}: {lines}")
        name = url.split("/tarn?")[0]
        t.check(word in lines[0] and name in lines[0] and "space" in lines[0], f"{word}: {lines}")
    done = host.tarn("pool", "create", "second", urls[2])
    t.check(not done.stderr, f"a warning about a bucket that keeps nothing: {done.stderr}")
    host.tarn("pool", "destroy", "second")
    host.tarn("pool", "destroy", "tank")
    done = host.tarn("pool", "create", "third", urls[3])
    t.check("versioning" in done.stderr, f"no warning: {done.stderr}")
    host.tarn("pool", "destroy", "third")
