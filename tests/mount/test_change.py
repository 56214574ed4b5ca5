# SPDX-License-Identifier: Apache-2.0
"""The source changes under the mount: changes become visible, and no open file mixes versions.

Each version fills its tensors with one byte value, so that a mixture is recognized.
"""

import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import oracle
import pytest
from conftest import (
    BUILD, SLOW, Died, child, eventually, files_open_in, map_locked, mounted_at, no_leak_check)
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
GONE = (errno.ESTALE, errno.EIO)
VIEWS = {"tensors": "tensors/m/model/w", "merged": "merged/m/model.safetensors",
         "shards": "shards/m/model.safetensors", "npy": "npy/m/model/w.npy"}
SIZE = 3 << 20


def version(fill, size=SIZE, extra=()):
    return trees.file_bytes([trees.tensor("w", "U8", (size,), fill=fill),
                             trees.tensor("v", "U8", (5000,), fill=fill), *extra],
                            {"format": "pt"})


def write(root, data):
    os.makedirs(root / "m", exist_ok=True)
    (root / "m/model.safetensors").write_bytes(data)


def replace(root, data):
    (root / "m/new.tmp").write_bytes(data)
    os.rename(root / "m/new.tmp", root / "m/model.safetensors")


def rewrite(root, data):
    """Rewrites in place, in the same inode. The times of two versions must differ by a clock tick."""
    time.sleep(0.05)
    with open(root / "m/model.safetensors", "r+b") as f:
        f.write(data)
        f.truncate(len(data))


def data_of(path):
    """The tensor data: everything after the last header in the file."""
    raw = oracle.read_all(path)
    return raw[-(SIZE + 5000):] if len(raw) >= SIZE + 5000 else raw[-SIZE:]


def shows(m, view, fill):
    """Whether a newly opened file of the view has version `fill` completely."""
    try:
        raw = data_of(m / VIEWS[view])
    except OSError as error:
        assert error.errno in GONE + (errno.ENOENT,), error
        return False
    assert len(set(raw)) == 1, f"mixed: {set(raw)}"
    return raw[0] == fill


@pytest.mark.parametrize("options", [(), ("--shards=1",)], ids=["as-source", "recut"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("how", [replace, rewrite], ids=["renamed", "in-place"])
def test_new_version_becomes_visible(mount, place, view, how, options):
    root = place / "s"
    write(root, version(1))
    m = mount(root, *options)
    assert shows(m, view, 1)
    for fill in (2, 3):
        how(root, version(fill))
        assert eventually(lambda: shows(m, view, fill)), f"version {fill} does not show"
        assert shows(m, view, fill)
    assert m.problems() == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("how", [replace, rewrite], ids=["renamed", "in-place"])
def test_new_size_becomes_visible(mount, place, view, how):
    root = place / "s"
    write(root, version(1, 10_000))
    m = mount(root)
    for size in (900_000, 100, 0, 5_000_000, 4096):
        how(root, version(7, size))
        path = m / VIEWS[view]

        def right():
            try:
                raw = oracle.read_all(path)
                if os.stat(path).st_size != len(raw):
                    return False
            except OSError as error:
                assert error.errno in GONE + (errno.ENOENT,), error
                return False
            if view == "tensors":
                return raw == b"\7" * size
            if view == "npy":
                return raw == oracle.npy_bytes("U8", (size,), b"\7" * size)
            try:
                entries, _, _ = oracle.read_header(path)
            except (AssertionError, FileNotFoundError):
                return False
            return {e.name: e.size for e in entries} == {"w": size, "v": 5000}

        assert eventually(right), size


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "half-read"])
@pytest.mark.parametrize("how", ["renamed", "in-place", "truncated", "removed"])
def test_open_file_keeps_its_version_or_fails(mount, place, view, warm, how):
    root = place / "s"
    write(root, version(1))
    m = mount(root)
    size = os.stat(m / VIEWS[view]).st_size
    fd = os.open(m / VIEWS[view], os.O_RDONLY)
    before = b""
    while warm and len(before) < size // 2:
        before += os.pread(fd, 100_000, len(before))
    expected = oracle.read_all(m / VIEWS[view]) if warm and view in ("merged", "npy") else None
    if how == "renamed":
        replace(root, version(2))
    elif how == "in-place":
        rewrite(root, version(2))
    elif how == "truncated":
        os.truncate(root / "m/model.safetensors", 100_000)
    else:
        os.unlink(root / "m/model.safetensors")
    rng = random.Random(1)
    failures = 0
    for offset in [rng.randrange(size) for _ in range(40)] + [size - 1, size - 5000]:
        try:
            got = os.pread(fd, 70_000, offset)
        except OSError as error:
            assert error.errno in GONE, error
            failures += 1
            continue
        if len(got) < min(70_000, size - offset):
            # Cached pages are readable; other reads are errors, not the end of the file.
            with pytest.raises(OSError) as raised:
                os.pread(fd, 1, offset + len(got))
            assert raised.value.errno in GONE
        if expected is not None:
            assert got == expected[offset:offset + len(got)]
        else:
            # All bytes outside the header belong to version 1.
            assert set(got[max(0, 4096 - offset):]) <= {1}
    if how in ("in-place", "truncated") and not warm:
        assert failures  # not cached anywhere
    os.close(fd)


