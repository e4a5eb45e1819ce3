"""The slow store keeps to what it is told: latency, rates of a connection and of a bucket, failures, and its counts.
What is measured is the plain client of bench/rawstore through it."""
import statistics
import time
import urllib.error
import urllib.request

import yardstick
from stores import Slow, go_program, requests

MIB = 1 << 20
# A limit may be missed by so much: programs start and end within what is measured, and machines are busy.
OVER, UNDER = 1.08, 0.7


def speeds(store, connections, size, names):
    """Bytes a second of PUT and of GET of `size` bytes in objects of 4 MiB."""
    binary, count = go_program("rawstore"), size // yardstick.OBJECT
    words = ["put", store.endpoint, connections, count, yardstick.OBJECT, *names]
    put = yardstick.run(binary, words).speed
    keys = [f"{names[n % len(names)]}/raw/{n % 256:02x}/object-{n}" for n in range(count)]
    return put, yardstick.run(binary, ["get", store.endpoint, connections], keys).speed


def latency(store, name):
    """Seconds of a GET that has next to no body, the median of some."""
    took = []
    for _ in range(9):
        start = time.monotonic()
        answer(store, name)
        took.append(time.monotonic() - start)
    return statistics.median(took)


def answer(store, name):
    """The status of an answer, whatever it is."""
    try:
        with urllib.request.urlopen(f"{store.endpoint}/{name}", timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as refused:
        return refused.code


def wrong(server, size=48 * MIB):
    """What the slow store before `server` does otherwise than told, a line each. Takes some ten seconds."""
    lines = []

    def check(fact, text):
        if not fact:
            lines.append(text)

    def within(what, speed, limit):
        text = f"{what}: {speed / 1e6:.1f} MB/s where {limit / 1e6:.0f} are let through"
        check(speed <= limit * OVER, text)
        check(speed >= limit * UNDER, text)

    with Slow(server, first_byte_ms=20) as store:
        took = latency(store, server.names[0])
        check(0.02 <= took <= 0.05, f"an answer came after {took * 1000:.1f} ms, not 20")
    with Slow(server, connection=30e6) as store:
        for way, speed in zip(("PUT", "GET"), speeds(store, 1, size, server.names[:1])):
            within(f"{way}, one connection", speed, 30e6)
    with Slow(server, connection=30e6, bucket=40e6) as store:
        for way, speed in zip(("PUT", "GET"), speeds(store, 8, 2 * size, server.names[:2])):
            within(f"{way}, two buckets", speed, 80e6)
        methods, up, down = requests(store.counts())
        objects = 2 * size // yardstick.OBJECT
        check(methods == {"PUT": objects, "GET": objects}, f"counted {methods}, not {objects} of each")
        check((up, down) == (2 * size, 2 * size), f"counted {up} bytes up and {down} down, not {2 * size}")
        store.forget()
        check(store.counts() == {}, "counts are not forgotten")
    with Slow(server, fail_rate=1) as store:
        check(answer(store, server.names[0]) == 503, "a request passed where all are to fail")
    return lines
