# SPDX-License-Identifier: Apache-2.0
"""Reads of storage that hangs fill the kernel's queue of background requests, which all files of the
mount share: reads of other storage get a place in it, and no bytes are lost."""

import errno
import os
import signal
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, child, drop_from_page_cache, eventually
from corpus import trees
from test_hang import callers, set_rules

__all__ = ["callers"]  # a fixture

SLOWFS = BUILD / "tests/slowfs/slowfs"
LIMIT = 40
FLOODS = 4
# Background requests of a mount without CAP_SYS_ADMIN; 0: the kernel has mounted no FUSE yet.
MOST = Path("/sys/module/fuse/parameters/max_user_bgreq")
NEIGHBOURS = 12


def request_pages(path, first, distance, count):
    """Requests single pages, which a program need not wait for."""
    fd = os.open(path, os.O_RDONLY)
    for i in range(count):
        os.posix_fadvise(fd, first + i * FLOODS * distance, 4096, os.POSIX_FADV_WILLNEED)
    while True:
        signal.pause()


def read_at(path, offset, length=9000):
    with open(path, "rb") as f:
        f.seek(offset)
        return f.read(length)


def read_error(path, offset):
    try:
        read_at(path, offset)
    except OSError as error:
        return error.errno
    return 0


@pytest.mark.limit(300)
@pytest.mark.parametrize("distance", [512 << 10, 8 << 10], ids=["apart", "close"])
@pytest.mark.parametrize("method", ["auto", "threads"])
def test_reads_that_nobody_waits_for(mount, place, callers, method, distance):
    """Twice as many reads as the queue has room for hang. All files of another file system are
    read; further reads of the file system that hangs fail, and succeed once it answers."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source, far, rules = trees.Source(place / "s"), trees.Source(place / "real"), place / "faults"
    for i in range(NEIGHBOURS):
        source.add("good", f"m{i}", [trees.tensor("t", "U8", (300_000,), fill=i)])
    others = ",allow_other" if os.geteuid() == 0 else ""
    os.makedirs(place / "s/far")
    mount(far.root, "-o", f"valid=0,age=60,faults={rules}{others}", binary=SLOWFS,
          mountpoint=place / "s/far", limit=290)
    m = mount(source.root, f"--io={method}", limit=290)
    most = int(MOST.read_text())  # mounting has set it
    size = (2 * most + 1) * distance
    start = trees.write_sparse(far.path("m.safetensors"), [("t", "U8", [size], size)])
    with open(far.path("m.safetensors"), "r+b") as f:
        f.seek(start + size - 5000)
        f.write(os.urandom(5000))
    path = m / "merged/far/m.safetensors"
    assert eventually(lambda: os.path.exists(path))
    set_rules(rules, "read m.safetensors hang")

    group = callers()
    for i in range(FLOODS):
        group.add(request_pages, path, distance * (i + 1), distance, 2 * most // FLOODS)
    assert eventually(lambda: child(m.metrics)["fstfs_reads_in_flight"] > most * 0.9, LIMIT), \
        child(m.metrics)["fstfs_reads_in_flight"]
    for i in range(NEIGHBOURS):
        real = source.path(f"good/m{i}.safetensors")
        drop_from_page_cache([real])
        assert child(oracle.read_all, m / f"merged/good/m{i}.safetensors", seconds=LIMIT) == \
            oracle.read_all(real)
    assert eventually(lambda: child(read_error, path, size // 2) == errno.EIO, LIMIT)
    assert child(m.metrics)["fstfs_reads_in_flight"] <= most * 1.1
    assert m.log_text().count("do not complete") == 1

    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    rules.unlink()
    assert eventually(lambda: child(m.metrics)["fstfs_reads_in_flight"] == 0, LIMIT), \
        child(m.metrics)["fstfs_reads_in_flight"]
    for offset in (0, distance, most * distance, start + size - 9000):
        assert read_at(path, offset) == read_at(far.path("m.safetensors"), offset)
    assert eventually(lambda: m.metrics()["fstfs_buffer_bytes"] == 0, LIMIT)
    assert m.unmount() == 0
