"""The verbs: what they print for people and for scripts."""
import glob
import json
import os
import shutil
import subprocess
import tempfile

from harness import REPO, Skipped, test
from hosts import refused, scan
from world import TARN, mounts_below, sweep, wait_until


@test("pool and fs listings with -H, -p, -o, -r and --json", limit=90, needs="pool")
def listings(t):
    pool = t.world.pool(buckets=3)
    tarn = pool.host.tarn

    def out(*words):
        return tarn(*words).stdout

    out("fs", "create", "-o", "recordsize=1M", "tank/a")
    out("fs", "create", "tank/a/b")
    t.check(out("pool", "list").split()[:3] == ["NAME", "SIZE", "ALLOC"], "pool list has a header")
    fields = out("pool", "list", "-H", "-p", "-o", "name,size,health").strip().split("\t")
    t.check(fields[0] == "tank" and int(fields[1]) > 0 and fields[2] == "ONLINE", f"pool list -Hp: {fields}")
    t.check(json.loads(out("pool", "list", "--json"))[0]["name"] == "tank", "pool list --json")
    t.check(out("fs", "list", "-H", "-o", "name").split() == ["tank", "tank/a", "tank/a/b"], "fs list")
    t.check(out("fs", "list", "-H", "-o", "name", "tank/a").split() == ["tank/a"], "fs list of one")
    t.check(out("fs", "list", "-r", "-H", "-o", "name", "tank/a").split() == ["tank/a", "tank/a/b"], "fs list -r")
    t.check(out("fs", "get", "-H", "-o", "value", "recordsize", "tank/a/b").strip() == "1M", "inherited value")
    t.check(out("fs", "get", "-H", "-p", "-o", "value", "recordsize", "tank/a").strip() == "1048576", "exact value")
    source = out("fs", "get", "-H", "-o", "source", "recordsize", "tank/a/b")
    t.check("inherited from tank/a" in source, f"source: {source}")
    out("fs", "inherit", "recordsize", "tank/a")
    t.check(out("fs", "get", "-H", "-o", "value", "recordsize", "tank/a/b").strip() == "128K", "after inherit")
    out("pool", "set", "failmode=continue", "tank")
    t.check(out("pool", "get", "-H", "-o", "value", "failmode", "tank").strip() == "continue", "pool get")
    out("fs", "rename", "tank/a", "tank/c")
    t.check(out("fs", "list", "-H", "-o", "name").split() == ["tank", "tank/c", "tank/c/b"], "after rename")
    t.check("pool create" in out("pool", "history", "tank"), "history")
    status = out("pool", "status", "-v", "tank")
    t.check(all(word in status for word in ("pool: tank", "state: ONLINE", *pool.vdevs)), "status")
    report = json.loads(out("pool", "status", "--json"))[0]
    listed = {row["name"]: row["guid"] for row in json.loads(out("pool", "list", "-v", "--json", "-o", "name,guid"))}
    guids = {one["name"]: one["guid"] for one in [report, *report["vdevs"]]}
    t.check(guids == listed and all(guid.isdigit() for guid in guids.values()), f"guids: {guids}, listed {listed}")
    t.check({p["name"]: p["value"] for p in report["properties"]}["size"] == report["size"], "size among the properties")
    t.check(isinstance(json.loads(out("stats", "--json", "tank"))[0]["txg"], int), "txg is no number")
    raw = json.loads(tarn("stats", "--raw", "tank", quiet=True).stdout)["pool"]
    t.check({vdev["guid"] for vdev in raw["vdevs"]} < set(listed.values()), "guids in stats --raw")
    t.check(len(out("pool", "iostat", "-v", "-H", "tank").splitlines()) == 4, "iostat -v: the pool and 3 vdevs")
    lines = [line.split("\t") for line in out("pool", "status", "-H", "-p", "-o", "pool,vdev,state,read,cksum").splitlines()]
    t.check(lines == [["tank", vdev, "ONLINE", "0", "0"] for vdev in pool.vdevs], f"status -H -o: {lines}")
    t.check(out("pool", "status", "-o", "vdev,problem").split()[:2] == ["VDEV", "PROBLEM"], "status -o has a header")
    t.check(json.loads(out("pool", "status", "--json", "-o", "kind")) == [{"kind": "bucket"}] * 3, "status --json -o")
    lines = [line.split("\t") for line in out("pool", "history", "-H", "-p", "-l").splitlines()]
    t.check(lines[0][0] == "tank" and lines[0][1].isdigit() and "pool create" in lines[0][2], f"history -H: {lines}")
    t.check({len(line) for line in lines} == {5}, f"history -H -l: {lines}")
    t.check("pool" in json.loads(out("pool", "history", "--json"))[0], "history --json")
    lines = out("pool", "iostat", "-v", "-H", "-p", "-o", "name,put_requests,read_p99", "tank").splitlines()
    t.check(len(lines) == 4 and all(len(line.split("\t")) == 3 for line in lines), f"iostat -H -o: {lines}")
    lines = out("bucket", "check", "-H", "-p", "-o", "what,verdict,speed", pool.vdevs[0]).splitlines()
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    t.check(lines["put"] == ["ok", "-"] and lines["get speed"][1].isdigit(), f"bucket check -H -o: {lines}")
    refused(t, tarn("pool", "status", "-o", "nope", check=False), "'nope'", "cksum")
    out("pool", "export", "tank")
    found = [line.split("\t") for line in out("pool", "import", *scan(pool), "-H", "-o", "name,guid,state,vdevs").splitlines()]
    t.check(found[0][0] == "tank" and found[0][2:] == ["ONLINE", "3"], f"import -H: {found}")
    t.check(json.loads(out("pool", "import", *scan(pool), "--json", "-o", "guid")) == [{"guid": found[0][1]}], "import -o guid")
    out("pool", "import", *scan(pool), found[0][1])
    out("fs", "destroy", "-r", "tank/c")
    t.check(out("fs", "list", "-H", "-o", "name").split() == ["tank"], "after destroy -r")
    out("pool", "destroy", "tank")
    t.check(out("pool", "list", "-H") == "", "after pool destroy")
    pool.gone = True
    # Destroyed buckets are free for the next pool.
    out("pool", "create", "next", *pool.vdevs)


