# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with more shards than the daemon may have files open."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
import readers
from conftest import SLOW, child, eventually
from corpus import trees


@pytest.fixture(scope="session", params=[(56, 200), (256, 1433)], ids=["56-of-200", "256-of-1433"])
def few(request, shared_place):
    """(descriptor limit, a checkpoint with more shards)."""
    most, shards = request.param
    source = trees.Source(shared_place / f"shards-{shards}")
    source.add("m", "model", [trees.tensor(f"t{i:04}", "U8", (4096 + i * 37 % 9000,))
                              for i in range(shards)], shards=shards)
    return most, source


def names_or_error(path):
    """The number of names, or None if they cannot be listed because descriptors are short."""
    try:
        return len(os.listdir(path))
    except OSError as error:
        assert error.errno == errno.EMFILE
        return None


@pytest.mark.limit(120)
def test_no_names_are_missing(mount, place):
    """While too few descriptors are free to read all headers, a listing fails; it never lacks the
    tensors of a shard. Later it has all."""
    source = trees.Source(place / "s")
    source.add("big", "m", [trees.tensor(f"t{i:03}", "U8", (1000,)) for i in range(150)],
               shards=150)
    for i in range(20):
        for k in range(20):
            source.add(f"d{i}", f"m{k}", trees.small_tensors(f"{i}.{k}."))
    m = mount(source.root, wrapper=("sh", "-c", 'ulimit -n 24; exec "$@"', "sh"))
    with ThreadPoolExecutor(60) as pool:
        for _ in range(4):
            others = [pool.submit(names_or_error, m / f"{view}/d{i}")
                      for i in range(20) for view in ("merged", "tensors")]
            listed = [pool.submit(names_or_error, m / "tensors/big/m") for _ in range(20)]
            assert {future.result() for future in listed} <= {150, None}
            for future in others:
                future.result()
            os.utime(source.path("big/m-00150-of-00150.safetensors"))
    assert eventually(lambda: names_or_error(m / "tensors/big/m") == 150, 60)


def check_all(m, source):
    """In a child, as the user who mounted."""
    oracle.check_source(m.path, source)
    files = [(p, w) for p, w in oracle.plain_files(m.path, source) if len(w) > 20_000]
    for method in readers.METHODS:
        readers.check_files(files, method)


@pytest.mark.limit(150)
@pytest.mark.parametrize("engine", [(), ("--io=threads",), ("--shards=3",)],
                         ids=["uring", "threads", "recut"])
def test_all_is_read(mount, few, who, engine):
    most, source = few
    m = mount(source.root, *engine, limit=150 * SLOW,
              wrapper=("sh", "-c", f'ulimit -n {most}; exec "$@"', "sh"), **who)
    group = None
    try:
        if engine == ("--shards=3",):
            child(oracle.check_source, m.path, source, engine, user=m.user, seconds=120)
        else:
            child(check_all, m, source, user=m.user, seconds=120)
        # Also by many readers at once, at different positions.
        files = child(oracle.plain_files, m.path, source, user=m.user)
        group = readers.ReaderGroup(files, user=m.user)
        assert eventually(lambda: group.count > 2000, 60)
        group.stop()
        group.finish(30)
        assert not group.faults({0})
    finally:
        if group:
            group.kill()
    assert len(os.listdir(f"/proc/{m.pid}/fd")) <= most
    assert "error" not in m.log_text()
