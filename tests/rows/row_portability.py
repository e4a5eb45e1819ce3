"""The buckets alone are enough: carried elsewhere, under other names, they are the same file system."""
import os
import shutil

import tree
from harness import test
from sample import crates
from world import Host, Pool


@test("export, copy the buckets elsewhere under other names, import on another host: same content", limit=180, needs="pool")
def carry(t):
    pool = t.world.pool(buckets=5, options=["-O", "compression=zstd"])
    pool.host.tarn("fs", "create", "tank/home")
    pool.mount()
    for crate in crates(t.pick(10, 60)):
        shutil.copytree(crate, os.path.join(pool.mnt, "home", os.path.basename(crate)), symlinks=True)
    tree.make_extras(os.path.join(pool.mnt, "extras"), each=t.pick(20, 100))
    tree.make_big(os.path.join(pool.mnt, "big"), t.pick(64, 1024) << 20)
    t.check(pool.host.tarn("fs", "list", "-H", "-o", "name").stdout.split() == ["tank", "tank/home"], "fs list")
    before = tree.manifest(pool.mnt)
    pool.umount()
    pool.host.tarn("pool", "export", pool.name)
    t.check("tank" not in pool.host.tarn("pool", "list", "-H").stdout, "an exported pool is still listed")

    elsewhere = t.world.path("elsewhere")
    os.makedirs(elsewhere)
    moved = []
    for n, vdev in enumerate(pool.vdevs):
        moved.append(os.path.join(elsewhere, f"disk-{'edcba'[n]}"))
        # Contents alone: what a bucket is must not hang on owners, times or attributes of its files.
        t.run("cp", "-r", "--no-preserve=all", vdev, moved[-1])
        shutil.rmtree(vdev)
    shutil.rmtree(pool.host.state)
    pool.gone = True

    there = Pool(t.world, Host(t.world.path("other-host")), "tank", moved)
    t.world.pools.append(there)
    scan = [word for vdev in moved for word in ("-d", vdev)]
    shown = there.host.tarn("pool", "import", *scan).stdout
    t.check("tank" in shown, "import without a name does not show the pool")
    there.host.tarn("pool", "import", *scan, "tank")
    there.mount()
    wrong = tree.compare(before, tree.manifest(there.mnt))
    t.check(not wrong, f"{len(wrong)} names differ: {wrong[:3]}")
    t.note(f"{len(before)} names")
    # A name is enough from now on, and the pool can be written.
    there.umount()
    there.mount()
    with open(os.path.join(there.mnt, "new"), "w") as file:
        file.write("written elsewhere")
    status = there.host.tarn("pool", "status", "tank").stdout
    t.check(all(path in status for path in moved), "status does not show where the buckets are now")


@test("import under another name", limit=60, needs="pool")
def rename(t):
    pool = t.world.pool(buckets=2)
    pool.mount()
    with open(os.path.join(pool.mnt, "file"), "w") as file:
        file.write("kept")
    pool.umount()
    pool.host.tarn("pool", "export", "tank")
    scan = [word for vdev in pool.vdevs for word in ("-d", vdev)]
    pool.host.tarn("pool", "import", *scan, "tank", "other")
    pool.name = "other"
    pool.mount()
    with open(os.path.join(pool.mnt, "file")) as file:
        t.check(file.read() == "kept", "the content is another")
