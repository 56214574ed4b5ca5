# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with more shards than the daemon may have files open."""

import os

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
