"""One host at a time: a pool in use is refused to others, and -f hands it over for good.

Pools of local directories are held by a lock that ends with its process; those in buckets by numbered epochs, so
that even a host that is out of reach can be relieved. The second kind is tested in row s3, with these functions."""
import contextlib
import os
import random
import signal
import subprocess
import time

from harness import Failed, test
from hosts import append, hand_over, lines, other_host, points, refused, resume, scan, stopped, take_over
from load import Workers
from world import TARN, wait_until


@test("a mounted pool is refused to others, even with -f; after export it is free", limit=120, needs="pool")
def export(t):
    pool = t.world.pool(buckets=3)
    there = other_host(t, pool)
    pool.mount()
    t.check(append(os.path.join(pool.mnt, "log"), 20) == 20, "the owner cannot write")
    refused(t, there.host.tarn("pool", "import", *scan(pool), "tank", check=False), "in use")
    # The owner is a live process on this machine: no force takes its disks.
    refused(t, there.host.tarn("pool", "import", "-f", *scan(pool), "tank", check=False), "in use")
    pool.umount()
    pool.host.tarn("pool", "export", "tank")
    there.host.tarn("pool", "import", *scan(pool), "tank")
    there.mount()
    t.check(lines(os.path.join(there.mnt, "log")) == 20, "acknowledged lines are lost")
    # The first host has let go and cannot come back without an import.
    t.check(pool.host.tarn("mount", "tank", pool.mnt, check=False).returncode != 0, "mounted what was exported")
    hand_over(t, pool, there)


@test("a pool that was not exported needs -f; its old host is refused from then on", limit=120, needs="pool")
def force(t):
    pool = t.world.pool(buckets=3)
    there = other_host(t, pool)
    pool.mount()
    t.check(append(os.path.join(pool.mnt, "log"), 20) == 20, "the owner cannot write")
    pool.umount()
    refused(t, there.host.tarn("pool", "import", *scan(pool), "tank", check=False), "tank", "-f")
    there.host.tarn("pool", "import", "-f", *scan(pool), "tank")
    there.mount()
    t.check(lines(os.path.join(there.mnt, "log")) == 20, "acknowledged lines are lost")
    there.umount()
    refused(t, pool.host.tarn("mount", "tank", pool.mnt, check=False), "tank")
    # It gets the pool back as any other host does.
    refused(t, pool.host.tarn("pool", "import", *scan(pool), "tank", check=False), "tank", "-f")
    pool.host.tarn("pool", "import", "-f", *scan(pool), "tank")
    pool.mount()
    t.check(lines(os.path.join(pool.mnt, "log")) == 20, "acknowledged lines are lost")


def races(t, pool, count):
    """Two hosts import at nearly the same moment, again and again: whoever is second may come before the first has asked,
    while it takes the pool, or when it has it."""
    pool.host.tarn("pool", "export", "tank")
    pool.gone = True
    hosts = [other_host(t, pool, f"host{n}") for n in range(2)]
    command, rng, won = [TARN, "pool", "import", *scan(pool), "tank"], random.Random(count), [0, 0]
    for number in range(count):
        running, pause = [], rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 0.1)])
        for h in rng.sample(hosts, 2):
            running.append((h, subprocess.Popen(command, env=h.host.env(), stderr=subprocess.PIPE, text=True)))
            time.sleep(pause)
        errors = {h: process.communicate(timeout=60)[1] for h, process in running}
        winners = [h for h, process in running if process.returncode == 0]
        if len(winners) != 1:
            raise Failed(f"round {number}: {len(winners)} hosts have the pool; {list(errors.values())}")
        loser = hosts[1 - hosts.index(winners[0])]
        told = errors[loser].strip()
        t.check(told and "\n" not in told, f"the loser was told: {told!r}")
        t.check("tank" in told or "in use" in told, f"the loser was told: {told!r}")
        won[hosts.index(winners[0])] += 1
        if number % 10 == 0:
            # Who has it can use it, and the other cannot.
            winners[0].mount()
            t.check(append(os.path.join(winners[0].mnt, "log"), 1) == 1, "the winner cannot write")
            t.check(loser.host.tarn("mount", "tank", loser.mnt, check=False).returncode != 0, "the loser has it mounted")
            winners[0].umount()
        winners[0].host.tarn("pool", "export", "tank")
    hosts[0].host.tarn("pool", "import", *scan(pool), "tank")
    hosts[0].mount()
    t.check(lines(os.path.join(hosts[0].mnt, "log")) == (count + 9) // 10, "acknowledged lines are lost")
    hosts[0].umount()
    hosts[0].host.tarn("check", "--data", "tank")
    t.note(f"{count} races, won {won[0]} to {won[1]}")


@test("of two hosts that import at once one wins and the other is refused in a line", limit=180, needs="pool")
def race(t):
    races(t, t.world.pool(buckets=2), t.pick(6, 200))


def sleeper(t, pool):
    """An owner that was suspended wakes up when another host has its pool."""
    there = other_host(t, pool)
    pool.mount()
    old = Workers(pool.mnt, t.scratch, "old", 3)
    wait_until(lambda: old.acknowledged() > 20, 30, "the owner works")
    for pid in pool.daemons():
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stopped(pool), 10, "the owner is stopped")
    new = take_over(t, there)
    before = new.acknowledged()
    resume(pool)
    with woken(pool):
        # What the old mount's programs wait for comes back, as an error unless it was durable before.
        old.end()
        t.check(append(os.path.join(pool.mnt, "late"), 30) == 0, "the old owner acknowledged a line")
        wait_until(lambda: new.acknowledged() > before + 20, 30, "the new owner goes on")
        refused(t, pool.host.tarn("fs", "create", "tank/late", check=False, limit=60), "tank", "taken over")
    new.stop()
    there.remount_cold()
    t.check(not os.path.exists(os.path.join(there.mnt, "late")), "what the old owner wrote reached the pool")
    checked = old.verify(there.mnt) + new.verify(there.mnt)
    there.umount()
    there.host.tarn("check", "--data", "tank")
    refused(t, pool.host.tarn("mount", "tank", pool.mnt, check=False), "tank", "in use by host")
    t.note(f"{checked} acknowledged files checked")
    hand_over(t, pool, there)


