"""Several hosts and one pool: another host's view of it, handing it over, and owners that are stopped and go on."""
import os
import signal

from harness import Skipped
from load import Workers
from world import Host, Pool, wait_until


def other_host(t, pool, name="other-host"):
    """The same pool as another host sees it: a state directory and a mountpoint of its own."""
    there = Pool(t.world, Host(t.world.path(name), **pool.host.environment), pool.name, pool.vdevs)
    there.mnt = t.world.path("mnt", name)
    os.makedirs(there.mnt)
    there.gone = True
    return there


def points(t):
    """The names of all points at which a process can be told to end or to stop."""
    listed = t.world.host.tarn("points", check=False)
    if listed.returncode:
        raise Skipped("a build without debug assertions has no points")
    return listed.stdout.split()


def scan(pool):
    return [word for vdev in pool.vdevs for word in ("-d", vdev)]


def refused(t, done, *words):
    """The command must have failed with one line that has these words."""
    lines = done.stderr.strip().splitlines()
    t.check(done.returncode != 0, "it was not refused")
    t.check(len(lines) == 1, f"{len(lines)} lines instead of one: {lines}")
    for word in words:
        t.check(word in lines[0], f"the line does not say {word!r}: {lines[0]}")


def hand_over(t, old, new):
    """From here on the pool is the new host's; what the world does at the end it does there."""
    old.gone, new.gone = True, False
    t.world.pools.append(new)


def append(path, count):
    """Appends lines with fsync; returns how many were acknowledged."""
    done = 0
    try:
        with open(path, "a") as file:
            for n in range(count):
                file.write(f"line {n}\n")
                file.flush()
                os.fsync(file.fileno())
                done += 1
    except OSError as e:
        print(f"  after {done} lines: {e}")
    return done


def lines(path):
    with open(path) as file:
        return len(file.readlines())


def stopped(pool):
    """Whether the daemon, or who is to become it, is stopped."""
    states = []
    for pid in pool.daemons():
        with open(f"/proc/{pid}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return "T" in states


def resume(pool):
    for pid in pool.daemons():
        os.kill(pid, signal.SIGCONT)


def take_over(t, there, name="new"):
    """The other host takes the pool by force and works on it; gives its load."""
    there.host.tarn("pool", "import", "-f", *scan(there), "tank")
    there.mount()
    load = Workers(there.mnt, t.scratch, name, 2)
    wait_until(lambda: load.acknowledged() > 20, 30, "the new owner works")
    return load
