"""One host at a time: a pool in use is refused to others, and -f hands it over for good."""
import os

from harness import Failed, test
from world import Host, Pool


def other_host(t, pool, name="other-host"):
    """The same pool as another host sees it: a state directory and a mountpoint of its own."""
    there = Pool(t.world, Host(t.world.path(name)), pool.name, pool.vdevs)
    there.mnt = t.world.path("mnt", name)
    os.makedirs(there.mnt)
    there.gone = True
    return there


def scan(pool):
    return [word for vdev in pool.vdevs for word in ("-d", vdev)]


def refused(t, done, *words):
    """The command must have failed with one line that has these words."""
    lines = done.stderr.strip().splitlines()
    t.check(done.returncode != 0, "it was not refused")
    t.check(len(lines) == 1, f"{len(lines)} lines instead of one")
    for word in words:
        t.check(word in lines[0], f"the line does not say {word!r}: {lines[0]}")


def authority(t, kind):
    pool = t.world.pool(buckets=3, options=["-o", f"authority={kind}"])
    there = other_host(t, pool)
    pool.mount()
    with open(os.path.join(pool.mnt, "before"), "w") as file:
        file.write("acknowledged")
        file.flush()
        os.fsync(file.fileno())
    refused(t, there.host.tarn("pool", "import", *scan(pool), "tank", check=False), "tank")
    pool.umount()
    # Not in use, but not exported either: it still belongs to the host that has it.
    refused(t, there.host.tarn("pool", "import", *scan(pool), "tank", check=False), "tank")
    pool.host.tarn("pool", "export", "tank")
    there.host.tarn("pool", "import", *scan(pool), "tank")
    there.mount()
    with open(os.path.join(there.mnt, "before")) as file:
        t.check(file.read() == "acknowledged", "the file is not what was acknowledged")
    there.umount()
    # The first host has let go and cannot come back without an import.
    t.check(pool.host.tarn("mount", "tank", pool.mnt, check=False).returncode != 0, "mounted what was exported")
    pool.gone, there.gone = True, False
    t.world.pools.append(there)


@test("authority=host: refused while held, free after export", limit=90, needs="pool")
def host(t):
    authority(t, "host")


@test("authority=bucket: refused while held, free after export", limit=90, needs="pool")
def bucket(t):
    authority(t, "bucket")


@test("import -f takes a pool over; the old host can acknowledge nothing any more", limit=120, needs="pool")
def takeover(t):
    pool = t.world.pool(buckets=3, options=["-o", "authority=bucket"])
    there = other_host(t, pool)
    pool.mount()
    acknowledged = write_until_refused(os.path.join(pool.mnt, "log"), 50)
    t.check(acknowledged == 50, "the owner cannot write")
    there.host.tarn("pool", "import", "-f", *scan(pool), "tank")
    there.mount()
    with open(os.path.join(there.mnt, "log")) as file:
        t.check(len(file.readlines()) == 50, "acknowledged lines are lost")
    # The first host still has it mounted, and does not know: it must learn before it acknowledges.
    more = write_until_refused(os.path.join(pool.mnt, "log"), 50)
    t.check(more == 0, f"the old owner acknowledged {more} lines after the takeover")
    with open(os.path.join(there.mnt, "new"), "w") as file:
        file.write("by the new owner")
        file.flush()
        os.fsync(file.fileno())
    pool.host.tarn("umount", "-f", pool.mnt, check=False)
    there.remount_cold()
    with open(os.path.join(there.mnt, "log")) as file:
        t.check(len(file.readlines()) == 50, "the old owner changed the file")
    pool.gone, there.gone = True, False
    t.world.pools.append(there)


def write_until_refused(path, count):
    """Appends lines with fsync; returns how many were acknowledged."""
    done = 0
    try:
        with open(path, "a") as file:
            for n in range(count):
                file.write(f"line {n}\n")
                file.flush()
                os.fsync(file.fileno())
                done += 1
    except OSError:
        pass
    return done


@test("of two hosts that import at once one wins and the other is refused in a line", limit=180, needs="pool")
def race(t):
    import subprocess

    from world import TARN

    pool = t.world.pool(buckets=2, options=["-o", "authority=bucket"])
    pool.host.tarn("pool", "export", "tank")
    pool.gone = True
    hosts = [other_host(t, pool, f"host{n}") for n in range(2)]
    for number in range(t.pick(5, 50)):
        running = [
            subprocess.Popen([TARN, "pool", "import", *scan(pool), "tank"], env=h.host.env(), stderr=subprocess.PIPE, text=True)
            for h in hosts
        ]
        errors = [process.communicate(timeout=60)[1] for process in running]
        winners = [h for h, process in zip(hosts, running) if process.returncode == 0]
        if len(winners) != 1:
            raise Failed(f"round {number}: {len(winners)} hosts have the pool; {errors}")
        loser = errors[1 - hosts.index(winners[0])].strip()
        t.check(loser and "\n" not in loser, f"the loser was told: {loser!r}")
        winners[0].host.tarn("pool", "export", "tank")
    t.note(f"{number + 1} races")
