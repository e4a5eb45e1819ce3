"""Equal load: every bucket carries its share, and one that is added takes its share of what comes next."""
import os

from harness import test
from world import du

MIB = 1 << 20


def write_files(folder, size, piece=64 * MIB):
    """Writes `size` random bytes in files of `piece` bytes, and makes them durable."""
    os.makedirs(folder)
    for n in range(size // piece):
        with open(os.path.join(folder, f"file{n}"), "wb", buffering=0) as file:
            for _ in range(piece // (4 * MIB)):
                file.write(os.urandom(4 * MIB))
            os.fsync(file.fileno())


def iostat(pool):
    """What `tarn pool iostat -v -p -H` says: allocated bytes by bucket."""
    lines = pool.host.tarn("pool", "iostat", "-v", "-p", "-H", pool.name).stdout.splitlines()
    rows = [line.split("\t") if "\t" in line else line.split() for line in lines]
    return {row[0].strip(): int(row[1]) for row in rows if len(row) > 2 and row[1].isdigit()}


@test("the least used of 12 buckets holds 95 % of the mean; a 13th takes its share", limit=180, needs="pool")
def stripe(t):
    size = t.pick(1024, 8192) * MIB
    pool = t.world.pool(buckets=12)
    pool.mount()
    write_files(os.path.join(pool.mnt, "first"), size)
    used = [du(v) for v in pool.vdevs]
    mean = sum(used) / len(used)
    t.note(f"least {min(used) / mean:.1%} and most {max(used) / mean:.1%} of the mean {mean / MIB:.0f} MiB")
    t.check(min(used) >= 0.95 * mean, f"the least used holds {min(used) / mean:.1%} of the mean")
    t.check(sum(used) >= size, "the buckets hold less than was written")

    shown = iostat(pool)
    for vdev, bytes in zip(pool.vdevs, used):
        t.check(vdev in shown, f"iostat does not name {vdev}: {list(shown)}")
        t.check(abs(shown[vdev] - bytes) < 0.05 * bytes, f"iostat says {shown[vdev]} of {vdev}, du {bytes}")

    new = t.world.buckets(1, prefix="new")[0]
    pool.host.tarn("pool", "add", pool.name, new)
    pool.vdevs.append(new)
    t.check(du(new) < MIB, "pool add moved data")
    before = [du(v) for v in pool.vdevs]
    write_files(os.path.join(pool.mnt, "second"), size // 2)
    grown = [du(v) - b for v, b in zip(pool.vdevs, before)]
    mean = sum(grown) / len(grown)
    t.note(f"the 13th took {grown[-1] / mean:.1%} of the mean of the next {size // 2 // MIB} MiB")
    t.check(grown[-1] >= 0.95 * mean, f"the added bucket took {grown[-1] / mean:.1%} of the mean")
    t.check(min(grown) >= 0.5 * mean, "adding a bucket left another without its share")
