# SPDX-License-Identifier: Apache-2.0
"""No open file mixes versions, and the page cache holds one version: writers whose time stamps are
late or missing, with leases and without."""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tables
import versions
from conftest import BUILD, SLOW, child, eventually, keep_in_memory
from corpus import trees
from versions import NEW, OLD, SIZE, VIEWS, Reader, Shard, content

SLOWFS = BUILD / "tests/slowfs/slowfs"
FILES = {view: pattern.format("m") for view, pattern in VIEWS.items() if view != "re-cut"}


@pytest.fixture
def disk_of_memory(place):
    if os.geteuid() != 0:
        pytest.skip("needs root: tmpfs is mounted")
    path = place / "tmpfs"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path], check=True)
    yield path
    assert eventually(lambda: subprocess.run(["umount", path]).returncode == 0)


@pytest.fixture(params=["checkout", "tmpfs"])
def disk(request, place):
    """A directory on the file system of the tests, and one on tmpfs."""
    if request.param == "checkout":
        return place
    return request.getfixturevalue("disk_of_memory")


def shard_in(root, fill=OLD):
    (root / "m").mkdir(parents=True)
    shard = Shard(root / "m/model.safetensors")
    shard.fill(fill)
    return shard


def value(path):
    """The byte that all tensors consist of, or the error."""
    try:
        with open(path, "rb") as f:
            raw = f.read()
    except OSError as error:
        return error.errno
    found = {fill for fill in (OLD, NEW) if raw.count(bytes([fill])) >= SIZE}
    assert raw.count(bytes([OLD])) == 0 or raw.count(bytes([NEW])) == 0, "mixed"
    return found.pop()


@pytest.mark.limit(300)
def test_every_writer_with_every_view(disk, mount, request):
    def mount_at(source, *options):
        return mount(source, *options, limit=300 * SLOW).path

    found = versions.measure(disk / "s", mount_at, 5 * SLOW)
    assert found == {writer: [0, 0] for writer in versions.WRITERS}
    if request.node.callspec.params["disk"] == "tmpfs":  # tools/sources makes the other rows
        tables.check("versions", "tmpfs", *versions.cells(found))


@pytest.mark.parametrize("view", FILES)
def test_file_that_is_open_for_writing(disk, mount, view):
    """While a writer has the file open, new bytes cannot be distinguished from old ones. The file is
    refused until the writer has closed it."""
    shard = shard_in(disk / "s")
    with open(shard.path, "r+b"):
        m = mount(disk / "s")
        path = m / FILES[view]
        assert value(path) == errno.ETXTBSY
        assert any("open for writing" in line for line in m.problems())
    assert eventually(lambda: value(path) == OLD)
    assert eventually(lambda: m.problems() == [])


@pytest.mark.parametrize("view", FILES)
def test_file_is_opened_for_writing_later(mount, place, view):
    """If the first write is detectable, a writer that merely has the file open disturbs no reader."""
    shard = shard_in(place / "s")
    m = mount(place / "s")
    assert value(m / FILES[view]) == OLD
    reader = Reader(m / FILES[view])
    reader.read(1, 4)
    with open(shard.path, "r+b") as f:
        assert value(m / FILES[view]) == OLD
        reader.read(4, 8)
        assert len(reader.seen) == 7
        f.write(content(NEW, SIZE))
        f.flush()
        reader.read(8, 15)
        assert reader.close() == 0
    assert eventually(lambda: value(m / FILES[view]) == NEW)


def test_header_written_by_mmap_has_two_names(disk_of_memory, mount):
    """On tmpfs a write to a mapping, whose page was read before, changes no time stamp. A header that
    was read by one name of the file is not used for its other name."""
    root = disk_of_memory / "s"
    shard = shard_in(root)
    (root / "other").mkdir()
    os.link(shard.path, root / "other/model.safetensors")
    m = mount(root)
    assert os.listdir(m / "tensors/m/model") == ["v", "w"]
    before = os.stat(shard.path)
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        at = mapped.find(b'"w"')
        mapped[at:at + 3] = b'"x"'
    assert os.stat(shard.path) == before
    assert os.listdir(m / "tensors/other/model") == ["v", "x"]
    assert eventually(lambda: os.listdir(m / "tensors/m/model") == ["v", "x"])