@contextlib.contextmanager
def woken(pool):
    """The old owner, for as long as it is looked at; it lets go in the end."""
    yield
    pool.host.tarn("umount", "-f", pool.mnt, check=False)
    wait_until(lambda: not pool.daemons(), 60, "the end of the old owner")


@test("an owner that was suspended and taken over acknowledges nothing when it wakes, and nothing of it reaches the pool",
      limit=120, needs="pool")
def suspended(t):
    sleeper(t, t.world.pool(buckets=3, options=["-o", "authority=bucket"]))


@test("a host that slept between asking and opening the database does no harm to who has taken the pool meanwhile",
      limit=120, needs="pool")
def slept(t):
    """Opening the database fences whoever has it open: here the wrong one."""
    points(t)
    pool = t.world.pool(buckets=3, options=["-o", "authority=bucket"])
    there = other_host(t, pool)
    pool.mount()
    t.check(append(os.path.join(pool.mnt, "log"), 20) == 20, "the owner cannot write")
    pool.umount()
    for point in ("open.confirmed", "open.built"):
        owner, other = (pool, there) if point == "open.confirmed" else (there, pool)
        command = [TARN, "mount", "tank", owner.mnt]
        environment = {**owner.host.env(), "TARN_STOP_AT": point}
        mounting = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: stopped(owner), 30, f"the old owner stops at {point}")
        load = take_over(t, other, name=point.replace(".", ""))
        before = load.acknowledged()
        resume(owner)
        told = mounting.communicate(timeout=60)[1].strip()
        t.check(mounting.returncode != 0 and "taken over" in told and "\n" not in told, f"the old owner said {told!r}")
        wait_until(lambda: load.acknowledged() > before + 20, 30, "the new owner goes on")
        load.stop()
        t.check(append(os.path.join(other.mnt, "log"), 5) == 5, "the new owner cannot write")
        other.remount_cold()
        load.verify(other.mnt)
        other.umount()
    pool.mount()
    t.check(lines(os.path.join(pool.mnt, "log")) == 30, "acknowledged lines are lost")
    pool.umount()
    pool.host.tarn("check", "--data", "tank")


@test("a host that slept while it wrote labels leaves the new owner's, and what the new owner had changed",
      limit=120, needs="pool")
def slept_at_label(t):
    """Labels are replaced whole: an old one over the new one would take the pool back to what it was."""
    points(t)
    pool = t.world.pool(buckets=2, options=["-o", "authority=bucket"])
    there = other_host(t, pool)
    environment = {**pool.host.env(), "TARN_STOP_AT": "label.first:2"}
    # The first time is the opening of the pool, the second one is the change itself.
    words = [TARN, "pool", "set", "comment=old", "tank"]
    setting = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: stopped(pool), 30, "the old owner stops while it writes labels")
    there.host.tarn("pool", "import", "-f", *scan(there), "tank")
    there.host.tarn("fs", "create", "tank/new")
    there.host.tarn("pool", "set", "comment=new", "tank")
    resume(pool)
    told = setting.communicate(timeout=60)[1].strip().splitlines()
    # The first line is the point's own.
    t.check(setting.returncode != 0 and len(told) == 2 and "taken over" in told[1], f"the old owner said {told}")
    comment = there.host.tarn("pool", "get", "-H", "-o", "value", "comment", "tank").stdout.strip()
    t.check(comment == "new", f"the comment is {comment!r}")
    t.check("tank/new" in there.host.tarn("fs", "list", "-r", "tank").stdout, "the new owner's dataset is gone")
    hand_over(t, pool, there)
