"""One host at a time: a pool in use is refused to others, and -f hands it over for good.

Pools of local directories are held by a lock that ends with its process; those in buckets by numbered epochs, so
that even a host that is out of reach can be relieved. The second kind is tested in row s3, with these functions."""
import os
import subprocess

from harness import Failed, test
from hosts import append, hand_over, lines, other_host, refused, scan
from world import TARN


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
    """Two hosts import at the same moment, again and again."""
    pool.host.tarn("pool", "export", "tank")
    pool.gone = True
    hosts = [other_host(t, pool, f"host{n}") for n in range(2)]
    command = [TARN, "pool", "import", *scan(pool), "tank"]
    for number in range(count):
        running = [subprocess.Popen(command, env=h.host.env(), stderr=subprocess.PIPE, text=True) for h in hosts]
        errors = [process.communicate(timeout=60)[1] for process in running]
        winners = [h for h, process in zip(hosts, running) if process.returncode == 0]
        if len(winners) != 1:
            raise Failed(f"round {number}: {len(winners)} hosts have the pool; {errors}")
        told = errors[1 - hosts.index(winners[0])].strip()
        t.check(told and "\n" not in told, f"the loser was told: {told!r}")
        winners[0].host.tarn("pool", "export", "tank")
    t.note(f"{count} races")


@test("of two hosts that import at once one wins and the other is refused in a line", limit=180, needs="pool")
def race(t):
    races(t, t.world.pool(buckets=2), t.pick(5, 50))
