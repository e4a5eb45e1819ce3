"""Real programs on the mount, each as its users run it."""
import hashlib
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys

import tree
from harness import REPO, Failed, test
from sample import crates


GIT = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "gc.auto=0"]


def make_repository(t, path, count):
    """A repository of real files with a commit for each of `count` crates, tags and a branch."""
    t.run("git", "init", "-q", "-b", "main", path)
    for n, crate in enumerate(crates(count)):
        shutil.copytree(crate, os.path.join(path, os.path.basename(crate)), symlinks=True)
        # With what their own .gitignore names.
        t.run(GIT, "-C", path, "add", "-A", "-f", quiet=True)
        t.run(GIT, "-C", path, "commit", "-q", "-m", f"Add {os.path.basename(crate)}")
        if n % 5 == 0:
            t.run(GIT, "-C", path, "tag", f"v{n}")
    t.run(GIT, "-C", path, "branch", "side", "HEAD~2")


@test("clone, fsck, gc, commit, branch, clone again", limit=180)
def git(t):
    source, mnt = os.path.join(t.scratch, "source"), t.dir
    make_repository(t, source, t.pick(10, 100))
    clone = os.path.join(mnt, "clone")
    t.run(GIT, "clone", "-q", "--no-hardlinks", source, clone)
    t.run(GIT, "-C", clone, "fsck", "--full", "--strict", limit=600)
    with open(os.path.join(clone, "note.txt"), "w") as file:
        file.write("written on the mount\n")
    t.run(GIT, "-C", clone, "add", "note.txt")
    t.run(GIT, "-C", clone, "commit", "-q", "-m", "Add a note")
    t.run(GIT, "-C", clone, "checkout", "-q", "-b", "work", "origin/side")
    t.run(GIT, "-C", clone, "merge", "-q", "-m", "Merge main", "main")
    t.run(GIT, "-C", clone, "gc", "-q", "--prune=now", limit=900)
    t.run(GIT, "-C", clone, "fsck", "--full", "--strict", limit=600)
    # Within the mount a clone makes hard links.
    t.run(GIT, "clone", "-q", clone, os.path.join(mnt, "second"))
    t.run(GIT, "-C", os.path.join(mnt, "second"), "fsck", "--full", limit=600)
    t.check(t.run(GIT, "-C", clone, "status", "--porcelain") == "", "the working tree is not clean")
    t.run("diff", "-r", "--exclude=.git", "--exclude=note.txt", source, clone)
    t.note(f"{sum(len(f) for _, _, f in os.walk(clone))} files")


@test("WAL and rollback journal, integrity_check after all transactions", limit=180)
def sqlite(t):
    count = t.pick(300, 10_000)
    for mode in ("WAL", "DELETE"):
        path = os.path.join(t.dir, f"{mode.lower()}.db")
        expected = transactions(path, mode, count)
        if not t.local:
            t.world.pools[0].remount_cold()
        base = sqlite3.connect(path)
        verdict = base.execute("PRAGMA integrity_check").fetchone()[0]
        t.check(verdict == "ok", f"{mode}: integrity_check says {verdict}")
        t.check(dict(base.execute("SELECT id, body FROM entry")) == expected, f"{mode}: rows are not what was committed")
        base.close()
    t.note(f"{count} transactions each")


def transactions(path, mode, count):
    """Runs transactions of each kind, some rolled back, and returns what the table must hold."""
    rng, expected = random.Random(7), {}
    base = sqlite3.connect(path, isolation_level=None)
    taken = base.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
    if taken.upper() != mode:
        raise Failed(f"sqlite took journal mode {taken} instead of {mode}")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, body BLOB)")
    base.execute("CREATE INDEX by_body ON entry (body)")
    for n in range(count):
        base.execute("BEGIN IMMEDIATE")
        changed = dict(expected) if n % 50 == 0 else None
        key, body = rng.randrange(count), rng.randbytes(rng.randrange(2000))
        if rng.random() < 0.2:
            base.execute("DELETE FROM entry WHERE id = ?", (key,))
            expected.pop(key, None)
        else:
            base.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (key, body))
            expected[key] = body
        if changed is not None:
            base.execute("ROLLBACK")
            expected = changed
        else:
            base.execute("COMMIT")
    base.close()
    return expected


