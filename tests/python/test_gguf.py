# SPDX-License-Identifier: Apache-2.0
"""The module reads GGUF files: bare, in parts, and on a mount."""

import json

import pytest
from corpus import gguffiles
from corpus.gguffiles import ARRAY, F32, STRING, U32, gguf, pair, split

np = pytest.importorskip("numpy")
from .module import fstfs  # noqa: E402

RANDOM = np.random.default_rng(4)
# name, dims in GGUF's order, number of the type, array
ARRAYS = [("token_embd", (64, 30), 8, RANDOM.integers(0, 256, (30, 68), np.uint8)), ("exps", (32, 3, 4), 2, RANDOM.integers(0, 256, (4, 3, 18), np.uint8)),
          ("norm", (64,), 0, RANDOM.standard_normal(64, np.float32)), ("half", (3, 5), 1, RANDOM.standard_normal((5, 3)).astype(np.float16)),
          ("bytes", (33,), 24, RANDOM.integers(-128, 128, 33, np.int8)), ("none", (256, 0), 12, np.zeros((0, 144), np.uint8)),
          ("scalar", (), 0, np.array(0.5, np.float32)), ("q4_k", (512, 300), 12, RANDOM.integers(0, 256, (300, 288), np.uint8))]
TENSORS = [(name, dims, kind, array.tobytes()) for name, dims, kind, array in ARRAYS]
PAIRS = [pair("general.architecture", STRING, "llama"), pair("llama.block_count", U32, 2), pair("eps", F32, 1e-5),
         pair("tokens", ARRAY, (STRING, [f"token {i}" for i in range(1000)])), pair("merges", ARRAY, (STRING, ["a b"]))]
METADATA = {"general.architecture": "llama", "llama.block_count": "2", "eps": "1e-05",
            "tokens": '{"type": "array", "of": "string", "count": 1000}', "merges": '["a b"]'}
PLACES = ["one/model.gguf", "one", "parts", "MOUNT/merged/one/model.gguf", "MOUNT/merged/parts/m.gguf", "MOUNT/shards/parts", "MOUNT/tensors/parts/m",
          "MOUNT/tensors/one/model"]


@pytest.fixture
def source(place):
    (place / "s/one").mkdir(parents=True)
    (place / "s/parts").mkdir()
    (place / "s/one/model.gguf").write_bytes(gguf(TENSORS, PAIRS))
    for i, part in enumerate(split(TENSORS, PAIRS, (1, 3, 4))):
        (place / f"s/parts/m-{i + 1:05}-of-00003.gguf").write_bytes(part)
    return place / "s"


@pytest.fixture
def path_of(source, mount):
    def path(name):
        return mount(source) / name.removeprefix("MOUNT/") if name.startswith("MOUNT") else source / name

    return path


def same(found, array):
    return found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_tensors(path_of, name, framework):
    """Unquantised tensors have their dtype. A quantised tensor is an array of bytes; each row has the
    blocks of a row."""
    if framework == "pt":
        pytest.importorskip("torch")
    with fstfs.safe_open(path_of(name), framework) as opened:
        assert opened.keys() == sorted(name for name, *_ in ARRAYS)
        everything = opened.get_tensors()
        for key, dims, _, array in ARRAYS:
            for found in (opened.get_tensor(key), everything[key]):
                assert same(found if framework == "np" else found.numpy(), array), key
            part = opened.get_slice(key)
            assert part.get_shape() == list(reversed(dims))
            if array.ndim > 1 and array.size:
                assert same(np.asarray(part[1:3, :2]), array[1:3, :2]) and same(np.asarray(part[..., 1:]), array[..., 1:])
        assert opened.get_slice("q4_k").get_dtype() == "Q4_K"
        if "tensors/" not in name:
            assert opened.metadata() == METADATA
            assert json.loads(opened.metadata()["merges"]) == ["a b"]


def test_tensor_file_of_a_mount(path_of):
    for key, _, _, array in ARRAYS:
        with fstfs.safe_open(path_of(f"MOUNT/tensors/parts/m/{key}"), "np") as opened:
            assert opened.keys() == [key] and same(opened.get_tensor(key), array)


@pytest.mark.parametrize("directory", ["parts", "MOUNT/shards/parts"])
def test_one_part(path_of, directory):
    """A file of a split model has its own tensors."""
    first = 0
    for number, count in enumerate((1, 3, 4)):
        with fstfs.safe_open(path_of(f"{directory}/m-{number + 1:05}-of-00003.gguf"), "np") as opened:
            expected = {key: array for key, _, _, array in ARRAYS[first:first + count]}
            assert opened.keys() == sorted(expected)
            assert all(same(opened.get_tensor(key), array) for key, array in expected.items())
        first += count


def test_load_checkpoint(path_of):
    for name in ("parts", "MOUNT/merged/parts"):
        found = fstfs.load_checkpoint(path_of(name), framework="np") if name == "parts" else fstfs.numpy.load_file(path_of(f"{name}/m.gguf"))
        assert {key: same(found[key], array) for key, _, _, array in ARRAYS} == {key: True for key, *_ in ARRAYS}


@pytest.mark.parametrize("name, rule, content", gguffiles.BAD[:20], ids=[case[0] for case in gguffiles.BAD[:20]])
def test_invalid_file(place, name, rule, content):
    (place / "model.gguf").write_bytes(content)
    with pytest.raises(fstfs.SafetensorError, match=rule):
        fstfs.safe_open(place / "model.gguf", "np")
