# SPDX-License-Identifier: Apache-2.0
"""Compares the oracle and the test sources with the safetensors library, without a mount."""

import json
import os

import numpy as np
import oracle
import pytest
import safetensors
from corpus import trees

DESCRIPTION = oracle.os.path.join(os.path.dirname(__file__), "../../../shared/data/qwen3.5-25b-a3b.json")


def test_library_reads_test_sources(place):
    source = trees.rich(place / "s")
    c, = source.checkpoints
    assert {t.dtype for t in c.tensors} == set(trees.DTYPE_BITS)
    for name, tensors in c.shards:
        with open(source.path("rich", name), "rb") as f:
            read = dict(safetensors.deserialize(f.read()))
        assert read.keys() == {t.name for t in tensors}
        for t in tensors:
            assert read[t.name]["dtype"] == t.dtype
            assert read[t.name]["shape"] == t.shape
            assert bytes(read[t.name]["data"]) == t.data


def test_oracle_reads_files_of_the_library(place):
    source = trees.rich(place / "s")
    for name, _ in source.checkpoints[0].shards:
        path = source.path("rich", name)
        entries, metadata, _ = oracle.read_header(path)
        with open(path, "rb") as f:
            library = dict(safetensors.deserialize(f.read()))
        assert len(entries) == len(library)
        for e in entries:
            assert bytes(library[e.name]["data"]) == e.read()
            assert (library[e.name]["dtype"], library[e.name]["shape"]) == (e.dtype, e.shape)
        with safetensors.safe_open(path, "numpy") as f:
            assert f.metadata() == metadata


@pytest.mark.parametrize("dtype", trees.DTYPE_BITS)
def test_npy_bytes_load(dtype, place):
    t = trees.tensor("t", dtype, (3, 8), seed=1)
    (place / "t.npy").write_bytes(oracle.npy_bytes(t.dtype, t.shape, t.data))
    array = np.load(place / "t.npy", mmap_mode="r")
    assert array.tobytes() == t.data
    assert array.shape == ((3, 8) if trees.DTYPE_BITS[dtype] >= 8 else (len(t.data),))


def test_escaped_names_differ():
    escaped = [oracle.escape(n) for n in trees.HARD_NAMES]
    assert len(set(escaped)) == len(escaped) == len(set(trees.HARD_NAMES))
    for e in escaped:
        assert b"/" not in e and b"\0" not in e and e not in (b"", b".", b"..")
    assert oracle.escape("a/b%c\n.\x7f") == b"a%2Fb%25c%0A.%7F"
    assert oracle.escape("..") == b"%2E."
    assert oracle.is_cut("x" * 256) and not oracle.is_cut("x" * 255)
    assert oracle.is_cut("name~0123456789abcdef")


def test_published_sizes(place):
    if not os.path.exists(DESCRIPTION):
        pytest.skip("../shared/data does not exist")
    table = trees.published(DESCRIPTION, place / "q")  # asserts every file size
    assert len(table) == 22213
    with open(DESCRIPTION) as f:
        for shard, what in json.load(f)["shards"].items():
            assert os.stat(place / "q" / shard).st_size == what["file_size"]
            with safetensors.safe_open(place / "q" / shard, "numpy") as opened:
                assert len(opened.keys()) == len(what["tensors"])


def test_other_makers(place):
    for maker in (trees.in_root, trees.nested, trees.diffusers, trees.adapters, trees.hub_cache,
                  trees.sharded_without_index, trees.names):
        source = maker(place / maker.__name__)
        for c in source.checkpoints:
            for name, tensors in c.shards:
                entries, _, _ = oracle.read_header(source.path(c.directory, name))
                assert sorted(e.name for e in entries) == sorted(t.name for t in tensors)
    source = trees.linked_model(place / "links", place / "elsewhere")
    for c in source.checkpoints:
        for name, _ in c.shards:
            oracle.read_header(source.path(c.directory, name))