def leases_of(m):
    """Inode numbers of the files on which the daemon holds leases. Several reads of /proc/locks,
    because one that runs while other processes release locks may skip entries."""
    found = set()
    for _ in range(10):
        with open("/proc/locks") as f:
            for line in f:
                fields = line.split()
                if fields[1] == "LEASE" and int(fields[4]) == m.pid:
                    found.add(int(fields[5].split(":")[2]))
    return sorted(found)


def test_lease_is_held_while_the_file_is_open(mount, place, who):
    """A lease is held while the file is open, and a while longer; root's daemon can also lease
    other users' files."""
    shard = shard_in(place / "s")
    if os.geteuid() == 0:
        os.chown(shard.path, 65534, 65534)
    m = mount(place / "s", **who)
    inode = os.stat(shard.path).st_ino

    def work():
        fd = os.open(m / FILES["merged"], os.O_RDONLY)
        time.sleep(7)  # longer than an idle lease is kept
        assert leases_of(m) == [inode]
        assert m.status()["leases"]["held"] == 1 <= m.status()["leases"]["most"]
        os.close(fd)

    child(work, user=m.user)
    assert eventually(lambda: leases_of(m) == [], 10)


def test_writer_does_not_wait_for_the_daemon(mount, place):
    """A writer waits neither for a lease nor for other storage."""
    shard = shard_in(place / "s")
    m = mount(place / "s")
    with open(m / FILES["merged"], "rb") as f:
        f.read(SIZE)
        assert leases_of(m)
        start = time.monotonic()
        os.close(os.open(shard.path, os.O_RDWR))
        # the kernel revokes a lease after 45 s (lease-break-time)
        assert time.monotonic() - start < 20
        assert leases_of(m) == []
        shown = m.status()["leases"]
        assert shown["broken"] == 1 and shown["refused"] == 0 and "refusal" not in shown


LEASE_BREAK_TIME = "/proc/sys/fs/lease-break-time"


@pytest.fixture
def short_lease_break_time():
    """Sets the time after which the kernel revokes leases to 1 s instead of 45 s."""
    if os.geteuid() != 0:
        pytest.skip("needs root: lease-break-time")
    with open(LEASE_BREAK_TIME) as f:
        before = f.read()
    with open(LEASE_BREAK_TIME, "w") as f:
        f.write("1")
    yield
    with open(LEASE_BREAK_TIME, "w") as f:
        f.write(before)


@pytest.mark.parametrize("view", FILES)
@pytest.mark.parametrize("how", ["write", "mmap"])
def test_stopped_during_a_write(disk, mount, short_lease_break_time, view, how):
    """A stopped daemon cannot release its lease, and the kernel revokes it. Afterwards the daemon
    returns no new byte as an old one."""
    shard = shard_in(disk / "s")
    m = mount(disk / "s", "--prefetch=off")
    reader = Reader(m / FILES[view])
    reader.read(1, 3)
    assert len(reader.seen) == 2 and leases_of(m)
    m.stop()
    getattr(shard, how)()
    assert leases_of(m) == []
    m.signal(signal.SIGCONT)
    reader.read(3, 15)
    assert reader.close() == 0
    assert eventually(lambda: value(m / FILES[view]) == NEW)


