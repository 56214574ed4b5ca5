# SPDX-License-Identifier: Apache-2.0
"""Calls every public function and method of safetensors that loads tensors, in both modules, and
compares results and exceptions. DIFFERENT lists the intended differences, with reasons."""

import itertools
import json
import os
import re
import types

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import safetensors  # noqa: E402
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402

from . import files  # noqa: E402
from .module import fstfs  # noqa: E402

DTYPES = ("F32", "F16", "I64", "U8", "BOOL", "C64")
SHAPES = [(), (1,), (0,), (6, 4), (4, 0, 2), (0, 3), (3, 0), (2, 3, 4), (2, 0, 0, 5)]
OTHERS = ("BF16", "F8_E4M3", "U16", "F64")
NAME = "F32.6x4"
BACKENDS = ("mmap", "pread")

THEIRS = types.SimpleNamespace(safe_open=safetensors.safe_open, torch=safetensors.torch,
                               numpy=safetensors.numpy)
OURS = types.SimpleNamespace(safe_open=fstfs.safe_open, torch=fstfs.torch, numpy=fstfs.numpy)


def headed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BROKEN = {
    "empty": b"", "short": b"\x01\x02", "no-header": (100).to_bytes(8, "little"),
    "huge-header": (1 << 62).to_bytes(8, "little") + b"{}", "not-json": headed(b"{nothing"),
    "not-utf8": headed(b'{"\xff":1}'), "array": headed([1]), "dtype": headed(
        {"a": tensor("Q7")}, b"ab"), "shape": headed({"a": tensor(shape=(3,))}, b"ab"),
    "hole": headed({"a": tensor(), "b": tensor(offsets=(3, 5))}, b"abcde"),
    "overlap": headed({"a": tensor(), "b": tensor(offsets=(1, 3))}, b"abc"),
    "cut": headed({"a": tensor()}, b"a"), "rest": headed({"a": tensor()}, b"abc"),
    "no-shape": headed({"a": {"dtype": "U8", "data_offsets": [0, 2]}}, b"ab"),
    "metadata": headed({"__metadata__": {"a": 1}}),
}
SOUND = {"none": headed({}), "padded": headed(b"{}    "),
         "only-metadata": headed({"__metadata__": {"k": "v"}}),
         "null-metadata": headed({"__metadata__": None}),
         "one": headed({"a": tensor()}, b"ab")}


@pytest.fixture(scope="module")
def directory(shared_place):
    path = shared_place / "api"
    os.mkdir(path)
    files.write(path / "all", files.tensors_of(DTYPES, SHAPES), {"format": "pt", "z": "é"})
    files.write(path / "others", files.tensors_of(OTHERS, SHAPES))
    os.mkdir(path / "empty-directory")
    for name, data in (BROKEN | SOUND).items():
        (path / name).write_bytes(data)
    return path


