"""Names: what they may hold, how directories list them, and how rename replaces them."""
import errno
import os
import stat
import time

from checks import EXCHANGE, NOREPLACE, check, main, opened, read, refused, rename2, write


@check
def names_are_bytes(here):
    names = [b"\xff\xfe", b"\x01\n\t", b"a" * 255, b"  ", b"-", b"~", "\u00e9".encode(), "e\u0301".encode(), b"\xed\xa0\x80"]
    for name in names:
        write(os.path.join(os.fsencode(here), name), name)
    assert sorted(os.listdir(os.fsencode(here))) == sorted(names)
    for name in names:
        assert read(os.path.join(os.fsencode(here), name)) == name


@check
def names_have_255_bytes_at_most(here):
    with refused(errno.ENAMETOOLONG):
        write(b"a" * 256)
    with refused(errno.ENAMETOOLONG):
        os.stat(b"a" * 256)
    assert os.statvfs(here).f_namemax == 255


@check
def case_matters(here):
    write("name"), write("Name")
    assert sorted(os.listdir()) == ["Name", "name"]


@check
def a_large_directory_lists_each_name_once(here):
    names = {f"file-{n:05}" for n in range(5000)}
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    listed = os.listdir()
    assert len(listed) == len(set(listed)) == 5000 and set(listed) == names
    # What is removed while the directory is read disappears; everything else is still listed once.
    seen = []
    with os.scandir() as entries:
        for n, entry in enumerate(entries):
            seen.append(entry.name)
            if n % 2 == 0:
                os.unlink(entry.name)
    assert len(seen) == len(set(seen)), "a name was listed twice"
    assert set(seen) == names, "a name was passed over while others were removed"
    assert len(os.listdir()) == 2500


@check
def rm_r_of_a_deep_and_wide_tree(here):
    for a in range(10):
        for b in range(10):
            os.makedirs(f"tree/{a}/{b}")
            for c in range(10):
                write(f"tree/{a}/{b}/{c}")
    assert os.spawnlp(os.P_WAIT, "rm", "rm", "-r", "tree") == 0
    assert os.listdir() == []


@check
def entries_tell_their_type(here):
    write("file"), os.mkdir("folder"), os.symlink("x", "link"), os.mkfifo("fifo")
    os.mknod("device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with os.scandir() as entries:
        kinds = {e.name: (e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries}
    assert kinds["file"] == (True, False, False) and kinds["folder"] == (False, True, False)
    assert kinds["link"] == (False, False, True) and kinds["fifo"] == kinds["device"] == (False, False, False)


@check
def dot_and_dotdot_lead_where_they_should(here):
    os.makedirs("a/b")
    assert os.stat("a/b/..").st_ino == os.stat("a").st_ino
    assert os.stat("a/b/.").st_ino == os.stat("a/b").st_ino
    assert os.stat("a").st_nlink == 3
    os.mkdir("c")
    os.rename("a/b", "c/b")
    assert os.stat("c/b/..").st_ino == os.stat("c").st_ino
    assert os.stat("a").st_nlink == 2 and os.stat("c").st_nlink == 3


@check
def rename_replaces_at_once(here):
    write("old", b"old"), write("new", b"new")
    with opened("old", os.O_RDONLY) as fd:
        os.rename("new", "old")
        assert read("old") == b"new" and os.pread(fd, 10, 0) == b"old"
        assert os.fstat(fd).st_nlink == 0
    assert os.listdir() == ["old"]


@check
def rename_exchange_and_noreplace(here):
    write("a", b"a"), os.mkdir("d"), write("d/inside")
    rename2("a", "d", EXCHANGE)
    assert os.path.isdir("a") and os.listdir("a") == ["inside"] and read("d") == b"a"
    with refused(errno.ENOENT):
        rename2("a", "nothing", EXCHANGE)
    with refused(errno.EEXIST):
        rename2("a", "d", NOREPLACE)
    rename2("d", "e", NOREPLACE)
    assert read("e") == b"a" and not os.path.exists("d")


@check
def rename_exchange_across_directories(here):
    os.makedirs("x/one"), os.makedirs("y"), write("y/two", b"2")
    rename2("x/one", "y/two", EXCHANGE)
    assert read("x/one") == b"2" and os.path.isdir("y/two")
    assert os.stat("x").st_nlink == 2 and os.stat("y").st_nlink == 3


@check
def rename_refuses_what_makes_no_sense(here):
    os.makedirs("a/b"), os.makedirs("full/x"), write("file"), os.mkdir("empty")
    with refused(errno.EINVAL):
        os.rename("a", "a/b/c")
    with refused(errno.ENOTEMPTY, errno.EEXIST):
        os.rename("a", "full")
    with refused(errno.EISDIR):
        os.rename("file", "a")
    with refused(errno.ENOTDIR):
        os.rename("a", "file")
    os.rename("a", "empty")
    assert os.path.isdir("empty/b")


@check
def rename_onto_another_link_of_the_same_file_does_nothing(here):
    write("a"), os.link("a", "b")
    os.rename("a", "b")
    assert sorted(os.listdir()) == ["a", "b"]


@check
def hard_links_share_everything(here):
    write("a", b"x"), os.link("a", "b")
    os.chmod("b", 0o600)
    with open("b", "ab") as file:
        file.write(b"y")
    assert read("a") == b"xy" and stat.S_IMODE(os.stat("a").st_mode) == 0o600 and os.stat("a").st_nlink == 2
    os.unlink("a")
    assert os.stat("b").st_nlink == 1 and read("b") == b"xy"
    with refused(errno.EPERM):
        os.link(here, "c")


@check
def symbolic_links_hold_any_target(here):
    for n, target in enumerate((b"relative", b"/absolute", b"\xff\xfe", b"x" * 4095)):
        os.symlink(target, f"link{n}".encode())
        assert os.readlink(f"link{n}".encode()) == target
        assert os.lstat(f"link{n}").st_size == len(target)
    with refused(errno.ENAMETOOLONG):
        os.symlink(b"x" * 4096, b"too-long")


@check
def removed_directories_stay_empty(here):
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    assert os.listdir() == []
    assert os.stat(".").st_nlink == 0
    os.chmod(".", 0o700)
    with refused(errno.ENOENT):
        write("file")


@check
def nameless_files_can_be_held_without_opening_them(here):
    write("file", b"content")
    held = os.open("file", os.O_PATH)
    os.unlink("file")
    time.sleep(1.1)  # longer than the attributes of a young file are kept
    assert os.fstat(held).st_nlink == 0
    with open(f"/proc/self/fd/{held}", "rb") as file:
        assert file.read() == b"content"
    os.close(held)


@check
def sticky_directories_keep_other_peoples_files(here):
    from checks import as_user

    os.chmod(here, 0o1777)
    write("mine")

    def other():
        with refused(errno.EPERM, errno.EACCES):
            os.unlink("mine")
        with refused(errno.EPERM, errno.EACCES):
            os.rename("mine", "yours")

    assert as_user(65534, 65534, other)


@check
def a_fresh_listing_sees_changes_by_an_open_handle(here):
    fd = os.open(here, os.O_RDONLY)
    write("one")
    assert os.listdir(fd) == ["one"]
    os.rename("one", "two")
    assert os.listdir(fd) == ["two"]
    os.close(fd)


main()
