"""What the programs in this directory share: a register of checks, each run in an empty directory of its own, and
the system calls that Python lacks. `python3 tests/posix/names.py DIR` runs one program's checks below DIR."""
import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
import traceback

_checks = []
_libc = ctypes.CDLL(None, use_errno=True)

# Set by the runner when DIR is on the kernel's own file system: some answers differ there, by right.
LOCAL = "--local" in sys.argv


def check(body):
    """Registers a check: it gets an empty directory (its working directory too), and passes when it returns."""
    _checks.append(body)
    return body


def main():
    root = os.path.abspath(next(word for word in sys.argv[1:] if not word.startswith("-")))
    os.umask(0o022)
    failed = 0
    for body in _checks:
        folder = os.path.join(root, body.__name__)
        os.mkdir(folder)
        os.chdir(folder)
        # A call that never returns would otherwise end with the whole test and not say which it was.
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(60)
        try:
            body(folder)
            print(f"ok      {body.__name__}", flush=True)
        except (Exception, KeyboardInterrupt):
            failed += 1
            print(f"FAILED  {body.__name__}\n{traceback.format_exc()}", flush=True)
        signal.alarm(0)
    print(f"{len(_checks) - failed} of {len(_checks)} checks hold")
    sys.exit(1 if failed else 0)


@contextlib.contextmanager
def refused(*wanted):
    """The body must fail with one of these errors."""
    try:
        yield
    except OSError as e:
        names = [errno.errorcode[w] for w in wanted]
        assert e.errno in wanted, f"{errno.errorcode.get(e.errno, e.errno)} instead of {names}"
    else:
        raise AssertionError(f"succeeded instead of {[errno.errorcode[w] for w in wanted]}")


def write(path, data=b"", mode=0o644):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR | os.O_CREAT, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def child(body):
    """Runs `body` in a child process and returns its pid; an exception makes it exit with 1."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def succeeded(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def as_user(uid, gid, body):
    """Runs `body` in a child as another user, without further groups, and says whether it passed."""

    def switched():
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        body()

    return succeeded(child(switched))


def _call(name, *args):
    result = getattr(_libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


AT_FDCWD = -100
NOREPLACE, EXCHANGE = 1, 2
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32


def rename2(a, b, flags):
    """renameat2(2), with NOREPLACE or EXCHANGE."""
    _call("renameat2", AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), flags)


def fallocate(fd, mode, offset, length):
    _call("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


def link_open_file(fd, path):
    """Gives a name to a file opened with O_TMPFILE."""
    _call("linkat", AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, os.fsencode(path), 0x400)


def syncfs(fd):
    _call("syncfs", fd)


def acl(*entries):
    """A POSIX ACL in the kernel's form; entries are (tag, permissions, id). Tags: 1 owner, 2 user, 4 owning
    group, 8 group, 16 mask, 32 others."""
    packed = [struct.pack("<HHI", tag, perm, 0xFFFFFFFF if number is None else number) for tag, perm, number in entries]
    return struct.pack("<I", 2) + b"".join(packed)


def shell(command):
    return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout
