# SPDX-License-Identifier: Apache-2.0
"""Sources and readers that try to exhaust the daemon: it answers in time, stays within its memory,
and serves other files. The daemon's memory is limited from outside."""

import errno
import json
import os
import resource
import shutil
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oracle
import pytest
from conftest import FACTOR, SANITIZED, SLOW, child, eventually
from corpus import gguffiles, trees

MOST_HEADER = 100_000_000
MEMORY = 64 << 20  # --memory
BESIDE = 64 << 20  # allowed in addition
HEADERS = 1 << 30  # the budget for headers with this --memory
CPU_SECONDS = 10 * FACTOR  # of CPU time, which does not depend on load


def much(count):
    """Smaller for a sanitized build, which is slow and whose memory is not checked."""
    return count // 10 if SANITIZED else count


@pytest.fixture
def source(place):
    source = trees.Source(place / "s")
    source.add("good", "model", trees.small_tensors("g.", count=4), shards=2)
    source.directory("bomb")
    return source


def raw_shard(path, header, data=0, n=None):
    """A shard with this header and that many bytes of hole."""
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header) if n is None else n) + header)
        f.truncate(8 + len(header) + data)


def peak(m):
    """Peak memory of the daemon in bytes."""
    with open(f"/proc/{m.pid}/status") as f:
        line, = (line for line in f if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def cpu_seconds(m):
    """CPU time of the daemon."""
    with open(f"/proc/{m.pid}/stat") as f:
        user, system = f.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def attempt(call, *args):
    """The errno, or 0."""
    def work():
        try:
            call(*args)
        except OSError as error:
            return error.errno
        return 0

    return child(work, seconds=30)


def look(m):
    """Accesses everything of the bomb in all views."""
    before = cpu_seconds(m)
    for view in ("tensors", "merged", "shards", "npy"):
        attempt(os.listdir, m / f"{view}/bomb")
    assert cpu_seconds(m) < before + CPU_SECONDS


def check(m, source, most):
    oracle.check_tensors(m / "tensors", source.checkpoints[0])
    oracle.check_merged(m / "merged", source.checkpoints[0])
    if not SANITIZED:
        assert peak(m) < most, f"{peak(m) >> 20} MiB"


def deep(opening, closing, depth):
    return opening * depth + b"1" + closing * depth


BOMBS = {
    "spaces": b"{}" + b" " * (MOST_HEADER - 2),
    "too-long": b"{}" + b" " * (MOST_HEADER - 1),
    "deep-arrays": b'{"a":' + deep(b"[", b"]", much(5_000_000)) + b"}",
    "deep-objects": b'{"a":' + deep(b'{"a":', b"}", much(2_000_000)) + b"}",
    "deep-metadata": b'{"__metadata__":{"a":' + deep(b"[", b"]", much(5_000_000)) + b"}}",
    "unclosed": b'{"' + b"a" * much(50_000_000),
    "escapes": b'{"' + b"\\u0041" * much(8_000_000) +
               b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "numbers": b'{"a":{"dtype":"U8","shape":[' + b"1," * much(20_000_000) +
               b'1],"data_offsets":[0,1]}}',
    "long-number": b'{"a":{"dtype":"U8","shape":[' + b"9" * much(50_000_000) +
                   b'],"data_offsets":[0,1]}}',
    "shape-2^63": b'{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}}',
    "shape-overflow": b'{"a":{"dtype":"F64","shape":[4294967296,4294967296,4294967296],'
                      b'"data_offsets":[0,1]}}',
    "offsets-2^64": b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}}',
    "offsets-over": b'{"a":{"dtype":"U8","shape":[9223372036854775807],'
                    b'"data_offsets":[0,9223372036854775807]}}',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_header(mount, source, bomb):
    """One header of up to 100 MB. Only the header, while it is read, and its tables are in memory."""
    header = BOMBS[bomb]
    raw_shard(source.path("bomb/model.safetensors"), header, 1)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    # "1," of a shape becomes eight bytes
    check(m, source, (6 if bomb == "numbers" else 2) * len(header) + MEMORY + BESIDE)
    if bomb not in ("spaces", "escapes", "numbers"):
        assert any(line.startswith("bomb/model.safetensors: refused: ") for line in m.problems())


