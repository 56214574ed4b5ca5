# SPDX-License-Identifier: Apache-2.0
"""Storage that does not answer: callers that need it wait and can be killed, all others are served,
and the daemon can be stopped or killed as if the storage answered."""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import oracle
import pytest
import readers
from conftest import (BUILD, Stopwatch, as_user, become_user, child, disk_image, drop_from_page_cache, eventually,
                      mounted_at)
from corpus import trees
from page_cache import drop

SLOWFS = BUILD / "tests/slowfs/slowfs"
FUSECTL = "/sys/fs/fuse/connections"
LIMIT = 30
CALLERS_MOST = 1024
MODEL = "model.safetensors"
# Errors that a caller may get from a mount that ends while it waits.
ENDS = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO, errno.ENODEV, errno.EINTR}


class Callers:
    """Processes that repeat one call each, until they are killed or it fails."""

    def __init__(self, user=None):
        self.user = user
        self.pids = {}
        # [caller, 0]: calls started, [caller, 1]: calls that returned; in shared memory
        self.calls = memoryview(mmap.mmap(-1, 2 * 8 * CALLERS_MOST)).cast("Q", (CALLERS_MOST, 2))

    def add(self, call, *args):
        caller = len(self.pids)
        pid = os.fork()
        if pid == 0:
            status = 255
            try:
                become_user(self.user)
                while True:
                    self.calls[caller, 0] += 1
                    call(*args)
                    self.calls[caller, 1] += 1
                    time.sleep(0.01)
            except OSError as error:
                status = error.errno
            finally:
                os._exit(status)
        self.pids[pid] = None

    def count(self):
        """(calls started, calls that returned)"""
        return tuple(sum(self.calls[i, k] for i in range(len(self.pids))) for k in (0, 1))

    def reap(self):
        """Whether all have ended."""
        for pid in [pid for pid, status in self.pids.items() if status is None]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.pids[pid] = os.waitstatus_to_exitcode(status)
        return None not in self.pids.values()

    def kill(self):
        for pid, status in self.pids.items():
            if status is None:
                os.kill(pid, signal.SIGKILL)

    def left(self):
        return sum(status is None for status in self.pids.values())


def read_one(path):
    with open(path, "rb") as f:
        return f.read(1)


def list_again(fd):
    os.lseek(fd, 0, os.SEEK_SET)
    os.listdir(fd)


