# SPDX-License-Identifier: Apache-2.0
"""Storage errors: readers do not notice transient ones; persistent ones are errors, never wrong
bytes."""

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
import readers
from conftest import BUILD, SLOW, Died, child, eventually, preload
from corpus import trees
from page_cache import cached

SLOWFS = BUILD / "tests/slowfs/slowfs"
SHARD = "model-00001-of-00002.safetensors"
SIZE = 6 << 20
ENGINES = {"uring": (), "threads": ("--io=threads",)}


@pytest.fixture(scope="session")
def plan(shared_place):
    """Two shards with one large tensor each, "w" and "x", and small ones."""
    source = trees.Source(shared_place / "plan")
    source.add("m", "model", [trees.tensor("a", "F32", (100,)), trees.tensor("w", "U8", (SIZE,)),
                              trees.tensor("x", "U8", (SIZE,)), trees.tensor("y", "U8", (5000,))],
               shards=2)
    source.add_side("m/config.json", b'{"model_type": "plan"}\n')
    return source


class Faulty:
    """The source behind slowfs."""

    def __init__(self, mount, plan, place, options=""):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        self.file = place / "faults"
        self.mount = mount(plan.root, "-o", f"faults={self.file}{options}", binary=SLOWFS)
        self.root = self.mount.path
        entries, _, _ = oracle.read_header(plan.path("m", SHARD))
        self.at = next(e.offset for e in entries if e.name == "w") + SIZE // 2 + 12_345

    def set(self, *rules):
        """`@` in a rule is the offset of the byte in the middle of "w"."""
        new = self.file.with_suffix(".new")
        new.write_text("".join(r.replace("@", f"{self.at}+1") + "\n" for r in rules))
        os.rename(new, self.file)

    def forget(self):
        """Drops everything from the page cache."""
        directory = os.path.join(self.root, "m")
        for name in os.listdir(directory):
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@pytest.fixture
def faulty(mount, plan, place):
    return Faulty(mount, plan, place)


def files_with_w(m, plan):
    """The files of all views that contain the faulty byte."""
    files = oracle.plain_files(m.path, plan)
    w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
    return [(path, want) for path, want in files if w in want]


TRANSIENT = {
    "eio-once": f"read m/{SHARD} @ error=EIO x1",
    "eio-twice": f"read m/{SHARD} @ error=EIO x2",
    "eagain": f"read m/{SHARD} @ error=EAGAIN x3",
    "eintr": f"read m/{SHARD} @ error=EINTR x3",
    "open-eio": f"open m/{SHARD} error=EIO x1",
    "open-eintr": f"open m/{SHARD} error=EINTR x2",
}


@pytest.mark.parametrize("engine", [*ENGINES, "buffered"])
@pytest.mark.parametrize("view", ["tensors", "merged"])
@pytest.mark.parametrize("what", TRANSIENT)
def test_transient_fault(mount, faulty, plan, what, view, engine):
    """A mount for each method of reading, because each would find what another has cached."""
    for method in readers.METHODS:
        m = mount(faulty.root, *ENGINES.get(engine, ["--direct=off"]))
        file, = [f for f in files_with_w(m, plan) if f"/{view}/".encode() in f[0]]
        faulty.forget()
        faulty.set(TRANSIENT[what])
        child(readers.check_files, [file], method)
        faulty.set()
        assert m.log_text() == ""
        if what.startswith("eio"):  # the kernel may repeat the others
            assert m.metrics()["fstfs_storage_retries_total"] > 0
        m.unmount()


