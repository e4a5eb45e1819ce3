"""Memory maps: shared between processes, private, and together with read and write."""
import mmap
import os
import signal

from checks import check, child, main, opened, read, succeeded, write

PAGE = 4096
SIZE = 64 * PAGE


@check
def a_shared_map_is_seen_by_other_processes(here):
    write("f", bytes(SIZE))
    with opened("f") as fd:
        ours = mmap.mmap(fd, SIZE)

        def other():
            with opened("f") as theirs_fd:
                theirs = mmap.mmap(theirs_fd, SIZE)
                assert theirs[PAGE:PAGE + 5] == b"hello"
                theirs[10 * PAGE:10 * PAGE + 3] = b"hi!"

        ours[PAGE:PAGE + 5] = b"hello"
        assert succeeded(child(other))
        assert ours[10 * PAGE:10 * PAGE + 3] == b"hi!"
        ours.close()


@check
def a_map_and_write_see_each_other(here):
    write("f", b"a" * SIZE)
    with opened("f") as fd:
        area = mmap.mmap(fd, SIZE)
        assert area[:4] == b"aaaa"
        os.pwrite(fd, b"bbbb", 0)
        assert area[:4] == b"bbbb"
        area[PAGE:PAGE + 4] = b"cccc"
        area.flush()
        assert os.pread(fd, 4, PAGE) == b"cccc"
        area.close()
    assert read("f")[PAGE:PAGE + 5] == b"cccca"


@check
def a_map_outlives_its_descriptor_and_its_name(here):
    write("f", bytes(SIZE))
    fd = os.open("f", os.O_RDWR)
    area = mmap.mmap(fd, SIZE)
    os.close(fd)
    os.unlink("f")
    area[5 * PAGE] = 7
    area.flush()
    assert area[5 * PAGE] == 7
    area.close()


@check
def what_a_map_changes_stays_where_it_is_whoever_appends(here):
    write("f", b"a" * SIZE)
    appends = os.O_RDWR | os.O_APPEND
    with opened("f", appends) as fd:
        area = mmap.mmap(fd, SIZE)
        area[:5] = b"hello"
        area.flush()
        area.close()
    # The kernel writes the file's pages by whichever descriptor it finds.
    with opened("f") as fd, opened("f", appends) as other:
        area, idle = mmap.mmap(fd, SIZE), mmap.mmap(other, SIZE)
        area[PAGE:PAGE + 5] = b"there"
        area.flush()
        os.write(other, b"end")
        area.close()
        idle.close()
    found = read("f")
    assert len(found) == SIZE + 3 and found[SIZE:] == b"end"
    assert found[:5] == b"hello" and found[PAGE:PAGE + 5] == b"there"


@check
def what_is_written_through_a_map_is_in_the_file_after_close(here):
    write("f", bytes(SIZE))
    with opened("f") as fd:
        area = mmap.mmap(fd, SIZE)
        area[:] = b"m" * SIZE
        area.close()
    with opened("f") as fd:
        os.fsync(fd)
    assert read("f") == b"m" * SIZE


@check
def a_private_map_keeps_to_itself(here):
    write("f", b"a" * SIZE)
    with opened("f") as fd:
        area = mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE)
        area[:4] = b"mine"
        area.close()
    assert read("f") == b"a" * SIZE


@check
def programs_run_from_the_mount(here):
    write("program", read("/bin/true"), 0o755)
    for _ in range(3):
        assert os.spawnl(os.P_WAIT, "./program", "program") == 0


@check
def a_map_past_the_end_is_a_bus_error(here):
    write("f", b"a" * SIZE)

    def touch():
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        with opened("f") as fd:
            area = mmap.mmap(fd, SIZE)
            os.ftruncate(fd, PAGE)
            assert area[0] == ord("a")
            area[2 * PAGE]

    pid = child(touch)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS


main()