def set_rules(file, *rules):
    """Replaces the rules of slowfs."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{rule}\n" for rule in rules))
    os.rename(new, file)


class Hanging:
    """A source with a checkpoint on good storage, `good`, and a mount of slowfs, `slow`:
    `slow/other` always answers, and `slow/h` only while the test permits it."""

    def __init__(self, mount, place, user=None):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        self.mount, self.place, self.user = mount, place, user
        self.good = trees.Source(place / "s")
        self.good.add("good", "model", [trees.tensor(f"t{i}", "U8", (300_000 + i,))
                                        for i in range(4)], shards=2)
        self.real = trees.Source(place / "real")
        self.real.add("other", "model", trees.small_tensors("o."))
        os.makedirs(place / "s/slow")
        self.file = place / "faults"
        others = ",allow_other" if os.geteuid() == 0 else ""
        self.storage = mount(self.real.root, "-o", f"faults={self.file},valid=0,age=60{others}",
                             binary=SLOWFS, mountpoint=place / "s/slow")

    def directories(self, count):
        for i in range(count):
            self.real.add(f"h/d{i}", "model", trees.small_tensors(f"{i}."))

    def serve(self, *options, **more):
        self.m = self.mount(self.good.root, *options, **more)
        self.files = child(oracle.plain_files, self.m.path, self.good, user=self.m.user)
        return self.m

    def set(self, *rules):
        set_rules(self.file, *rules)

    def kernel(self):
        return child(self.m.status, user=self.m.user)["kernel"]

    def waiting(self):
        requests = self.kernel()["requests"]
        return requests["running"] + requests["queued"]

    def others_are_served(self):
        for method in readers.METHODS:
            child(readers.check_files, self.files, method, user=self.m.user, seconds=LIMIT)
        path = os.path.join(self.m.path, "shards/slow/other", MODEL)
        assert child(oracle.read_all, path, user=self.m.user, seconds=LIMIT) == \
            oracle.read_all(self.real.path("other", MODEL))

    def view(self, relative, view="shards"):
        return os.path.join(self.m.path, view, "slow", relative)


@pytest.fixture
def callers():
    made = []

    def make(user=None):
        made.append(Callers(user))
        return made[-1]

    yield make
    for one in made:
        one.kill()
        ended = eventually(one.reap, LIMIT)
        assert ended, f"{one.left()} callers cannot be killed"


CALLS = {
    "stat": lambda h, i: (os.stat, h.view(f"h/d{i}/{MODEL}", "merged")),
    "ls": lambda h, i: (os.listdir, h.view(f"h/d{i}", "merged")),
    "readdir": lambda h, i: (list_again, h.fds[i]),
    "open": lambda h, i: (read_one, h.view(f"h/d{i}/{MODEL}")),
}


@pytest.mark.limit(120)
@pytest.mark.parametrize("rule", ["* h/* hang", "* h/*/* hang"], ids=["one-directory", "many"])
@pytest.mark.parametrize("what", CALLS)
def test_others_are_served(mount, place, callers, what, rule):
    """Three callers for each of forty names of one directory, or for one name in each of forty. All
    others are served, including those of the same file system. The callers can be killed, and
    once the storage answers, nothing remains of the interrupted requests."""
    count = 40
    h = Hanging(mount, place)
    m = h.serve(limit=200)
    os.stat(h.view("other/" + MODEL))
    os.stat(h.view("other", "merged"))
    with pytest.raises(FileNotFoundError):
        os.stat(h.view("h"))
    h.others_are_served()
    held = m.metrics()["fstfs_nodes"]
    h.directories(count)
    assert eventually(lambda: len(os.listdir(h.view("."))) == 2)
    for view in ("merged", "shards"):
        assert eventually(lambda: len(oracle.walk(h.view("h", view))) >= 2 * count)
    h.fds = [os.open(h.view(f"h/d{i}", "merged"), os.O_RDONLY) for i in range(count)]
    group = callers()
    for i in range(3 * count):
        group.add(*CALLS[what](h, i % count))
    h.set(rule)
    # Calls for one name may be serialized in the kernel.
    assert eventually(lambda: h.waiting() >= count, LIMIT), (h.kernel(), group.reap(), group.pids)
    h.others_are_served()
    assert h.waiting() >= count
    assert m.status()["kernel"]["requests"]["running"] <= 256
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    assert h.kernel()["requests"]["interrupted"] > 0
    h.others_are_served()

    h.set()
    assert eventually(lambda: h.waiting() == 0, LIMIT), h.kernel()
    for fd in h.fds:
        list_again(fd)
        os.close(fd)
    for i in range(count):
        assert oracle.read_all(h.view(f"h/d{i}/{MODEL}")) == \
            oracle.read_all(h.real.path(f"h/d{i}", MODEL))
    assert eventually(lambda: h.kernel()["open_files"] == 1), h.kernel()  # this page
    # The kernel forgets removed files. Lookup counts of interrupted requests would remain.
    shutil.rmtree(h.real.path("h"))

    def forgotten():
        for view in ("merged", "shards"):
            try:
                os.stat(h.view("h", view))
                return False
            except FileNotFoundError:
                pass
        return m.metrics()["fstfs_nodes"] <= held + 2  # .fstfs/metrics and status

    assert eventually(forgotten, LIMIT), (m.metrics()["fstfs_nodes"], held)
    assert m.unmount() == 0


def getxattr_error(fd, name):
    try:
        os.getxattr(f"/proc/self/fd/{fd}", name)
    except OSError as error:
        return error.errno
    return 0


@pytest.mark.limit(120)
def test_xattr_that_no_file_has(mount, place, callers):
    """ls -l reads security.selinux of each file. It waits for no other call for the same name."""
    h = Hanging(mount, place)
    m = h.serve(limit=200)
    h.directories(1)
    assert eventually(lambda: os.path.isdir(h.view("h/d0/model", "tensors")))
    fd = os.open(h.view("h/d0/model", "tensors"), os.O_PATH)
    h.set("* h/*/* hang")
    group = callers()
    for _ in range(12):
        group.add(os.listdir, f"/proc/self/fd/{fd}")
    assert eventually(lambda: h.waiting() >= 12, LIMIT), h.kernel()
    assert child(getxattr_error, fd, "security.selinux", seconds=LIMIT) == errno.ENODATA
    assert h.waiting() >= 12
    h.set()
    group.kill()
    os.close(fd)
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    assert m.unmount() == 0


@pytest.mark.limit(300)
def test_thousand_lookups_and_a_loader(mount, place, callers):
    """In three directories. The loader reads correct bytes, and the thousand processes can be
    killed."""
    h = Hanging(mount, place)
    for i in range(3):
        for k in range(334):
            h.real.add_side(f"h/d{i}/f{k}.json", b"{}\n")
    m = h.serve(limit=400)
    oracle.walk(h.view("h"))
    group = callers()
    h.set("* h/*/* hang")
    time.sleep(1)  # the kernel's cached names have expired
    for n in range(1000):
        group.add(os.stat, h.view(f"h/d{n % 3}/f{n // 3}.json"))

    def all_wait():
        return group.count()[0] == 1000 and h.waiting() >= 3

    # With libfuse 3.14.0, the kernel serializes lookups of uncached names in each directory.
    assert eventually(all_wait, LIMIT), (group.count(), h.kernel())
    loaders = readers.ReaderGroup(h.files, 8)
    try:
        assert eventually(lambda: loaders.count > 2000, LIMIT)
        loaders.stop()
        loaders.finish(LIMIT)
        assert not loaders.faults({0})
    finally:
        loaders.kill()
    assert (*group.count(), group.left()) == (1000, 0, 1000)
    h.others_are_served()
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    h.set()
    assert eventually(lambda: h.waiting() == 0, LIMIT), h.kernel()
    assert m.unmount() == 0


@pytest.mark.limit(120)
def test_another_user_of_a_file_system_that_hangs(mount, place, callers, test_user):
    """One user's lookups hang in more directories than the file system has threads for. Others are
    served in its other directories."""
    if os.geteuid() != 0:
        pytest.skip("needs root: another user makes the requests")
    directories = 150
    h = Hanging(mount, place)
    m = h.serve("-o", "allow_other", limit=200)
    h.directories(directories)
    assert eventually(lambda: len(oracle.walk(h.view("h", "merged"))) >= 2 * directories)
    h.set("* h/*/* hang")
    time.sleep(1)  # the kernel's cached names have expired
    group = callers(test_user)
    for i in range(directories):
        group.add(os.stat, h.view(f"h/d{i}/{MODEL}", "merged"))
    assert eventually(lambda: h.waiting() == directories, LIMIT), (h.kernel(), group.reap())
    h.others_are_served()
    assert h.waiting() == directories
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    h.set()
    assert eventually(lambda: h.waiting() == 0, LIMIT), h.kernel()
    assert m.unmount() == 0


# --- reads ---

HUNG_SYSTEMS = 3
HUNG_FILES = 100  # per file system: more than fit in a ring, the workers or the kernel's queue


def open_and_read(paths, opened, go):
    """Opens all files, then reads each in a thread of its own once `go` exists, repeatedly."""
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    opened.touch()
    while not go.exists():
        time.sleep(0.05)
    for fd in fds:
        threading.Thread(target=os.pread, args=(fd, 1 << 17, 0), daemon=True).start()
    while True:
        signal.pause()


@pytest.mark.limit(200)
@pytest.mark.parametrize("method", ["auto", "threads"])
@pytest.mark.parametrize("what", ["read", "read-descriptors", "open", "getattr",
                                  "getattr-cached"])
def test_reads_of_another_file_system(mount, place, callers, what, method):
    """Hundreds of reads hang in several file systems. Uncached reads of another file system still
    get memory, rings, threads and a place in the kernel's queue. The callers can be killed. Once
    the storage answers, all bytes are correct and the memory is free."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source, rules = trees.Source(place / "s"), place / "faults"
    source.add("good", "model", trees.small_tensors())
    others = ",allow_other" if os.geteuid() == 0 else ""
    storage = {}
    for name in [*(f"hung{i}" for i in range(HUNG_SYSTEMS)), "well"]:
        storage[name] = trees.Source(place / "real" / name)
        for i in range(HUNG_FILES if name != "well" else 20):
            storage[name].add(f"d{i % 5}", f"m{i}",
                              [trees.tensor(f"{name}.{i}", "U8", (150_000,), fill=i)])
        os.makedirs(place / "s" / name)
        faults = f",faults={rules}" if name != "well" else ""
        mount(storage[name].root, "-o", f"valid=0,age=60{faults}{others}", binary=SLOWFS,
              mountpoint=place / "s" / name)
    if what == "read-descriptors":  # twice as many as the engine keeps open, which are too few
        m = mount(source.root, "--memory=64M", f"--io={method}", limit=200,
                  wrapper=("sh", "-c", 'ulimit -n 200; exec "$@"', "sh"))
    else:
        m = mount(source.root, "--memory=8M", f"--io={method}", limit=200)

    def paths(name):
        return [(os.path.join(m.path, "shards", name, relative), storage[name].path(relative))
                for relative in (f"d{i % 5}/m{i}.safetensors"
                                 for i in range(HUNG_FILES if name != "well" else 20))]

    hung = [path for i in range(HUNG_SYSTEMS) for path in paths(f"hung{i}")]
    if what == "getattr-cached":  # the page cache of the source has all of it
        for view, _ in hung:
            with open(os.path.join(place / "s", os.path.relpath(view, m.path + "/shards")),
                      "rb") as f:
                f.read()
    group = callers()
    for i in range(3):
        group.add(open_and_read, [view for view, _ in hung[i::3]], place / f"opened{i}",
                  place / "go")
    assert eventually(lambda: all((place / f"opened{i}").exists() for i in range(3)), LIMIT)
    set_rules(rules, f"{what.split('-')[0]} * hang")
    (place / "go").touch()
    assert eventually(lambda: child(m.metrics)["fstfs_reads_in_flight"] >= len(hung), LIMIT), \
        child(m.metrics)["fstfs_reads_in_flight"]
    for view, real in paths("well"):
        assert child(oracle.read_all, view, seconds=LIMIT) == oracle.read_all(real)
    assert child(m.metrics)["fstfs_reads_in_flight"] >= len(hung)
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    rules.unlink()
    assert eventually(lambda: child(m.metrics)["fstfs_reads_in_flight"] == 0, LIMIT)
    for view, real in hung[::25]:
        assert child(oracle.read_all, view, seconds=LIMIT) == oracle.read_all(real)
    assert eventually(lambda: m.metrics()["fstfs_buffer_bytes"] == 0, LIMIT)
    assert m.unmount() == 0


