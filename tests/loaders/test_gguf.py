# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by the gguf package, read through the mount by it and by llama.cpp."""

import importlib.util
import os

import numpy as np
import oracle
import pytest
from conftest import child

gguf = pytest.importorskip("gguf")
from corpus.llama_gguf import finish, write_llama  # noqa: E402

RANDOM = np.random.default_rng(11)


def write_all_types(path, **options):
    """Tensors of every type whose size in the package is that of llama.cpp."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(30000)])
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        for shape in ((2 * elements,), (3, 2 * elements), (2, 3, elements)):
            raw = RANDOM.integers(0, 255, (*shape[:-1], shape[-1] // elements * size), dtype=np.uint8)
            if kind.name != "Q8_1":
                writer.add_tensor(f"{kind.name}.{len(shape)}", raw, raw_shape=raw.shape, raw_dtype=kind)
    finish(writer)


def contents(path):
    """Key-values and tensors as the package reads them, without the split keys."""
    reader = gguf.GGUFReader(path)
    return ({name: field.contents() for name, field in reader.fields.items() if not name.startswith(("split.", "GGUF."))},
            {t.name: (t.tensor_type.name, tuple(int(d) for d in t.shape), t.data.shape, t.data.tobytes()) for t in reader.tensors})


def test_all_types(mount, place):
    """A model in parts: the merged file for the package, and tensors/ and npy/ as the package reads the parts."""
    (place / "s").mkdir()
    write_all_types(place / "s/m.gguf", split_max_tensors=7)
    parts = sorted((place / "s").iterdir())
    assert len(parts) > 5
    keys, tensors = contents(parts[0])
    for part in parts[1:]:
        tensors |= contents(part)[1]
    m = mount(place / "s")

    def work():
        assert contents(m / "merged/m.gguf") == (keys, tensors)
        assert sorted(os.listdir(m / "tensors/m")) == sorted(tensors)
        for name, (kind, shape, array_shape, content) in tensors.items():
            assert oracle.read_all(m / f"tensors/m/{name}") == content
            assert os.getxattr(m / f"tensors/m/{name}", "user.gguf.type").decode() == kind
            array = np.load(m / f"npy/m/{name}.npy")
            assert array.tobytes() == content
            assert array.shape == (tuple(reversed(shape)) if kind == "BF16" else array_shape), name

    child(work, seconds=100)
    assert m.problems() == []


def complete(path):
    import llama_cpp

    model = llama_cpp.Llama(os.fspath(path), n_ctx=32, n_threads=1, verbose=False, use_mmap=True, seed=1)
    text = model.create_completion("abc", max_tokens=8, temperature=0.0)["choices"][0]["text"]
    return text, {key: value for key, value in model.metadata.items() if not key.startswith("split.")}


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed: "
                    "~/.cache/fstfs/venv-torch/bin/pip install llama-cpp-python builds it in ten minutes")
def test_llama_cpp(mount, place):
    """llama.cpp maps the merged file, and loads parts from shards/: it continues a text as with the file that was never split."""
    for directory in ("whole", "parts"):
        (place / "s" / directory).mkdir(parents=True)
    write_llama(place / "s/whole/m.gguf")
    write_llama(place / "s/parts/m.gguf", split_max_tensors=6)
    first, *rest = sorted(path.name for path in (place / "s/parts").iterdir())
    assert len(rest) == 3
    m = mount(place / "s")

    def work():
        expected = complete(place / "s/whole/m.gguf")
        assert expected[1]["general.architecture"] == "llama"
        for path in ("merged/parts/m.gguf", "merged/whole/m.gguf", f"shards/parts/{first}"):
            assert complete(m / path) == expected

    child(work, seconds=100)
