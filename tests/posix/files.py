"""Contents: holes, allocation, truncation, appending, direct I/O, files without names, copies that share."""
import errno
import fcntl
import itertools
import mmap
import multiprocessing
import os
import random
import shutil
import stat
import subprocess
import time

from checks import (
    COLLAPSE, INSERT, KEEP_SIZE, LOCAL, PUNCH, ZERO, check, fallocate, link_open_file, main, opened, read, refused,
    syncfs, write,
)

K = 1024
RECORD = 128 * K


@check
def a_program_that_runs_is_not_changed(here):
    for n in range(20):
        program = f"program{n}"
        shutil.copy(shutil.which("sleep"), program)
        os.chmod(program, 0o755)
        size = os.stat(program).st_size
        running = subprocess.Popen([os.path.join(here, program), "10"])
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
            with refused(errno.ETXTBSY):
                os.open(program, flags)
        with refused(errno.ETXTBSY):
            os.truncate(program, 0)
        assert os.stat(program).st_size == size and running.poll() is None
        running.kill()
        running.wait()


@check
def seek_finds_data_and_holes(here):
    with opened("f") as fd:
        os.ftruncate(fd, 8 * RECORD)
        os.pwrite(fd, b"x" * 100, 2 * RECORD)
        os.pwrite(fd, b"y" * 100, 5 * RECORD)
        for settled in (False, True):
            if settled:
                os.fsync(fd)
            data = os.lseek(fd, 0, os.SEEK_DATA)
            assert 0 < data <= 2 * RECORD, data
            hole = os.lseek(fd, 2 * RECORD, os.SEEK_HOLE)
            assert 2 * RECORD + 100 <= hole <= 3 * RECORD, hole
            assert hole <= os.lseek(fd, hole, os.SEEK_DATA) <= 5 * RECORD
            assert os.lseek(fd, 5 * RECORD, os.SEEK_HOLE) <= 6 * RECORD
            with refused(errno.ENXIO):
                os.lseek(fd, 7 * RECORD, os.SEEK_DATA)
            assert os.lseek(fd, 7 * RECORD, os.SEEK_HOLE) == 7 * RECORD
            with refused(errno.ENXIO):
                os.lseek(fd, 8 * RECORD, os.SEEK_HOLE)


def follow(path, ready, done):
    """Reads the end of a file over and over; the exit status says whether there was a zero in it."""
    with opened(path, os.O_RDONLY) as fd:
        ready.set()
        while not done.is_set():
            at = max(0, os.fstat(fd).st_size - 6000)
            if b"\0" in os.pread(fd, 20_000, at):
                os._exit(1)


@check
def who_follows_a_log_sees_no_zeros(here):
    for reader_first in (True, False):
        log = write(f"log{reader_first}", b"")
        ready, done = multiprocessing.Event(), multiprocessing.Event()
        follower = multiprocessing.Process(target=follow, args=(log, ready, done))
        if reader_first:
            follower.start()
            assert ready.wait(10)
        fd = os.open(log, os.O_WRONLY | os.O_APPEND)
        if not reader_first:
            follower.start()
        end = time.monotonic() + 2
        for n in itertools.count():
            os.write(fd, b"x" * (37 + n % 300))
            if time.monotonic() > end:
                break
        done.set()
        follower.join(10)
        os.close(fd)
        assert follower.exitcode == 0, f"reader first: {reader_first}, {follower.exitcode}"


@check
def holes_take_no_room(here):
    with opened("f") as fd:
        os.ftruncate(fd, 1 << 40)
        os.pwrite(fd, b"end", (1 << 40) - 3)
        os.fsync(fd)
        st = os.fstat(fd)
        assert st.st_size == 1 << 40 and st.st_blocks * 512 < 1 << 20, st.st_blocks
        assert os.pread(fd, 10, (1 << 40) - 5) == b"\0\0end"