@pytest.mark.parametrize("direct", ["direct", "buffered"])
@pytest.mark.parametrize("most", [4096, 65536, 100_000])
def test_short_reads(mount, plan, most, direct):
    """Short reads are continued."""
    m = mount(plan.root, "--io=threads", *(["--direct=off"] if direct == "buffered" else []),
              environment=preload("short_reads", SHORT_READS=most))
    files = files_with_w(m, plan)
    for method in readers.METHODS:
        for path in [plan.path("m", name) for name, _ in plan.checkpoints[0].shards]:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            always_cached = any(cached(path))  # on a tmpfs
        child(readers.check_files, files, method)
    numbers = m.metrics()
    came = numbers["fstfs_storage_read_bytes_total"] - numbers["fstfs_page_cache_read_bytes_total"]
    assert (0 if always_cached else SIZE + 1) <= came <= most * numbers["fstfs_storage_reads_total"]
    assert m.log_text() == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_persistent_fault_by_read(mount, faulty, plan, engine):
    """Unreadable bytes are EIO in every view, and all others are read."""
    m = mount(faulty.root, *ENGINES[engine])
    files = files_with_w(m, plan)
    w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
    faulty.forget()
    faulty.set(f"read m/{SHARD} @ error=EIO")
    for path, want in files:
        bad = want.index(w) + SIZE // 2 + 12_345
        for method in ("read", "direct"):
            with readers.OpenFile(path, method, (want,)) as file:
                for offset in (0, bad, len(want) - 65536, 65536):
                    try:
                        file.check(offset // 65536 * 65536, 65536)
                    except OSError as error:
                        assert (error.errno, offset) == (errno.EIO, bad)
                    else:
                        assert offset != bad
    for t in plan.checkpoints[0].tensors[2:]:
        assert m.read(f"tensors/m/model/{t.name}") == t.data
    assert m.metrics()["fstfs_read_errors_total"] > 0
    check_logged_once(m, faulty)
    # When the storage recovers, so does the mount.
    faulty.set()
    readers.check_files(files, "read")


@pytest.mark.parametrize("engine, code", [
    ("threads", "EAGAIN"),  # io_uring repeats such a read in the kernel
    *((engine, code) for engine in ENGINES for code in ("EINTR", "EINPROGRESS"))])
def test_persistent_error_with_another_meaning(mount, faulty, plan, engine, code):
    """Reads fail with EIO, although the engine uses these errors internally, and tools do not hang."""
    m = mount(faulty.root, *ENGINES[engine])
    path, want = files_with_w(m, plan)[0]
    w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
    bad = want.index(w) + SIZE // 2 + 12_345
    faulty.forget()
    faulty.set(f"read m/{SHARD} @ error={code}")

    def read():
        with readers.OpenFile(path, "direct", (want,)) as file:
            with pytest.raises(OSError) as error:
                file.check(bad // 65536 * 65536, 65536)
            assert error.value.errno == errno.EIO

    child(read)
    if code != "EAGAIN":
        for tool in (["fstfs-check", "--deep", faulty.root],
                     ["fstfs-pack", f"{faulty.root}/m", faulty.file.with_name("x.safetensors")]):
            done = subprocess.run([BUILD / tool[0], *tool[1:]], capture_output=True, text=True,
                                  timeout=30 * SLOW)
            assert done.returncode in (1, 2)
            assert "Input/output error" in done.stdout + done.stderr
    faulty.set()
    child(readers.check_files, [(path, want)], "read")


def check_logged_once(m, faulty):
    """One line, whichever view was read: file, offset and error."""
    line, = m.log_text().splitlines()
    found = re.search(rf"m/{re.escape(SHARD)}: read at (\d+): Input/output error", line)
    assert found, line
    assert int(found[1]) <= faulty.at < int(found[1]) + (1 << 20)


@pytest.mark.parametrize("engine", ENGINES)
def test_persistent_fault_during_sequential_reads(mount, faulty, plan, engine):
    """Only requests that contain the bad byte fail."""
    m = mount(faulty.root, *ENGINES[engine])
    faulty.forget()
    faulty.set(f"read m/{SHARD} @ error=EIO")
    for path, want in files_with_w(m, plan):
        w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
        bad = want.index(w) + SIZE // 2 + 12_345
        failed = []
        with readers.OpenFile(path, "direct", (want,)) as file:
            for offset in range(0, len(want), 65536):
                try:
                    file.check(offset, 65536)
                except OSError as error:
                    assert error.errno == errno.EIO
                    failed.append(offset)
        assert failed == [bad // 65536 * 65536], path
    check_logged_once(m, faulty)


@pytest.mark.parametrize("engine", ENGINES)
def test_persistent_fault_by_page_fault(mount, faulty, plan, engine):
    m = mount(faulty.root, *ENGINES[engine])
    faulty.forget()
    faulty.set(f"read m/{SHARD} @ error=EIO")
    for path, want in files_with_w(m, plan):
        w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
        bad = want.index(w) + SIZE // 2 + 12_345

        def touch(*ranges):
            with readers.OpenFile(path, "mmap", (want,)) as file:
                for offset, length in ranges:
                    file.check(offset, length)

        child(touch, (0, 100_000), (len(want) - 100_000, 100_000))
        with pytest.raises(Died) as died:
            child(touch, (bad, 1))
        assert died.value.args[0] == signal.SIGBUS
    check_logged_once(m, faulty)
    faulty.set()
    child(readers.check_files, files_with_w(m, plan), "mmap")


@pytest.mark.parametrize("engine", ENGINES)
def test_fault_of_a_prefetch(mount, faulty, plan, engine):
    """An error of a prefetch affects no reader, and is not logged."""
    m = mount(faulty.root, *ENGINES[engine])
    faulty.forget()
    faulty.set(f"read m/{SHARD} @ error=EIO")
    path, want = next((p, w) for p, w in files_with_w(m, plan) if b"/tensors/" in p)
    with readers.OpenFile(path, "direct", (want,)) as file:
        for offset in range(0, SIZE // 2 - (256 << 10), 65536):
            file.check(offset, 65536)
    assert eventually(lambda: m.metric("storage_retries_total") > 0), "the byte was not prefetched"
    assert m.log_text() == ""
    assert m.metrics()["fstfs_read_errors_total"] == 0


def reads_again(m, plan):
    """Whether reopening reads correct bytes within the time in which changes become visible."""
    def right():
        try:
            readers.check_files(oracle.plain_files(m.path, plan), "direct")
            return True
        except OSError as error:
            assert error.errno in (errno.ESTALE, errno.EIO, errno.ENOENT)

    return eventually(right)


@pytest.mark.parametrize("what", ["tensors", "merged", "shards", "npy", "side-file"])
def test_stale_once(mount, faulty, plan, what):
    """ESTALE of a network file system: readers of the open file may get it, later ones may not."""
    m = mount(faulty.root)
    w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
    if what == "side-file":
        name, (path, want) = "config.json", oracle.plain_files(m.path, plan)[-1]
    else:
        name, (path, want) = SHARD, next(f for f in files_with_w(m, plan)
                                         if f"/{what}/".encode() in f[0])
    faulty.forget()
    faulty.set(f"read m/{name} error=ESTALE x1")
    with readers.OpenFile(path, "direct", (want,)) as file:
        with pytest.raises(OSError) as raised:
            file.check(want.index(w) + SIZE // 2 if w in want else 0, 65536)
        assert raised.value.errno in (errno.ESTALE, errno.EIO)
    assert reads_again(m, plan)


def test_directory_disappears_and_returns(mount, plan, place):
    """A directory that is missing for a while, such as an automounted one."""
    shutil.copytree(plan.root, place / "s")
    m = mount(place / "s")
    w = next(t.data for t in plan.checkpoints[0].tensors if t.name == "w")
    # Nothing was read before, so the daemon has nothing open.
    with readers.OpenFile(m / "tensors/m/model/w", "direct", (w,)) as file:
        os.rename(place / "s/m", place / "s/away")
        with pytest.raises(OSError) as raised:
            file.check(SIZE // 2, 65536)
        assert raised.value.errno in (errno.ESTALE, errno.EIO)
        os.rename(place / "s/away", place / "s/m")
    assert reads_again(m, plan)


@pytest.mark.parametrize("engine", ENGINES)
def test_queue(mount, faulty, plan, engine):
    """Requests in flight, and requests that are queued."""
    m = mount(faulty.root, "--queue-depth=1", "--threads=1", "--prefetch=off", *ENGINES[engine])
    (path, want), = [f for f in files_with_w(m, plan) if b"/tensors/" in f[0]]
    faulty.forget()
    faulty.set(f"read m/{SHARD} hang")

    def read(offset):
        with readers.OpenFile(path, "direct", (want,)) as file:
            file.check(offset, 65536)

    def queue():
        numbers = m.metrics()
        return numbers["fstfs_storage_reads_in_flight"], numbers["fstfs_storage_reads_waiting"]

    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(read, i << 20) for i in range(4)]
        try:
            assert eventually(lambda: queue() == (1, 3))
        finally:
            faulty.set()
        assert [end.result() for end in ends] == [None] * 4
    assert queue() == (0, 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ["read", "open"])
def test_hanging_shard_does_not_block_others(mount, faulty, plan, what, engine):
    """Readers of one shard wait for storage, and those of the other read on. Later all finish."""
    m = mount(faulty.root, *ENGINES[engine])
    files = oracle.plain_files(m.path, plan)
    if what == "open":
        assert eventually(lambda: m.metrics()["fstfs_open_descriptors"] == 0)
    faulty.forget()
    faulty.set(f"{what} m/{SHARD} hang")
    hung, others = [f for f in files if b"/w" in f[0]], [f for f in files if b"/x" in f[0]]
    ended = []

    def read():
        readers.check_files(hung, "direct")
        ended.append(True)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: m.metrics()["fstfs_reads_in_flight"] >= 1)
    for method in readers.METHODS:
        child(readers.check_files, others, method)
    assert not ended
    faulty.set()
    for thread in threads:
        thread.join()
    assert len(ended) == 8


def test_hanging_opens_do_not_block_others(mount, place):
    """Six files hang in open(), each with readers at distant offsets: more than there are threads
    that open files. The seventh is read."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "many")
    tensors = [trees.tensor("w", "U8", (SIZE,)) for _ in range(7)]
    for i, tensor in enumerate(tensors):
        source.add(f"m{i}", "model", [tensor])
    rules = place / "faults"
    below = mount(source.root, "-o", f"faults={rules},age=60", binary=SLOWFS)
    m = mount(below.path)
    paths = [f"tensors/m{i}/model/w" for i in range(7)]
    for path in paths:
        os.stat(m / path)
    assert eventually(lambda: m.metrics()["fstfs_open_descriptors"] == 0)
    rules.write_text("".join(f"open m{i}/model.safetensors hang\n" for i in range(6)))

    def read(i, offset):
        fd = os.open(m / paths[i], os.O_RDONLY)
        try:
            return os.pread(fd, 4096, offset) == tensors[i].data[offset:offset + 4096]
        finally:
            os.close(fd)

    with ThreadPoolExecutor(18) as pool:
        reads = [pool.submit(read, i, offset)
                 for i in range(6) for offset in (1 << 20, 3 << 20, 5 << 20)]
        try:
            assert eventually(lambda: m.metrics()["fstfs_reads_in_flight"] >= 18)
            assert child(read, 6, 2 << 20)
            assert not any(each.done() for each in reads)
        finally:
            rules.write_text("")  # the pool waits for its threads
        assert all(each.result() for each in reads)


HEADS = {
    "header": f"read m/{SHARD} 0+8 error=EIO",
    "header-open": f"open m/{SHARD} error=EIO",
    "index": "read m/model.safetensors.index.json error=EIO",
    "index-open": "open m/model.safetensors.index.json error=EIO",
}


@pytest.mark.parametrize("what", HEADS)
def test_fault_while_listing(mount, faulty, plan, what):
    """An unreadable file is reported once, however often its directory is listed, and works after
    the storage recovers."""
    m = mount(faulty.root)
    faulty.forget()
    faulty.set(HEADS[what])

    def reported():
        """Lists and reads everything. Whether the error is in .fstfs/problems then."""
        for view in ("tensors", "merged", "shards", "npy"):
            try:
                oracle.walk(m / view)
            except OSError as error:  # the tensors are not known
                assert "index" in what and error.errno == errno.EIO
        return any("Input/output error" in line for line in m.problems())

    looks = m.metrics()["fstfs_listings_total"]
    assert eventually(reported)
    if "index" in what:  # each listing reads it again
        assert eventually(lambda: reported() and m.metrics()["fstfs_listings_total"] > looks + 4)
    else:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert reported()
    line, = [x for x in m.log_text().splitlines() if "Input/output error" in x]
    faulty.set()
    assert eventually(lambda: not reported() and m.problems() == [])
    oracle.check_source(m.path, plan)


@pytest.mark.parametrize("answered", [0, 1])
def test_storage_answers_enoent_to_a_listing(mount, place, answered):
    """To readdir(3) that is the end of the directory, so that it would look empty, or shorter,
    until its mtime changes."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "many")
    # Several times as many names as one answer contains.
    source.add("m", "model", [trees.tensor("w", "U8", (4,))])
    for i in range(1000):
        source.add_side(f"m/{'long' * 20}-{i}.txt")
    rules = place / "faults"
    below = mount(source.root, "-o", f"faults={rules},age=60", binary=SLOWFS)
    rules.write_text("readdir m delay=0 x1\n" * answered + "readdir m error=ENOENT\n")
    m = mount(below.path)
    with pytest.raises(FileNotFoundError):
        os.listdir(m / "tensors/m")
    assert os.listdir(m / "tensors") == ["m"]
    rules.write_text("")
    assert sorted(os.listdir(m / "tensors/m")) == ["model", "model.index.json"]
    assert len(os.listdir(m / "merged/m")) == 1001


INTERRUPTED = {
    "lookup": f"lookup m/{SHARD}",
    "getattr": f"getattr m/{SHARD}",
    "header": f"read m/{SHARD} 0+8",
    "header-open": f"open m/{SHARD}",
    "index": "read m/model.safetensors.index.json",
    "index-open": "open m/model.safetensors.index.json",
    "directory-open": "opendir m",
    "directory": "readdir m",
}


def look(m, plan):
    """Lists the views, and reads what they list. Returns the errors."""
    found = set()
    for view in ("tensors", "merged", "shards"):
        try:
            for name, kind in oracle.walk(m / view).items():
                if kind == "f":
                    with open(os.path.join(os.fsencode(m / view), name), "rb") as file:
                        file.read(1)
        except OSError as error:
            found.add(error.errno)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", INTERRUPTED)
def test_storage_always_answers_eintr(mount, plan, place, what, engine):
    """All calls end with EIO, like reads of data: EINTR would mean that the caller was
    interrupted. libfstfs and tools end, too."""
    faulty = Faulty(mount, plan, place, ",valid=0")
    m = mount(faulty.root, *ENGINES[engine])
    faulty.forget()
    faulty.set(f"{INTERRUPTED[what]} error=EINTR")
    try:
        assert child(look, m, plan, seconds=15) <= {errno.EIO}
        lines = child(m.problems, seconds=15)
        assert any("Input/output error" in line for line in lines), lines
        for command in (["fstfs-check", faulty.root],
                        ["tests/client/client", "list", f"{faulty.root}/m"]):
            done = subprocess.run([BUILD / command[0], *command[1:]], capture_output=True,
                                  text=True, timeout=30 * SLOW)
            assert done.returncode in (1, 2), command
            assert "Input/output error" in done.stdout + done.stderr, command
    finally:
        faulty.set()
    assert eventually(lambda: m.problems() == [])
    oracle.check_source(m.path, plan)


@pytest.mark.parametrize("what", INTERRUPTED)
def test_calls_are_interrupted(mount, plan, place, what):
    """Interrupted calls are repeated, as after the signals of a program that uses libfstfs."""
    faulty = Faulty(mount, plan, place, ",valid=0")
    rule = f"{INTERRUPTED[what]} error=EINTR x10"
    faulty.forget()
    faulty.set(rule)
    done = subprocess.run([BUILD / "tests/client/client", "list", f"{faulty.root}/m"],
                          capture_output=True, text=True, timeout=30 * SLOW)
    assert done.returncode == 0, done.stderr
    m = mount(faulty.root)
    faulty.forget()
    faulty.set(rule + " ")
    child(oracle.check_source, m.path, plan)
    assert m.problems() == []
    assert m.log_text() == ""


@pytest.mark.parametrize("engine, what", [
    ("threads", "read"), ("buffered", "read"),  # io_uring repeats a direct read in the kernel
    *((engine, what) for engine in ENGINES for what in ("open", "getattr"))])
def test_storage_always_answers_eopnotsupp(mount, plan, place, what, engine):
    """Reads end, although in the engine this error means that a file refuses O_DIRECT."""
    faulty = Faulty(mount, plan, place, ",valid=0")
    m = mount(faulty.root, "--prefetch=off", *ENGINES.get(engine, ["--direct=off"]))
    path, want = next((p, w) for p, w in files_with_w(m, plan) if b"/tensors/" in p)
    assert eventually(lambda: m.metrics()["fstfs_open_descriptors"] == 0)
    faulty.forget()
    answer = f"{what} m/{SHARD} error=EOPNOTSUPP"

    def read(file):
        with pytest.raises(OSError) as error:
            file.check(SIZE // 2, 65536)
        assert error.value.errno in (errno.EOPNOTSUPP, errno.EIO)

    with readers.OpenFile(path, "direct", (want,)) as file, ThreadPoolExecutor() as pool:
        # A getattr that fails before the read would be an error of the read.
        faulty.set(f"read m/{SHARD} hang" if what == "getattr" else answer)
        end = pool.submit(child, read, file)
        if what == "getattr":
            assert eventually(lambda: m.metrics()["fstfs_storage_reads_in_flight"] == 1)
            faulty.set(answer)
        try:
            end.result(15 * SLOW)
        finally:
            faulty.set()
    child(readers.check_files, [(path, want)], "read")