def test_more_files_than_leases(mount, place):
    """Files without a lease are checked by their time stamps: no mixture, and chmod ends a version."""
    root = place / "s"
    shards = []
    for i in range(60):
        (root / f"m{i}").mkdir(parents=True)
        shards.append(Shard(root / f"m{i}/model.safetensors"))
        shards[-1].fill(OLD)
    m = mount(root, wrapper=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"))
    readers = [Reader(m / f"merged/m{i}/model.safetensors") for i in range(60)]
    for reader in readers:
        reader.read(1, 3)
    assert 0 < len(leases_of(m)) <= 16
    for shard in shards:
        shard.restored_mtime_and_chmod()
    for reader in readers:
        reader.read(8, 15)
        assert reader.close() == 0
    assert eventually(lambda: all(value(m / f"merged/m{i}/model.safetensors") == NEW
                                  for i in range(60)))


# ---- without leases: other owner, and no CAP_LEASE ----


@pytest.fixture
def unleased(mount, place):
    """A shard, and a mount that cannot lease it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: files of another owner")
    shard = shard_in(place / "s")
    os.chown(shard.path, 65534, 65534)
    m = mount(place / "s", "--prefetch=off", wrapper=("setpriv", "--bounding-set=-lease"))
    return shard, m


def test_without_leases_none_is_held(unleased):
    _, m = unleased
    with open(m / FILES["merged"], "rb") as f:
        f.read(1)
        assert leases_of(m) == []
        shown = m.status()["leases"]
        assert shown["held"] == 0 < shown["refused"]
        assert shown["refusal"] == os.strerror(errno.EACCES)


@pytest.mark.parametrize("view", FILES)
@pytest.mark.parametrize("how", ["restored_mtime", "restored_mtime_and_chmod",
                                 "restored_mtime_and_link", "write", "truncate"])
def test_without_leases_any_change_ends_the_version(unleased, view, how):
    """Any change ends the version, also one with a known cause, which may hide a write."""
    shard, m = unleased
    reader = Reader(m / FILES[view])
    reader.read(1, 3)
    assert len(reader.seen) == 2
    getattr(shard, how)()
    reader.read(12, 15)
    assert reader.close() == 0
    assert eventually(lambda: value(m / FILES[view]) == NEW)


@pytest.mark.parametrize("view", FILES)
@pytest.mark.parametrize("how", ["rename", "unlink"])
def test_without_leases_reader_of_a_replaced_file_goes_on(unleased, view, how):
    shard, m = unleased
    reader = Reader(m / FILES[view])
    reader.read(1, 3)
    if how == "rename":
        shard.rename()
    else:
        os.unlink(shard.path)
    reader.read(3, 15)
    assert len(reader.seen) == 14
    assert reader.close() == 0


@pytest.mark.parametrize("view", FILES)
def test_without_leases_recent_content_is_not_cached(unleased, view):
    """Writing through mmap does not change time stamps while pages are dirty. What was read of a
    recently changed file is read again after the next open."""
    shard, m = unleased
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        mapped[-1:] = mapped[-1:]
        for at in range(0, len(mapped), mmap.PAGESIZE):
            mapped[at] = mapped[at]
        assert value(m / FILES[view]) == OLD
        mapped[:] = content(NEW, SIZE)
        assert eventually(lambda: value(m / FILES[view]) == NEW)


# Documented exceptions (docs/reliability.md): these tests show that mixtures are possible.

def is_new(path):
    """Whether a newly opened file has no byte of the old version. Before the change is noticed, it
    may be a mixture, or refused."""
    try:
        return bytes([OLD]) not in Path(path).read_bytes()
    except OSError as error:
        assert error.errno == errno.ESTALE, error
        return False


def test_exception_write_hidden_by_a_replacement(unleased):
    """Without leases: rewritten in place with the old mtime restored, then replaced by rename, all
    between two reads of one open file."""
    shard, m = unleased
    reader = Reader(m / FILES["tensors"])
    reader.read(1, 2)
    shard.restored_mtime_and_rename()
    reader.read(14, 15)
    assert [set(seen) for seen in reader.seen] == [{OLD}, {NEW}]
    reader.close()
    assert eventually(lambda: is_new(m / FILES["tensors"]))


def test_exception_writer_by_mmap(unleased):
    """Without leases: a mapping whose pages were dirty before."""
    shard, m = unleased
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        for at in range(0, len(mapped), mmap.PAGESIZE):
            mapped[at] = mapped[at]
        reader = Reader(m / FILES["tensors"])
        reader.read(1, 2)
        mapped[:] = content(NEW, SIZE)
        reader.read(14, 15)
        # unless its pages were written back in between, which makes the next write detectable
        assert [set(seen) for seen in reader.seen] in ([{OLD}, {NEW}], [{OLD}])
        reader.close()
    assert eventually(lambda: is_new(m / FILES["tensors"]))


def test_exception_mapping_on_tmpfs(mount):
    """Without leases: a write to a mapping whose pages had been read before."""
    if os.geteuid() != 0:
        pytest.skip("needs root: files of another owner")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        shard = shard_in(Path(directory) / "s")
        os.chown(shard.path, 65534, 65534)
        m = mount(Path(directory) / "s", "--prefetch=off", wrapper=("setpriv", "--bounding-set=-lease"))
        with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
            assert OLD in bytes(mapped)
            changed = os.stat(shard.path).st_ctime_ns
            reader = Reader(m / FILES["tensors"])
            reader.read(1, 2)
            mapped[:] = content(NEW, SIZE)
            assert os.stat(shard.path).st_ctime_ns == changed
            reader.read(14, 15)
            assert [set(seen) for seen in reader.seen] == [{OLD}, {NEW}]
            reader.close()
        os.utime(shard.path)
        assert eventually(lambda: is_new(m / FILES["tensors"]))
        assert m.unmount() == 0


def slow_source(mount, root, **options):
    """A model in a directory on a file system without leases, older than VERSION_YOUNG_SECONDS.
    Returns its shard, a mount, and the shard's path in the mount."""
    if os.geteuid() != 0 or not SLOWFS.exists():
        pytest.skip("needs root (allow_other) and tests/slowfs/slowfs")
    shard = shard_in(root)
    arguments = ",".join(f"{name}={value}" for name, value in {"age": 60, **options}.items())
    storage = mount(root, "-o", f"{arguments},allow_other", binary=SLOWFS)
    return shard, mount(storage.path, "--prefetch=off"), storage / "m/model.safetensors"


def revalidate(path):
    """Updates the attributes, as a network file system does when its cached ones expire."""
    at_fdcwd, force_sync, all_fields = -100, 0x2000, 0xfff
    assert ctypes.CDLL(None).statx(at_fdcwd, os.fsencode(path), force_sync, all_fields,
                                   ctypes.create_string_buffer(256)) == 0


def test_exception_cached_attributes(mount, place):
    """A file system that answers stat from its cache: rewriting in place is unnoticed until the
    cached attributes expire."""
    shard, m, path = slow_source(mount, place / "s", valid=86400)
    reader = Reader(m / FILES["tensors"])
    reader.read(1, 2)
    shard.write()
    reader.read(14, 15)
    assert [set(seen) for seen in reader.seen] == [{OLD}, {NEW}]
    revalidate(path)
    reader.read(10, 11)
    assert len(reader.seen) == 2  # ESTALE
    reader.close()
    assert eventually(lambda: value(m / FILES["tensors"]) == NEW)


def test_exception_write_longer_than_the_margin(disk_of_memory, mount):
    """Without leases: a mapping whose pages were dirty for over 30 s before the read. Wrong bytes
    stay in the page cache until the file changes."""
    shard, m, path = slow_source(mount, disk_of_memory / "s", valid=0)
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        for at in range(0, len(mapped), mmap.PAGESIZE):
            mapped[at] = mapped[at]
        assert value(m / FILES["tensors"]) == OLD
        held = keep_in_memory(m / FILES["tensors"])  # pages that are evicted would be read again
        mapped[:] = content(NEW, SIZE)
    assert eventually(lambda: m.metrics()["fstfs_buffer_bytes"] == 0, 10)
    assert value(m / FILES["tensors"]) == OLD
    held.close()
    os.utime(shard.path)
    assert eventually(lambda: value(m / FILES["tensors"]) == NEW)


def test_exception_server_of_whole_seconds(mount, place):
    """A server whose clock is a minute slow: a file is read and rewritten within the second in which
    it was written. Wrong bytes stay in the page cache until the file changes."""
    shard, m, path = slow_source(mount, place / "s", valid=0, granularity=1)
    for _ in range(50):
        shard.fill(OLD)
        written = os.stat(path).st_ctime
        reader = Reader(m / FILES["tensors"])
        reader.read(1, 2)
        shard.fill(NEW)
        reader.read(14, 15)
        reader.close()
        if os.stat(path).st_ctime == written:
            break
    else:
        pytest.fail("never within one second")
    assert [set(seen) for seen in reader.seen] == [{OLD}, {NEW}]
    assert set(Path(m / FILES["tensors"]).read_bytes()) == {OLD, NEW}
    os.utime(shard.path, (0, 0))
    assert eventually(lambda: is_new(m / FILES["tensors"]))


def test_exception_truncated_through_an_overlay(mount, place):
    """Truncating a file through an overlay whose upper directory is the source breaks no lease."""
    if os.geteuid() != 0:
        pytest.skip("needs root: an overlay is mounted")
    shard = shard_in(place / "s")
    for name in ("lower", "work", "overlay"):
        (place / name).mkdir()
    layers = f"lowerdir={place}/lower,upperdir={place}/s,workdir={place}/work"
    mounted = subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", place / "overlay"])
    if mounted.returncode != 0:
        pytest.skip("an overlay cannot be mounted here")
    try:
        m = mount(place / "s", "--prefetch=off")
        reader = Reader(m / FILES["tensors"])
        reader.read(1, 2)
        size = os.stat(shard.path).st_size
        os.truncate(place / "overlay/m/model.safetensors", size - 2 * SIZE)
        os.truncate(place / "overlay/m/model.safetensors", size)
        reader.read(14, 15)
        assert [set(seen) for seen in reader.seen] == [{OLD}, {0}]
        assert eventually(lambda: set(Path(m / FILES["tensors"]).read_bytes()) == {0})
        reader.close()
    finally:
        subprocess.run(["umount", place / "overlay"], check=True)


def test_exception_times_of_a_mapping_on_tmpfs(disk_of_memory, mount):
    """A write to a mapping whose pages had been read before. With leases the mount shows the new
    version, but with the times of the old one."""
    shard = shard_in(disk_of_memory / "s")
    path = mount(disk_of_memory / "s", "--prefetch=off") / FILES["tensors"]
    assert value(path) == OLD
    before = os.stat(path)
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        assert OLD in bytes(mapped)
        mapped[:] = content(NEW, SIZE)
    assert eventually(lambda: value(path) == NEW)
    after = os.stat(path)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_exception_pinned_memory(disk_of_memory, mount):
    """A process writes through a fixed buffer of io_uring after it has unmapped and closed the file."""
    shard = shard_in(disk_of_memory / "s")
    with subprocess.Popen([BUILD / "tests/sandbox/pinned", shard.path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        if writer.stdout.readline() != b"ready\n":
            assert writer.wait() == 2
            pytest.skip(f"the kernel refuses fixed buffers: {writer.stderr.read().decode().strip()}")
        path = mount(disk_of_memory / "s", "--prefetch=off") / FILES["tensors"]
        reader = Reader(path)
        reader.read(1, 2)
        writer.communicate(content(NEW, SIZE))
        assert writer.returncode == 0
        reader.read(14, 15)
        assert [set(seen) for seen in reader.seen] == [{OLD}, {NEW}]
        reader.close()
        assert set(Path(path).read_bytes()) == {OLD, NEW}
    os.utime(shard.path)
    assert eventually(lambda: is_new(path))


def test_exception_mount_of_a_mount(mount, place):
    """Whether the merged file exists depends on the shards' content; its directory's times do not."""
    shard, m, _ = slow_source(mount, place / "s", valid=0)
    second = shard.path.with_name("model-00002-of-00002.safetensors")
    shard.path.rename(shard.path.with_name("model-00001-of-00002.safetensors"))
    second.write_bytes(trees.file_bytes([trees.tensor("x", "U8", (SIZE,), fill=OLD)]))
    assert eventually(lambda: os.listdir(m / "merged/m") == ["model.safetensors"])
    above = Path(mount(m / "merged") / "shards/m")
    assert os.listdir(above) == ["model.safetensors"]
    before = os.stat(m / "merged/m")
    second.write_bytes(b"x" * SIZE)
    assert eventually(lambda: "model.safetensors" not in os.listdir(m / "merged/m"))
    assert os.stat(m / "merged/m") == before
    time.sleep(1)  # the second fstfs checks at most every 0.4 s
    assert os.listdir(above) == ["model.safetensors"]
    with pytest.raises(OSError):
        (above / "model.safetensors").read_bytes()
    os.utime(second.parent)
    assert eventually(lambda: os.listdir(above) == [])


# ---- another file system in place of a mounted one ----

class Image:
    """An ext4 image, mounted read-only at `path`. The loop device stays the same."""

    def __init__(self, place):
        self.path = place / "s/m"
        self.path.mkdir(parents=True)
        self.file = place / "image"
        with open(self.file, "wb") as f:
            f.truncate(16 << 20)
        if not shutil.which("mkfs.ext4"):
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run(["mkfs.ext4", "-q", "-I", "256", "-O", "^metadata_csum", self.file],
                       check=True)
        attached = subprocess.run(["losetup", "--find", "--show", self.file], capture_output=True,
                                  text=True)
        if attached.returncode:
            pytest.skip(f"there are no loop devices: {attached.stderr.strip()}")
        self.device = attached.stdout.strip()

    def mount(self, options="ro,noload"):
        subprocess.run(["mount", "-o", options, self.device, self.path], check=True)

    def unmount(self):
        """The daemon closes its descriptors a while after the last reader. The image is in use until
        it is unmounted in every mount namespace, and other tests create namespaces."""
        assert eventually(lambda: subprocess.run(["umount", self.path],
                                                 capture_output=True).returncode == 0, 30)
        assert eventually(self.is_unused, 30)

    def is_unused(self):
        try:
            os.close(os.open(self.device, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            assert error.errno == errno.EBUSY
            return False
        return True

    def replace(self, old, new):
        """Mounts an image that differs in these bytes only."""
        self.unmount()
        data = self.file.read_bytes()
        assert data.count(old) > 0
        self.file.write_bytes(data.replace(old, new))
        self.mount()

    def state(self):
        """What stat(2) returns for the shard and its directory."""
        return [(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
                for st in map(os.stat, (self.path, self.path / "model.safetensors"))]


@pytest.fixture
def image(place):
    if os.geteuid() != 0:
        pytest.skip("needs root: an image is mounted")
    if not has_unique_mount_id(place):
        pytest.skip("needs Linux 6.8: mount IDs are reused")
    image = Image(place)
    image.mount("rw")
    try:
        Shard(image.path / "model.safetensors").fill(OLD)
        (image.path / "name-a.txt").touch()
        image.unmount()
        image.mount()
        yield image
    finally:
        subprocess.run(["umount", "-l", image.path])
        subprocess.run(["losetup", "-d", image.device], check=True)


def has_unique_mount_id(path):
    """Whether statx(2) returns a mount ID that is never reused (Linux 6.8)."""
    at_fdcwd, unique_mount_id = -100, 0x4000
    stx = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).statx(at_fdcwd, os.fsencode(path), 0, unique_mount_id, stx) == 0
    return int.from_bytes(stx[:4], sys.byteorder) & unique_mount_id


@pytest.mark.parametrize("view", FILES)
def test_image_is_replaced(mount, image, view):
    """An image with the same device, inode numbers and times, and other bytes in its shard."""
    m = mount(image.path.parent)
    assert value(m / FILES[view]) == OLD
    before = image.state()
    image.replace(bytes([OLD]) * 16, bytes([NEW]) * 16)
    assert image.state() == before
    assert (image.path / "model.safetensors").read_bytes().count(bytes([NEW])) > SIZE
    assert eventually(lambda: value(m / FILES[view]) == NEW)


def test_image_with_other_names_is_replaced(mount, image):
    """An image with the same device, inode numbers and times, and another name of a tensor and of a
    file."""
    m = mount(image.path.parent)
    assert sorted(os.listdir(m / "tensors/m/model")) == ["v", "w"]
    assert "name-a.txt" in os.listdir(m / "merged/m")
    before = image.state()
    image.replace(b'"w"', b'"x"')
    assert image.state() == before
    assert b'"x"' in (image.path / "model.safetensors").read_bytes()
    assert eventually(lambda: sorted(os.listdir(m / "tensors/m/model")) == ["v", "x"])
    image.replace(b"name-a.txt", b"name-b.txt")
    assert image.state() == before
    assert "name-b.txt" in os.listdir(image.path)

    def is_renamed():
        listed = os.listdir(m / "merged/m")
        return "name-b.txt" in listed and "name-a.txt" not in listed

    assert eventually(is_renamed)
