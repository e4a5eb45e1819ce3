"""The benchmark: in the short form with a small file and generous floors, in the long one by its targets."""
import os
import sys

from harness import REPO, test
from world import TARN


@test("ratios against the raw store", limit=240, long_limit=3600, needs="pool")
def bench(t):
    how = t.pick(["--size", "256", "--rounds", "1", "--floors"], ["--rows", "streams,small", "--peers", ""])
    binary = TARN
    if t.long:
        # Targets are for what users run.
        t.run("cargo", "build", "--release", "--locked", cwd=REPO, limit=2400)
        binary = os.path.join(REPO, "target/release/tarn")
    out = t.run(sys.executable, os.path.join(REPO, "bench/run"), *how, limit=3000, check=False, env={**os.environ, "TARN_BIN": binary})
    rows = [line for line in out.splitlines() if "  >= " in line or "  <= " in line]
    t.check("missed:" not in out, out.splitlines()[-1])
    t.check("all figures in" in out, "the benchmark did not come to its end")
    t.note(f"{len(rows)} rows, see the log")


@test("the benchmark's slow store keeps to its latency, limits and counts", limit=90, needs="pool")
def slowstore(t):
    sys.path.insert(0, os.path.join(REPO, "bench"))
    import selftest

    wrong = selftest.wrong(t.world.s3(2))
    t.check(not wrong, "; ".join(wrong))