@test("a dataset that cannot be opened is destroyed by force alone", limit=60, needs="pool")
def unopenable(t):
    pool = t.world.pool(buckets=2)
    tarn = pool.host.tarn
    tarn("fs", "create", "tank/x")
    pool.mount()
    with open(os.path.join(pool.mnt, "x", "file"), "w") as file:
        file.write("lost")
    pool.umount()
    # The root dataset is the first, this one the second.
    manifests = [path for vdev in pool.vdevs for path in glob.glob(f"{vdev}/m/00000002/db/manifest/*")]
    t.check(manifests, "no manifest is where it is looked for")
    for path in manifests:
        os.truncate(path, 3)
    refused(t, tarn("fs", "destroy", "tank/x", check=False), "tank/x", "client on another host", "-f")
    t.check("tank/x" in tarn("fs", "list", "-H", "-o", "name").stdout, "it is gone without force")
    # What it has in the buckets is found by way of its database.
    refused(t, tarn("fs", "destroy", "-f", "tank/x", check=False), "'tank/x' is gone", "not all freed yet")
    t.check(tarn("fs", "list", "-H", "-o", "name").stdout.split() == ["tank"], "it is still there")


@test("what is allocated is known mounted, unmounted, mounted again, after a kill, and imported elsewhere", limit=120, needs="pool")
def allocated(t):
    pool = t.world.pool(buckets=3, options=["-O", "compression=off"])
    size = 24 << 20

    def agreed():
        whole = int(pool.host.tarn("pool", "list", "-H", "-p", "-o", "alloc").stdout)
        rows = pool.host.tarn("pool", "iostat", "-v", "-H", "-p", "tank").stdout.splitlines()
        vdevs = [int(row.split("\t")[1]) for row in rows[1:]]
        return (whole, vdevs) if whole == sum(vdevs) else None

    def alloc(when, low=size, high=size + (4 << 20)):
        # Metadata may be written between the two questions, right after a mount above all.
        whole, vdevs = wait_until(agreed, 5, f"{when}: list and iostat say the same")
        t.check(low <= whole <= high, f"{when}: {whole} bytes allocated")
        t.check(max(vdevs) - min(vdevs) <= 9 << 20, f"{when}: {vdevs}")

    alloc("empty", 0, 4 << 20)
    pool.mount()
    with open(os.path.join(pool.mnt, "file"), "wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    alloc("mounted")
    pool.umount()
    alloc("unmounted")
    pool.mount()
    alloc("mounted again")
    pool.kill()
    pool.mount()
    alloc("after a kill")
    pool.umount()
    pool.host.tarn("pool", "export", "tank")
    pool.host.tarn("pool", "import", *(word for vdev in pool.vdevs for word in ("-d", vdev)), "tank")
    alloc("imported")


@test("datasets below a mount: nested mountpoints, properties that bite, rename and destroy", limit=120, needs="pool")
def datasets(t):
    pool = t.world.pool(buckets=2, options=["-O", "compression=off"])
    tarn = pool.host.tarn
    tarn("fs", "create", "tank/home")
    tarn("fs", "create", "-o", "compression=zstd", "tank/home/ann")
    pool.mount()
    deep = os.path.join(pool.mnt, "home/ann/file")
    with open(deep, "wb") as file:
        file.write(b"compress me " * 500_000)
        os.fsync(file.fileno())
    st = os.stat(deep)
    t.check(st.st_blocks * 512 < st.st_size / 4, "compression=zstd did not compress")
    t.check(os.stat(deep).st_dev != os.stat(pool.mnt).st_dev, "a dataset is no file system of its own")
    tarn("fs", "set", "readonly=on", "tank/home/ann")
    try:
        open(os.path.join(pool.mnt, "home/ann/new"), "w").close()
        t.check(False, "wrote to a read-only dataset")
    except OSError as e:
        t.check(e.errno == 30, f"errno {e.errno} instead of EROFS")
    tarn("fs", "set", "readonly=off", "tank/home/ann")
    open(os.path.join(pool.mnt, "home/ann/new"), "w").close()
    pool.remount_cold()
    with open(deep, "rb") as file:
        t.check(file.read() == b"compress me " * 500_000, "content after mounting again")
    pool.umount()
    t.check(not mounts_below(pool.mnt), "a dataset stayed mounted")
    # A dataset by itself, somewhere else.
    alone = t.world.path("alone")
    os.mkdir(alone)
    tarn("mount", "tank/home/ann", alone)
    t.check(sorted(os.listdir(alone)) == ["file", "new"], "content of the dataset alone")
    tarn("umount", alone)
    tarn("fs", "destroy", "-r", "tank/home")


HELPERS = {"/sbin/mount.fuse.tarn": TARN, "/sbin/umount.fuse.tarn": TARN}


@test("mount -t fuse.tarn, an fstab line, umount", limit=90, needs="pool")
def mount8(t):
    pool = t.world.pool(buckets=2)
    made = []
    try:
        for helper, target in HELPERS.items():
            if os.path.lexists(helper):
                raise Skipped(f"{helper} is installed: uninstall Tarn to test this tree")
            os.symlink(target, helper)
            made.append(helper)
        env = pool.host.env()
        t.run("mount", "-t", "fuse.tarn", "-o", "allow_other", "tank", pool.mnt, env=env)
        t.check(os.path.ismount(pool.mnt), "mount -t fuse.tarn did not mount")
        kind = t.run("findmnt", "-n", "-o", "FSTYPE,SOURCE", pool.mnt).split()
        t.check(kind == ["fuse.tarn", "tank"], f"the kernel calls it {kind}")
        with open(os.path.join(pool.mnt, "file"), "w") as file:
            file.write("kept")
        t.run("umount", pool.mnt, env=env)
        t.check(not os.path.ismount(pool.mnt), "umount did not unmount")

        fstab = t.world.path("fstab")
        with open(fstab, "w") as file:
            file.write(f"tank {pool.mnt} fuse.tarn ro,allow_other,_netdev,nofail,x-systemd.automount 0 0\n")
        t.run("mount", "-T", fstab, pool.mnt, env=env)
        with open(os.path.join(pool.mnt, "file")) as file:
            t.check(file.read() == "kept", "content")
        try:
            open(os.path.join(pool.mnt, "new"), "w").close()
            t.check(False, "wrote to what fstab mounts read-only")
        except OSError as e:
            t.check(e.errno == 30, f"errno {e.errno} instead of EROFS")
        t.run("umount", pool.mnt, env=env)
    finally:
        for helper in made:
            os.unlink(helper)


@test("a user without rights makes, mounts and uses a pool", limit=90, needs="pool")
def not_root(t):
    # The repository may lie where other users cannot go.
    home = tempfile.mkdtemp(prefix="tarn-test-", dir="/var/tmp")
    # udev opens the device to everybody; a machine without udev has it closed.
    mode = os.stat("/dev/fuse").st_mode
    os.chmod("/dev/fuse", 0o666)
    try:
        shutil.copy(TARN, os.path.join(home, "tarn"))
        for name in ("bucket1", "bucket2", "mnt", "state"):
            os.mkdir(os.path.join(home, name))
            os.chown(os.path.join(home, name), 65534, 65534)
        os.chmod(home, 0o755)

        def user(*words):
            env = {"PATH": os.environ["PATH"], "HOME": home, "TARN_STATE_DIR": f"{home}/state"}
            return t.run(*words, cwd=home, env=env, user=65534, group=65534, extra_groups=[])

        user("./tarn", "pool", "create", "mine", "bucket1", "bucket2")
        user("./tarn", "mount", "mine", "mnt")
        user("sh", "-c", "echo kept > mnt/file && chmod 600 mnt/file && mkdir mnt/folder && mv mnt/file mnt/folder")
        user("./tarn", "umount", "mnt")
        user("./tarn", "mount", "mine", "mnt")
        t.check(user("cat", "mnt/folder/file") == "kept\n", "content")
        # Without allow_other nobody else may look, not even root.
        t.check(subprocess.run(["ls", f"{home}/mnt"], capture_output=True).returncode != 0, "root can look inside")
        user("./tarn", "umount", "mnt")
    finally:
        os.chmod("/dev/fuse", mode)
        sweep(home)


@test("in the foreground with -f until a signal", limit=60, needs="pool")
def foreground(t):
    from world import wait_until

    pool = t.world.pool(buckets=2)
    process = subprocess.Popen([TARN, "mount", "-f", "tank", pool.mnt], env=pool.host.env())
    wait_until(lambda: os.path.ismount(pool.mnt), 20, "the mount")
    with open(os.path.join(pool.mnt, "file"), "w") as file:
        file.write("kept")
    t.check(process.poll() is None, "it does not stay in front")
    process.terminate()
    t.check(process.wait(timeout=30) == 0, "its exit status is not 0")
    t.check(not os.path.ismount(pool.mnt), "it is still mounted")
    pool.mount()
    with open(os.path.join(pool.mnt, "file")) as file:
        t.check(file.read() == "kept", "content")


@test("help for each verb has an example; completions for each shell", limit=60, needs="pool")
def words(t):
    tarn = t.world.host.tarn
    for verbs in (["pool create"], ["pool import"], ["mount"], ["fs create"], ["check"]):
        t.check("Example" in tarn(*verbs[0].split(), "--help").stdout, f"{verbs[0]} --help has no example")
    for verbs in ([], ["pool"], ["fs"], ["bucket"]):
        # The state directory in the environment is no word of the line.
        shown = tarn(*verbs, check=False)
        t.check(shown.returncode == 2 and "Example:" in shown.stderr, f"tarn {verbs} shows no help: {shown.stderr}")
        listed = [line.split()[0] for line in shown.stderr.split("Commands:")[1].split("Options:")[0].splitlines() if line.strip()]
        t.check(not {"node", "man", "points"} & set(listed), f"tarn {verbs} lists what is hidden: {listed}")
    for shell in ("bash", "zsh", "fish"):
        t.check("tarn" in tarn("completions", shell, quiet=True).stdout, f"no completions for {shell}")
    tarn("version")


@test("make install puts the program, its mount helpers, a unit and completions in place", limit=120, needs="pool")
def install(t):
    root = os.path.join(t.scratch, "root")
    t.run("make", "-C", REPO, "-s", "install", f"DESTDIR={root}", f"TARN={TARN}")
    paths = ["usr/local/bin/tarn", "sbin/mount.fuse.tarn", "sbin/umount.fuse.tarn", "usr/local/share/man/man1/tarn.1"]
    for path in (*paths, "etc/systemd/system/tarn@.service"):
        t.check(os.path.lexists(os.path.join(root, path)), f"{path} is missing")
    t.run(os.path.join(root, "usr/local/bin/tarn"), "version")
    t.run("make", "-C", REPO, "-s", "uninstall", f"DESTDIR={root}")
    left = [os.path.join(d, n) for d, _, names in os.walk(root) for n in names]
    t.check(not left, f"uninstall left {left}")
