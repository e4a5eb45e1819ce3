"""Work that is given to every system alike."""
import os
import subprocess
import threading
import time

from processor import Meter

MIB = 1 << 20


def timed(command, limit=900, **kw):
    """Seconds that a command takes. Waiting for it with a limit would look for its end twenty times a second only."""
    start = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **kw) as process:
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            late.cancel()
    took = time.monotonic() - start
    if took >= limit:
        raise subprocess.TimeoutExpired(command, limit)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took


def shell(text, limit=900):
    """Seconds that a line of shell takes."""
    return timed(["sh", "-c", text], limit)


def _write(path, size, block):
    view = memoryview(block)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        done = 0
        while done < size:
            at = done % len(block)
            done += os.write(fd, view[at:at + min(MIB, size - done)])
        os.fsync(fd)
    finally:
        os.close(fd)


def write_files(system, names, size, block):
    """Writes files of together `size` bytes that cannot be compressed, each by a thread, with fsync."""
    failed = []

    def one(name):
        try:
            _write(os.path.join(system.mnt, name), size // len(names), block)
        except OSError as error:
            failed.append(error)

    meter = Meter()
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    system.settled()
    return meter.moved(size)


def read_files(folder, names, size, direct, block="1M", limit=900):
    """Reads files of together `size` bytes at once, each by a dd."""
    words = ["iflag=direct"] if direct else []
    meter = Meter()
    running = [
        subprocess.Popen(["dd", f"if={folder}/{name}", "of=/dev/null", f"bs={block}", *words], stderr=subprocess.PIPE)
        for name in names
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=limit)
            if process.returncode:
                raise OSError(said.decode(errors="replace").strip()[:200])
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
    return meter.moved(size)


def read_whole(paths, size, readers):
    """Reads files of `size` bytes each, whole, by some threads that share them."""
    failed, each = [], iter(paths)
    turn = threading.Lock()

    def reader():
        while not failed:
            with turn:
                path = next(each, None)
            if path is None:
                return
            try:
                fd = os.open(path, os.O_RDONLY)
                got = sum(iter(lambda: len(os.read(fd, MIB)), 0))
                os.close(fd)
                if got != size:
                    raise OSError(f"{path} has {got} bytes, not {size}")
            except OSError as error:
                failed.append(error)

    meter = Meter()
    threads = [threading.Thread(target=reader) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return meter.moved(len(paths) * size)