def source_tree(t, count):
    """A tree of real sources and of everything else that a file system keeps, on a local file system."""
    source = os.path.join(t.scratch, "tree")
    os.mkdir(source)
    for crate in crates(count):
        shutil.copytree(crate, os.path.join(source, os.path.basename(crate)), symlinks=True)
    tree.make_extras(os.path.join(source, "extras"), each=t.pick(20, 100))
    return source


@test("there and back with hard links, ACLs and attributes, then nothing left to do", limit=180)
def rsync(t):
    source, there, back = source_tree(t, t.pick(10, 60)), os.path.join(t.dir, "copy"), os.path.join(t.scratch, "back")
    # Times count to the nanosecond: by default rsync is content with the same second.
    exact = "--modify-window=-1"
    for a, b in ((source, there), (there, back)):
        t.run("rsync", "-aHAXS", exact, a + "/", b + "/")
        left = t.run("rsync", "-aHAXi", exact, "--checksum", "--dry-run", "--delete", a + "/", b + "/")
        t.check(left == "", f"rsync still sees differences: {left[:300]}")
        if not t.local:
            t.world.pools[0].remount_cold()
    wrong = tree.compare(tree.manifest(source), tree.manifest(back))
    t.check(not wrong, f"{len(wrong)} names differ: {wrong[:3]}")


@test("out of the mount, into it, and compared by tar itself", limit=180)
def tar(t):
    source, there = source_tree(t, t.pick(10, 60)), os.path.join(t.dir, "copy")
    os.mkdir(there)
    keep = ["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse"]
    archives = [os.path.join(t.scratch, name) for name in ("in.tar", "out.tar")]
    # GNU tar keeps no sockets.
    t.run("tar", keep, "--warning=no-file-ignored", "-cf", archives[0], "-C", source, ".")
    t.run("tar", keep, "-xpf", archives[0], "-C", there)
    os.mknod(os.path.join(there, "extras/odd/socket"), 0o140755)
    t.run("tar", keep, "--compare", "-f", archives[0], "-C", there)
    t.run("tar", keep, "--warning=no-file-ignored", "-cf", archives[1], "-C", there, ".")
    t.run("tar", keep, "--compare", "-f", archives[1], "-C", source)


@test("cargo builds with sources and target directory on the mount", limit=240)
def cargo(t):
    project = os.path.join(t.dir, "project")
    if t.long:
        # Tarn's own bucket crate, with all that it depends on.
        keep = ["--exclude=./target", "--exclude=./.*"]
        os.mkdir(project)
        t.run("sh", "-c", f"tar {' '.join(keep)} -C '{REPO}' -cf - . | tar -C '{project}' -xf -")
        command = ["cargo", "build", "--offline", "--locked", "-p", "tarn-bucket"]
    else:
        make_project(project)
        command = ["cargo", "build", "--offline"]
    env = {**os.environ, "CARGO_TARGET_DIR": os.path.join(project, "target")}
    t.run(command, cwd=project, env=env, limit=2400)
    again = t.run(command, cwd=project, env=env)
    t.check("Compiling" not in again, "a second build compiled again: times or contents did not hold")
    if not t.long:
        out = t.run(os.path.join(project, "target/debug/sample"))
        t.check(out == "12345\n", "the program built on the mount does not run")


def make_project(project):
    """A small program with a real crate (itoa, no dependencies) as its library."""
    itoa = next(c for c in crates_named("itoa-1"))
    os.makedirs(os.path.join(project, "src"))
    shutil.copytree(os.path.join(itoa, "src"), os.path.join(project, "itoa/src"))
    manifest = '[package]\nname = "{}"\nversion = "1.0.0"\nedition = "2021"\n\n[dependencies]\n{}\n\n[workspace]\n'
    with open(os.path.join(project, "Cargo.toml"), "w") as file:
        file.write(manifest.format("sample", 'itoa = { path = "itoa" }'))
    with open(os.path.join(project, "itoa/Cargo.toml"), "w") as file:
        file.write(manifest.format("itoa", "").replace("\n[workspace]\n", ""))
    with open(os.path.join(project, "src/main.rs"), "w") as file:
        file.write('fn main() { println!("{}", itoa::Buffer::new().format(12345u32)); }\n')


