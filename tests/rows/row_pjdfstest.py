"""The pjdfstest suite as root: every test for what FUSE on Linux can have."""
import os
import re

from harness import REPO, Failed, test

TOOL = os.path.join(REPO, ".tools/bin/pjdfstest")
CONFIG = os.path.join(REPO, "tests/config/pjdfstest.toml")


@test("every call and every errno that POSIX names", limit=300)
def all(t):
    config = CONFIG
    if t.local:
        # A directory that is no mount of its own cannot be remounted read-only, and the kernel's own file systems
        # take the time from the last tick, 4 ms apart.
        config = os.path.join(t.scratch, "pjdfstest.toml")
        with open(CONFIG) as source, open(config, "w") as target:
            text = source.read().replace("allow_remount = true", "allow_remount = false")
            target.write(text.replace("naptime = 0.001", "naptime = 0.01"))
    # mount(8) would hand a remount to the mount helper; with -i it asks the kernel itself.
    path = f"{REPO}/tests/lib/bin:{os.environ['PATH']}"
    out = t.run(
        TOOL, "-c", config, "-p", t.dir, "-s", "/dev/shm", limit=280, check=False, env={**os.environ, "PATH": path}
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    summary = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", plain)
    if not summary:
        raise Failed("pjdfstest did not come to its end")
    failed, skipped, passed = map(int, summary.groups())
    names = re.findall(r"^(\S+)\s+FAILED", plain, re.M)
    t.note(f"{passed} passed, {skipped} skipped")
    t.check(failed == 0, f"{failed} failed: {' '.join(names[:20])}")
    t.check(t.local or skipped == 0, f"{skipped} were skipped")
    t.check(passed > 350, "fewer tests than the suite has")