def test_length_of_a_header(mount, source):
    """A header length in a file causes no allocation."""
    for i, n in enumerate((2**63, 2**64 - 1, 2**32, MOST_HEADER + 1, MOST_HEADER)):
        raw_shard(source.path(f"bomb/m{i}.safetensors"), b"{}", 100, n)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, MEMORY)
    assert len(m.problems()) == 5


def test_million_tensors(mount, source):
    count = much(1_000_000)
    entry = b'"%d":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}'
    header = b"{" + b",".join(entry % (i, i, i + 1) for i in range(count)) + b"}"
    raw_shard(source.path("bomb/model.safetensors"), header, count)
    m = mount(source.root, f"--memory={MEMORY}")
    assert attempt(os.stat, m / f"tensors/bomb/model/{count - 1}") == 0
    assert attempt(os.stat, m / "merged/bomb/model.safetensors") == 0
    # the header, its table of 140 bytes per tensor, a merged header
    check(m, source, 3 * len(header) + 200_000_000 + MEMORY + BESIDE)


def test_many_headers_at_once(mount, source):
    """Many shards and many checkpoints, each with a header at the limit, are not in memory
    together."""
    names = [f"model-{i:05}-of-00008.safetensors" for i in range(1, 9)] + \
        [f"single{i}.safetensors" for i in range(much(8))]
    for name in names:
        with open(source.path("bomb", name), "wb") as f:
            f.write(struct.pack("<Q", MOST_HEADER) + b"{}")
            f.truncate(8 + MOST_HEADER)  # NUL is not a space: refused after all of it was read
    m = mount(source.root, f"--memory={MEMORY}")
    assert attempt(os.listdir, m / "tensors/bomb") == 0
    check(m, source, 2 * MOST_HEADER + MEMORY + BESIDE)
    assert len(m.problems()) == len(names)


