"""The benchmark: in the short form with a small file and generous floors, in the long one by its targets."""
import os
import signal
import subprocess
import sys
import time

from harness import REPO, test
from world import TARN, wait_until


# A machine that others use too is slow at times. What is badly wrong is wrong each time.
TRIES = 3


@test("ratios against the raw store", limit=600, long_limit=3600, needs="pool")
def bench(t):
    how = t.pick(["--size", "256", "--rounds", "1", "--floors"], ["--rows", "streams,small", "--peers", ""])
    binary = TARN
    if t.long:
        # Targets are for what users run.
        t.run("cargo", "build", "--release", "--locked", cwd=REPO, limit=2400)
        binary = os.path.join(REPO, "target/release/tarn")
    for _ in range(t.pick(TRIES, 1)):
        out = t.run(sys.executable, os.path.join(REPO, "bench/run"), *how, limit=3000, check=False, env={**os.environ, "TARN_BIN": binary})
        if "missed:" not in out:
            break
    rows = [line for line in out.splitlines() if "  >= " in line or "  <= " in line]
    t.check("missed:" not in out, out.splitlines()[-1])
    t.check("all figures in" in out, "the benchmark did not come to its end")
    t.note(f"{len(rows)} rows, see the log")


@test("the benchmark's slow store keeps to its latency, limits and counts", limit=120, needs="pool")
def slowstore(t):
    sys.path.insert(0, os.path.join(REPO, "bench"))
    import selftest

    server = t.world.s3(2)
    for _ in range(TRIES):
        wrong = selftest.wrong(server)
        if not wrong:
            break
    t.check(not wrong, "; ".join(wrong))


@test("tarn bench: files beside their buckets, nothing left behind", limit=120, needs="pool")
def bench_verb(t):
    pool = t.world.pool(buckets=3)
    pool.mount()
    before = sorted(os.listdir(pool.mnt))
    lines = pool.host.json("bench", "--size", "64M", pool.mnt)
    t.check([line["name"] for line in lines] == ["write", "read-4k", "read", "write-4k-sync", "small-files"], f"{lines}")
    for line in lines:
        t.check(line["buckets"] > 0 and line["files"] > 0 and 0 <= line["processor"] <= 100, f"{line}")
        t.check(line["limit"] in ("buckets", "processor", "round trips"), f"{line}")
    t.check(sorted(os.listdir(pool.mnt)) == before, "files are left")
    left = [name for vdev in pool.vdevs for _, _, names in os.walk(os.path.join(vdev, "tarn-check")) for name in names]
    t.check(left == [], f"objects are left: {left[:3]}")
    # A host that is interrupted leaves nothing either.
    words = [TARN, "bench", "--size", "4G", pool.mnt]
    with subprocess.Popen(words, env=pool.host.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        wait_until(lambda: len(os.listdir(pool.mnt)) > len(before), 20, "its folder")
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        t.check(running.wait(timeout=60) == 1, "an interrupted bench ended well")
        t.check(b"interrupted" in running.stderr.read(), "nothing was said of it")
    t.check(sorted(os.listdir(pool.mnt)) == before, "an interrupted bench left files")
    done = pool.host.tarn("bench", t.scratch, check=False)
    t.check(done.returncode == 2 and "is in no mounted dataset" in done.stderr, f"{done.returncode}: {done.stderr}")
