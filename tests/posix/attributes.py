"""Attributes: extended ones, ACLs, modes and owners as they are inherited, special files, times, statfs."""
import errno
import os
import stat
import threading
import time

from checks import KEEP_SIZE, PUNCH, ZERO, acl, as_user, check, fallocate, main, opened, read, refused, write

OTHER = 65534


@check
def extended_attributes(here):
    write("f"), os.mkdir("d")
    for path in ("f", "d"):
        os.setxattr(path, "user.a", b"1", os.XATTR_CREATE)
        with refused(errno.EEXIST):
            os.setxattr(path, "user.a", b"2", os.XATTR_CREATE)
        with refused(errno.ENODATA):
            os.setxattr(path, "user.b", b"2", os.XATTR_REPLACE)
        os.setxattr(path, "user.a", b"\0\xff" * 500, os.XATTR_REPLACE)
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "trusted.t", b"t")
        assert os.getxattr(path, "user.a") == b"\0\xff" * 500 and os.getxattr(path, "user.empty") == b""
        assert {"user.a", "user.empty", "trusted.t"} <= set(os.listxattr(path))
        os.removexattr(path, "user.a")
        with refused(errno.ENODATA):
            os.getxattr(path, "user.a")
        with refused(errno.ENODATA):
            os.removexattr(path, "user.a")
    with refused(errno.EOPNOTSUPP):
        os.setxattr("f", "nonsense", b"x")
    with refused(errno.EINVAL):
        os.setxattr("f", "user.", b"x")
    # Made anew and there before: it cannot be both.
    with refused(errno.EEXIST):
        os.setxattr("f", "user.empty", b"x", os.XATTR_CREATE | os.XATTR_REPLACE)
    with refused(errno.ENODATA):
        os.setxattr("f", "user.none", b"x", os.XATTR_CREATE | os.XATTR_REPLACE)
    with refused(errno.ERANGE, errno.ENAMETOOLONG):
        os.setxattr("f", "user." + "n" * 300, b"x")


@check
def many_and_large_attributes(here):
    from checks import LOCAL

    write("f")
    # The kernel's own file systems keep them in a block beside the inode.
    size, count = (1000, 3) if LOCAL else (65536, 40)
    for n in range(count):
        os.setxattr("f", f"user.{n}", bytes([n]) * size)
    for n in range(count):
        assert os.getxattr("f", f"user.{n}") == bytes([n]) * size
    assert len([name for name in os.listxattr("f") if name.startswith("user.")]) == count


@check
def users_cannot_touch_what_is_not_theirs(here):
    write("f"), os.chmod(here, 0o755)
    os.setxattr("f", "user.a", b"1"), os.setxattr("f", "trusted.t", b"t")

    def other():
        assert os.getxattr("f", "user.a") == b"1"
        with refused(errno.EACCES, errno.EPERM):
            os.setxattr("f", "user.a", b"2")
        with refused(errno.EPERM, errno.ENODATA):
            os.getxattr("f", "trusted.t")
        assert "trusted.t" not in os.listxattr("f")
        with refused(errno.EPERM):
            os.chmod("f", 0o777)
        with refused(errno.EPERM):
            os.chown("f", OTHER, OTHER)
        with refused(errno.EPERM):
            os.utime("f", ns=(1, 1))
        with refused(errno.EACCES):
            write("new")

    assert as_user(OTHER, OTHER, other)


@check
def an_acl_decides(here):
    write("f", b"secret", 0o600), os.chmod(here, 0o755)
    rights = acl((1, 6, None), (2, 4, OTHER), (4, 0, None), (16, 4, None), (32, 0, None))
    os.setxattr("f", "system.posix_acl_access", rights)
    assert os.getxattr("f", "system.posix_acl_access") == rights
    # The group's bits show the mask.
    assert stat.S_IMODE(os.stat("f").st_mode) == 0o640

    def named():
        assert read("f") == b"secret"
        with refused(errno.EACCES):
            os.open("f", os.O_WRONLY)

    def stranger():
        with refused(errno.EACCES):
            os.open("f", os.O_RDONLY)

    assert as_user(OTHER, OTHER, named) and as_user(OTHER - 1, OTHER - 1, stranger)
    # chmod changes the mask, and with it what named users may do.
    os.chmod("f", 0o600)
    assert as_user(OTHER, OTHER, stranger)
    os.removexattr("f", "system.posix_acl_access")
    with refused(errno.ENODATA):
        os.getxattr("f", "system.posix_acl_access")


@check
def a_default_acl_is_inherited(here):
    os.mkdir("d")
    rights = acl((1, 7, None), (2, 6, OTHER), (4, 5, None), (16, 7, None), (32, 0, None))
    os.setxattr("d", "system.posix_acl_default", rights)
    os.umask(0o077)
    try:
        os.mkdir("d/folder"), os.close(os.open("d/file", os.O_CREAT | os.O_WRONLY, 0o666)), os.mkfifo("d/fifo", 0o666)
    finally:
        os.umask(0o022)
    assert os.getxattr("d/folder", "system.posix_acl_default") == rights
    # The umask has no say where there is a default ACL; the mode asked for limits owner, mask and others.
    assert stat.S_IMODE(os.stat("d/file").st_mode) == 0o660, oct(os.stat("d/file").st_mode)
    expected = acl((1, 6, None), (2, 6, OTHER), (4, 5, None), (16, 6, None), (32, 0, None))
    assert os.getxattr("d/file", "system.posix_acl_access") == expected
    assert os.getxattr("d/fifo", "system.posix_acl_access") == expected
    with refused(errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP):
        os.setxattr("d/file", "system.posix_acl_default", rights)
    with refused(errno.EINVAL):
        os.setxattr("d", "system.posix_acl_access", b"\2\0\0\0garbage!")


