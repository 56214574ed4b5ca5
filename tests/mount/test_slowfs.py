# SPDX-License-Identifier: Apache-2.0
"""The simulated network of slowfs: lower bounds of times, which a slow machine meets as well."""

import os
import threading
import time

import pytest

from conftest import BUILD

SLOWFS = BUILD / "tests/slowfs/slowfs"
SIZE = 4 << 20
FILES = 4


@pytest.fixture
def source(place):
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    folder = place / "files"
    folder.mkdir()
    for i in range(FILES):
        (folder / f"f{i}").write_bytes(os.urandom(SIZE))
    return folder


def read_together(mount, source):
    """Reads all files in parallel and compares them. Returns the seconds."""
    got = {}

    def read(name):
        with open(mount / name, "rb") as f:
            got[name] = f.read()

    names = sorted(os.listdir(source))
    threads = [threading.Thread(target=read, args=(name,)) for name in names]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - started
    assert all(got[name] == (source / name).read_bytes() for name in names)
    return seconds


def test_bandwidth_is_shared_by_all_reads(mount, source):
    m = mount(source, "-o", "bandwidth=20", binary=SLOWFS)
    assert read_together(m, source) >= FILES * SIZE / 20e6


def test_every_request_has_the_latency(mount, source):
    """A stat of each name is a request, one after another."""
    m = mount(source, "-o", "delay=200000,jitter=100000", binary=SLOWFS)
    started = time.monotonic()
    for i in range(FILES):
        os.stat(m / f"f{i}")
    assert time.monotonic() - started >= FILES * 0.2
