# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written and read by safetensors. Tests that need torch are in tests/loaders."""

import os

import numpy as np
import oracle
import pytest
import safetensors
import safetensors.numpy
from conftest import child

ml_dtypes = pytest.importorskip("ml_dtypes")

NUMPY_NAMES = ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32",
               "complex64", "float64", "int64", "uint64")
ML_NAMES = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz",
            "float8_e5m2fnuz")


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for name in NUMPY_NAMES + ML_NAMES:
        dtype = np.dtype(name if name in NUMPY_NAMES else getattr(ml_dtypes, name))
        for label, shape in (("matrix", (5, 7)), ("scalar", ()), ("empty", (0, 3)),
                             ("long", (1000,))):
            raw = rng.integers(0, 2 if name == "bool" else 100,
                               int(np.prod(shape)) * dtype.itemsize, np.uint8)
            made[f"{name}.{label}"] = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    return made


@pytest.mark.parametrize("options", [(), ("--shards=3",)], ids=["as-source", "recut"])
def test_safetensors_numpy_writes_every_dtype(mount, place, options):
    root = place / "s"
    (root / "m").mkdir(parents=True)
    want = arrays()
    safetensors.numpy.save_file(want, root / "m/model.safetensors", {"format": "np"})
    names = sorted(want)
    for i in range(4):
        safetensors.numpy.save_file({n: want[n] for n in names[i::4]},
                                    root / f"m/set-{i + 1:05}-of-00004.safetensors",
                                    {"format": "np"})
    m = mount(root, *options)

    def files(stem):
        return [m / f"shards/m/{n}" for n in sorted(os.listdir(m / "shards/m"))
                if n.startswith(stem) and n.endswith(".safetensors")]

    def look():
        for stem in ("model", "set"):
            for paths in ([m / f"merged/m/{stem}.safetensors"], files(stem)):
                got = {}
                for path in paths:
                    with open(path, "rb") as f:
                        for name, t in safetensors.deserialize(f.read()):
                            assert name not in got
                            got[name] = (bytes(t["data"]), tuple(t["shape"]))
                assert got == {n: (a.tobytes(), a.shape) for n, a in want.items()}
            for name, array in want.items():
                assert oracle.read_all(m / f"tensors/m/{stem}/{name}") == array.tobytes()
                loaded = np.load(m / f"npy/m/{stem}/{name}.npy",
                                 mmap_mode="r" if array.size else None)
                assert loaded.shape == array.shape
                assert loaded.tobytes() == array.tobytes()
                if name.split(".")[0] in NUMPY_NAMES:
                    assert loaded.dtype == array.dtype
                else:
                    assert loaded.view(array.dtype).dtype == array.dtype

    child(look)
    assert m.problems() == []


def test_load_file_reads_views(mount, place):
    root = place / "s"
    root.mkdir()
    want = {n: a for n, a in arrays().items() if n.split(".")[0] in NUMPY_NAMES}
    safetensors.numpy.save_file(want, root / "model.safetensors")
    m = mount(root, "--shards=2")

    def look(backend):
        got = safetensors.numpy.load_file(m / "merged/model.safetensors", backend=backend)
        assert got.keys() == want.keys()
        parts = {}
        for name in sorted(os.listdir(m / "shards")):
            if name.endswith(".safetensors"):
                parts.update(safetensors.numpy.load_file(m / f"shards/{name}", backend=backend))
        for found in (got, parts):
            for name, array in want.items():
                assert found[name].dtype == array.dtype
                assert found[name].tobytes() == array.tobytes()

    for backend in ("mmap", "pread"):
        child(look, backend)
