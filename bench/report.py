"""What is shown of the figures: a table, JSON, plots, and the page docs/PERFORMANCE.md."""
import json
import os
import platform
import time

import plot
from processor import CORES, reachable
from rows import ROWS

# In this order wherever systems stand side by side.
ORDER = ("tarn", "raw", "plain", "cap", "single", "nothing", "ext4", "s3fs", "rclone", "gcsfuse")


def shown(value, unit):
    """A figure as people read it."""
    if value is None:
        return ""
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s" if value >= 1e9 else f"{value / 1e6:.1f} MB/s"
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "/s":
        return f"{value:,.0f} /s" if value >= 10 else f"{value:.2f} /s"
    if unit == "requests":
        return f"{value:,.0f}"
    if unit == "B/B":
        return f"{value:,.0f} B/B"
    return f"{value:.2f}"


def bound(row):
    """The target in words."""
    if row.target is None:
        return ""
    return f"{'<=' if row.less else '>='} {row.target:g}{' s' if row.unit == 's' else ''}"


def pretty(row):
    return bound(row).replace("<=", "≤").replace(">=", "≥")


def verdict(row, judged):
    if row.target is None:
        return ""
    if judged is None:
        return "not measured"
    return "" if row.kept(judged, row.target) else "MISSED"


def others(results, name):
    """Everybody's median beside Tarn's, and what is blank."""
    row = ROWS[name]
    told = ("tarn", results.opponent(name))
    parts = [
        f"{system} {shown(results.median(name, system), row.unit)}"
        for system in ORDER if system not in told and results.median(name, system) is not None
    ]
    return "; ".join(parts + [f"{system}: {reason}"[:90] for system, reason in results.blanks.get(name, {}).items()])


def table(results, rows, floors):
    """Prints all rows; gives the names of those that missed."""
    missed = []
    print(f"\n{'':70} {'Tarn':>12} {'+-':>5} {'against':>20} {'ratio':>8}  target")
    for row in rows:
        judged, opponent = results.judged(row.name), results.opponent(row.name)
        limit = row.floor if floors else row.target
        unjudged = results.unjudged.get(row.name)
        if limit is not None and not unjudged and (judged is None or not row.kept(judged, limit)):
            missed.append(row.name)
        figure = shown(results.median(row.name, "tarn"), row.unit)
        against = f"{opponent} {shown(results.median(row.name, opponent), row.unit)}" if opponent else ""
        ratio = f"{judged:.2f}" if row.against and judged is not None else ""
        spread = f"{100 * results.spread(row.name, 'tarn'):.0f}%" if figure else ""
        said = unjudged or verdict(row, judged)
        print(f"{row.about:70} {figure:>12} {spread:>5} {against:>20} {ratio:>8}  {bound(row):10} {said}")
        beside = others(results, row.name)
        if beside:
            print(f"{'':8}{beside}")
        for system, text in results.notes.get(row.name, {}).items():
            print(f"{'':8}{system}: {text}")
    costs(results, rows)
    return missed


def costs(results, rows):
    """Prints what each row takes of the processors, and the ratio that they allow for: raw, and FUSE alone, and
    nothing else, without a moment's wait."""
    rows = [row for row in rows if results.cost(row.name, "raw") and results.cost(row.name, "tarn")]
    if not rows:
        return
    print(f"\n{'core-seconds a GiB':70} {'Tarn':>8} {'raw':>8} {'FUSE alone':>11}   ratio that {CORES} cores allow for")
    for row in rows:
        raw, fuse = results.cost(row.name, "raw"), results.cost(row.name, "nothing")
        line = f"{row.about:70} {results.cost(row.name, 'tarn'):8.2f} {raw:8.2f}"
        if fuse:
            line += f" {fuse:11.2f}   {reachable(raw, fuse) / results.median(row.name, 'raw'):.2f}"
        print(line)


