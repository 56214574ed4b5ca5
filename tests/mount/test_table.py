# SPDX-License-Identifier: Apache-2.0
"""The effect of each storage fault on readers of open files, by view and method of reading,
compared with the table in docs/reliability.md (tables.py explains how it is written).

Nothing here depends on time. A fault affects exactly the request that reads a given range, or
happens between two reads of one reader. Each reader has its own checkpoint, so that none finds what
another has cached, and the mount does not prefetch.
"""

import errno
import os
import pickle
import select
import shutil
import signal
import subprocess
import time

import oracle
import pytest
import readers
import tables
from conftest import BUILD, SLOW, Died, Mount, child, eventually, mounted_at, no_leak_check, preload
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
SHARD = "model-00001-of-00002.safetensors"
SIZE = 2 << 20
AT = SIZE * 3 // 4  # offset of the fault in the tensor "w"
LIMIT = 10  # seconds: the documented limit
VIEWS = ("merged", "shards", "re-cut", "tensors")
CELLS = [(view, method) for view in VIEWS for method in readers.METHODS]
OTHERS = "others"  # a checkpoint without faults

# fault: rules of slowfs. {file}: the shard; {at}: the range that is read; {other}: another version
BY_RULE = {
    "reads are delayed": "read {file} {at} delay=200000",
    "reads hang until released": "read {file} {at} hang",
    "`EIO` once": "read {file} {at} error=EIO x1",
    "`EIO`, permanently": "read {file} {at} error=EIO",
    "`ESTALE` once, as from NFS": "read {file} {at} error=ESTALE x1",
    "`ESTALE`, permanently": "read {file} {at} error=ESTALE",
    "a reply is too short": "read {file} {at} short=512",
    "reads return zeros": "read {file} {at} zeros",
    "truncated while it is read": "read {file} {at} truncate=100000 x1",
    "rewritten in place while it is read": "read {file} {at} rewrite x1",
    "replaced by rename while it is read": "read {file} {at} replace={other} x1",
    "removed while it is read": "read {file} {at} remove x1",
    "permission revoked, file not read before": "open {file} error=EACCES",
    "permission revoked while the file is read": "open {file} error=EACCES",
}
# faults that end only when the file is put back (zeros stay in the page cache)
TO_HEAL = ("zeros", "truncate", "rewrite", "replace", "remove")




def complement(path, _):
    """Rewrites in place. The times of two versions must differ by a clock tick."""
    time.sleep(0.05)
    with open(path, "r+b") as f:
        data = f.read()
        f.seek(0)
        f.write(data.translate(bytes(range(255, -1, -1))))


# Changes of a local file that the daemon has open: (path, path of another version)
LOCALLY = {
    "truncated, on a local disk": lambda path, _: os.truncate(path, 100_000),
    "rewritten in place, on a local disk": complement,
    "replaced by rename, on a local disk": lambda path, other: os.rename(other, path),
    "removed, on a local disk": lambda path, _: os.unlink(path),
}
# Whether SOURCE is on the other file system or contains it; how it ends (None: it is killed).
UNMOUNTED = {
    "its file system is unmounted (`umount -l`) and mounted again": (False, ["fusermount3", "-uz"]),
    "the server of its file system is killed and restarted": (False, None),
    "SOURCE itself is unmounted (`umount -l`) and mounted again": (True, ["fusermount3", "-uz"]),
    "the server of SOURCE itself is killed and restarted": (True, None),
}
SHORT_CALLS = "system calls read less than requested"


class Waiting:
    """A process that has a file open and reads a page of it on request."""

    def __init__(self, path, method, want, at, first):
        out, self.into = os.pipe()
        self.out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.into)
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGBUS, signal.SIG_DFL)  # not pytest's faulthandler
                os.write(into, pickle.dumps(self.read(path, method, want, at, first, out, into)))
            finally:
                os._exit(0)
        os.close(out)
        os.close(into)

    @staticmethod
    def read(path, method, want, at, first, out, into):
        """Called in the child; returns the result of the read."""
        with readers.OpenFile(path, method, (want,)) as file:
            if first:
                file.check(at - AT // 2, readers.BLOCK)
            os.write(into, b"r")
            os.read(out, 1)
            try:
                got = file.get(at, readers.BLOCK)
            except OSError as error:
                return f"`{errno.errorcode[error.errno]}`"
        if got == want[at:at + readers.BLOCK]:
            return "right"
        return "zeros" if got == bytes(readers.BLOCK) else f"wrong bytes: {got[:16].hex()}"

    def take(self, seconds):
        """Part of the child's output; b"": none within that time; None: the child has ended."""
        ready, _, _ = select.select([self.out], [], [], seconds)
        return (os.read(self.out, 4096) or None) if ready else b""

    def prepare(self):
        assert self.take(LIMIT * SLOW) == b"r", "it cannot open the file, or read its beginning"

    def go(self):
        os.write(self.into, b"g")

    def waits(self):
        return not select.select([self.out], [], [], 0)[0]

    def outcome(self):
        output = self.take(LIMIT * SLOW)
        assert output != b"", f"no answer in {LIMIT} s:\n{readers.where(self.pid)}"
        _, status = os.waitpid(self.pid, 0)
        self.pid = None
        return pickle.loads(output) if output else f"`{signal.Signals(os.WTERMSIG(status)).name}`"

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.into)
        os.close(self.out)


