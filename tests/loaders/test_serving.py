# SPDX-License-Identifier: Apache-2.0
"""vLLM and SGLang on the views: their own code selects the files and reads the tensors.

For other loaders, their rules for selecting files are applied to the tree.
"""

import functools
import importlib.util
import json
import os

import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402

from . import serving  # noqa: E402
from .loading import VIEWS, compare, load_bare, tensor_bytes  # noqa: E402

NAMES = ("decoder", "decoder-single")

LOADERS = {
    "vllm": serving.vllm,
    "vllm-prefetch": functools.partial(serving.vllm, safetensors_load_strategy="prefetch"),
    "vllm-eager": functools.partial(serving.vllm, safetensors_load_strategy="eager"),
    "vllm-threads": functools.partial(serving.vllm, model_loader_extra_config={
        "enable_multithread_load": True, "num_threads": 4}),
    "vllm-runai_streamer": functools.partial(
        serving.vllm, load_format="runai_streamer",
        loader="runai_streamer_loader.RunaiModelStreamerLoader"),
    "vllm-fastsafetensors-files": functools.partial(serving.vllm_files,
                                                    load_format="fastsafetensors"),
    "vllm-instanttensor-files": functools.partial(serving.vllm_files,
                                                  load_format="instanttensor"),
    "sglang": serving.sglang,
    "sglang-no-mmap": functools.partial(serving.sglang, disable_mmap=True),
    "sglang-prefetch": functools.partial(serving.sglang, prefetch=True),
    "sglang-threads": functools.partial(serving.sglang, model_loader_extra_config={
        "enable_multithread_load": True, "num_threads": 4}),
    "sglang-fastsafetensors-files": functools.partial(serving.sglang_files,
                                                      load_format="fastsafetensors"),
}


def check_that_it_runs(loader, models):
    """Skips the test if the loader does not work, even on the source."""
    package = loader.split("-")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if loader.endswith("runai_streamer"):
        pytest.importorskip("runai_model_streamer")
    try:
        load_bare(LOADERS[loader], models / NAMES[0])
    except Exception as error:  # another version, which needs more than serving.py has
        pytest.skip(f"{loader} does not run without a GPU, even on the source: {error!r}")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("loader", LOADERS)
def test_load(mount, models, loader, view):
    check_that_it_runs(loader, models)
    for name in NAMES:
        compare(mount, LOADERS[loader], models / name, *VIEWS[view])


def indexed(files):
    """huggingface_hub, mlx-vlm: the files of the index; without an index, there is one file."""
    indexes = [name for name in files if name.endswith(".index.json")]
    if indexes:
        with open(files[indexes[0]]) as f:
            return sorted(set(json.load(f)["weight_map"].values()))
    found, = (name for name in files if name.endswith(".safetensors"))
    return [found]


# Rules of loaders that cannot be run here, applied to the names in a directory.
RULES = {
    "huggingface_hub, mlx-vlm": indexed,
    "TensorRT-LLM": lambda files: [name for name in files if name.endswith(".safetensors") and
                                   "consolidated" not in name],
    "runai list_safetensors": lambda files: [n for n in files if n.endswith(".safetensors")],
    "llama.cpp's converters, mlx-lm": lambda files: [
        name for name in files if name.startswith("model") and name.endswith(".safetensors")],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("rule", RULES)
def test_rules(mount, models, rule, view):
    """The files selected by a rule have each tensor once."""
    folder, options = VIEWS[view]
    for name in NAMES:
        want = sorted(key for path in (models / name).glob("*.safetensors")
                      for key in safe_open(path, "pt").keys())
        m = mount(models / name, *options)
        files = {entry.name: entry.path for entry in os.scandir(m / folder)}
        got = sorted(key for name in RULES[rule](files)
                     for key in safe_open(files[name], "pt").keys())
        assert got == want
        m.unmount()


@pytest.mark.parametrize("view", VIEWS)
def test_directories_mislead_no_loader(mount, models, view):
    """accelerate refuses a directory with two indexes and prefers a .bin; vLLM changes its format
    if a file called consolidated exists anywhere below; SGLang and vLLM refuse an index with a
    missing file."""
    folder, options = VIEWS[view]
    for name in NAMES:
        m = mount(models / name, *options)
        names = os.listdir(m / folder)
        indexes = [n for n in names if n.endswith(".index.json")]
        shards = [n for n in names if n.endswith(".safetensors")]
        assert len(indexes) == (len(shards) > 1)
        assert len(shards) == 1 or "model.safetensors" not in shards
        assert not [n for n in names if n.startswith("consolidated") or n.endswith((".bin", ".pt"))
                    or os.path.isdir(m / f"{folder}/{n}")]
        for index in indexes:
            with open(m / f"{folder}/{index}") as f:
                index = json.load(f)
            assert sorted(set(index["weight_map"].values())) == sorted(shards)
            assert index["metadata"]["total_size"] == tensor_bytes(
                m / f"{folder}/{shard}" for shard in shards)
        m.unmount()