def seen(value):
    """All properties of a result that a caller can observe."""
    if isinstance(value, torch.Tensor):
        return ("torch", value.dtype, tuple(value.shape), value.stride(), value.device,
                value.layout, value.requires_grad, value.is_contiguous(),
                bytes(value.contiguous().flatten().view(torch.uint8).numpy())
                if value.numel() else b"")
    if isinstance(value, np.ndarray):
        return ("numpy", type(value), value.dtype, value.shape, value.strides,
                value.flags.writeable, value.flags.c_contiguous, value.tobytes())
    if isinstance(value, dict):
        return {key: seen(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(map(seen, value))
    if isinstance(value, (str, int, float, type(None))):
        return value
    return type(value).__name__


def file_calls():
    """Yields (label, call of an open file)."""
    yield "keys", lambda f: f.keys()
    yield "metadata", lambda f: f.metadata()
    # empty tensors may be in any order among those with the same offset
    yield "offset_keys", lambda f: [key for key in f.offset_keys() if "0" not in key.split(".")[1]]
    yield "get_tensors", lambda f: f.get_tensors()
    yield "enter", lambda f: f.__enter__() is f
    yield "exit", lambda f: f.__exit__(None, None, None)
    for method in ("keys", "metadata", "offset_keys", "get_tensors"):
        yield f"{method}(1)", lambda f, m=method: getattr(f, m)(1)
        yield f"closed {method}", lambda f, m=method: (f.__exit__(None, None, None),
                                                       getattr(f, m)())
    for method in ("get_tensor", "get_slice"):
        yield f"closed {method}", lambda f, m=method: (f.__exit__(None, None, None),
                                                       getattr(f, m)(NAME))
        yield f"{method} name=", lambda f, m=method: type(getattr(f, m)(name=NAME)) is not None
        yield f"{method}()", lambda f, m=method: getattr(f, m)()
        for name in ("", "nothing", NAME + "\0", "\ud800", 3, None, b"F32.6x4", [NAME]):
            yield f"{method} {name!r}", lambda f, m=method, n=name: getattr(f, m)(n)
    for key in files.tensors_of(DTYPES, SHAPES):
        yield f"get_tensor {key}", lambda f, k=key: f.get_tensor(k)
    for key in ("F32.", "F32.0", NAME, "F32.4x0x2"):
        yield f"get_shape {key}", lambda f, k=key: f.get_slice(k).get_shape()
        yield f"get_dtype {key}", lambda f, k=key: f.get_slice(k).get_dtype()
        for index in (0, -1, 6, slice(None), slice(1, 3), slice(0, 0), slice(2, 2), slice(9, 12),
                      slice(None, None, 2), slice(None, None, 0), slice(None, None, -1),
                      slice(-2, None), Ellipsis, (), (Ellipsis, 0), (slice(None), 1), (0, 0),
                      (slice(1), slice(2)), (0, 0, 0, 0), (Ellipsis, Ellipsis), "a", 1.5, None, [],
                      [0], True):
            yield f"get_slice {key} {index!r}", lambda f, k=key, i=index: f.get_slice(k)[i]


def open_calls():
    """Yields (label, call of a module and the directory)."""
    every = [*BROKEN, *SOUND, "nothing", "empty-directory", "all"]
    for name, framework in itertools.product(every, ("pt", "np")):
        if name == "empty-directory":
            continue
        yield f"open {name} {framework}", \
            lambda a, d, n=name, w=framework: sorted(a.safe_open(d / n, w).keys())
    for framework in ("", "zz", "PT", 3, None, b"pt", "torch", "pytorch", "numpy"):
        yield f"framework {framework!r}", lambda a, d, w=framework: seen(
            a.safe_open(d / "all", w).get_tensor(NAME))
    for device, framework in itertools.product(
            ("cpu", "quux", "", "cpu:0", "cuda:x", "cuda:", "cuda:1:2", "mps:1", -1, 0, True, 1.5,
             None, b"cpu", torch.device("cpu")), ("pt", "np")):
        yield f"device {device!r} {framework}", lambda a, d, v=device, w=framework: seen(
            a.safe_open(d / "all", w, v).get_tensor(NAME))
    for backend in (*BACKENDS, "", "MMAP", "x", 3, None):
        yield f"backend {backend!r}", lambda a, d, b=backend: seen(
            a.safe_open(d / "all", "pt", backend=b).get_tensor(NAME))
    yield "no framework", lambda a, d: a.safe_open(d / "all")
    yield "no arguments", lambda a, d: a.safe_open()
    yield "backend by place", lambda a, d: a.safe_open(d / "all", "pt", "cpu", "mmap")
    yield "unknown argument", lambda a, d: a.safe_open(d / "all", "pt", quux=1)
    yield "by names", lambda a, d: a.safe_open(filename=d / "all", framework="pt",
                                               device="cpu").keys()
    for path in (3, None, b"/nothing", ["x"], "", "a\0b"):
        yield f"path {path!r}", lambda a, d, p=path: a.safe_open(p, "pt")
        yield f"torch.load_file {path!r}", lambda a, d, p=path: a.torch.load_file(p)
        yield f"numpy.load_file {path!r}", lambda a, d, p=path: a.numpy.load_file(p)
    yield "str path", lambda a, d: a.safe_open(str(d / "all"), "pt").keys()
    for name in (*every[:-2], "all"):
        yield f"torch.load_file {name}", lambda a, d, n=name: a.torch.load_file(d / n)
        yield f"numpy.load_file {name}", lambda a, d, n=name: a.numpy.load_file(d / n)
    yield "torch others", lambda a, d: a.torch.load_file(d / "others")
    for backend in (*BACKENDS, "x"):
        yield f"torch.load_file {backend}", lambda a, d, b=backend: a.torch.load_file(
            d / "all", "cpu", backend=b)
        yield f"numpy.load_file {backend}", lambda a, d, b=backend: a.numpy.load_file(
            d / "all", backend=b)
    yield "torch.load", lambda a, d: a.torch.load((d / "all").read_bytes())
    yield "numpy.load", lambda a, d: a.numpy.load((d / "all").read_bytes())
    yield "torch.load broken", lambda a, d: a.torch.load(b"abc")
    yield "torch.save", lambda a, d: len(a.torch.save({"a": torch.zeros(3)}))
    yield "numpy.save", lambda a, d: len(a.numpy.save({"a": np.zeros(3)}, {"k": "v"}))
    yield "torch.load_file device=", lambda a, d: a.torch.load_file(d / "all", device="cpu")
    yield "torch.load_file quux", lambda a, d: a.torch.load_file(d / "all", device="quux")
    yield "torch.load_file three", lambda a, d: a.torch.load_file(d / "all", "cpu", "mmap")
    yield "torch.load_file()", lambda a, d: a.torch.load_file()
    yield "numpy.load_file two", lambda a, d: a.numpy.load_file(d / "all", "cpu")
    yield "numpy.load_file()", lambda a, d: a.numpy.load_file()


def outcome(work):
    try:
        return seen(work())
    except Exception as error:
        return type(error), str(error)


def all_calls():
    for framework, backend in itertools.product(("pt", "np"), BACKENDS):
        for label, call in file_calls():
            yield f"{framework} {backend} {label}", lambda a, d, c=call, w=framework, b=backend: c(
                a.safe_open(d / "all", w, backend=b))
    yield from open_calls()


CALLS = dict(all_calls())


def class_only(result):
    """The class of an exception; any other result unchanged."""
    is_error = isinstance(result, tuple) and result and isinstance(result[0], type)
    return result[0] if is_error else result


def but_strides(result):
    return (*result[:3], *result[4:7], result[8]) if result[0] == "torch" else result


def nothing(_):
    return None


# The differences: (pattern of the whole label, function whose results are still compared, reason).
DIFFERENT = [
    (r"(open|(torch|numpy)\.load_file) dtype( ..)?", nothing,
     "a dtype of a later version of the format: the file opens, for its other tensors, and the error "
     "comes with the tensor"),
    (r".* (keys|metadata|offset_keys|get_tensors)\(1\)|.* get_(tensor|slice)\(\)", class_only,
     "Python words errors of the number of arguments otherwise for its own functions"),
    (r"no framework|no arguments|backend by place|unknown argument", class_only,
     "the same: it names __init__, of safetensors __new__"),
    (r"device True ..", nothing, "safetensors takes True for device 1; here a bool is an error"),
    (r"pt pread get_slice F32\.(6x4|2x3x4) .*", but_strides,
     "only what the index takes is read, and it is packed: safetensors makes a view of all"),
]
# The backend "pread" of safetensors supports fewer indices of torch than "mmap"; here both support
# those of "mmap".
SAME_AS = ("pt pread get_slice ", "pt mmap get_slice ")


def compared(label, result):
    for pattern, how, _ in DIFFERENT:
        if re.fullmatch(pattern, label, re.DOTALL):
            return how(result)
    return result


@pytest.mark.parametrize("before", [files.forget, files.remember])
def test_calls(directory, before):
    assert len(CALLS) > 500
    wrong = []
    for label, call in CALLS.items():
        before(directory / "all")
        theirs = CALLS[label.replace(*SAME_AS)]
        want = compared(label, outcome(lambda: theirs(THEIRS, directory)))
        found = compared(label, outcome(lambda: call(OURS, directory)))
        if found != want:
            wrong.append((label, found, want))
    assert not wrong, "\n".join(f"{label}\n  {str(found)[:300]}\n  {str(want)[:300]}"
                                for label, found, want in wrong)
