"""The pjdfstest suite as root: every test for what FUSE on Linux can have."""
import os
import re

from harness import REPO, Failed, test

TOOL = os.path.join(REPO, ".tools/bin/pjdfstest")
CONFIG = os.path.join(REPO, "tests/config/pjdfstest.toml")

# Tests that are passed over on a mount, with the reasons in docs/SEMANTICS.md.
PASSED_OVER = ["link::link_count_max"]


def suite(t, config, *patterns):
    """Runs the suite, or the tests that match; gives (passed, names that failed, names passed over)."""
    # mount(8) would hand a remount to the mount helper: the first in PATH asks the kernel itself.
    path = f"{REPO}/tests/lib/bin:{os.environ['PATH']}"
    out = t.run(
        TOOL, "-c", config, "-p", t.dir, "-s", "/dev/shm", *patterns, limit=280, check=False,
        env={**os.environ, "PATH": path},
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    summary = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", plain)
    if not summary:
        raise Failed("pjdfstest did not come to its end")
    failed, skipped = (re.findall(rf"^(\S+)\s+{word}", plain, re.M) for word in ("FAILED", "skipped"))
    if len(failed) != int(summary.group(1)) or len(skipped) != int(summary.group(2)):
        raise Failed("cannot read what pjdfstest printed")
    return int(summary.group(3)), failed, skipped


def changed_config(t, **changes):
    """The configuration with some settings otherwise."""
    with open(CONFIG) as file:
        text = file.read()
    for name, value in changes.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.M)
    path = os.path.join(t.scratch, "pjdfstest.toml")
    with open(path, "w") as file:
        file.write(text)
    return path


@test("every call and every errno that POSIX names", limit=300)
def all(t):
    # The tests that remount the file system read-only run in a process of their own: others of the suite leave
    # files open for writing, after which no file system can be made read-only.
    changes = {"allow_remount": "false"}
    if t.local:
        # The kernel's own file systems take the time from the last tick, 4 ms apart.
        changes["naptime"] = "0.01"
    passed, failed, skipped = suite(t, changed_config(t, **changes))
    over = [name for name in skipped if "::erofs_" not in name]
    if not t.local:
        more, failed_read_only, over_read_only = suite(t, CONFIG, "erofs")
        passed, failed, over = passed + more, failed + failed_read_only, over + over_read_only
    t.note(f"{passed} passed, {len(over)} passed over")
    t.check(not failed, f"{len(failed)} failed: {' '.join(failed[:20])}")
    t.check(t.local or over == PASSED_OVER, f"passed over: {' '.join(over)}")
    t.check(passed > 380, "fewer tests than the suite has")