@pytest.fixture(scope="session")
def prepared(shared_place):
    """A checkpoint for each view and method, each with another version of its first shard, and one
    more."""
    source = trees.Source(shared_place / "prepared")
    for name in [f"{view}-{method}" for view, method in CELLS] + [OTHERS]:
        tensors = [trees.tensor("w", "U8", (SIZE,)), trees.tensor("x", "U8", (5000,))]
        c = source.add(name, "model", tensors, shards=2)
        new = [trees.tensor("w", "U8", (SIZE,), seed="another")]
        source.place(f"{name}/another", trees.file_bytes(new))
        assert c.shards[0][0] == SHARD
    return source


@pytest.fixture(scope="session")
def contents(fstfs, prepared, shared_place):
    """{(view, checkpoint): (path in the mount, content)} of the files that contain "w". From
    separate mounts, so that nothing is cached in the tested one."""
    found = {}
    for view in VIEWS:
        m = Mount(shared_place, prepared.root, *(["--shards=1"] if view == "re-cut" else []))
        part = os.fsencode(f"{m.path}/{'shards' if view == 're-cut' else view}/")
        for path, want in oracle.plain_files(m.path, prepared):
            name = os.fsdecode(path[len(part):]).split("/")[0]
            if path.startswith(part) and prepared.checkpoints[0].tensors[0].data in want:
                relative = os.path.relpath(os.fsdecode(path), m.path).split("/", 1)
                found[view, name] = f"{relative[0]}/{{}}{relative[1]}", want
        assert m.finish() == []
    return found


