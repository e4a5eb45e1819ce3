"""What a power loss leaves of directories that a program wrote to.

A kernel that goes down with the power loses what was not synced. Here the program runs under strace, which tells of every
call by which it changes these directories or makes them durable, and is then killed. From that and from the directories as
they are a copy is made in which what no sync covered is lost, or not, as a seed decides:

- Names (made, replaced, removed) are durable when, after the call that changed them, an fsync of their directory or a
  syncfs began, and returned before the end. Each other name is as it was at some moment since it was durable.
- The content of a file is durable when an fsync of it or a syncfs began after the last write to it, and returned.
  Otherwise the file may be whole, cut, empty, or have zeros for pages.

This is harsher than most file systems: an fsync of a file does not make its name durable, that of a directory not the
directory's own, and names are lost in no order."""
import os
import re
import shutil
import threading

CALLS = "writev,renameat,renameat2,linkat,unlinkat,mkdirat,fsync,fdatasync,syncfs"
PAGE = 4096

LINE = re.compile(r"^(\d+) +(.*)$")
RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
DONE = re.compile(r"^(\w+)\((.*)\) += (-?\d+)")
WORD = re.compile(r'\d+<([^>]*)>(?:\(deleted\))?|"([^"]*)"')


def command(trace):
    """What to put before a program's own command line."""
    return ["strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-o", trace, "-e", f"trace={CALLS}"]


def calls(path):
    """The calls that returned well, as (begun, returned, name, words); begun and returned are lines of the trace."""
    open_calls, found = {}, []
    with open(path, errors="replace") as file:
        for number, line in enumerate(file):
            pid, text = LINE.match(line.rstrip("\n")).groups()
            begun = number
            resumed = RESUMED.match(text)
            if resumed:
                if pid not in open_calls:
                    continue
                begun, start = open_calls.pop(pid)
                text = start + resumed.group(1)
            if text.endswith("<unfinished ...>"):
                open_calls[pid] = (number, text[:-len("<unfinished ...>")].rstrip())
                continue
            done = DONE.match(text)
            if done and int(done.group(3)) >= 0:
                words = [a or b for a, b in WORD.findall(done.group(2))]
                found.append((begun, number, done.group(1), words))
    return sorted(found, key=lambda call: call[1])


class File:
    """A file that the program wrote, or that was there before it."""

    def __init__(self, old=False):
        # Lines at which writes had returned, and those at which what covers them began.
        self.written, self.synced, self.old = -1, -1, old


class Name:
    """What a path was from some line of the trace on: a File, FOLDER or None."""

    def __init__(self, since, what):
        self.since, self.what = since, what


FOLDER = "folder"


class Watch:
    """Looks at the directories while the program runs, and keeps every file that it sees, so that one that was removed
    without a sync can come back."""

    def __init__(self, roots, keep):
        self.roots, self.keep, self.seen = roots, keep, {}
        os.makedirs(keep)
        self.before = dict(self.look())
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def look(self):
        """Every path, and what it is: an inode number, or FOLDER."""
        for root in self.roots:
            for folder, folders, names in os.walk(root):
                for name in folders:
                    yield os.path.join(folder, name), FOLDER
                for name in names:
                    path = os.path.join(folder, name)
                    try:
                        number = os.lstat(path).st_ino
                        kept = os.path.join(self.keep, str(number))
                        if not os.path.exists(kept):
                            os.link(path, kept)
                    except FileNotFoundError:
                        continue
                    inodes = self.seen.setdefault(path, [])
                    if number not in inodes:
                        inodes.append(number)
                    yield path, number

    def run(self):
        while not self.stopped.wait(0.03):
            for _ in self.look():
                pass

    def end(self):
        """Call when the program has ended."""
        self.stopped.set()
        self.thread.join()
        self.after = dict(self.look())


