"""What work costs in processor time, everybody's counted: clients, servers and the kernel."""
import os
import time
from typing import NamedTuple

GIB = 1 << 30
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()


class Moved(NamedTuple):
    """Bytes that were moved: how many a second, and core-seconds for each GiB."""
    speed: float
    cost: float


def busy():
    """Core-seconds in which this machine was not idle."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


class Meter:
    """Measures from when it is made."""

    def __init__(self):
        self.began, self.busy = time.monotonic(), busy()

    def seconds(self):
        return time.monotonic() - self.began

    def moved(self, size, seconds=None):
        """`size` bytes since then, in as many seconds as somebody measured nearer to them."""
        seconds = seconds or self.seconds()
        return Moved(size / seconds, (busy() - self.busy) * GIB / size)


# Seconds that settle() waits at the most.
patience = 60


def settle():
    """Waits until the machine is nearly idle, `patience` seconds at the most: what an earlier row left to do, such as
    to delete what it wrote, is not the next one's."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = busy()
        time.sleep(0.5)
        if busy() - before < 0.1:
            return


def reachable(*costs):
    """Bytes a second if processors do nothing but work of these costs, and never wait."""
    return CORES * GIB / sum(costs)