def zeros(size, name=b"a"):
    """A header of one empty tensor with as many dimensions as fit: its table needs four times the
    header."""
    return b'{"%s":["U8",[' % name + b"0," * (size // 2 - 20) + b"0],[0,0]]}"


def refused(m):
    return [line for line in m.problems() if "NoMemoryForHeaders" in line]


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symlink", "link"])
def test_many_names_of_one_header(mount, source, make):
    """Many names of one header share its table, which is parsed once."""
    header = zeros(much(20_000_000))
    one = source.path("bomb/0.safetensors")
    raw_shard(one, header)
    for i in range(1, 20):
        make(one, source.path(f"bomb/{i}.safetensors"))
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    for i in range(20):
        assert attempt(os.stat, m / f"merged/bomb/{i}.safetensors") == 0
        assert attempt(os.stat, m / f"tensors/bomb/{i}/a") == 0
    assert m.metric("table_bytes") < 5 * len(header)
    assert m.metric("header_memory_peak_bytes") < 8 * len(header)
    check(m, source, 8 * len(header) + MEMORY + BESIDE)
    assert m.problems() == []


def test_many_tensors_of_one_header(mount, source):
    """Many names of one header also share the list of its tensors."""
    count = much(200_000)
    entries = [b'"%x":["U8",[1],[%d,%d]]' % (i, i, i + 1) for i in range(count)]
    raw_shard(source.path("bomb/0.safetensors"), b"{" + b",".join(entries) + b"}", count)
    for i in range(1, 20):
        os.symlink("0.safetensors", source.path(f"bomb/{i}.safetensors"))
    m = mount(source.root, f"--memory={MEMORY}")
    attempt(os.stat, m / "tensors/bomb/0/0")
    one = m.metric("header_memory_bytes")
    for i in range(1, 20):
        assert attempt(os.stat, m / f"tensors/bomb/{i}/0") == 0
    assert m.metric("header_memory_bytes") < one + (1 << 20)


@pytest.mark.skipif(SANITIZED, reason="needs the largest headers, which take too long")
def test_headers_over_the_budget(mount, source):
    """Tables in use fill the budget: other headers are refused, and other files read correctly.
    After the files are removed, so are their tables."""
    stems = [f"b{i}" for i in range(3)]
    for stem in stems:
        raw_shard(source.path(f"bomb/{stem}.safetensors"), zeros(MOST_HEADER))
    m = mount(source.root, f"--memory={MEMORY}")
    fds = []
    for stem in stems:
        try:
            fds.append(os.open(m / f"tensors/bomb/{stem}/a", os.O_RDONLY))
        except OSError as e:
            assert e.errno == errno.EIO
    try:
        assert fds
        check(m, source, HEADERS + MEMORY + BESIDE)
        assert m.metric("header_memory_peak_bytes") <= HEADERS
        assert m.metric("header_refusals_total") > 0
        assert all("raise --memory" in line for line in refused(m))
        # A line has the memory in use at that time, so a file may have several.
        files = {line.split(": ")[0] for line in refused(m)}
        assert len(files) == len(stems) - len(fds) > 0
    finally:
        for fd in fds:
            os.close(fd)
    shutil.rmtree(source.path("bomb"))
    assert eventually(lambda: attempt(os.stat, m / "tensors/bomb") == errno.ENOENT)
    assert eventually(lambda: refused(m) == [])  # a scan of the whole source holds tables, too
    assert eventually(lambda: m.metric("header_memory_bytes") < 1 << 20)


def fill_header_budget(m, source, room):
    """Headers whose tables leave `room` bytes in the budget for headers. Returns what keeps them in
    use."""
    fds = []
    while (over := HEADERS - m.metric("header_memory_bytes") - room) > 64 << 10:
        # parsing a table is charged 7 times the header, then 4 times
        size = min(over // 4, (over + room) // 8, MOST_HEADER)
        stem = f"filler{len(fds)}"
        raw_shard(source.path(f"bomb/{stem}.safetensors"), zeros(size))
        path = m / f"tensors/bomb/{stem}/a"
        assert eventually(lambda: attempt(os.stat, path) == 0)
        fds.append(os.open(path, os.O_RDONLY))
    return fds


def attributes(m):
    """Of what is made of each checkpoint, without the time of the last access."""
    return [os.stat(m / path)[:7] + (os.stat(m / path).st_ctime_ns, os.stat(m / path).st_mtime_ns)
            for name in ("small", "large")
            for path in (f"merged/{name}/model.safetensors", f"tensors/{name}/model")]


def errors(m, paths):
    return [attempt(os.stat, m / path) for path in paths]


@pytest.mark.skipif(SANITIZED, reason="needs the largest headers, which take too long")
def test_budget_shows_no_size_of_a_closed_header(mount, source):
    """Whether a header has room depends on its size."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    paths = []
    for name, size in ("small", 1000), ("large", 20_000_000):
        source.directory(name)
        raw_shard(source.path(f"{name}/model-00001-of-00002.safetensors"), zeros(1000, b"b"))
        closed = source.path(f"{name}/model-00002-of-00002.safetensors")
        raw_shard(closed, zeros(size))
        os.chmod(closed, 0o600)
        paths += [f"{name}/model.safetensors", f"{name}/model/a", f"{name}/model/b"]
    paths = [f"merged/{path}" if path.endswith("model.safetensors") else f"tensors/{path}" for path in paths]
    m = mount(source.root, "-o", "allow_other", f"--memory={MEMORY}")
    fds = fill_header_budget(m, source, 16 << 20)
    try:
        assert errors(m, paths) == [0, 0, 0, 0, errno.EIO, 0]
        assert child(errors, m, paths, user="nobody") == [0, errno.EACCES, errno.EACCES] * 2
        shown = child(attributes, m, user="nobody")
    finally:
        for fd in fds:
            os.close(fd)
    shutil.rmtree(source.path("bomb"))
    assert eventually(lambda: attempt(os.stat, m / "tensors/bomb") == errno.ENOENT)
    assert eventually(lambda: errors(m, paths) == [0] * 6), errors(m, paths)
    assert child(attributes, m, user="nobody") == shown


@pytest.mark.skipif(SANITIZED, reason="needs the largest headers, which take too long")
@pytest.mark.parametrize("recut", [False, True])
@pytest.mark.parametrize("what", ["its list of tensors", "a file made of its tensors"])
def test_tensors_over_the_budget(mount, source, what, recut):
    """The headers of a checkpoint fit, and what is made of them does not: its files stay listed, so
    that programs do not load the adapter instead, and can be opened once there is room."""
    # A set without an index is not re-cut beside another checkpoint.
    shards, each, others = 50, 4000, "config.json" if recut else "adapter_model.safetensors"
    source.directory("list")
    for shard in range(shards):
        entries = [b'"%d":["U8",[1],[%d,%d]]' % (shard * each + i, i, i + 1) for i in range(each)]
        raw_shard(source.path(f"list/model-{shard + 1:05}-of-{shards:05}.safetensors"),
                  b"{" + b",".join(entries) + b"}", each)
    raw_shard(source.path(f"list/{others}"), zeros(1000))
    last = f"tensors/list/model/{shards * each - 1}"
    options = [f"--memory={MEMORY}", *(["--shards=2"] if recut else [])]
    view, made = ("shards", "model.safetensors.index.json") if recut else ("merged", "model.safetensors")
    path = f"{view}/list/{made}"
    m = mount(source.root, *options)
    assert attempt(os.stat, m / last) == 0
    kept, most = m.metric("header_memory_bytes"), m.metric("header_memory_peak_bytes")
    assert m.unmount() == 0
    m = mount(source.root, *options)
    is_list = what == "its list of tensors"
    fds = fill_header_budget(m, source, kept + (most - kept) // 2 if is_list else most + (64 << 10))
    try:
        assert attempt(os.stat, m / last) == (errno.EIO if is_list else 0)
        assert others in os.listdir(m / f"{view}/list") and made in os.listdir(m / f"{view}/list")
        assert os.path.isfile(m / path)
        assert attempt(lambda name: open(name).close(), m / path) == (errno.EIO if is_list else errno.ENOMEM)
        line, = refused(m)
        assert line.startswith("list/model-00001-of-00050.safetensors: ")
        assert f"no room for {what} (200000 tensors)" in line
        check(m, source, HEADERS + MEMORY + BESIDE)
    finally:
        for fd in fds:
            os.close(fd)
    shutil.rmtree(source.path("bomb"))
    assert eventually(lambda: attempt(os.stat, m / "tensors/bomb") == errno.ENOENT)
    assert eventually(lambda: attempt(os.stat, m / last) == 0), \
        (m.metric("header_memory_bytes"), m.problems())
    if not recut:
        assert eventually(lambda: attempt(lambda name: open(name).close(), m / path) == 0)
        assert len(oracle.read_header(m / path)[0]) == shards * each
    if is_list:  # a new version of the checkpoint
        assert eventually(lambda: refused(m) == [])


def test_idle_headers_are_dropped(mount, source):
    """Unused tables are evicted for others, and read again on access."""
    names = [f"bomb/b{i}.safetensors" for i in range(6)]
    for name in names:
        raw_shard(source.path(name), zeros(much(MOST_HEADER // 2)))
    m = mount(source.root, f"--memory={MEMORY}")
    for name in (*names, names[0]):
        # The kernel caches a file of the source, not its header.
        with open(m / f"shards/{name}", "rb") as f:
            assert f.read(8) == struct.pack("<Q", len(zeros(much(MOST_HEADER // 2))))
    if not SANITIZED:
        assert m.metric("headers_total") == 7
    check(m, source, HEADERS + MEMORY + BESIDE)
    assert refused(m) == []


INDEXES = {
    "deep": deep(b"[", b"]", much(2_000_000)),
    "deep-map": b'{"weight_map":' + deep(b'{"a":', b"}", much(1_000_000)) + b"}",
    "deep-metadata": b'{"metadata":' + deep(b"[", b"]", much(2_000_000)) +
                     b',"weight_map":{"a":"a"}}',
    "million-names": b'{"weight_map":{' + b",".join(
        b'"%d":"model-%d.safetensors"' % (i, i) for i in range(much(500_000))) + b"}}",
    "one-name": b'{"weight_map":{' + b",".join(
        b'"a":"a.safetensors"' for _ in range(much(500_000))) + b"}}",
    "long-name": b'{"weight_map":{"a":"' + b"x" * much(30_000_000) + b'.safetensors"}}',
    "spaces": b" " * much(50_000_000) + b"{}",
}


@pytest.mark.parametrize("bomb", INDEXES)
def test_index(mount, source, bomb):
    with open(source.path("bomb/model.safetensors.index.json"), "wb") as f:
        f.write(INDEXES[bomb])
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, 12 * len(INDEXES[bomb]) + MEMORY + BESIDE)
    assert len(m.problems()) >= 1


def test_endless_index(mount, source):
    """A sparse file of a terabyte with the name of an index."""
    with open(source.path("bomb/model.safetensors.index.json"), "wb") as f:
        f.truncate(1 << 40)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, MEMORY + BESIDE)


def test_directory_of_many_files(mount, source):
    """A hundred thousand, or FSTFS_MANY_FILES; many are links to one file."""
    many = int(os.environ.get("FSTFS_MANY_FILES", much(100_000)))
    one = source.path("bomb/0.safetensors")
    for i in range(many):
        path = source.path(f"bomb/{i}.safetensors")
        if i % 10_000:
            os.link(one, path)
            continue
        one = path
        raw_shard(one, b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    m = mount(source.root, f"--memory={MEMORY}", limit=240 * SLOW)
    assert len(child(os.listdir, m / "shards/bomb", seconds=120)) >= many
    assert cpu_seconds(m) < CPU_SECONDS * max(1, many / 100_000)
    check(m, source, MEMORY + BESIDE + 1000 * many)


# --- readers ---


def anonymous(m):
    """Anonymous memory of the daemon in bytes."""
    with open(f"/proc/{m.pid}/status") as f:
        line, = (line for line in f if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("view", ["merged", "shards"])
def test_many_open_listings_of_one_directory(mount, source, view):
    """Many open listings of a directory share one list. After a change of the directory, new ones
    show it, and old ones do not."""
    count = much(20_000)
    expected = {f"{i:06}".ljust(206, "n") for i in range(count)}
    for name in expected:
        os.mknod(source.path("bomb", name))
    m = mount(source.root, f"--memory={MEMORY}")
    path = m / f"{view}/bomb"
    fds = []

    def open_one():
        fds.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return fds[-1]

    try:
        assert set(child(os.listdir, open_one(), seconds=60)) == expected
        before = anonymous(m)
        for _ in range(200):
            next(os.scandir(open_one()))
        if not SANITIZED:
            assert anonymous(m) - before < 3 * 207 * count, "more than three listings"
        for fd in fds[1::40]:
            os.lseek(fd, 0, os.SEEK_SET)
            assert set(child(os.listdir, fd, seconds=60)) == expected
        os.mknod(source.path("bomb/later"))
        assert eventually(lambda: os.path.exists(f"{path}/later"))
        assert set(child(os.listdir, open_one(), seconds=60)) == expected | {"later"}
        os.lseek(fds[1], 0, os.SEEK_SET)
        assert set(child(os.listdir, fds[1], seconds=60)) == expected
    finally:
        for fd in fds:
            os.close(fd)
    assert eventually(lambda: m.metric("header_memory_bytes") < 1 << 20)


def test_reader_that_never_reads(mount, source):
    """Thousands of open but unread files need no descriptors of the daemon, and are closed when
    their reader ends."""
    m = mount(source.root, f"--memory={MEMORY}")
    path = m / "merged/good/model.safetensors"
    before = len(os.listdir(f"/proc/{m.pid}/fd"))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, limit[1] - 100)
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
        for _ in range(count):
            os.open(path, os.O_RDONLY)
        os.write(out, b"R")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(into, 1) == b"R"
        assert len(os.listdir(f"/proc/{m.pid}/fd")) < before + 10
        check(m, source, MEMORY + BESIDE)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert eventually(lambda: len(os.listdir(f"/proc/{m.pid}/fd")) < before + 10)


def test_directories_read_repeatedly(mount, source):
    """Four threads list, seek in and close directories continuously, and ask for attributes of
    missing names."""
    m = mount(source.root, f"--memory={MEMORY}")
    end = time.monotonic() + 2
    faults = []

    def abuse():
        fds = []
        while time.monotonic() < end:
            fds.append(os.open(m / "tensors/good/model", os.O_RDONLY))
            try:
                os.lseek(fds[-1], 1 << 40, os.SEEK_SET)
            except OSError:
                pass
            os.listdir(fds[-1])
            for name in ("user.safetensors.nothing", "user." + "x" * 240, "security.capability"):
                try:
                    os.getxattr(m / "tensors/good/model/g.t0.weight", name)
                    faults.append(name)
                except OSError:
                    pass
            os.listxattr(m / "tensors/good/model/g.t0.weight")
            if len(fds) > 50:
                for fd in fds:
                    os.close(fd)
                fds.clear()
        for fd in fds:
            os.close(fd)

    with ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(abuse) for _ in range(4)]:
            thread.result()  # raises its exception
    assert not faults
    check(m, source, MEMORY + BESIDE)
    assert json.loads(m.read(".fstfs/status"))["problems"] == 0


# --- GGUF ---


def test_vocabularies_are_not_kept(mount, source):
    """30 models with vocabularies of 8 MB: their key-values are read through the mount, but not held in memory."""
    words = gguffiles.pair("tokens", gguffiles.ARRAY, (gguffiles.STRING, ["x" * 92] * 80000))
    tensors = [(f"t{i}", (4, 4), 0, bytes([i]) * 64) for i in range(4)]
    parts = gguffiles.split(tensors, [words], (2, 2))
    for i in range(30):
        for number, part in enumerate(parts):
            Path(source.path(f"bomb/m{i}-0000{number + 1}-of-00002.gguf")).write_bytes(part)
    m = mount(source.root, f"--memory={MEMORY}")
    assert len(os.listdir(m / "merged/bomb")) == 30
    for i in range(30):
        assert oracle.read_all(m / f"merged/bomb/m{i}.gguf") == gguffiles.gguf(tensors, [words])
        assert len(os.listdir(m / f"tensors/bomb/m{i}")) == 4
    assert m.problems() == []
    assert SANITIZED or peak(m) < MEMORY + BESIDE


def test_key_values_of_the_largest_size(mount, source):
    """Files with as many keys, tensors and long values as are allowed, and those that only announce them."""
    keys = [gguffiles.pair(f"{i:015}", gguffiles.STRING, "v" * 40) for i in range(65536)]
    described = b"".join(gguffiles.info(f"t{i}", (0,), 0, 0) for i in range(much(100000)))
    files = {"keys": gguffiles.gguf(pairs=keys[:50000]), "tensors": gguffiles.gguf(infos=described, count=much(100000), data=b""),
             "long": gguffiles.gguf(pairs=[gguffiles.pair("k", gguffiles.STRING, "\1" * (50 << 20))]),
             "announced": gguffiles.gguf(infos=b"", count=2**32, data=bytes(1000)), "endless": gguffiles.gguf(pair_count=65536, data=b"\1" + bytes(10**6))}
    for name, content in files.items():
        Path(source.path(f"bomb/{name}.gguf")).write_bytes(content)
    m = mount(source.root, f"--memory={MEMORY}")
    found = {name: len(os.listdir(m / f"tensors/bomb/{name}")) for name in files}
    assert found == {"keys": 0, "tensors": much(100000), "long": 0, "announced": 0, "endless": 0}
    index = json.loads(oracle.read_all(m / "tensors/bomb/keys.index.json"))
    assert len(index["gguf"]) == 50000
    refused = "\n".join(m.problems())
    assert "bomb/announced.gguf: refused: GgufTensors" in refused and "bomb/endless.gguf: refused: Gguf" in refused
    for name, content in files.items():
        assert oracle.read_all(m / f"merged/bomb/{name}.gguf") == content
    oracle.check_merged(m / "merged", source.checkpoints[0])
    assert SANITIZED or peak(m) < MEMORY + BESIDE + (64 << 20)