class Loss:
    """All that may have been lost."""

    def __init__(self, watch, trace):
        self.watch = watch
        self.names = {path: [Name(-1, FOLDER if what is FOLDER else File(old=True))] for path, what in watch.before.items()}
        # Where the last fsync of each folder began that returned, and the last syncfs: what happened before is durable.
        self.folder_syncs, self.synced, self.last = {}, -1, 0
        for call in calls(trace):
            self.apply(*call)
        self.settle()

    def ours(self, path):
        return any(path == root or path.startswith(root + "/") for root in self.watch.roots)

    def now(self, path):
        states = self.names.get(path)
        return states[-1].what if states else None

    def become(self, path, line, what):
        self.names.setdefault(path, [Name(-1, None)]).append(Name(line, what))

    def file(self, path):
        """The file at a path; one that is not known yet was made just now."""
        found = self.now(path)
        if not isinstance(found, File):
            found = File()
            self.become(path, self.last, found)
        return found

    def apply(self, begun, returned, name, words):
        self.last = returned
        if name == "syncfs":
            if self.ours(words[0]):
                self.synced = max(self.synced, begun)
            return
        path = os.path.join(*words[:2]) if name in ("unlinkat", "mkdirat") else words[0]
        if not self.ours(path):
            return
        if name == "writev":
            self.file(path).written = returned
        elif name in ("fsync", "fdatasync"):
            if isinstance(self.now(path), File):
                self.now(path).synced = max(self.now(path).synced, begun)
            else:
                self.folder_syncs[path] = max(self.folder_syncs.get(path, -1), begun)
        elif name == "mkdirat":
            self.become(path, returned, FOLDER)
        elif name == "unlinkat":
            self.become(path, returned, None)
        else:
            source, target = os.path.join(*words[0:2]), os.path.join(*words[2:4])
            file = self.file(source)
            self.become(target, returned, file)
            if name.startswith("rename"):
                self.become(source, returned, None)

    def settle(self):
        """Where the trace and the directories do not agree, a call was under way at the end."""
        for path in set(self.names) | set(self.watch.after):
            there, known = self.watch.after.get(path), self.now(path)
            if (there is None, there is FOLDER) != (known is None, known is FOLDER):
                self.become(path, self.last + 1, FOLDER if there is FOLDER else there and File())
        unseen = [
            p for p, n in self.names.items()
            if isinstance(n[-1].what, File) and not n[-1].what.old and n[-1].what.written < 0
            and n[-1].since <= self.last and os.path.getsize(p) > 0
        ]
        if unseen:
            raise AssertionError(f"written by a call that is not traced: {unseen[0]}")

    def durable_name(self, path, name):
        return name.since <= max(self.synced, self.folder_syncs.get(os.path.dirname(path), -1))

    def durable_content(self, file):
        return file.written <= max(self.synced, file.synced)

    def kept(self, path, at):
        """Where the content of a path's state number `at` still lies; None if nobody kept it."""
        states = self.names[path]
        if at == len(states) - 1:
            return path
        inodes = self.watch.seen.get(path, [])
        files = [n for n, state in enumerate(states) if isinstance(state.what, File)]
        # All that were there were seen, or nobody knows which.
        number = inodes[files.index(at)] if len(files) == len(inodes) else None
        return None if number is None else os.path.join(self.watch.keep, str(number))

    def leave(self, rng, how, copies):
        """Makes a copy of each root, and gives how many names and contents are lost. `how`: `all` that can be lost is,
        `some` of it, or all `after` a moment."""
        moment = rng.randrange(self.last + 2)
        lost, chosen = 0, {}
        for path, states in sorted(self.names.items()):
            least = max(n for n, state in enumerate(states) if self.durable_name(path, state) or n == 0)
            last = len(states) - 1
            if how == "all":
                at = least
            elif how == "some":
                at = rng.randint(least, last)
            else:
                at = max([n for n, state in enumerate(states) if state.since <= moment and n >= least], default=least)
            while isinstance(states[at].what, File) and self.kept(path, at) is None:
                at += 1
            lost += at < last
            chosen[path] = (states[at].what, at)
        for root, copy in zip(self.watch.roots, copies):
            os.makedirs(copy)
            # Parents come before what they hold; what lies in a lost directory is lost.
            for path in (p for p in chosen if p.startswith(root + "/")):
                what, at = chosen[path]
                target = os.path.join(copy, os.path.relpath(path, root))
                if what is None or not os.path.isdir(os.path.dirname(target)):
                    continue
                if what is FOLDER:
                    os.mkdir(target, 0o700)
                    continue
                shutil.copyfile(self.kept(path, at), target)
                if not self.durable_content(what) and (how != "after" or what.written > moment):
                    lost += damage(target, "empty" if how == "all" else rng.choice(["whole", "empty", "cut", "zeros"]), rng)
        return lost


def damage(path, how, rng):
    """Loses content that was not synced; gives whether anything is lost."""
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        if how == "empty":
            file.truncate(0)
        elif how == "cut":
            file.truncate(rng.randrange(size // PAGE + 1) * PAGE)
        elif how == "zeros":
            for page in range(0, size, PAGE):
                if rng.random() < 0.5:
                    file.seek(page)
                    file.write(bytes(min(PAGE, size - page)))
    return how != "whole" and size > 0
