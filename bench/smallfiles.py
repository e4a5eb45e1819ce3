"""Archives of small files, the same every time: the shape of a source tree, with text from the sources that Cargo
fetched, so that it compresses as text does."""
import io
import os
import random
import tarfile

FILES, DIRECTORIES, BYTES = 5000, 787, 50_000_000
# More than this is the same text again.
TEXT = 100_000_000


def text(size):
    """`size` bytes of real source text."""
    base = os.path.expanduser(os.environ.get("CARGO_HOME", "~/.cargo") + "/registry/src")
    found = bytearray()
    for folder, folders, names in os.walk(base):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".rs"):
                with open(os.path.join(folder, name), "rb") as file:
                    found += file.read()
                if len(found) >= size:
                    return bytes(found[:size])
    raise SystemExit(f"not enough sources in {base}: build Tarn first")


def make(path, files=FILES, directories=DIRECTORIES, size=BYTES):
    """An archive at `path` of `files` files in `directories` directories with together `size` bytes."""
    rng = random.Random(1)
    folders = ["tree"]
    while len(folders) < directories:
        folders.append(f"{rng.choice(folders[-40:])}/d{len(folders)}")
    weights = [rng.lognormvariate(0, 1.2) for _ in range(files)]
    whole = sum(weights)
    sizes = [int(w * size / whole) for w in weights]
    body, at = text(min(size, TEXT)), 0
    with tarfile.open(path, "w") as tar:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for n, length in enumerate(sizes):
            if at + length > len(body):
                at = n % 4096
            entry = tarfile.TarInfo(f"{folders[n % directories]}/file{n}.rs")
            entry.size, entry.mode, entry.mtime = length, 0o644, 1_700_000_000 + n
            tar.addfile(entry, io.BytesIO(body[at:at + length]))
            at += length
