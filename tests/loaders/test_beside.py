# SPDX-License-Identifier: Apache-2.0
"""A sharded model next to other checkpoints, as published by Mistral, and with an adapter: each
loader gets the same from the views as from the source, which is the model only."""

import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from . import serving, test_accelerate, test_transformers  # noqa: E402
from .loading import VIEWS, load, load_bare  # noqa: E402
from .test_serving import check_that_it_runs  # noqa: E402

# A re-cut to one file, and merged/, have an index here, but not if the model is alone.
BESIDE = {**VIEWS, "recut-to-one": ("shards", ("--shards=1",))}


def distributed(path):
    """torch.distributed.checkpoint reads every file of the directory."""
    from torch.distributed.checkpoint import DefaultLoadPlanner, HuggingFaceStorageReader, load

    reader = HuggingFaceStorageReader(path)
    found = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype)
               for name, entry in found.items()}
    load(tensors, storage_reader=HuggingFaceStorageReader(path), planner=DefaultLoadPlanner(),
         no_dist=True)
    return tensors


LOADERS = {
    "transformers": test_transformers.decoder,
    "accelerate": test_accelerate.in_model,
    "huggingface_hub": test_accelerate.hub,
    "vllm": functools.partial(serving.vllm, load_format="hf"),
    "vllm-fastsafetensors-files": functools.partial(serving.vllm_files,
                                                    load_format="fastsafetensors"),
    "sglang": serving.sglang,
}
# These read Mistral's own format, or everything.
OTHERS = {"vllm-mistral": functools.partial(serving.vllm, load_format="mistral"),
          "vllm-auto": serving.vllm,
          "torch.distributed": distributed}


def check_that_package_runs(loader, models):
    package = loader.split("-")[0]
    if package in ("vllm", "sglang"):
        check_that_it_runs(package, models)
    elif package != "torch.distributed":
        pytest.importorskip(package)


@pytest.mark.parametrize("view", BESIDE)
@pytest.mark.parametrize("loader", LOADERS)
def test_only_the_model(mount, models, loader, view):
    check_that_package_runs(loader, models)
    want = load_bare(LOADERS[loader], models / "decoder")
    source = models / "beside"
    assert load_bare(LOADERS[loader], source) == want
    folder, options = BESIDE[view]
    assert load(LOADERS[loader], mount(source, *options) / folder) == want


@pytest.mark.parametrize("view", BESIDE)
@pytest.mark.parametrize("loader", OTHERS)
def test_same_as_source(mount, models, loader, view):
    check_that_package_runs(loader, models)
    source = models / "beside"
    want = load_bare(OTHERS[loader], source)
    assert want.tensors
    folder, options = BESIDE[view]
    assert load(OTHERS[loader], mount(source, *options) / folder) == want
