# SPDX-License-Identifier: Apache-2.0
"""safetensors reads the same from every view as from the source."""

import functools
import glob
import os

import numpy as np
import oracle
import pytest
from corpus import trees

torch = pytest.importorskip("torch")
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402
from safetensors import safe_open  # noqa: E402

from .loading import VIEWS, compare, run_silently  # noqa: E402

NAMES = ("decoder", "tied", "decoder-single", "experts", "encoder", "small-fp16", "small-fp32",
         "small-fp16-variant", "odd", "odd-single", "plain", "hub")


def shards(directory):
    return sorted(glob.glob(f"{directory}/*.safetensors"))


def each_file(read):
    """A loader that reads all files of a directory with read(path), each tensor once."""
    def loader(directory):
        tensors = {}
        for path in shards(directory):
            part = read(path)
            assert not tensors.keys() & part.keys(), path
            tensors.update(part)
        return tensors
    return loader


def open_and_get(framework, **options):
    def read(path):
        with safe_open(path, framework, **options) as f:
            return {name: f.get_tensor(name) for name in f.keys()}
    return read


def open_and_slice(framework, **options):
    """Each tensor in two halves, as a slice."""
    join = torch.cat if framework == "pt" else np.concatenate

    def read(path):
        tensors = {}
        with safe_open(path, framework, **options) as f:
            for name in f.keys():
                part = f.get_slice(name)
                shape = part.get_shape()
                if not shape or not shape[0]:
                    tensors[name] = f.get_tensor(name)
                    continue
                middle = shape[0] // 2
                tensors[name] = join([part[middle:], part[:middle]])
        return tensors
    return read


METHODS = {
    "load_file": safetensors.torch.load_file,
    "load_file_pread": lambda path: safetensors.torch.load_file(path, backend="pread"),
    "safe_open": open_and_get("pt"),
    "safe_open_pread": open_and_get("pt", backend="pread"),
    "slices": open_and_slice("pt"),
    "slices_pread": open_and_slice("pt", backend="pread"),
}
METHODS = {name: each_file(read) for name, read in METHODS.items()}
NUMPY_METHODS = {}
for BACKEND in ("mmap", "pread"):
    NUMPY_METHODS[BACKEND, "load_file"] = each_file(
        functools.partial(safetensors.numpy.load_file, backend=BACKEND))
    NUMPY_METHODS[BACKEND, "safe_open"] = each_file(open_and_get("np", backend=BACKEND))
    NUMPY_METHODS[BACKEND, "slices"] = each_file(open_and_slice("np", backend=BACKEND))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("method", METHODS)
def test_torch(mount, models, method, view):
    for name in NAMES:
        compare(mount, METHODS[method], models / name, *VIEWS[view])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_numpy(mount, models, backend, view):
    """NumPy lacks bfloat16 and float8: the encoder and the small models are float32 and float16."""
    for name in ("encoder", "small-fp16", "small-fp32"):
        for method in ("load_file", "safe_open", "slices"):
            compare(mount, NUMPY_METHODS[backend, method], models / name, *VIEWS[view])


def test_merged_by_the_oracle(mount, models):
    """Compares the libraries' files with the merged file by an independent reader."""
    m = mount(models)
    for name in NAMES:
        headers = [oracle.read_header(path) for path in shards(models / name)]
        names = [os.path.basename(path) for path in shards(models / name)]
        stem = names[0].split("-0")[0].removesuffix(".safetensors")
        tensors = [(shard, [trees.Tensor(e.name, e.dtype, e.shape, e.read()) for e in entries])
                   for shard, (entries, *_) in zip(names, headers)]
        oracle.check_merged(m / "merged", trees.Checkpoint(
            name, stem, tensors, metadata=[metadata for _, metadata, _ in headers]))


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_names_and_metadata(mount, models, framework):
    """keys() and metadata() of each file; for the merged file, the metadata that the shards agree
    on."""
    m = mount(models)

    def work(name):
        merged, = shards(m / f"merged/{name}")
        names, metadata = set(), []
        for path in shards(models / name):
            with safe_open(path, framework) as bare, \
                    safe_open(m / f"shards/{name}/{os.path.basename(path)}", framework) as f:
                assert f.keys() == bare.keys() and f.offset_keys() == bare.offset_keys()
                assert f.metadata() == bare.metadata()
                names |= set(bare.keys())
                metadata.append(bare.metadata())
        with safe_open(merged, framework) as f:
            assert f.keys() == sorted(names)
            assert f.metadata() == metadata[0]

    for name in NAMES:
        run_silently(work, name)


def test_saved_again(mount, models, place):
    """save_file writes the same file from tensors of the mount as from tensors of the source."""
    m = mount(models)

    def work():
        for name in ("decoder", "odd"):
            saved = []
            for i, directory in enumerate((models / name, m / f"merged/{name}",
                                           m / f"shards/{name}")):
                tensors = METHODS["load_file"](directory)
                safetensors.torch.save_file(tensors, place / f"{name}-{i}", {"format": "pt"})
                saved.append((place / f"{name}-{i}").read_bytes())
            assert saved[0] == saved[1] == saved[2]

    run_silently(work)
