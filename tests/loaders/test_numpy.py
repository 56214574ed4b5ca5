# SPDX-License-Identifier: Apache-2.0
"""NumPy: npy/ is loaded and mapped; the files of tensors/ are mapped and read as raw bytes."""

import os

import numpy as np
import oracle
import pytest
from corpus import trees

from .loading import run_silently


@pytest.fixture(scope="module")
def source(shared_place):
    made = trees.rich(shared_place / "numpy")
    made.add("large", "model", [trees.tensor(f"layer.{i}", dtype, (700, 431), seed=i)
                                for i, dtype in enumerate(("F32", "F16", "I64", "F64", "U8"))],
             shards=2)
    return made


def tensors(source):
    """(path in a view, tensor, NumPy's dtype) of all tensors whose dtype NumPy has."""
    for c in source.checkpoints:
        for t in c.tensors:
            if t.dtype in oracle.NUMPY and not oracle.is_cut(t.name, 251):
                yield (os.path.join(c.directory, c.stem, os.fsdecode(oracle.escape(t.name))), t,
                       np.dtype(oracle.NUMPY[t.dtype]))


def test_npy(mount, source):
    m = mount(source.root)

    def work():
        seen = 0
        for path, t, dtype in tensors(source):
            path = m / f"npy/{path}.npy"
            arrays = [np.load(path), np.lib.format.open_memmap(path, "r") if t.size else None,
                      np.load(path, mmap_mode="r") if t.size else None,
                      np.load(path, mmap_mode="c") if t.size else None]
            for array in arrays:
                if array is not None:  # NumPy does not map an empty array
                    assert (array.dtype, array.shape) == (dtype, tuple(t.shape)), path
                    assert array.tobytes() == t.data, path
            if len(t.shape) == 2 and t.size:
                want = np.frombuffer(t.data, dtype).reshape(t.shape)
                rows = np.load(path, mmap_mode="r")[-1:]
                assert rows.tobytes() == want[-1:].tobytes(), path
            seen += 1
        return seen

    assert run_silently(work) > 10


def test_tensors(mount, source):
    m = mount(source.root)

    def work():
        seen = 0
        for path, t, dtype in tensors(source):
            path = m / f"tensors/{path}"
            assert np.fromfile(path, dtype).tobytes() == t.data
            if not t.size:
                continue
            mapped = np.memmap(path, dtype, "r", shape=tuple(t.shape))
            assert mapped.tobytes() == t.data
            assert np.memmap(path, dtype, "c")[-1:].tobytes() == t.data[-dtype.itemsize:]
            part = np.fromfile(path, dtype, count=3, offset=dtype.itemsize)
            assert part.tobytes() == t.data[dtype.itemsize:4 * dtype.itemsize]
            seen += 1
        return seen

    assert run_silently(work) > 10


def test_mapped_array_reads_what_is_used(mount, source):
    """One row of a mapped array does not cause a read of the whole tensor."""
    m = mount(source.root)

    def work():
        return np.load(m / "npy/large/model/layer.3.npy", mmap_mode="r")[5].tobytes()

    tensor = next(t for c in source.checkpoints for t in c.tensors if t.name == "layer.3")
    assert run_silently(work) == tensor.data[5 * 431 * 8:6 * 431 * 8]
    assert m.metrics()["fstfs_read_bytes_total"] < tensor.size / 4