@pytest.mark.parametrize("view", VIEWS)
def test_large_read_of_a_changed_file(mount, place, view):
    """If a request of a large read fails, the read returns the bytes before it, which are right. The
    next read fails, and never returns 0 as at the end of the file."""
    root, begun, size = place / "s", 1 << 20, 32 << 20
    write(root, version(1, size))
    m = mount(root)
    size = os.stat(m / VIEWS[view]).st_size
    with open(m / VIEWS[view], "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
        # The kernel may evict pages that are not locked.
        with map_locked(f.fileno(), begun) as mapped:
            assert len(mapped[:]) == begun
            rewrite(root, version(2, 32 << 20))
            got = os.pread(f.fileno(), size, 0)
        assert begun <= len(got) < size and set(got[4096:]) == {1}
        for read in (lambda: os.pread(f.fileno(), 1, len(got)), f.read):
            with pytest.raises(OSError) as raised:
                read()
            assert raised.value.errno == errno.ESTALE

        def touch():
            with mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                return mapped[len(got)]

        with pytest.raises(Died) as died:
            child(touch)
        assert died.value.args[0] == signal.SIGBUS


@pytest.mark.parametrize("view", VIEWS)
def test_mapped_file_keeps_its_version_or_faults(mount, place, view):
    root = place / "s"
    write(root, version(1))
    m = mount(root)

    def work():
        fd = os.open(m / VIEWS[view], os.O_RDONLY)
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            first = mapped[len(mapped) - 10:]
            rewrite(root, version(2))
            step = 65536
            for at in range(4096, len(mapped), step):
                assert set(mapped[at:at + 64]) <= {1}, at
            return first

    try:
        assert set(child(work)) == {1}
    except Died as died:
        assert died.args[0] == signal.SIGBUS
    assert eventually(lambda: shows(m, view, 2))


@pytest.mark.parametrize("view", VIEWS)
def test_readers_never_see_a_mixture(mount, place, view):
    """Newly opened and old descriptors while each version is renamed into the place of the last. (A
    file that is rewritten in place is a mixture itself.)"""
    root = place / "s"
    write(root, version(1))
    m = mount(root)
    stop = threading.Event()
    faults, seen = [], set()

    def reader(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            try:
                fd = os.open(m / VIEWS[view], os.O_RDONLY)
            except OSError as error:
                if error.errno not in GONE + (errno.ENOENT,):
                    faults.append(error)
                continue
            try:
                size = os.fstat(fd).st_size
                values = set()
                for _ in range(rng.randrange(1, 12)):
                    offset = rng.randrange(max(1, size - SIZE), size) if size > SIZE \
                        else rng.randrange(size)
                    values |= set(os.pread(fd, 50_000, offset)[4096:])
                    time.sleep(rng.random() * 0.03)
                if len(values) > 1:
                    faults.append(f"mixed: {values}")
                seen.update(values)
            except OSError as error:
                if error.errno not in GONE:
                    faults.append(error)
            finally:
                os.close(fd)

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for fill in range(2, 8):
        time.sleep(0.35)
        replace(root, version(fill))
    stop.set()
    for t in threads:
        t.join()
    assert not faults, faults[:3]
    assert seen
    assert eventually(lambda: shows(m, view, 7))


def opened_by(m):
    """The files that the daemon has open."""
    return list(files_open_in(m.pid).values())


def keeps_deleted(m):
    return any(path.endswith(" (deleted)") for path in opened_by(m))


def test_replaced_file_is_closed(mount, place):
    """If no reader has the replaced file open, its descriptors are closed, so that its space is
    freed."""
    root = place / "s"
    write(root, version(1))
    m = mount(root)
    assert all(shows(m, view, 1) for view in VIEWS)
    replace(root, version(2))
    assert eventually(lambda: all(shows(m, view, 2) for view in VIEWS))
    assert eventually(lambda: not keeps_deleted(m), 10), opened_by(m)


@pytest.mark.parametrize("view", VIEWS)
def test_deleted_file_is_closed_with_its_last_reader(mount, place, view):
    """A reader that has the deleted file open can continue. After that the daemon closes it without
    further requests."""
    root = place / "s"
    write(root, version(1, 16 << 20))
    (root / "m/other").write_bytes(b"other")
    m = mount(root, "--prefetch=off")
    fd = os.open(m / VIEWS[view], os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 1 << 20) as buffer:
        assert os.preadv(fd, [buffer], 4 << 20) == len(buffer) and set(buffer[:]) == {1}
        os.unlink(root / "m/model.safetensors")
        # A file without readers is closed, and this one is not.
        assert m.read("merged/m/other") == b"other"
        assert eventually(lambda: not any("other" in path for path in opened_by(m)), 10)
        assert os.preadv(fd, [buffer], 8 << 20) == len(buffer) and set(buffer[:]) == {1}
    assert keeps_deleted(m)
    os.close(fd)
    assert eventually(lambda: not keeps_deleted(m), 10), opened_by(m)


@pytest.mark.parametrize("view", VIEWS)
def test_deleted_file_in_the_page_cache(mount, place, view):
    """A reader that has the deleted file open reads through the existing descriptor, not by
    path."""
    root = place / "s"
    write(root, version(1))
    source = os.open(root / "m/model.safetensors", os.O_RDONLY)
    os.fsync(source)
    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    m = mount(root, "--prefetch=off")
    fd = os.open(m / VIEWS[view], os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 65536) as buffer:
        assert os.preadv(fd, [buffer], 1 << 20) == len(buffer) and set(buffer[:]) == {1}
        assert len(os.pread(source, 2 << 20, SIZE // 2)) > 1 << 20
        os.unlink(root / "m/model.safetensors")
        assert os.preadv(fd, [buffer], 2 << 20) == len(buffer) and set(buffer[:]) == {1}
    os.close(fd)
    os.close(source)


def test_models_appear_and_disappear(mount, place):
    source = trees.in_root(place / "s")
    m = mount(source.root)
    oracle.check_source(m.path, source)
    added = source.add("later/deep", "model", trees.small_tensors("l.", count=6), shards=2)
    source.add_side("later/deep/config.json")
    names = {v: "later" for v in ("tensors", "merged", "shards", "npy")}
    assert eventually(lambda: all("later" in os.listdir(m / v) for v in names))
    oracle.check_source(m.path, source)
    # Looks up names that did not exist before, without listing their directory.
    for view in names:
        assert not os.path.exists(m / f"{view}/second/model")
    second = source.add("second", "model", trees.small_tensors("s.", count=3))
    assert eventually(lambda: os.path.exists(m / "tensors/second/model/s.t0.weight"))
    assert eventually(lambda: os.path.exists(m / "merged/second/model.safetensors"))
    oracle.check_source(m.path, source)
    shutil.rmtree(source.path("later"))
    source.checkpoints.remove(added)
    source.side.pop("later/deep/config.json")
    source.directories -= {"later", "later/deep"}
    assert eventually(lambda: not any("later" in os.listdir(m / v) for v in names))
    assert eventually(lambda: not os.path.exists(m / "tensors/later/deep/model/l.t0.weight"))
    os.unlink(source.path("second/model.safetensors"))
    source.checkpoints.remove(second)
    assert eventually(lambda: not os.path.exists(m / "tensors/second/model"))
    assert eventually(lambda: os.listdir(m / "merged/second") == [])
    oracle.check_source(m.path, source)
    assert m.problems() == []


def test_model_grows_by_shards(mount, place):
    """As in a download: shards appear one by one, then the index; the checkpoint becomes valid."""
    source = trees.Source(place / "s")
    made = trees.Source(place / "made")
    c = made.add("m", "model", trees.small_tensors(count=8), shards=3)
    source.directory("m")
    m = mount(source.root)
    assert os.listdir(m / "tensors/m") == []
    for i, (name, tensors) in enumerate(c.shards):
        partial = made.path("m", name)
        data = open(partial, "rb").read()
        with open(source.path("m", name), "wb") as f:
            f.write(data[:20])
            f.flush()
            assert eventually(lambda: any(name in p for p in look(m)))
            f.write(data[20:])
        there = trees.Checkpoint("m", "model", c.shards[:i + 1])
        assert eventually(lambda: len(os.listdir(m / "tensors/m/model")) == len(there.tensors))
        for t in there.tensors:
            assert oracle.read_all(oracle.tensor_file(m / "tensors", there, t)) == t.data
    shutil.copy(made.path("m", c.index), source.path("m", c.index))
    source.checkpoints.append(c)
    assert eventually(lambda: c.index in os.listdir(m / "shards/m"))
    assert eventually(lambda: "model.safetensors" in os.listdir(m / "merged/m"))
    oracle.check_source(m.path, source)
    assert eventually(lambda: look(m) == []), m.problems()


def look(m):
    oracle.walk(m / "tensors")
    return m.problems()


def put(path, data):
    """Creates the file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "put.tmp").write_bytes(data)
    os.rename(path.parent / "put.tmp", path)


def sees_at_once(m, names, change):
    """Looks names up in vain, changes the source, and looks them up again at once, although the
    daemon has just checked the source."""
    for name in names:
        with pytest.raises(FileNotFoundError):
            os.stat(m / name)
    change()
    for name in names:
        os.stat(m / name)


@pytest.mark.parametrize("options", [(), ("--shard-size=5K",)], ids=["as-source", "recut"])
def test_lookup_finds_new_names_at_once(mount, place, options):
    """A failed lookup is not cached."""
    root = place / "s"
    two = [trees.tensor(f"w{i}", "U8", (5000,), fill=i) for i in range(2)]
    put(root / "m/old.safetensors", trees.file_bytes(two))
    m = mount(root, *options)
    part = "shards/m/new-00001-of-00002.safetensors" if options else "shards/m/new.safetensors"
    for _ in range(3):
        sees_at_once(m, ("tensors/m/new", "tensors/m/new.index.json", "npy/m/new",
                         "merged/m/new.safetensors", part),
                     lambda: put(root / "m/new.safetensors", trees.file_bytes(two)))
        assert oracle.read_all(m / "tensors/m/new/w1") == two[1].data
        sees_at_once(m, [f"{view}/m/new/w2" + end for view, end in (("tensors", ""),
                                                                    ("npy", ".npy"))],
                     lambda: put(root / "m/new.safetensors", trees.file_bytes(
                         [*two, trees.tensor("w2", "U8", (10,), fill=2)])))
        sees_at_once(m, ("merged/m/config.json", "shards/m/config.json"),
                     lambda: put(root / "m/config.json", b"{}"))
        sees_at_once(m, [f"{view}/n" for view in VIEWS], lambda: os.mkdir(root / "n"))
        (root / "m/new.safetensors").unlink()
        (root / "m/config.json").unlink()
        (root / "n").rmdir()
        assert eventually(lambda: not any(os.path.exists(m / name) for name in (
            part, "tensors/m/new", "npy/m/new", "merged/m/new.safetensors", "merged/n",
            "merged/m/config.json", "shards/m/config.json", "shards/n", "tensors/n", "npy/n")))


def test_lookup_finds_new_target_of_a_link_at_once(mount, place):
    """Links may exist before their targets (git-annex), so the directory does not change."""
    root = place / "s"
    (root / "m").mkdir(parents=True)
    for name in ("x.safetensors", "config.json", "sub"):
        os.symlink(f"../../far/{name}", root / "m" / name)
    m = mount(root)
    assert os.listdir(m / "merged/m") == [] and len(m.problems()) == 3

    def fetch():
        put(place / "far/config.json", b"{}")
        (place / "far/sub").mkdir()
        put(place / "far/x.safetensors", trees.file_bytes([trees.tensor("w", "U8", (9,))]))

    sees_at_once(m, ("merged/m/x.safetensors", "tensors/m/x/w", "shards/m/config.json",
                     "npy/m/sub"), fetch)
    assert sorted(os.listdir(m / "merged/m")) == ["config.json", "sub", "x.safetensors"]
    assert m.problems() == []


def test_lookup_finds_completed_checkpoint_at_once(mount, place):
    """The merged file is missing while a shard is: the checkpoint changes, not the listing."""
    shards = {f"x-{i + 1:05}-of-00002.safetensors":
              trees.file_bytes([trees.tensor(f"w{i}", "U8", (5000,), fill=i)]) for i in range(2)}
    root = place / "s"
    first, last = shards
    put(root / "m" / first, shards[first])
    put(root / "m" / last, b"not a header")
    m = mount(root)
    sees_at_once(m, ("merged/m/x.safetensors", "shards/m/x.safetensors.index.json"),
                 lambda: put(root / "m" / last, shards[last]))


def test_lookup_finds_shards_of_a_new_index_at_once(mount, place):
    root = place / "s"
    names = ["a.safetensors", "b.safetensors"]
    for i, name in enumerate(names):
        put(root / "m" / name,
            trees.file_bytes([trees.tensor(f"w{i}", "U8", (5000,), fill=i)]))
    m = mount(root)
    sees_at_once(m, ("merged/m/both.safetensors", "tensors/m/both/w1"), lambda: put(
        root / "m/both.safetensors.index.json",
        trees.index_bytes({f"w{i}": name for i, name in enumerate(names)})))


def test_side_files_change(mount, place):
    source = trees.in_root(place / "s")
    m = mount(source.root)
    for view in ("merged", "shards"):
        assert m.read(f"{view}/config.json") == b"{}\n"
    for data in (b'{"longer": "than before"}\n', b"", b"x" * 100_000):
        (place / "s/config.json").write_bytes(data)
        for view in ("merged", "shards"):

            def right():
                try:
                    return m.read(f"{view}/config.json") == data
                except OSError as error:
                    assert error.errno in GONE, error

            assert eventually(right), (view, data[:30])


def test_index_changes(mount, place):
    """After the index is replaced, tensors/ and merged/ show its shards."""
    source = trees.Source(place / "s")
    old = [trees.tensor("old", "U8", (100,), fill=1)]
    new = [trees.tensor("new", "U8", (200,), fill=2)]
    source.place("m/a.safetensors", trees.file_bytes(old))
    source.place("m/b.safetensors", trees.file_bytes(new))
    source.place("m/model.safetensors.index.json", trees.index_bytes({"old": "a.safetensors"}))
    m = mount(source.root)
    assert os.listdir(m / "tensors/m/model") == ["old"]
    assert sorted(os.listdir(m / "merged/m")) == [
        "b.safetensors", "model.safetensors", "model.safetensors.index.json"]
    source.place("m/model.safetensors.index.json", trees.index_bytes({"new": "b.safetensors"}))
    assert eventually(lambda: os.listdir(m / "tensors/m/model") == ["new"])
    assert eventually(lambda: sorted(os.listdir(m / "merged/m")) ==
                      ["a.safetensors", "model.safetensors", "model.safetensors.index.json"])
    entries, _, _ = oracle.read_header(m / "merged/m/model.safetensors")
    assert [e.name for e in entries] == ["new"]
    assert json.loads(m.read("merged/m/model.safetensors.index.json")) == \
        {"metadata": {"total_size": 200}, "weight_map": {"new": "model.safetensors"}}


def test_link_to_another_revision(mount, place):
    """A link of a Hugging Face snapshot is changed to another blob."""
    root = place / "s"
    (root / "snapshots").mkdir(parents=True)
    (root / "blobs").mkdir()
    for fill in (1, 2):
        (root / f"blobs/{fill}").write_bytes(version(fill))
    link = root / "snapshots/model.safetensors"
    link.symlink_to("../blobs/1")
    m = mount(root)
    path = m / "tensors/snapshots/model/w"
    assert set(oracle.read_all(path)) == {1}
    os.symlink("../blobs/2", root / "snapshots/new")
    os.rename(root / "snapshots/new", link)

    def right():
        try:
            return set(oracle.read_all(path)) == {2}
        except OSError as error:
            assert error.errno in GONE, error

    assert eventually(right)


def test_touch_and_chmod_do_not_disturb_readers(mount, place):
    """If the daemon holds a lease, a new change time is not new content: an open file stays
    readable."""
    root = place / "s"
    write(root, version(1))
    m = mount(root)
    fds = [os.open(m / p, os.O_RDONLY) for p in VIEWS.values()]
    os.chmod(root / "m/model.safetensors", 0o640)
    os.link(root / "m/model.safetensors", root / "m/second.bin")
    time.sleep(1)
    for fd in fds:
        size = os.fstat(fd).st_size
        assert set(os.pread(fd, 5000, size - 5000)) == {1}
        os.close(fd)
    assert eventually(lambda: os.stat(m / VIEWS["tensors"]).st_mode & 0o777 == 0o440)



@pytest.mark.parametrize("how", ["rename", "link"])
def test_each_version_has_its_own_change_time(mount, place, how):
    """Programs that read through the mount, such as libfstfs and another fstfs, tell versions apart
    by stat(2): also if the source file is replaced by one with the same size and times. A version
    keeps its change time across mounts."""
    root = place / "s"
    write(root, version(1))
    shard = root / "m/model.safetensors"
    before = os.stat(shard)

    def restore_times(path):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    if how == "link":
        os.rename(shard, root / "m/first")
        os.symlink("first", shard)
    paths = [*VIEWS.values(), "merged/m/config.json", "tensors/m/model", "tensors/m/model.index.json"]
    (root / "m/config.json").write_text("{}")
    first = mount(root)

    def states(m):
        found = [os.stat(m / path) for path in paths]
        return [(st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns) for st in found]

    old = states(first)
    assert states(mount(root)) == old
    (root / "m/second").write_bytes(version(2))
    restore_times(root / "m/second")
    if how == "rename":
        os.rename(root / "m/second", shard)
    else:
        os.symlink("second", root / "m/new")
        os.rename(root / "m/new", shard)

    def have_changed():
        new = states(first)
        is_as_before = [state[:3] for state in new] == [state[:3] for state in old]
        return is_as_before and [path for path, then, now in zip(paths, old, new) if then != now]

    versioned = [path for path in paths if path != "merged/m/config.json"]
    assert eventually(lambda: have_changed() == versioned), have_changed()
    assert eventually(lambda: all(shows(first, view, 2) for view in VIEWS))
    assert states(mount(root)) == states(first)


def test_directory_becomes_file_and_back(mount, place):
    root = place / "s"
    (root / "thing").mkdir(parents=True)
    (root / "thing/inner.txt").write_bytes(b"inner")
    m = mount(root)
    assert m.read("merged/thing/inner.txt") == b"inner"
    shutil.rmtree(root / "thing")
    (root / "thing").write_bytes(b"a file")
    assert eventually(lambda: os.path.isfile(m / "merged/thing"))
    assert m.read("merged/thing") == b"a file"
    os.unlink(root / "thing")
    (root / "thing").mkdir()
    (root / "thing/inner.txt").write_bytes(b"again")
    assert eventually(lambda: os.path.isdir(m / "merged/thing"))
    assert m.read("merged/thing/inner.txt") == b"again"


def wait_at(fifo):
    """Starts a process that waits for a reader to open the FIFO, and returns its PID. Its exit
    status is 0 if a reader did, and different if a signal came first."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os._exit(ctypes.CDLL(None).open(os.fsencode(fifo), os.O_WRONLY) < 0)
    return pid


def ended(pid):
    os.kill(pid, signal.SIGUSR1)  # repeatedly, because it may not be waiting yet
    found, status = os.waitpid(pid, os.WNOHANG)
    return found and [status]


@pytest.mark.parametrize("view", VIEWS)
def test_fifo_in_place_of_a_shard_is_not_opened(mount, place, view):
    """Opening a FIFO or a device may have side effects. The process at the FIFO keeps waiting."""
    root = place / "s"
    write(root, version(1))
    m = mount(root, "--prefetch=off")
    with open(m / VIEWS[view], "rb", buffering=0) as file:
        os.unlink(root / "m/model.safetensors")
        os.mkfifo(root / "m/model.safetensors")
        writer = wait_at(root / "m/model.safetensors")
        assert eventually(lambda: " S " in Path(f"/proc/{writer}/stat").read_text())
        with pytest.raises(OSError) as raised:
            os.pread(file.fileno(), 4096, SIZE // 2)
        assert raised.value.errno == errno.ESTALE
        status, = eventually(lambda: ended(writer))
    assert status != 0, "the daemon has opened it"


def test_source_directory_is_replaced(mount, place):
    """The source directory is renamed: errors, but no hang."""
    root = place / "s"
    write(root, version(1))
    m = mount(root)
    assert shows(m, "tensors", 1)
    os.rename(root, place / "gone")

    def work():
        try:
            return set(data_of(m / VIEWS["tensors"]))
        except OSError as error:
            assert error.errno in GONE + (errno.ENOENT,)
            return set()

    time.sleep(0.6)
    assert child(work) <= {1}


@pytest.mark.parametrize("how", ["removed", "mounted-over", "unmounted"])
def test_source_directory_is_recreated(mount, place, how):
    """The original directory no longer has a path. The directory now at SOURCE is shown, and links
    in it work."""
    if how != "removed" and os.geteuid() != 0:
        pytest.skip("needs root")
    root = place / "s"
    root.mkdir()
    if how == "unmounted":
        mount_tmpfs(root)
    write(root, version(1))
    m = mount(root)
    assert shows(m, "merged", 1)
    if how == "removed":
        shutil.rmtree(root)
        assert eventually(lambda: not os.path.exists(m / VIEWS["merged"]))
        root.mkdir()
    elif how == "mounted-over":
        mount_tmpfs(root)
    else:
        subprocess.run(["umount", "-l", root], check=True)
    write(place / "outside", version(3))
    try:
        write(root, version(2))
        os.symlink(place / "outside/m", root / "link")
        assert eventually(lambda: all(shows(m, view, 2) for view in VIEWS))
        assert eventually(lambda: os.path.exists(m / "merged/link"))
        assert set(data_of(m / "merged/link/model.safetensors")) == {3}
        line, = [x for x in m.log_text().splitlines() if "another directory" in x]
        m.unmount()
    finally:
        if mounted_at(root):
            subprocess.run(["umount", "-l", root], check=True)


def test_source_directory_is_not_replaced_by_a_link(mount, place):
    """A user who can write above SOURCE cannot replace it with a link to another user's directory."""
    above, others = place / "up", place / "others"
    (above / "s").mkdir(parents=True)
    write(above / "s", version(1))
    m = mount(above / "s")
    assert shows(m, "merged", 1)
    (others / "s").mkdir(parents=True)
    write(others / "s", version(2))
    shutil.rmtree(above)
    above.symlink_to(others)
    assert eventually(lambda: not os.path.exists(m / VIEWS["merged"]))
    assert not eventually(lambda: os.path.exists(m / VIEWS["merged"]), seconds=2 / SLOW)
    above.unlink()
    (above / "s").mkdir(parents=True)
    write(above / "s", version(3))
    assert eventually(lambda: all(shows(m, view, 3) for view in VIEWS))


@pytest.mark.parametrize("options", [(), ("-o", "allow_other")], ids=["private", "shared"])
@pytest.mark.parametrize("holder, owner, shown", [(0o2775, 0, 1), (0o755, 20001, 1), (0o1777, 0, 2), (0o755, 0, 2)],
                         ids=["group", "user", "sticky", "trusted"])
def test_directory_above_the_source_is_replaced(mount, place, holder, owner, shown, options):
    """A user who can write above SOURCE cannot replace it with a directory that he cannot read, by
    renaming what it is in. Where only the mounting user or root can do that, it is shown."""
    if (owner or options) and os.geteuid() != 0:
        pytest.skip("needs root")
    above, others = place / "holder/up", place / "holder/others"
    for root, number in ((above / "s", 1), (others / "s", 2)):
        root.mkdir(parents=True)
        write(root, version(number))
    others.chmod(0o700)
    m = mount(above / "s", *options)
    assert shows(m, "merged", 1)
    if owner:
        os.chown(place / "holder", owner, owner)
    (place / "holder").chmod(holder)
    shutil.rmtree(above)
    others.rename(above)
    if shown == 2:
        assert eventually(lambda: all(shows(m, view, 2) for view in VIEWS))
        return
    assert eventually(lambda: not os.path.exists(m / VIEWS["merged"]) and "is not shown" in m.log_text())
    assert not eventually(lambda: os.path.exists(m / VIEWS["merged"]), seconds=2 / SLOW)
    (place / "holder").chmod(0o755)
    if owner:
        os.chown(place / "holder", 0, 0)
    assert eventually(lambda: all(shows(m, view, 2) for view in VIEWS))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user mounts")
@pytest.mark.parametrize("user, shown", [(20001, 1), (0, 2)], ids=["user", "root"])
def test_directory_above_the_source_is_mounted_over(mount, place, user, shown):
    """A file system of an ordinary user above SOURCE is not shown: the server decides what is in it."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    above, others = place / "up", place / "others"
    for root, number in ((above / "s", 1), (others / "s", 2)):
        root.mkdir(parents=True)
        write(root, version(number))
    m = mount(above / "s", "-o", "allow_other")
    assert shows(m, "merged", 1)
    cover = mount(others, "-o", "allow_other", binary=SLOWFS, mountpoint=above,
                  wrapper=["setpriv", f"--ruid={user}"], environment=no_leak_check())
    if shown == 2:
        assert eventually(lambda: all(shows(m, view, 2) for view in VIEWS))
    else:
        assert eventually(lambda: shows(m, "merged", 1) and "is not shown" in m.log_text())
    assert m.unmount() == 0
    assert cover.unmount() == 0


@pytest.mark.parametrize("options", [(), ("-o", "allow_other"), ("--sandbox=off",)])
def test_links_into_the_mount(mount, place, options):
    """A link in the source leads to the very name in the mount that is being looked up. Following
    it would deadlock, and the process could not be killed."""
    if "allow_other" in options and os.geteuid() != 0:
        pytest.skip("needs root")
    root, at = place / "s", place / "at"
    root.mkdir()
    at.mkdir()
    (place / "hop").symlink_to(at)
    links = {"file.safetensors": at / "shards/file.safetensors", "tree": at / "tensors/tree",
             "near.safetensors": "../hop/merged/near.safetensors", "all": at}
    for name, target in links.items():
        (root / name).symlink_to(target)
    m = mount(root, *options, mountpoint=at)
    for name, view in zip(links, ("shards", "tensors", "merged", "npy")):
        reader = subprocess.Popen(["cat", at / view / name], stderr=subprocess.PIPE, text=True)
        try:
            _, output = reader.communicate(timeout=10 * SLOW)
        except subprocess.TimeoutExpired:
            subprocess.run(["umount", "-f", at], check=False)  # nothing else ends them
            raise
        assert reader.returncode == 1 and "No such file" in output
    assert sum("leads into the mount itself" in line for line in m.problems()) == len(links)
    subprocess.run(["ls", "-R", at], check=True, timeout=10 * SLOW,
                   stdout=subprocess.DEVNULL)


def mount_tmpfs(directory):
    if subprocess.run(["mount", "-t", "tmpfs", "none", directory]).returncode != 0:
        pytest.skip("this machine cannot mount")