def read_begin_and_rest(path, opened, go):
    """Reads the first bytes, and other bytes once the file `go` exists."""
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 10, 0)
    opened.touch()
    while not go.exists():
        time.sleep(0.05)
    os.pread(fd, 100_000, 3_000_000)


@pytest.mark.limit(120)
@pytest.mark.parametrize("method", ["auto", "threads"])
def test_reads_while_another_server_is_stopped(mount, place, callers, method):
    """A read of a file whose server is stopped does not stop uncached reads of another file system,
    although the kernel asks the server for the file's attributes while the read is submitted."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source, slow = trees.Source(place / "s"), trees.Source(place / "real")
    tensors = [trees.tensor("t", "U8", (4_000_000,))]
    slow.add("", "m", tensors)
    for i in range(3):
        source.add("good", f"m{i}", tensors)
    os.makedirs(place / "s/slow")
    others = ",allow_other" if os.geteuid() == 0 else ""
    server = mount(slow.root, "-o", f"valid=1{others}", binary=SLOWFS, mountpoint=place / "s/slow")
    m = mount(source.root, f"--io={method}")
    group = callers()
    group.add(read_begin_and_rest, m / "merged/slow/m.safetensors", place / "opened", place / "go")
    assert eventually((place / "opened").exists, LIMIT)
    time.sleep(1.1)  # the attributes that the kernel knows expire
    server.stop()
    try:
        (place / "go").touch()
        assert eventually(lambda: child(m.metrics)["fstfs_reads_in_flight"] > 0, LIMIT), \
            (group.reap(), group.pids, group.count(), child(m.metrics), m.log_text())
        for i in range(3):
            real = source.path(f"good/m{i}.safetensors")
            drop_from_page_cache([real])
            assert child(oracle.read_all, m / f"merged/good/m{i}.safetensors",
                         seconds=LIMIT) == oracle.read_all(real)
    finally:
        server.signal(signal.SIGCONT)
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    assert m.unmount() == 0


@pytest.mark.limit(120)
def test_close_of_another_file_system(mount, place):
    """close(2) hangs on one server. Files of another one, which the helper opens as well, since
    they are outside of the source, are opened and read."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source, rules = trees.Source(place / "s"), place / "faults"
    others = ",allow_other" if os.geteuid() == 0 else ""
    real = {}
    for name in ("hung", "well"):
        storage = trees.Source(place / "real" / name)
        os.makedirs(place / name)
        faults = f",faults={rules}" if name == "hung" else ""
        mount(storage.root, "-o", f"valid=0,age=60{faults}{others}", binary=SLOWFS,
              mountpoint=place / name)
        for i in range(8):
            storage.add("", f"{name}{i}", [trees.tensor("t", "U8", (150_000,), fill=i)])
            file = f"{name}{i}.safetensors"
            real[file] = storage.path(file)
            os.symlink(place / name / file, source.path(file))
    m = mount(source.root)
    assert set(child(os.listdir, m / "merged", seconds=LIMIT)) == set(real)
    set_rules(rules, "flush * hang")
    try:
        for i in range(8):
            for name in ("hung", "well"):
                file = f"{name}{i}.safetensors"
                assert child(oracle.read_all, m / f"merged/{file}", seconds=LIMIT) == \
                    oracle.read_all(real[file])
    finally:
        rules.unlink()
    assert m.unmount() == 0