class Stage:
    """A source with faults, its mounts, and a reader for each view and method."""

    def __init__(self, mount, prepared, contents, place):
        self.mount, self.prepared, self.contents, self.place = mount, prepared, contents, place
        self.root = place / "s"
        shutil.copytree(prepared.root, self.root / "d")
        for directory, _, names in os.walk(self.root):  # nothing from the page cache
            for name in names:
                fd = os.open(os.path.join(directory, name), os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        entries, _, _ = oracle.read_header(prepared.path(f"merged-read/{SHARD}"))
        self.at = entries[0].offset + AT  # in the shard
        self.w = prepared.checkpoints[0].tensors[0].data
        self.storage = None
        self.waiting = {}

    def mount_storage(self, mountpoint=None):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        # An open file on an unmounted file system is not a leak.
        self.storage = self.mount(self.root / "d", "-o", f"valid=0,age=60,faults={self.place}/faults",
                                  binary=SLOWFS, mountpoint=mountpoint, died=True,
                                  environment=no_leak_check())
        return self.storage.path

    def mount_on(self, source, **more):
        self.mounts = {view: self.mount(source, "--prefetch=off",
                                        *(["--shards=1"] if view == "re-cut" else []),
                                        *(["--io=threads"] if more else []), **more)
                       for view in ("re-cut", "the rest")}

    def of(self, view):
        return self.mounts.get(view, self.mounts["the rest"])

    def file(self, view, name):
        """The path of the file that contains "w" in a view, and its content."""
        path, want = self.contents[view, name]
        return os.path.join(self.of(view).path, path.format(self.below)), want

    def open_all(self, first, below=""):
        """Starts a reader for each view and method with its file open."""
        self.below = below
        self.files = {(view, method): self.file(view, f"{view}-{method}") for view, method in CELLS}
        for (view, method), (path, want) in self.files.items():
            self.waiting[view, method] = Waiting(path, method, want, want.index(self.w) +
                                              AT // readers.BLOCK * readers.BLOCK, first)
        for one in self.waiting.values():
            one.prepare()

    def another(self, view, method):
        """One more reader that waits for the same request as the first of its kind."""
        path, want = self.files[view, method]
        made = Waiting(path, method, want, want.index(self.w) + AT // readers.BLOCK * readers.BLOCK,
                       False)
        made.prepare()
        made.go()
        assert eventually(lambda: "folio_wait" in readers.where(made.pid), LIMIT)
        return made

    def set(self, rule=None):
        """Sets the rule for the first shard of each reader's checkpoint; None: no fault."""
        rules = [rule.format(file=f"{view}-{method}/{SHARD}", at=f"{self.at}+1",
                             other=f"{view}-{method}/another") + "\n"
                 for view, method in CELLS] if rule else []
        new = self.place / "faults.new"
        new.write_text("".join(rules))
        os.rename(new, self.place / "faults")

    def read_all(self):
        """{(view, method): result}"""
        for one in self.waiting.values():
            one.go()
        return {cell: one.outcome() for cell, one in self.waiting.items()}

    def others_go_on(self):
        """Readers of another checkpoint are not affected, within the limit."""
        for view in VIEWS:
            file = self.file(view, OTHERS)
            for method in readers.METHODS:
                child(readers.check_files, [file], method, seconds=LIMIT)

    def heal(self):
        """Restores the files of the source."""
        for view, method in CELLS:
            path = self.root / "d" / f"{view}-{method}"
            shutil.copyfile(self.prepared.path(f"{view}-{method}", SHARD), path / "new.tmp")
            os.rename(path / "new.tmp", path / SHARD)

    def has_recovered(self):
        """Whether reopening the file reads correct bytes, without another mount."""

        def right():
            try:
                for cell, file in self.files.items():
                    child(readers.check_files, [file], cell[1], seconds=LIMIT)
                return True
            except (OSError, Died, readers.WrongBytes):
                return False

        return eventually(right, LIMIT)

    def logged(self):
        """Describes how often each file appears in the log."""
        times = {sum(f"{view}-{method}/{SHARD}" in line
                     for line in self.of(view).log_text().splitlines()) for view, method in CELLS}
        assert max(times) <= 1, "a file is logged more than once"
        return {1: "once", 0: "nothing"}[times.pop()] if len(times) == 1 else "once, if at all"


@pytest.fixture
def stage(mount, prepared, contents, place):
    made = Stage(mount, prepared, contents, place)
    yield made
    made.set()  # waiting readers may wait for it
    for one in made.waiting.values():
        one.end()


def in_words(seen, method):
    """The results for readers of all views by one method."""
    found = {view: seen[view, method] for view in VIEWS}
    assert not any("wrong" in what for what in found.values()), found
    if len(set(found.values())) == 1:
        return found.popitem()[1]
    return "; ".join(f"{view}: {what}" for view, what in found.items())


def compare(stage, what, seen, well, log):
    tables.check("storage", what, *[in_words(seen, method) for method in readers.METHODS], well, log)


@pytest.mark.parametrize("what", BY_RULE)
def test_request(stage, what):
    """A fault of one request, or of all requests for a range."""
    stage.mount_on(stage.mount_storage())
    stage.open_all(first="not read before" not in what)
    stage.set(BY_RULE[what])
    if "hang" in BY_RULE[what]:
        for one in stage.waiting.values():
            one.go()
        stage.others_go_on()
        assert all(one.waits() for one in stage.waiting.values())
        # Waiting readers can be killed, except with O_DIRECT: the kernel waits for each answer.
        for view in VIEWS:
            for method in ("read", "mmap"):
                killed = stage.another(view, method)
                os.kill(killed.pid, signal.SIGKILL)
                assert killed.outcome() == "`SIGKILL`"
                killed.end()
        stage.set()
        seen = {cell: f"waits; then {one.outcome()}" for cell, one in stage.waiting.items()}
    else:
        seen = stage.read_all()
        stage.others_go_on()
    log = stage.logged()
    stage.set()
    well = "right"
    if any(word in BY_RULE[what] for word in TO_HEAL):
        stage.heal()
        well = "right, once the file is restored"
    assert stage.has_recovered()
    compare(stage, what, seen, well, log)


@pytest.mark.parametrize("what", LOCALLY)
def test_file(stage, what):
    """Changes of a file between two reads of one reader."""
    stage.mount_on(stage.root / "d")
    stage.open_all(first=True)
    for view, method in CELLS:
        path = stage.root / "d" / f"{view}-{method}"
        LOCALLY[what](path / SHARD, path / "another")
    seen = stage.read_all()
    stage.others_go_on()
    log = stage.logged()
    stage.heal()
    assert stage.has_recovered()
    compare(stage, what, seen, "right, once the file is restored", log)


@pytest.mark.parametrize("what", UNMOUNTED)
def test_file_system(stage, place, what):
    """The source, or a part of it, is on another file system that is unmounted and mounted."""
    (place / "around/in").mkdir(parents=True)
    itself, command = UNMOUNTED[what]
    stage.mount_storage(place / "around/in")
    stage.mount_on(place / ("around/in" if itself else "around"))
    stage.open_all(first=False, below="" if itself else "in/")
    if command:
        subprocess.run([*command, stage.storage.path], check=True)
    else:
        stage.storage.signal(signal.SIGKILL)
        assert stage.storage.wait(LIMIT) is not None
    if itself and command:  # finds the directory below the unmounted file system
        for m in stage.mounts.values():
            assert eventually(lambda: os.listdir(m / "tensors") == [], LIMIT)
    seen = stage.read_all()
    if mounted_at(stage.storage.path):
        subprocess.run(["fusermount3", "-uz", stage.storage.path], check=True)
    gone = stage.storage
    stage.mount_storage(place / "around/in")
    assert stage.has_recovered()
    stage.others_go_on()
    compare(stage, what, seen, "right", stage.logged())
    for m in stage.mounts.values():
        assert m.unmount() == 0
    assert gone.wait(LIMIT) is not None
    stage.storage.unmount()


def test_short_calls(stage):
    stage.mount_on(stage.root / "d", environment=preload("short_reads", SHORT_READS=5000))
    stage.open_all(first=True)
    compare(stage, SHORT_CALLS, stage.read_all(), "right", stage.logged())


def test_table_has_no_other_rows():
    """Every row is that of a test."""
    assert tables.names("storage") == [*BY_RULE, *LOCALLY, *UNMOUNTED, SHORT_CALLS]
