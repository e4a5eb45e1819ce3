"""A FUSE file system that does nothing (the example `nothing`): what the kernel takes for FUSE itself."""
import contextlib
import os
import subprocess
import time

import yardstick
from systems import System

READY_LIMIT = 10


@contextlib.contextmanager
def mounted(root, size):
    """Mounts it below `root`; gives its one file of `size` bytes, or None where it has not been built."""
    binary = yardstick.example("nothing")
    if not binary:
        yield None
        return
    folder = os.path.join(root, "nothing")
    os.makedirs(folder, exist_ok=True)
    process = subprocess.Popen([binary, folder, str(size)])
    try:
        file, limit = os.path.join(folder, "file"), time.monotonic() + READY_LIMIT
        while not os.path.exists(file):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"{binary} does not mount")
            time.sleep(0.02)
        number = os.stat(folder).st_dev
        bdi = f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb"
        with open(bdi, "w") as setting:
            setting.write("1024")
        yield file
    finally:
        subprocess.run(["umount", folder], check=False)
        process.wait(READY_LIMIT)


class Nothing(System):
    """The FUSE file system that does nothing."""

    def __init__(self, root):
        super().__init__("nothing", root)
        self.context = None

    def mount(self):
        """Whether it could be: it may not have been built."""
        self.context = mounted(self.root, 0)
        file = self.context.__enter__()
        if file:
            self.mnt = os.path.dirname(file)
        return file is not None

    def unmount(self):
        if self.context:
            self.context.__exit__(None, None, None)
            self.context = None

    def abort(self):
        self.unmount()