# --- shutdown ---


@pytest.fixture
def fusectl():
    """Mounts fusectl, as systemd does on any machine. Tests that run at the same time share it, and the
    last of them unmounts it."""
    if os.geteuid() != 0 and not os.path.ismount(FUSECTL):
        pytest.skip(f"{FUSECTL} is not mounted")
    users = os.open(os.path.dirname(FUSECTL), os.O_RDONLY)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        if not os.path.ismount(FUSECTL):
            subprocess.run(["mount", "-t", "fusectl", "fstfs-test", FUSECTL])  # or another test does
        assert os.path.ismount(FUSECTL)
        yield
        with contextlib.suppress(BlockingIOError):  # another test uses it
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if f"fstfs-test {FUSECTL} " in Path("/proc/self/mounts").read_text():
                subprocess.run(["umount", "-l", FUSECTL], check=True)
    finally:
        os.close(users)


HUNG = {
    "stat": ("* h/* hang", lambda h: (os.stat, h.view("h/d0/" + MODEL))),
    "ls": ("* h/*/* hang", lambda h: (os.listdir, h.view("h/d0", "merged"))),
    "open": ("open h/* hang", lambda h: (read_one, h.view("h/d0/" + MODEL))),
    "read": ("read* h/* hang", lambda h: (read_one, h.view("h/d0/" + MODEL))),
}


