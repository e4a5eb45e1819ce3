"""Wrong commands: what each must do, whatever is wrong with it.

One line on standard error that names the thing and says what to do, nothing on standard output, an exit status that
is not 0 and no signal's, and nothing half made: no label or claim in any bucket, no pool in the host's state, no mount,
no process."""
import os
import re
import time

from world import daemons, mounts_below

# What a line must not show: it is for people.
INNARDS = re.compile(r"panicked|os error|RUST_BACKTRACE|Err\(|Some\(|\w::\w|<\?xml|StringToSign|tarn-test-secret")
# Longest line, in characters.
LINE_MAX = 420


class Wrong:
    """One wrong command: its words, what the line must name, and a word of what it must tell to do."""

    def __init__(self, about, words, names, remedy, env=None, without=(), status=None, limit=60):
        self.about, self.words, self.names, self.remedy = about, words, names, remedy
        self.env, self.without, self.status, self.limit = env or {}, without, status, limit


def state_of(world, host):
    """All that a refused command must leave as it is. Locks and logs hold nothing of a pool."""
    buckets = {}
    for top in ("buckets", "s3"):
        for folder, _, names in os.walk(world.path(top)):
            below = os.path.relpath(folder, world.root)
            parts = below.split(os.sep)
            # Segments, metadata and epochs of a pool that is there come and go as it is opened.
            if not {"d", "m", "a", "h"} & set(parts[2:]):
                buckets.update({os.path.join(below, n): None for n in names if n != "lock"})
    state = {}
    for name in sorted(os.listdir(host.state)):
        if not name.endswith((".lock", ".log")) and not name.startswith("hostid"):
            state[name] = None
            if name.endswith(".json"):
                with open(os.path.join(host.state, name), "rb") as file:
                    state[name] = file.read()
    return {"buckets": buckets, "state": state, "mounts": mounts_below(world.root), "daemons": daemons(world.root)}


def told(t, done, case):
    """The one line."""
    lines = done.stderr.strip().splitlines()
    t.check(done.returncode != 0, f"{case.about}: it was not refused")
    t.check(done.returncode in (1, 2), f"{case.about}: exit status {done.returncode}")
    t.check(case.status in (None, done.returncode), f"{case.about}: exit status {done.returncode}")
    t.check(len(lines) == 1, f"{case.about}: {len(lines)} lines instead of one: {lines}")
    line = lines[0]
    t.check(line.startswith("tarn: "), f"{case.about}: {line}")
    t.check(not done.stdout, f"{case.about}: it prints {done.stdout!r}")
    t.check(case.names in line, f"{case.about}: the line does not name {case.names!r}: {line}")
    t.check(case.remedy in line, f"{case.about}: the line does not say {case.remedy!r}: {line}")
    t.check(len(line) <= LINE_MAX, f"{case.about}: {len(line)} characters: {line}")
    t.check(not INNARDS.search(line), f"{case.about}: innards show: {line}")
    half = line[len("tarn: "):]
    parts = [part for part in half.split(": ") if len(part) > 12]
    t.check(len(parts) == len(set(parts)), f"{case.about}: it says a thing twice: {line}")


def refuse(t, host, cases):
    """Runs each case and checks all of it."""
    good = dict(host.environment)
    for case in cases:
        print(f"-- {case.about}", flush=True)
        before = state_of(t.world, host)
        host.environment = {k: v for k, v in {**good, **case.env}.items() if k not in case.without}
        try:
            done = host.tarn(*case.words, check=False, limit=case.limit)
        finally:
            host.environment = good
        told(t, done, case)
        unchanged(t, host, before, case.about)
    return len(cases)


def unchanged(t, host, before, about):
    end = time.monotonic() + 10
    while True:
        after = state_of(t.world, host)
        if after == before:
            return
        # A process that was started for a mount may be on its way out.
        if time.monotonic() > end:
            for part in before:
                t.check(before[part] == after[part], f"{about}: {part} were {before[part]} and are {after[part]}")
        time.sleep(0.05)
