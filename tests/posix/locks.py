"""Advisory locks: BSD, POSIX and of open file descriptions, with waits that end when they should."""
import errno
import fcntl
import os
import signal
import struct
import time

from checks import check, child, main, opened, refused, succeeded, write

BUSY = (errno.EAGAIN, errno.EACCES)


def ofd(fd, command, kind, start, length):
    """fcntl with a struct flock; gives the struct back as (type, pid)."""
    packed = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, command, packed))
    return kind, pid


class Gate:
    """Lets one process wait for another's word."""

    def __init__(self):
        self.r, self.w = os.pipe()

    def open(self):
        os.write(self.w, b"x")

    def wait(self):
        assert os.read(self.r, 1) == b"x"


def holder(take, held, done):
    """A child that takes a lock, says so, and holds it until it is told."""

    def body():
        take()
        held.open()
        done.wait()

    pid = child(body)
    held.wait()
    return pid


def posix(path, kind, start=0, length=0):
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, kind, length, start)
    return fd


@check
def posix_locks_exclude_other_processes(here):
    write("f", b"x" * 100)
    held, done = Gate(), Gate()
    pid = holder(lambda: posix("f", fcntl.LOCK_EX, 10, 10), held, done)
    with opened("f") as fd:
        with refused(*BUSY):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 15)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 20)
        kind, who = ofd(fd, fcntl.F_GETLK, fcntl.F_WRLCK, 0, 100)
        assert (kind, who) == (fcntl.F_WRLCK, pid), (kind, who, pid)
        done.open()
        assert succeeded(pid)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)


@check
def posix_locks_wait_and_are_woken(here):
    write("f")
    held, done = Gate(), Gate()
    pid = holder(lambda: posix("f", fcntl.LOCK_EX), held, done)
    waiter = child(lambda: posix("f", fcntl.LOCK_EX))
    time.sleep(0.3)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "the waiter did not wait"
    done.open()
    assert succeeded(pid) and succeeded(waiter)


@check
def posix_locks_split_and_are_shared(here):
    write("f", b"x" * 100)
    with opened("f") as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
        fcntl.lockf(fd, fcntl.LOCK_UN, 20, 40)
        fcntl.lockf(fd, fcntl.LOCK_SH, 10, 0)

        def other():
            with opened("f") as theirs:
                fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 40)
                fcntl.lockf(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 0)
                for start in (0, 39, 60):
                    with refused(*BUSY):
                        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)

        assert succeeded(child(other))


@check
def any_close_ends_a_process_posix_locks(here):
    write("f")
    with opened("f") as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX)
        with opened("f"):
            pass
        assert succeeded(child(lambda: fcntl.lockf(os.open("f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))


@check
def death_ends_all_locks(here):
    for take in (
        lambda: posix("f", fcntl.LOCK_EX),
        lambda: fcntl.flock(os.open("f", os.O_RDWR), fcntl.LOCK_EX),
        lambda: ofd(os.open("f", os.O_RDWR), fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 0, 0),
    ):
        write("f")
        held, done = Gate(), Gate()
        pid = holder(lambda: globals().__setitem__("kept", take()), held, done)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert succeeded(child(take))


@check
def bsd_locks_exclude_and_are_shared(here):
    write("f")
    with opened("f") as a, opened("f") as b:
        fcntl.flock(a, fcntl.LOCK_SH)
        fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with refused(errno.EWOULDBLOCK):
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(a, fcntl.LOCK_UN)
        fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with refused(errno.EWOULDBLOCK):
            fcntl.flock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)


@check
def bsd_locks_wait_and_are_woken(here):
    write("f")
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = child(lambda: fcntl.flock(os.open("f", os.O_RDWR), fcntl.LOCK_EX))
    time.sleep(0.3)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "the waiter did not wait"
    fcntl.flock(fd, fcntl.LOCK_UN)
    assert succeeded(waiter)
    os.close(fd)


@check
def bsd_locks_belong_to_the_description(here):
    write("f")
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    copy = os.dup(fd)
    os.close(fd)
    with opened("f") as other:
        with refused(errno.EWOULDBLOCK):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(copy)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@check
def bsd_and_posix_locks_do_not_meet(here):
    write("f")
    with opened("f") as a:
        fcntl.flock(a, fcntl.LOCK_EX)
        assert succeeded(child(lambda: fcntl.lockf(os.open("f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))


@check
def locks_of_open_file_descriptions(here):
    write("f", b"x" * 100)
    with opened("f") as a, opened("f") as b:
        ofd(a, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 0, 50)
        # Two descriptions of one process exclude each other, which POSIX locks would not.
        with refused(*BUSY):
            ofd(b, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 40, 20)
        ofd(b, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 50, 50)
        with refused(*BUSY):
            fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        assert ofd(b, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, 10)[0] == fcntl.F_WRLCK
        with opened("f"):
            pass
        with refused(*BUSY):
            ofd(b, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 0, 1)

    def wait_for_it():
        ofd(os.open("f", os.O_RDWR), fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, 0, 0)

    fd = os.open("f", os.O_RDWR)
    ofd(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 0, 0)
    waiter = child(wait_for_it)
    time.sleep(0.3)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "the waiter did not wait"
    # Not by closing: the waiter has inherited the description, and with it the lock.
    ofd(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)
    assert succeeded(waiter)
    os.close(fd)


@check
def a_signal_ends_the_wait(here):
    write("f")
    for take in (
        lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX),
        lambda fd: fcntl.flock(fd, fcntl.LOCK_EX),
    ):
        held, done = Gate(), Gate()
        pid = holder(lambda: globals().__setitem__("kept", [os.open("f", os.O_RDWR)]) or take(kept[0]), held, done)

        def stop(*_):
            raise InterruptedError

        def waiter():
            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with opened("f") as fd:
                try:
                    take(fd)
                except InterruptedError:
                    return
                raise AssertionError("took a lock that is held")

        assert succeeded(child(waiter))
        done.open()
        assert succeeded(pid)
        # Nothing is left of the wait that was given up.
        assert succeeded(child(lambda: take(os.open("f", os.O_RDWR))))


@check
def a_deadlock_is_found_or_can_be_interrupted(here):
    write("f", b"xx")
    held, done = Gate(), Gate()

    def other():
        fd = os.open("f", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1)
        held.open()
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)

    with opened("f") as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
        pid = child(other)
        held.wait()
        time.sleep(0.2)

        def stop(*_):
            raise InterruptedError

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 2)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1)
            raise AssertionError("took a lock that is held")
        except InterruptedError:
            pass
        except OSError as e:
            assert e.errno == errno.EDEADLK, e
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0)
    assert succeeded(pid)


main()