@check
def fallocate_modes(here):
    data = random.Random(1).randbytes(4 * RECORD)
    with opened(write("f", data)) as fd:
        fallocate(fd, KEEP_SIZE, 0, 8 * RECORD)
        assert os.fstat(fd).st_size == 4 * RECORD
        fallocate(fd, 0, 0, 5 * RECORD)
        assert os.fstat(fd).st_size == 5 * RECORD
        assert os.pread(fd, 6 * RECORD, 0) == data + bytes(RECORD)
        # Within records and across them; the neighbours keep every byte.
        expected = bytearray(data + bytes(RECORD))
        for mode in (PUNCH | KEEP_SIZE, ZERO | KEEP_SIZE, ZERO):
            for start, length in ((10, 20), (RECORD - 5, 10), (RECORD, RECORD), (RECORD // 2, 2 * RECORD)):
                fallocate(fd, mode, start, length)
                expected[start:start + length] = bytes(length)
                assert os.pread(fd, 6 * RECORD, 0) == expected, (mode, start, length)
        fallocate(fd, ZERO, 5 * RECORD - 10, 20)
        assert os.fstat(fd).st_size == 5 * RECORD + 10
        fallocate(fd, PUNCH | KEEP_SIZE, 0, 10 * RECORD)
        assert os.fstat(fd).st_size == 5 * RECORD + 10 and not any(os.pread(fd, 6 * RECORD, 0))
        if not LOCAL:
            for mode in (COLLAPSE, INSERT):
                with refused(errno.EOPNOTSUPP, errno.EINVAL):
                    fallocate(fd, mode, 0, RECORD)


@check
def punching_gives_room_back(here):
    with opened(write("f", random.Random(1).randbytes(8 * RECORD))) as fd:
        os.fsync(fd)
        full = os.fstat(fd).st_blocks
        fallocate(fd, PUNCH | KEEP_SIZE, RECORD, 6 * RECORD)
        os.fsync(fd)
        assert os.fstat(fd).st_blocks < full / 2


@check
def truncation_leaves_no_old_bytes(here):
    data = b"x" * (3 * RECORD)
    with opened(write("f", data)) as fd:
        for settle in (lambda: None, lambda: os.fsync(fd)):
            os.pwrite(fd, data, 0)
            settle()
            os.ftruncate(fd, RECORD + 77)
            settle()
            os.ftruncate(fd, 3 * RECORD)
            settle()
            assert os.pread(fd, 4 * RECORD, 0) == data[:RECORD + 77] + bytes(2 * RECORD - 77)
            os.ftruncate(fd, 50)
            os.pwrite(fd, b"y", 2 * RECORD)
            assert os.pread(fd, 3 * RECORD, 0) == data[:50] + bytes(2 * RECORD - 50) + b"y"
    with open("f", "wb"):
        pass
    assert os.stat("f").st_size == 0 and os.stat("f").st_blocks == 0


@check
def random_writes_equal_a_model(here):
    rng, model = random.Random(3), bytearray()
    with opened("f") as fd:
        for step in range(400):
            at, length = rng.randrange(6 * RECORD), rng.randrange(1, RECORD + RECORD // 2)
            what = rng.random()
            if what < 0.6:
                data = rng.randbytes(length)
                if len(model) < at:
                    model.extend(bytes(at - len(model)))
                model[at:at + length] = data
                os.pwrite(fd, data, at)
            elif what < 0.7:
                os.ftruncate(fd, at)
                model = model[:at] + bytes(max(0, at - len(model)))
            elif what < 0.75:
                os.fsync(fd)
            else:
                assert os.pread(fd, length, at) == model[at:at + length], f"step {step} at {at}"
        assert os.fstat(fd).st_size == len(model)
    assert read("f") == model


@check
def a_descriptor_appends_while_it_is_set_to(here):
    write("f", b"a" * 20)
    with opened("f", os.O_RDWR | os.O_APPEND) as fd:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
        os.pwrite(fd, b"X", 3)
        assert read("f") == b"aaaX" + b"a" * 16
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        os.write(fd, b"Y")
        assert read("f") == b"aaaX" + b"a" * 16 + b"Y"


@check
def append_goes_to_the_end(here):
    write("f", b"0123456789")
    with opened("f", os.O_RDWR | os.O_APPEND) as fd, opened("f") as other:
        os.write(fd, b"a")
        os.pwrite(other, b"later", 20)
        os.write(fd, b"b")
        assert read("f") == b"0123456789a" + bytes(9) + b"laterb"
        os.ftruncate(other, 3)
        os.write(fd, b"c")
        assert read("f") == b"012c"


@check
def direct_io_and_buffered_io_see_each_other(here):
    page = mmap.mmap(-1, 4 * RECORD)
    page.write(b"d" * 4 * RECORD)
    with opened("f", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as direct, opened("f") as buffered:
        assert os.writev(direct, [page]) == 4 * RECORD
        assert os.pread(buffered, 4 * RECORD, 0) == b"d" * 4 * RECORD
        os.pwrite(buffered, b"b" * 4096, RECORD)
        into = mmap.mmap(-1, 2 * 4096)
        assert os.preadv(direct, [into], RECORD) == 2 * 4096
        assert into[:] == b"b" * 4096 + b"d" * 4096
        assert os.preadv(direct, [into], 4 * RECORD) == 0


@check
def files_without_names(here):
    with opened(here, os.O_TMPFILE | os.O_RDWR) as fd:
        os.write(fd, b"made in private")
        assert os.fstat(fd).st_nlink == 0 and os.listdir() == []
        link_open_file(fd, "public")
        assert os.fstat(fd).st_nlink == 1
    assert read("public") == b"made in private"
    with opened(here, os.O_TMPFILE | os.O_RDWR | os.O_EXCL) as fd:
        os.write(fd, b"never seen")
        with refused(errno.ENOENT):
            link_open_file(fd, "forbidden")


@check
def unlinked_files_live_while_open(here):
    with opened("f") as fd:
        os.write(fd, b"x" * 3 * RECORD)
        os.unlink("f")
        assert os.listdir() == [] and os.fstat(fd).st_nlink == 0
        os.pwrite(fd, b"y", RECORD)
        os.fsync(fd)
        assert os.pread(fd, 3, RECORD - 1) == b"xyx"
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, RECORD)
        assert os.fstat(fd).st_size == RECORD
        with opened(f"/proc/self/fd/{fd}", os.O_RDONLY) as again:
            assert os.pread(again, 1, 0) == b"x"


@check
def copies_within_a_file_system(here):
    data = random.Random(1).randbytes(5 * RECORD + 123)
    write("a", data)
    with opened("a") as a, opened("b") as b:
        copied = 0
        while copied < len(data):
            n = os.copy_file_range(a, b, len(data) - copied, copied, copied)
            assert n > 0
            copied += n
        assert read("b") == data
        # Out of step with records, and within one file.
        assert os.copy_file_range(a, b, 1000, 10, RECORD + 5) == 1000
        expected = bytearray(data)
        expected[RECORD + 5:RECORD + 1005] = data[10:1010]
        assert read("b") == expected
        # The copy is a copy: neither follows the other.
        os.pwrite(a, b"changed", RECORD)
        assert read("b") == expected
        with refused(errno.EINVAL):
            os.copy_file_range(a, a, 1000, 0, 500)
        assert os.copy_file_range(a, b, 1000, 6 * RECORD, 0) == 0


@check
def a_copy_of_what_is_being_cut_is_short(here):
    def cut(stop):
        with opened("source") as fd:
            while not stop.is_set():
                os.pwrite(fd, b"S" * (8 * RECORD), 0)
                os.ftruncate(fd, 0)

    stop = multiprocessing.Event()
    cutter = multiprocessing.Process(target=cut, args=(stop,))
    write("source")
    cutter.start()
    end = time.monotonic() + 3
    try:
        with opened("source", os.O_RDONLY) as source:
            while time.monotonic() < end:
                # In step with records and out of it; a head, whole records and a tail.
                for at, to in ((0, 0), (5001, 0), (RECORD - 7, RECORD - 7)):
                    with opened("target", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as target:
                        n = os.copy_file_range(source, target, 6 * RECORD + 99, at, to)
                        assert os.fstat(target).st_size == (to + n if n else 0)
                        assert os.pread(target, 8 * RECORD, to) == b"S" * n
    finally:
        stop.set()
        cutter.join()


@check
def large_and_odd_offsets(here):
    with opened("f") as fd:
        os.pwrite(fd, b"far", (1 << 43) - 1)
        assert os.fstat(fd).st_size == (1 << 43) + 2 and os.pread(fd, 9, (1 << 43) - 1) == b"far"
        os.ftruncate(fd, 0)
        with refused(errno.EINVAL):
            os.lseek(fd, -1, os.SEEK_SET)
        assert os.pread(fd, 10, 1 << 40) == b""


@check
def set_id_bits_fall_when_others_write(here):
    from checks import as_user

    write("tool", b"x", 0o6777)

    def other():
        with opened("tool", os.O_WRONLY) as fd:
            os.write(fd, b"y")

    os.chmod(here, 0o777)
    assert as_user(65534, 65534, other)
    assert stat.S_IMODE(os.stat("tool").st_mode) == 0o777, oct(os.stat("tool").st_mode)


@check
def times_move_with_what_happens(here):
    write("f", b"x")
    os.utime("f", ns=(5, 5))
    changed = os.stat("f").st_ctime_ns
    assert os.stat("f").st_mtime_ns == 5
    read("f")
    assert os.stat("f").st_mtime_ns == 5
    with open("f", "r+b") as file:
        file.write(b"y")
    st = os.stat("f")
    assert st.st_mtime_ns > 10**18 and st.st_ctime_ns >= changed
    os.utime("f", ns=(5, 5))
    os.truncate("f", 1)
    before = os.stat(here).st_mtime_ns
    write("g")
    assert os.stat(here).st_mtime_ns >= before


@check
def sync_calls_answer(here):
    with opened("f") as fd:
        os.write(fd, b"x")
        os.fsync(fd), os.fdatasync(fd), syncfs(fd)
        with opened(here, os.O_RDONLY) as folder:
            os.fsync(folder)
        os.write(fd, b"y")
    with opened("g", os.O_RDWR | os.O_CREAT | os.O_SYNC) as fd:
        os.write(fd, b"through")
    os.sync()
    assert read("f") == b"xy" and read("g") == b"through"


main()
