# SPDX-License-Identifier: Apache-2.0
"""Sources and readers made to use a daemon up: it answers in time, stays within its memory, and
serves the neighbours. The daemon's memory is watched from outside, and bounded: one that goes over
has failed."""

import json
import os
import resource
import signal
import struct
import threading
import time

import oracle
import pytest
from conftest import SANITIZED, SLOW, child, eventually
from corpus import trees

MOST_HEADER = 100_000_000
MEMORY = 64 << 20  # --memory
BESIDE = 64 << 20  # what the daemon may have besides
SECONDS = 10 * SLOW


def much(count):
    """Less for a sanitized build: it is slow, and its memory is not looked at."""
    return count // 10 if SANITIZED else count


@pytest.fixture
def source(place):
    source = trees.Source(place / "s")
    source.add("good", "model", trees.small_tensors("g.", count=4), shards=2)
    source.directory("bomb")
    return source


def raw_shard(path, header, data=0, n=None):
    """A shard of this header and so many bytes of hole."""
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header) if n is None else n) + header)
        f.truncate(8 + len(header) + data)


def peak(m):
    """The most memory that the daemon has had, in bytes."""
    with open(f"/proc/{m.pid}/status") as f:
        line, = (line for line in f if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def attempt(call, *args):
    """The error number, or 0; in time."""
    def work():
        try:
            call(*args)
        except OSError as error:
            return error.errno
        return 0

    started = time.monotonic()
    found = child(work, seconds=30)
    assert time.monotonic() - started < SECONDS, call
    return found


def look(m):
    """At all of the bomb, in all views."""
    for view in ("tensors", "merged", "shards", "npy"):
        attempt(os.listdir, m / f"{view}/bomb")


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
    """One header of up to 100 MB. It is held while it is read, and its tables, and no more."""
    header = BOMBS[bomb]
    raw_shard(source.path("bomb/model.safetensors"), header, 1)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    # "1," of a shape becomes eight bytes
    check(m, source, (6 if bomb == "numbers" else 2) * len(header) + MEMORY + BESIDE)
    if bomb not in ("spaces", "escapes", "numbers"):
        assert any(line.startswith("bomb/model.safetensors: refused: ") for line in m.problems())


def test_length_of_a_header(mount, source):
    """What a file says of its header's length takes no memory."""
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
    # the header, its table of 140 bytes a tensor, a merged header
    check(m, source, 3 * len(header) + 200_000_000 + MEMORY + BESIDE)


def test_many_headers_at_once(mount, source):
    """Many shards and many checkpoints, each with a header at the limit: they are not held
    together."""
    names = [f"model-{i:05}-of-00008.safetensors" for i in range(1, 9)] + \
        [f"single{i}.safetensors" for i in range(much(8))]
    for name in names:
        with open(source.path("bomb", name), "wb") as f:
            f.write(struct.pack("<Q", MOST_HEADER) + b"{}")
            f.truncate(8 + MOST_HEADER)  # NUL is no space: refused, when all of it is read
    m = mount(source.root, f"--memory={MEMORY}")
    assert attempt(os.listdir, m / "tensors/bomb") == 0
    check(m, source, 2 * MOST_HEADER + MEMORY + BESIDE)
    assert len(m.problems()) == len(names)


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
    """A sparse file of a terabyte under the name of an index."""
    with open(source.path("bomb/model.safetensors.index.json"), "wb") as f:
        f.truncate(1 << 40)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, MEMORY + BESIDE)


def test_directory_of_many_files(mount, source):
    """A hundred thousand, or what FSTFS_MANY_FILES says; many are links to one file."""
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
    started = time.monotonic()
    assert len(child(os.listdir, m / "shards/bomb", seconds=120)) >= many
    assert time.monotonic() - started < SECONDS * max(1, many / 100_000)
    check(m, source, MEMORY + BESIDE + 1000 * many)


# --- readers ---


def test_reader_that_never_reads(mount, source):
    """Thousands of open files of which nothing is read cost no descriptor of the daemon, and go
    when their reader is gone."""
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


def test_directories_read_again_and_again(mount, source):
    """Four threads list, seek in and leave directories as fast as they can, and ask for attributes
    that are not there."""
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

    threads = [threading.Thread(target=abuse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    check(m, source, MEMORY + BESIDE)
    assert json.loads(m.read(".fstfs/status"))["problems"] == 0