def record(bench, args):
    """Everything, for JSON."""
    run = {
        "when": time.strftime("%Y-%m-%d %H:%M"), "size_bytes": bench.size, "cores": CORES,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "kernel": platform.release(),
        "mdtest_files": args.mdtest,
    }
    rows = bench.results.record()
    runs = {name: {**run, "rounds": rounds_of(found, args)} for name, found in rows.items()}
    return {"rows": {name: {**found, "run": runs[name]} for name, found in rows.items()}}


def rounds_of(found, args):
    """How many there were of a row: one that broke, or is measured once, has fewer than were asked for."""
    tarn = found["systems"].get("tarn")
    return len(tarn["rounds"]) if tarn else args.rounds


def merged(record, path):
    """With the rows that an earlier run has left at `path` and this one has not measured; written there."""
    rows = {}
    if os.path.exists(path):
        with open(path) as file:
            rows = json.load(file)["rows"]
    rows.update(record["rows"])
    whole = {"rows": {name: rows[name] for name in ROWS if name in rows}}
    with open(path, "w") as file:
        json.dump(whole, file, indent=1)
        file.write("\n")
    return whole


def in_order(systems):
    return sorted(systems, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def plots(record, folder):
    """A picture for each row, NAME.svg in `folder`; gives the names of those that were drawn."""
    os.makedirs(folder, exist_ok=True)
    drawn = []
    for name, found in record["rows"].items():
        row, systems = ROWS[name], found["systems"]
        if "tarn" not in systems or len(systems) < 2:
            continue
        figures = [
            (system, one["median"], shown(one["median"], row.unit), min(one["spread"], 1))
            for system, one in ((system, systems[system]) for system in in_order(systems))
        ]
        target = row.target
        if target is not None and row.against:
            opponent = systems.get(found["against"])
            target = opponent["median"] * target if opponent else None
        with open(os.path.join(folder, f"{name}.svg"), "w") as file:
            file.write(plot.bars(row.about, figures, target))
        drawn.append(name)
    return drawn


PREAMBLE = """# Performance

This page is written by `bench/run --page` from what it measured; `make bench` runs all of it. It says how fast Tarn is
beside the raw store, beside what a local file system does, and beside other file systems over buckets, and it says as
plainly where Tarn misses what it sets itself.

## How it is measured

- Everything runs on one machine: the S3 server (versitygw), the file system and the program that uses it share its
  cores. Everything lies in tmpfs, so that no disk is measured. What the server takes of the cores is not there for the
  file system: on such a machine the raw store is a limit, not a wish.
- Each row is measured for all systems in one run, round after round, in another order each round. A figure is the
  median of the rounds; the spread is from the least to the most, in percent of it.
- *Cold* means: unmounted, the kernel's caches dropped, whatever the file system kept beside its store deleted, mounted
  again. Direct reads go around the kernel's page cache.
- *raw* is a client that moves the same objects with as many connections as suit it best, by the better of two: one in
  Go that knows nothing of Tarn, and Tarn's own bucket crate. *plain* is the former alone: what it reads goes through the
  memory of Go's library, and it sends objects without a checksum, so that the server makes one of its own choice, a slower
  one than that which Tarn sends. *cap* is what a
  store lets through by its limits. *single* is the same work one request at a time. *nothing* is a FUSE file system that
  does nothing: what the kernel takes for FUSE itself. It is mounted as Tarn is, is sent the same requests, and
  processors are kept awake for it as they are for Tarn (docs/TUNING.md, `awake`); its threads sleep in the kernel between
  requests. What is dated before 2026-11-25 19:00 was measured without that, for both. *ext4* lies on a file in tmpfs.
- A virtual machine may give memory back to its host, which finds it anew at a multiple of the cost of any row here. The
  kernel is told to keep it while this is measured, and all of it is touched before.
- Far stores are the same server behind a proxy (`bench/slowstore`) that answers after 20 ms and limits connections and
  buckets.
- Peers run as their own manuals say: s3fs with 16 uploads at once; rclone with `--vfs-cache-mode writes`, without which
  files cannot be overwritten, and what it has acknowledged counts as written when its uploads are done; gcsfuse over a
  server of GCS (fake-gcs-server, in memory), which is another server than the others have, so that its figures compare
  with theirs by order of magnitude only. s3fs downloads parts of a file to a temporary file, which lies in tmpfs. A
  peer has one bucket: none of them can use twelve.
- ZeroFS is not measured: it is reached over NFS, 9P or NBD, and whether the machine's kernel has one of them is the
  machine's affair. {zerofs}
- Rows say how they were measured: fewer than five rounds, or a file of less than 2 GiB, tell less; a short file is
  half over before a stream is at full speed.
- **MISSED** stands wherever the figure is not what was aimed at. A row without a target is there to be known.
"""

LIMIT = (
    "The limit is what would be reached on the same cores if Tarn itself took nothing of them: for streams, by what the "
    "raw client with its server and a FUSE file system that does nothing take together, without a moment's wait; for "
    "small files, by the time that the latter takes alone; for random reads, what requests for just these bytes reach of "
    "the best peer. A buffered read may go beyond it: the file system that does nothing is read through the kernel's "
    "pages, which Tarn goes around where files are large. Random reads may, where more comes by fewer requests."
)

# Found by profiles and by requests of other forms on the machine that the page's figures are of, in November 2026.
NEXT = """### What the next limit is

- **Streams from a server on the same cores.** The cores are busy for 94 % of the time, and half of that goes to
  TCP, on both ends. Beside raw and FUSE, Tarn's own is the checksum of every byte (0.04 core-seconds a
  GiB) and that bytes leave the processor's caches between the socket and the reader. Fewer segments on their way (4
  instead of 36) do not change that.
- **Writes to it.** Of all processor time 40 % is the server's MD5, which no client can turn off. Tarn's own is a copy
  from the kernel's request into the record (3 %; left out on trial, a write took 2.5 % less time), the checksums of record
  and object (3 %), and the attempt to compress what cannot be (1 %).
- **Random reads, near by.** This server spends 0.6 ms on a part of 128 KiB of a larger object, twice what it spends on
  a whole object of that size: one reader cannot be faster than its requests. 32 readers are served by whole segments: raw
  reads the whole file of 1 GiB in 0.26 s, Tarn in about 0.6.
- **Names, 16 callers with a directory each.** In a profile, when processors were not kept awake, a
  rename took 49 us of the two cores, 37 with a file system that does
  nothing: 7 of the 12 between them are Tarn's own code, the others the kernel's, for waking callers. What one step makes
  and leaves is written within 5 seconds, which may fall into another step.
- **A kernel's tree.** tar makes 10 requests a file, one after the other: lookup, create, the question for capabilities
  that chown asks, two writes, three of attributes, flush and release. With processors that may
  sleep a tree took 12.8 s, about half of each request for waking who waits on another core, and one that does nothing 16.
"""


def page(record, path):
    """Writes the page, and its plots and figures, which lie in a folder beside it. Rows that this run has not measured
    stay as they were."""
    folder = os.path.join(os.path.dirname(path), "performance")
    os.makedirs(folder, exist_ok=True)
    record = merged(record, os.path.join(folder, "figures.json"))
    drawn = plots(record, folder)
    known = [name for name in ("nfs", "9p", "nbd") if kernel_has(name)]
    zerofs = f"This one has {', '.join(known)}." if known else "The one of these figures has none of them."
    lines = [PREAMBLE.format(zerofs=zerofs)]
    summary(record, lines)
    for group, title in TITLES.items():
        rows = {name: found for name, found in record["rows"].items() if ROWS[name].group == group}
        if rows:
            section(title, rows, drawn, lines)
    with open(path, "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")


def kernel_has(name):
    with open("/proc/filesystems") as file:
        return name in file.read().split() or os.path.exists(f"/dev/{name}0")


TITLES = {
    "streams": "Streams, from a server on the same cores", "capped": "Streams, from buckets with limits",
    "sustained": "Minutes of reading", "small": "Small files", "tree": "A tree of the size of a kernel's",
    "requests": "What small files take in requests", "random": "Random reads, near by",
    "random-far": "Random reads, far away", "slow": "A store that is far away", "metadata": "Names",
    "mdtest": "Many processes, many names",
}


def measured(run, name):
    """When, and on what, in a line."""
    rounds = f"{run['rounds']} round{'s' * (run['rounds'] != 1)}"
    machine = f"{run['cores']} cores, {run['memory_bytes'] / (1 << 30):.0f} GiB of memory"
    size = f"a large file of {run['size_bytes'] >> 20} MiB"
    if name.startswith("mdtest-"):
        size = f"{run['mdtest_files']:,} files"
    return f"Measured on {run['when']}: {rounds}, {size}, {machine}, Linux {run['kernel'].split('-')[0]}."


def reached(found):
    """Whether a row's target was met, in a word."""
    if found["target"] is None:
        return ""
    if found["unjudged"]:
        return found["unjudged"]
    return "not measured" if found["met"] is None else "met" if found["met"] else "**MISSED**"


def summary(record, lines):
    """All rows with a target, in one table."""
    lines += ["## All targets", "", "| row | Tarn | compared with | ratio | target | | limit |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, found in record["rows"].items():
        row = ROWS[name]
        if row.target is None:
            continue
        tarn, opponent = found["systems"].get("tarn"), found["against"]
        beside = f"{opponent}: {shown(found['systems'][opponent]['median'], row.unit)}" if opponent else ""
        ratio = f"{found['judged']:.2f}" if row.against and found["judged"] is not None else ""
        figure = shown(tarn["median"], row.unit) if tarn else ""
        cells = (row.about, figure, beside, ratio, pretty(row), reached(found), limit(row, found))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", LIMIT, "", *NEXT.splitlines(), ""]


def limit(row, found):
    """What the machine allows for, as far as it was measured."""
    raw, fuse, opponent = (found["systems"].get(name) for name in ("raw", "nothing", found["against"]))
    if row.against == "peers" and raw and opponent:
        return f"{raw['median'] / opponent['median']:.2f}"
    if not fuse or row.against == "nothing":
        return ""
    if row.unit == "s":
        return shown(fuse["median"], row.unit)
    if not raw or None in (raw["cost"], fuse["cost"]):
        return ""
    return f"{reachable(raw['cost'], fuse['cost']) / raw['median']:.2f}"


def section(title, rows, drawn, lines):
    lines += [f"## {title}", ""]
    words = None
    for name, found in rows.items():
        row = ROWS[name]
        lines += [f"### {row.about}", ""]
        if row.words and row.words != words:
            lines += [row.words, ""]
        words = row.words
        lines += [measured(found["run"], name), ""]
        lines += ["| | median | spread | core-seconds a GiB | |", "| --- | --- | --- | --- | --- |"]
        for system in in_order(found["systems"]):
            one = found["systems"][system]
            cost = f"{one['cost']:.2f}" if one["cost"] is not None else ""
            beside = "; ".join(filter(None, (one["way"], one["note"])))
            spread = f"{100 * one['spread']:.0f} %"
            lines.append(f"| {system} | {shown(one['median'], row.unit)} | {spread} | {cost} | {beside} |")
        for system, reason in found["blank"].items():
            reason = " ".join(reason.split()).replace("|", "/")[:140]
            lines.append(f"| {system} | | | | {reason} |")
        lines.append("")
        if row.target is not None:
            ratio = ""
            if row.against and found["judged"] is not None:
                ratio = f" Tarn's figure is {found['judged']:.2f} times that of {found['against']}."
            lines += [f"Target: {pretty(row)}, {reached(found)}.{ratio}", ""]
        if name in drawn:
            lines += [f"![{row.about}](performance/{name}.svg)", ""]