@pytest.mark.limit(120)
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("what", HUNG)
def test_end(mount, place, callers, who, fusectl, what, end, sandbox):
    """The daemon ends while calls hang. The mount is removed or dead, and no caller waits."""
    h = Hanging(mount, place)
    h.directories(1)
    m = h.serve(f"--sandbox={sandbox}", limit=200, died=end == signal.SIGKILL, **who)
    path = h.view("h/d0/" + MODEL)
    child(os.stat, path, user=m.user)
    child(os.stat, h.view("h/d0/" + MODEL, "merged"), user=m.user)  # reads its header
    rule, call = HUNG[what]
    held = callers(m.user)  # a file on the good storage keeps the mount busy
    held.add(hold, h.files[0][0])
    h.set(rule)

    def hangs():
        return h.waiting() or child(m.metrics, user=m.user)["fstfs_reads_in_flight"]

    for _ in range(10):
        if what == "read":  # the whole file was read with the header, and may be by the survey
            drop(place / "s/slow/h/d0" / MODEL)
        group = callers(m.user)
        for _ in range(3):
            group.add(*call(h))
        found = eventually(hangs)
        if found:  # else slowfs had accepted a read before the rule, which filled the cache
            break
    assert found
    with Stopwatch() as watch:
        m.signal(end)
        assert eventually(group.reap, 10), f"{group.left()} wait on"
        if end == signal.SIGTERM:
            assert eventually(lambda: not mounted_at(m.path))
    assert watch.seconds < 5, "as reliability.md promises"
    assert set(group.pids.values()) <= ENDS, group.pids
    if end == signal.SIGTERM:
        assert os.listdir(m.path) == []
    else:
        assert mounted_at(m.path)
        with pytest.raises(OSError) as raised:
            child(os.stat, m.path + "/unheard-of", user=m.user, seconds=LIMIT)
        assert raised.value.errno == errno.ENOTCONN
    held.kill()
    assert eventually(held.reap)
    if end == signal.SIGKILL:
        subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
        assert not mounted_at(m.path)
    h.set()  # a thread that waits for storage may be unkillable
    assert m.wait(LIMIT) in ((0,) if end == signal.SIGTERM else (-end, 128 + end))


