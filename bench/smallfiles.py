"""An archive of 5,000 small files, 50 MB in 787 directories, the same every time: the shape of a source tree, with
text from the sources that Cargo fetched, so that it compresses as text does."""
import io
import os
import random
import tarfile

FILES, DIRECTORIES, BYTES = 5000, 787, 50_000_000


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


def make(path):
    rng = random.Random(1)
    folders = ["tree"]
    while len(folders) < DIRECTORIES:
        folders.append(f"{rng.choice(folders[-40:])}/d{len(folders)}")
    weights = [rng.lognormvariate(0, 1.2) for _ in range(FILES)]
    sizes = [int(w * BYTES / sum(weights)) for w in weights]
    body, at = text(BYTES), 0
    with tarfile.open(path, "w") as tar:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for n, size in enumerate(sizes):
            entry = tarfile.TarInfo(f"{folders[n % DIRECTORIES]}/file{n}.rs")
            entry.size, entry.mode, entry.mtime = size, 0o644, 1_700_000_000 + n
            tar.addfile(entry, io.BytesIO(body[at:at + size]))
            at += size