@check
def setgid_directories_pass_on_their_group(here):
    os.mkdir("d")
    os.chown("d", 0, 1234), os.chmod("d", 0o2777)
    write("d/file"), os.mkdir("d/sub")
    assert os.stat("d/file").st_gid == os.stat("d/sub").st_gid == 1234
    assert os.stat("d/sub").st_mode & stat.S_ISGID and not os.stat("d/file").st_mode & stat.S_ISGID


@check
def the_umask_applies(here):
    os.umask(0o027)
    try:
        os.mkdir("d", 0o777), os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o666))
    finally:
        os.umask(0o022)
    assert stat.S_IMODE(os.stat("d").st_mode) == 0o750 and stat.S_IMODE(os.stat("f").st_mode) == 0o640


@check
def chown_drops_set_id_bits(here):
    write("f", b"", 0o6755)
    os.chown("f", 1000, 1000)
    assert stat.S_IMODE(os.stat("f").st_mode) == 0o755
    st = os.stat("f")
    assert (st.st_uid, st.st_gid) == (1000, 1000)
    os.chown("f", 2**31 + 5, 2**32 - 2)
    assert (os.stat("f").st_uid, os.stat("f").st_gid) == (2**31 + 5, 2**32 - 2)


@check
def who_changes_content_takes_set_id_bits_away(here):
    os.chmod(here, 0o755)
    write("source", b"s" * (1 << 20)), os.chmod("source", 0o644)

    def changes(fd, source):
        yield lambda: os.pwrite(fd, b"z", 0)
        yield lambda: fallocate(fd, 0, 0, 1 << 20)
        yield lambda: fallocate(fd, KEEP_SIZE | PUNCH, 0, 4096)
        yield lambda: fallocate(fd, ZERO, 0, 4096)
        yield lambda: os.copy_file_range(source, fd, 4096)
        yield lambda: os.copy_file_range(source, fd, 1 << 20, 0, 0)
        yield lambda: os.ftruncate(fd, 5)

    def change(number):
        def body():
            with opened("f", os.O_RDWR) as fd, opened("source", os.O_RDONLY) as source:
                list(changes(fd, source))[number]()

        return body

    write("f", b"x" * 8192)
    for number in range(len(list(changes(0, 0)))):
        os.chmod("f", 0o6777)
        assert os.stat("f").st_mode & 0o7777 == 0o6777
        assert as_user(OTHER, OTHER, change(number)), f"change {number}"
        assert os.stat("f").st_mode & 0o7777 == 0o777, f"change {number}"


@check
def special_files(here):
    os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod("disk", 0o660 | stat.S_IFBLK, os.makedev(259, 70000))
    assert os.stat("null").st_rdev == os.makedev(1, 3) and os.stat("disk").st_rdev == os.makedev(259, 70000)
    os.mknod("socket", 0o755 | stat.S_IFSOCK)
    assert stat.S_ISSOCK(os.stat("socket").st_mode)
    os.mkfifo("fifo")
    got = []
    reader = threading.Thread(target=lambda: got.append(read("fifo")))
    reader.start()
    write("fifo", b"through the fifo")
    reader.join(10)
    assert got == [b"through the fifo"]


@check
def sockets_can_be_bound_and_reached(here):
    import socket

    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        server.listen()
        client.connect("s")
        accepted, _ = server.accept()
        client.sendall(b"hi")
        assert accepted.recv(2) == b"hi"
        accepted.close()


@check
def times_hold_nanoseconds_and_far_years(here):
    from checks import LOCAL

    write("f")
    # ext4 ends in 2446 and begins in 1901.
    far = [(-1, -1_000_000_001)] if LOCAL else [(2**35 * 10**9 + 1, -(2**33) * 10**9 + 5), (-1, -1_000_000_001)]
    for atime, mtime in [(123_456_789, 987_654_321), *far]:
        os.utime("f", ns=(atime, mtime))
        assert (os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns) == (atime, mtime)
    os.symlink("f", "l")
    os.utime("l", ns=(7, 8), follow_symlinks=False)
    assert os.lstat("l").st_mtime_ns == 8 and os.stat("f").st_mtime_ns != 8


@check
def access_times_follow_relatime(here):
    write("f", b"x")
    os.utime("f", ns=(1, 2 * 10**18))
    read("f")
    first = os.stat("f").st_atime_ns
    assert first > 10**18, "an access time older than the modification must move"
    # Younger than the modification and than the change that utime itself is.
    os.utime("f", ns=(time.time_ns() + 10**10, 5))
    before = os.stat("f").st_atime_ns
    read("f")
    assert os.stat("f").st_atime_ns == before, "a young access time must stay"


@check
def statfs_makes_sense(here):
    st = os.statvfs(here)
    assert st.f_bsize > 0 and st.f_blocks >= st.f_bfree >= 0 and st.f_bavail <= st.f_bfree
    assert st.f_files >= st.f_ffree > 0 and st.f_namemax == 255
    with opened("f") as fd:
        assert os.fstatvfs(fd).f_blocks == st.f_blocks


@check
def inode_numbers_last(here):
    write("f")
    number = os.stat("f").st_ino
    os.rename("f", "g")
    assert os.stat("g").st_ino == number
    with os.scandir() as entries:
        assert next(entries).inode() == number


main()
