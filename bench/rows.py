"""The rows of the benchmark: what each measures, against what, and how much is enough."""
from typing import NamedTuple, Optional

PEERS = ("s3fs", "rclone", "gcsfuse")


class Row(NamedTuple):
    name: str
    # Which module measures it, for --rows.
    group: str
    about: str
    # B/s, s, /s, B/B, requests, round trips, x (a ratio).
    unit: str
    # Whose figures Tarn's are compared with: "raw", "peers" (the best of them), "nothing", "cap", "single"; with "" the
    # figure itself is judged.
    against: str
    # At least, or at most where less is better; None where nothing is promised.
    target: Optional[float]
    # For --floors: what a debug build on a busy machine reaches. None: not measured then.
    floor: Optional[float]
    # In plain words, for the page.
    words: str
    less: bool = False

    def kept(self, judged, bound):
        return bound is None or (judged <= bound if self.less else judged >= bound)


def stream(name, about, target, words, floor=None, against="raw"):
    return Row(name, "streams", about, "B/s", against, target, floor, words)


def seconds(name, group, about, target, words, floor=None):
    return Row(name, group, about, "s", "", target, floor, words, less=True)


COLD = "Before it the file system is unmounted, the kernel's caches are dropped, and it is mounted again."

STREAMS = [
    stream(
        "s3-read-buffered", "S3: cold read of one file, buffered", 0.7,
        f"One file, read from its start to its end in calls of 1 MiB. {COLD} Raw is a GET of the very objects "
        "that hold the file.",
        0.15,
    ),
    stream(
        "s3-read-direct", "S3: cold read of one file, O_DIRECT", 0.8, "The same, around the kernel's page cache.",
        0.15,
    ),
    stream(
        "s3-read-four", "S3: cold read of four files at once", 0.8,
        "Four readers, a file each, a quarter of the bytes each.",
    ),
    stream(
        "s3-write", "S3: write of one file with fsync", 0.95,
        "One file of bytes that cannot be compressed, in calls of 1 MiB, and fsync; for a peer whose fsync does "
        "not reach its store, until its uploads are done. Raw is a PUT of as many bytes in objects of 4 MiB.",
        0.25,
    ),
    stream(
        "s3-write-four", "S3: write of four files at once, with fsync", 0.95,
        "Four writers, a file each, a quarter of the bytes each.",
    ),
    stream(
        "local-read", "local buckets: cold read of one file", 0.3,
        "A pool of 12 directories in the place of buckets. Raw is cat of the files that hold the file.", 0.08,
    ),
]
CAPPED = [
    Row(
        f"capped-{rate}-{how}", "capped", f"12 buckets of {rate} MB/s: cold read of one file, {text}", "B/s", "raw",
        0.95, None,
        f"Every bucket lets through {rate} MB/s and answers after 20 ms. A peer has one bucket, as it cannot use "
        "more. Raw is a GET of the same objects from the same store.",
    )
    for rate in (60, 100)
    for how, text in (("buffered", "buffered"), ("direct", "O_DIRECT"))
]
SUSTAINED = [
    Row(
        "sustained-read", "sustained", "12 buckets of 40 MB/s: minutes of reading, O_DIRECT", "B/s", "cap", 0.9,
        None,
        "A file is read again and again, for five minutes, by a mount that has too little memory to keep it. "
        "Compared with what the twelve limits let through together.",
    ),
    Row(
        "sustained-balance", "sustained", "12 buckets of 40 MB/s: least used bucket, of the mean", "x", "", 0.95,
        None, "Bytes that the least used bucket gave during that read, of the mean of all.",
    ),
]
SMALL = [
    seconds(
        f"{kind}-small-write", "small", f"{text}: untar of 5,000 small files and sync", 1.2,
        "An archive of 5,000 files, 50 MB in 787 directories, unpacked by tar, and fsync of its directory.", floor,
    )
    for kind, text, floor in (("local", "local", 15.0), ("s3", "S3", 20.0))
] + [
    seconds(
        f"{kind}-small-read", "small", f"{text}: cold read of 5,000 small files", 0.8,
        f"find, and cat of every file. {COLD}", floor,
    )
    for kind, text, floor in (("local", "local", 15.0), ("s3", "S3", 20.0))
] + [
    seconds(
        f"{kind}-small-rm", "small", f"{text}: rm -rf of 5,000 small files", 0.5,
        "rm -rf of the tree that was just read.",
    )
    for kind, text in (("local", "local"), ("s3", "S3"))
]
TREE = [
    seconds(
        "tree-untar", "tree", "S3: untar of 70,000 files and sync", 12.0,
        "A tree of the size of a kernel's: 70,000 files, 0.9 GB in 4,600 directories.",
    ),
    seconds(
        "tree-rsync-same", "tree", "S3: rsync of it, nothing changed", None,
        "rsync -a from a copy in tmpfs: all it does is to look at every file.",
    ),
    seconds(
        "tree-rsync-changed", "tree", "S3: rsync of it, 1 % changed", None,
        "The same after one file in a hundred has got a line more; with fsync of the directory.",
    ),
    seconds("tree-rm", "tree", "S3: rm -rf of it", None, "All of it removed."),
]
REQUESTS = [
    Row(
        f"requests-{name}", "requests", f"5,000 small files, {text}: requests", "requests", "", None, None,
        f"Requests that reached the store, and their price at the list of S3, by a proxy that counts. {more}",
        less=True,
    )
    for name, text, more in (
        ("untar", "untar and unmount", "Unmounting is part of it: what was not in the store is then."),
        ("read", "mount and cold read", "Mounting is part of it."),
        ("rm", "rm -rf and unmount", ""),
    )
]
RANDOM = [
    Row(
        f"{where}-{size}-{depth}", where, f"{text}: cold random reads of {size // 1024} KiB, {depth} at once", "/s",
        "peers", 3.0, None,
        f"fio, O_DIRECT, blocks of {size // 1024} KiB at random places of a file, no place twice, by {depth} "
        f"reader{'s' * (depth > 1)}. {COLD} Raw is as many requests for just these bytes. {more}",
    )
    for where, text, more in (
        (
            "random", "S3 near by",
            "On a store that answers at once whoever fetches far more than is read is not slower for it.",
        ),
        (
            "random-far", "S3 at 20 ms",
            "The store answers after 20 ms, with 60 MB/s a connection and 100 MB/s a bucket; the file is a quarter as "
            "large.",
        ),
    )
    for size in (4096, 131072)
    for depth in (1, 32)
] + [
    Row(
        "random-hot", "random", "hot random reads of 4 KiB from memory, 1 at once", "/s", "nothing", None, None,
        "The same of a file whose records are in Tarn's memory, around the kernel's page cache; a FUSE file "
        "system that does nothing beside it.",
    ),
    Row(
        "random-hot-core", "random", "hot random reads of 4 KiB from memory, without FUSE, one thread", "/s", "",
        150_000.0, None,
        "The client alone: its read call, answered from the ARC on the caller's thread (the example `hot`).",
    ),
    Row(
        "overwrite-one-byte", "random", "one-byte overwrites: bytes PUT a byte", "B/B", "", None, None,
        "256 overwrites of one byte each at random places of the file, and fsync: bytes that went to the store "
        "for each.",
        less=True,
    ),
]
SLOW = [
    Row(
        f"scale-{buckets}", "slow",
        f"20 ms, 40 MB/s a bucket: one stream over {buckets} bucket{'s' * (buckets > 1)}", "B/s", "cap", 0.95, None,
        "A store that answers after 20 ms, with 60 MB/s a connection and 40 MB/s a bucket. One cold file is "
        f"read, O_DIRECT. Compared with {buckets} times 40 MB/s.",
    )
    for buckets in (1, 2, 4, 8, 12)
] + [
    Row(
        "slow-prefetch", "slow", "20 ms: prefetch, of reading without", "B/s", "single", 5.0, None,
        "One cold file in calls of 128 KiB, O_DIRECT. Without prefetch: the same calls, mounted with prefetch=off.",
    ),
    Row(
        "slow-shuffled", "slow", "20 ms: whole files in shuffled order, of reading without prefetch", "B/s", "single",
        3.0, None,
        "Files of 256 KiB in one directory, each read whole and once, by four readers in an order that is drawn, as a "
        "training set is. Beside it the same readers and some of the files, mounted with prefetch=off.",
    ),
    Row(
        "slow-batching", "slow", "20 ms: writes in one transaction group, of a sync each", "/s", "single", 100.0,
        None,
        "Writes of 4 KiB, one after the other into one file: with one fsync at the end, against an fsync after each.",
    ),
    Row(
        "slow-files", "slow", "20 ms: new files in one transaction group, of a sync each", "/s", "single", None, None,
        "Files of 4 KiB, one after the other in one directory: with one fsync of the directory at the end, against an "
        "fsync of each.",
    ),
    Row(
        "slow-overwrite", "slow", "20 ms: overwrites of 4 KiB here and there, of one request after the other", "/s",
        "single", 10.0, None,
        "Two thousand writes of 4 KiB at random places of a cold file of 256 MiB, and an fsync after the last. Beside it a "
        "client that asks for the record of 128 KiB in which a write would lie, and for the next when it has come.",
    ),
    Row(
        "slow-large-read", "slow", "20 ms: O_DIRECT reads of 64 MiB, of one request at a time", "B/s", "single",
        10.0, None,
        "One stream in calls of 64 MiB. Beside it a client that GETs 1 MiB, the largest request that FUSE makes, "
        "after 1 MiB.",
    ),
    Row(
        "slow-large-write", "slow", "20 ms: O_DIRECT writes of 64 MiB, of one request at a time", "B/s", "single",
        10.0, None, "The same with writes, fsync after the last; beside it a client that PUTs 1 MiB after 1 MiB. "
        "*raw* here has 48 PUTs of 4 MiB on their way.",
    ),
    Row(
        "slow-fsync", "slow", "20 ms: fsync of 4 KiB, in round trips", "round trips", "", 1.3, None,
        "The median time of a write of 4 KiB and its fsync, of a plain client's median time for a PUT of 4 KiB "
        "to the same store.",
        less=True,
    ),
]
METADATA = [
    Row(
        f"meta-{what}-{threads}{'-many' * many}", "metadata",
        f"{what}, {threads} at once, {'a directory each' if many else 'one directory'}", "/s", "nothing", 0.8, None,
        "",
    )
    for what in ("create", "stat", "open", "readdir", "rename", "unlink")
    for threads, many in ((1, False), (4, False), (16, False), (16, True))
] + [
    Row(
        "meta-stat-cold", "metadata", "stat, cold, 1 at once", "/s", "peers", None, None,
        f"The first stat of every file. {COLD}",
    ),
]
MDTEST = [
    Row(
        f"mdtest-{what}", "mdtest", f"mdtest: {what}, 64 at once, one directory", "/s", "nothing", 0.8, None,
        "Sixty-four processes, a share of the files each, all in one directory.",
    )
    for what in ("create", "stat", "open", "readdir", "rename", "unlink")
] + [
    Row(
        "ior-write", "mdtest", "IOR: files of 1 MiB with fsync, 16 writers, one directory", "B/s", "", None, None,
        "Sixteen processes, sixteen files each.",
    ),
    Row("ior-read", "mdtest", "IOR: cold read of them, 16 readers", "B/s", "", None, None, COLD),
]

ROWS = {
    row.name: row
    for row in STREAMS + CAPPED + SUSTAINED + SMALL + TREE + REQUESTS + RANDOM + SLOW + METADATA + MDTEST
}
GROUPS = list(dict.fromkeys(row.group for row in ROWS.values()))
