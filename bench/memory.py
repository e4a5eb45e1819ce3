"""Memory that is there.

A virtual machine may give memory that it does not use back to its host, which must find it anew at its next touch: a GiB
took 0.1 seconds of a core where the host still had it, and 0.5 to 4 where it had not, whoever asked for it. No figure
means anything beside that. So a measurement has the kernel keep what it has, and touches all of it beforehand.
"""
import contextlib
import mmap

# Blocks from 2^order pages on are given back; the last of these that a kernel takes is beyond its largest block, or it.
ORDER = "/sys/module/page_reporting/parameters/page_reporting_order"
BEYOND = (10, 11)
# Of <linux/mman.h>; Python has no name for them.
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
STEP = 1 << 30


def touch_all():
    """Has the host give all that is free, which is free again then."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
        while free() > 2 * STEP:
            memory = taken.enter_context(mmap.mmap(-1, STEP))
            memory.madvise(MADV_HUGEPAGE)
            memory.madvise(MADV_POPULATE_WRITE)


def free():
    """Bytes that nothing is in."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemFree:"))


def set_order(order):
    with open(ORDER, "w") as file:
        file.write(str(order))


@contextlib.contextmanager
def kept():
    """Meanwhile the kernel gives no memory back, where it would and can be told."""
    try:
        with open(ORDER) as file:
            before = file.read().strip()
    except OSError:
        yield
        return
    for order in BEYOND:
        with contextlib.suppress(OSError):
            set_order(order)
    try:
        touch_all()
        yield
    finally:
        with contextlib.suppress(OSError):
            set_order(before)
