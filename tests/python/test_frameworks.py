# SPDX-License-Identifier: Apache-2.0
"""jax, TensorFlow, mlx and paddle, each in its own process, and the errors if they are missing."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from conftest import SLOW

from . import files
from .module import fstfs

PLAIN = ("BOOL", "U8", "I8", "I16", "F16", "I32", "F32", "C64", "F64", "I64", "BF16")
UNSIGNED = ("U16", "U32", "U64")
FLOAT8 = ("F8_E4M3", "F8_E5M2")
ODD_FLOAT8 = ("F8_E4M3FNUZ", "F8_E5M2FNUZ")
# (module of fstfs, other names of the framework, its module, the dtypes that it supports)
FRAMEWORKS = [
    ("flax", ("flax", "jax"), "jax", (*PLAIN, *UNSIGNED, *FLOAT8, *ODD_FLOAT8, "F8_E8M0")),
    ("tensorflow", ("tf", "tensorflow"), "tensorflow",
     (*PLAIN, *UNSIGNED, *FLOAT8, *ODD_FLOAT8)),
    ("mlx", ("mlx",), "mlx", (*PLAIN, *UNSIGNED)),
    ("paddle", ("paddle", "paddlepaddle"), "paddle", (*PLAIN, *FLOAT8)),
]
SHAPES = [(), (1,), (0,), (6, 4), (4, 0, 2)]
NARROWED = ("F64", "I64", "U64")  # jax has 64-bit types only if enabled, mlx has no float64

PROGRAM = """
import importlib, json, sys
import numpy as np
import fstfs
path, module, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
loader = importlib.import_module("fstfs." + module)

def described(tensor):
    dtype = str(tensor.dtype).replace("<dtype: '", "").rstrip("'>").split(".")[-1]
    if dtype == "bfloat16":
        if module == "mlx":
            tensor = tensor.view(importlib.import_module("mlx.core").uint16)
        if module == "paddle":
            tensor = tensor.view("int16") if tensor.size else np.empty(tensor.shape, "u2")
    if dtype.startswith("float8") and module == "paddle":
        tensor = tensor.view("uint8") if tensor.size else np.empty(tensor.shape, "u1")
    array = tensor.numpy() if module == "tensorflow" else np.array(tensor)
    return [type(tensor).__module__.split(".")[0].removesuffix("lib"), dtype,
            list(array.shape), array.tobytes().hex()]

answer = {}
for name in names:
    with fstfs.safe_open(path, name) as file:
        answer[name] = {key: described(file.get_tensor(key)) for key in file.keys()}
        answer[name]["all"] = sorted(file.get_tensors()) == file.keys()
        key = next(key for key in file.keys() if key == "F32.6x4")
        answer[name]["slice"] = described(file.get_slice(key)[1:3, 2])
answer["load_file"] = {key: described(value) for key, value in loader.load_file(path).items()}
print(json.dumps(answer))
"""


def python(*arguments):
    return subprocess.run([sys.executable, "-c", *map(os.fspath, arguments)], capture_output=True,
                          text=True, timeout=50 * SLOW,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.parametrize("module, names, needs, dtypes", FRAMEWORKS, ids=lambda x: str(x)[:20])
def test_framework(place, module, names, needs, dtypes):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    pytest.importorskip("ml_dtypes")
    path = place / "all.safetensors"
    tensors = files.tensors_of(dtypes, SHAPES)
    files.write(path, tensors)
    done = python(PROGRAM, path, module, ",".join(names))
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    for name in (*names, "load_file"):
        found = answer[name]
        for key, (dtype, shape, data) in tensors.items():
            _, dtype_name, found_shape, found_data = found[key]
            assert found_shape == list(shape)
            if dtype not in NARROWED:
                assert dtype_name.rstrip("_") == fstfs._frameworks.DTYPE_NAMES[dtype]
                assert bytes.fromhex(found_data) == data
        if name != "load_file":
            assert found["all"] is True and found["slice"][2] == [2]


@pytest.mark.parametrize("name, dtype", [
    ("tf", "F8_E8M0"), *(("mlx", dtype) for dtype in (*FLOAT8, *ODD_FLOAT8, "F8_E8M0")),
    *(("paddle", dtype) for dtype in (*UNSIGNED, *ODD_FLOAT8, "F8_E8M0"))])
def test_dtypes_that_a_framework_lacks(place, monkeypatch, name, dtype):
    """Raises an error, and never returns another dtype (paddle interprets uint16 as bfloat16)."""
    stub = {"tf": "tensorflow", "mlx": "mlx.core", "paddle": "paddle"}[name]
    for part in {stub.split(".")[0], stub}:
        monkeypatch.setitem(sys.modules, part, type(sys)(part))
    monkeypatch.setattr(fstfs._frameworks, "_instances", {})
    files.write(place / "one", {"a": (dtype, (1,), bytes(files.BITS[dtype] // 8))})
    with fstfs.safe_open(place / "one", name) as file:
        with pytest.raises(fstfs.SafetensorError, match=f'^a: .* has no dtype for {dtype}; '
                                                        'framework="np" reads it$'):
            file.get_tensor("a")


@pytest.mark.parametrize("name, module", [("flax", "jax"), ("jax", "jax"), ("tf", "tensorflow"),
                                          ("mlx", "mlx"), ("paddle", "paddle")])
def test_framework_is_not_installed(place, monkeypatch, name, module):
    files.write(place / "one", {"a": ("U8", (1,), b"x")})
    for found in [found for found in sys.modules if found.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, found)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(fstfs._frameworks, "_instances", {})
    with pytest.raises(ImportError, match='framework="np" needs only NumPy'):
        fstfs.safe_open(place / "one", name)


@pytest.mark.parametrize("name, device", [("flax", "cuda"), ("tf", "cuda:1"), ("mlx", "mps")])
def test_devices_need_torch(place, monkeypatch, name, device):
    for part in ("jax", "jax.numpy", "tensorflow", "mlx", "mlx.core"):
        monkeypatch.setitem(sys.modules, part, type(sys)(part))
    monkeypatch.setattr(fstfs._frameworks, "_instances", {})
    files.write(place / "one", {"a": ("U8", (1,), b"x")})
    with pytest.raises(fstfs.SafetensorError, match=r"^Device \S+ is not supported for framework "):
        fstfs.safe_open(place / "one", name, device)


@pytest.mark.parametrize("device, place_name", [("cpu", "cpu"), ("cuda:1", "gpu:1"), (1, "gpu:1")])
def test_devices_of_paddle(place, monkeypatch, device, place_name):
    stub = type(sys)("paddle")
    stub.to_tensor = lambda array, place: place
    monkeypatch.setitem(sys.modules, "paddle", stub)
    monkeypatch.setattr(fstfs._frameworks, "_instances", {})
    files.write(place / "one", {"a": ("U8", (1,), b"x")})
    with fstfs.safe_open(place / "one", "paddle", device) as file:
        assert file.get_tensor("a") == place_name
    assert dict(fstfs.iter_tensors(place / "one", device, framework="paddle")) == {"a": place_name}


def test_other_functions_are_forwarded_to_safetensors():
    import safetensors.numpy

    assert fstfs.numpy.save_file is safetensors.numpy.save_file
    assert fstfs.numpy.load is safetensors.numpy.load
    with pytest.raises(AttributeError, match="module 'fstfs.numpy' has no attribute 'nothing'"):
        fstfs.numpy.nothing