def crates_named(prefix):
    base = os.path.expanduser(os.environ.get("CARGO_HOME", "~/.cargo") + "/registry/src")
    for index in os.listdir(base):
        for name in sorted(os.listdir(os.path.join(base, index))):
            if name.startswith(prefix):
                yield os.path.join(base, index, name)


@test("written blocks carry checksums and are read back: buffered, direct, mmap", limit=240)
def fio(t):
    size, folder = t.pick("48m", "1g"), t.dir
    if not t.local:
        # Blocks written at random make many times their bytes of segments, which need not wait here for a rewind.
        t.world.pools[0].host.tarn("pool", "set", "rewind=0", t.world.pools[0].name)
    for pattern in ("write", "randwrite"):
        for name, how in (
            ("buffered", ["--ioengine=psync", "--bsrange=1k-256k", "--bs_unaligned"]),
            ("direct", ["--ioengine=psync", "--direct=1", "--bsrange=4k-1m"]),
            ("mmap", ["--ioengine=mmap", "--bs=4k"]),
        ):
            file = os.path.join(folder, f"{pattern}-{name}")
            t.run(
                "fio", f"--name={pattern}-{name}", f"--filename={file}", f"--rw={pattern}", f"--size={size}",
                "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0", "--end_fsync=1",
                "--fallocate=none",
                "--output-format=terse", how, limit=900,
            )
            os.unlink(file)
    t.note(f"6 jobs of {size}")


@test("every operation of fsx, from seeds", limit=180, long_limit=7200)
def fsx(t):
    seeds, legs, count = t.pick((1, 2), (1, 2, 3, 4, 5)), t.pick(1, 10), t.pick(10_000, 20_000)
    tool, config = os.path.join(REPO, ".tools/bin/fsx"), os.path.join(REPO, "tests/config/fsx.toml")
    # In legs: fsx 0.3.2 keeps every mapping that it reads by, and each makes all later ones slower.
    for seed, leg in itertools.product(seeds, range(legs)):
        file = os.path.join(t.dir, f"seed{seed}-{leg}")
        t.run(tool, "-f", config, "-S", str(1000 * leg + seed), "-N", str(count), "-P", t.scratch, file, limit=600)
        os.unlink(file)
    t.note(f"{len(seeds)} times {legs * count} operations")


@test("32 processes append to one file: under POSIX locks, BSD locks, and by O_APPEND alone", limit=120)
def appenders(t):
    count = t.pick(100, 2000)
    for way in ("posix", "bsd", "append"):
        path = os.path.join(t.dir, f"log-{way}")
        helper = os.path.join(REPO, "tests/posix/appender.py")
        running = [subprocess.Popen([sys.executable, helper, path, way, str(n), str(count)]) for n in range(32)]
        for process in running:
            t.check(process.wait(timeout=600) == 0, f"{way}: an appender failed")
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        by_writer = {n: [] for n in range(32)}
        for line in lines:
            # Writer, number, padding of a length of its own, and a hash over all that: a torn or mixed line shows.
            body, _, digest = line.rpartition(b" ")
            t.check(hashlib.blake2b(body, digest_size=8).hexdigest().encode() == digest, f"{way}: torn line {line[:80]!r}")
            writer, number = map(int, body.split()[:2])
            by_writer[writer].append(number)
        for writer, numbers in by_writer.items():
            t.check(numbers == list(range(count)), f"{way}: lines of writer {writer} are lost or out of order")
    t.note(f"{32 * count} lines each")


def one_after_the_other(t, short=(git, sqlite, fsx)):
    """Programs for other rows, each in an empty directory. The long form has all of them."""
    for body in t.pick(short, (git, sqlite, rsync, tar, cargo, fio, fsx)):
        body(t)
        for name in os.listdir(t.dir):
            t.run("rm", "-rf", os.path.join(t.dir, name), quiet=True)
        for name in os.listdir(t.scratch):
            t.run("rm", "-rf", os.path.join(t.scratch, name), quiet=True)