def hold(path):
    with open(path, "rb"):
        signal.pause()


# --- a block device that hangs ---


def fragmented(path):
    """Writes a checkpoint of one tensor of 64 MiB with thousands of extents."""
    size = 64 << 20
    head = trees.header([("x", "U8", (size,), size)])
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + size)
        for at in range(16 * mmap.PAGESIZE, size, 4 * mmap.PAGESIZE):
            f.seek(at)
            f.write(b"x" * mmap.PAGESIZE)
        os.fsync(f.fileno())


def test_block_device_that_hangs(mount, place):
    """ext4 reads the blocks that map a file, if they are not cached, while a read is submitted: that
    must not stop the reads of other file systems."""
    if os.geteuid() != 0 or not SLOWFS.exists():
        pytest.skip("needs root and tests/slowfs/slowfs: an image on it is mounted")
    good = trees.Source(place / "s")
    for i in range(3):
        good.add(f"good{i}", "model", [trees.tensor("t", "U8", (3 << 20,))])
    os.mkdir(place / "far")
    with disk_image(place / "far", 256 << 20, "mkfs.ext4", "-q", "-O", "^has_journal") as disk:
        os.mkdir(disk / "d")
        fragmented(disk / "d" / MODEL)
    rules = place / "faults"
    storage = mount(place / "far", "-o", f"faults={rules},valid=60", binary=SLOWFS)
    loop = subprocess.run(["losetup", "-f", "--show", "-r", storage / "disk.img"], check=True,
                          capture_output=True, text=True).stdout.strip()
    point = place / "s/far"
    point.mkdir()
    callers = Callers()
    try:
        subprocess.run(["mount", "-o", "ro", loop, point], check=True)
        m = mount(place / "s")
        with open(m / f"shards/far/d/{MODEL}", "rb", buffering=0) as far:
            assert far.read(1)
            paths = [m / f"shards/good{i}/{MODEL}" for i in range(3)]
            for path in paths:
                read_one(path)
            rules.write_text("read disk.img hang\n")
            for at in (60, 45, 33):
                callers.add(os.pread, far.fileno(), 4096, at << 20)
            assert eventually(lambda: callers.count()[0] == 3)
            time.sleep(1)  # until the reads were submitted
            for i, path in enumerate(paths):
                drop(good.path(f"good{i}", MODEL))
                assert child(oracle.read_all, path, seconds=LIMIT)[-100:] == \
                    oracle.read_all(good.path(f"good{i}", MODEL))[-100:]
            assert callers.count()[1] == 0
    finally:
        rules.write_text("")
        callers.kill()
        assert eventually(callers.reap, LIMIT)
        subprocess.run(["umount", "-l", point])
        subprocess.run(["losetup", "-d", loop], check=True)
