# SPDX-License-Identifier: Apache-2.0
"""Directories with several files of weights: loaders that are given the directory choose the same
weights on the mount as in the source, or fail in both."""

import json
import os
import sys

import pytest
from conftest import BUILD, ROOT

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from . import serving  # noqa: E402
from .loading import fingerprints, run_captured  # noqa: E402
from .test_serving import check_that_it_runs  # noqa: E402

SET = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
BIN_SET = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]


def index(files):
    """An index by which each file has the tensors that write() gives it."""
    return json.dumps({"metadata": {}, "weight_map": {key: name for name, keys in files.items() for key in keys}})


# {directory: {file: names of its tensors, or text}}; a file's tensors have its position as values
DIRECTORIES = {
    "quantized": {"gptq_model-4bit-128g.safetensors": "ab", "pytorch_model.bin": "ab"},
    "ema": {"llama.safetensors": "ab", "llama_ema.pt": "ab"},
    "ema.bin": {"vit.safetensors": "ab", "ema.bin": "ab"},
    "optimizer": {"vit.safetensors": "ab", "optimizer.pt": "o"},
    "model.pt": {"vit.safetensors": "ab", "model.pt": "ab"},
    "lora": {"my_lora.safetensors": "ab", "ema_lora.bin": "ab"},
    "mixtral": {SET[0]: "a", SET[1]: "b", "consolidated.00.pt": "ab", "consolidated.01.pt": "ab",
                "model.safetensors.index.json": index({SET[0]: "a", SET[1]: "b"})},
    "llama3": {SET[0]: "a", SET[1]: "b", "original/consolidated.00.pth": "ab",
               "model.safetensors.index.json": index({SET[0]: "a", SET[1]: "b"})},
    "llama3 of PyTorch": {"pytorch_model.bin": "ab", "original/consolidated.00.pth": "ab"},
    "set and more": {SET[0]: "a", SET[1]: "b", "mtp.safetensors": "m"},
    "one and more": {"model.safetensors": "ab", "mtp.safetensors": "m"},
    "one, more, optimizer": {"model.safetensors": "ab", "mtp.safetensors": "m", "optimizer.pt": "o"},
    "llava": {"pytorch_model.bin": "ab", "mm_projector.bin": "p"},
    "llava shards": {BIN_SET[0]: "a", BIN_SET[1]: "b", "mm_projector.bin": "p",
                     "pytorch_model.bin.index.json": index({BIN_SET[0]: "a", BIN_SET[1]: "b"})},
    "trainer": {"pytorch_model.bin": "ab", "optimizer.pt": "o", "scheduler.pt": "s", "rng_state.pth": "r"},
    "set and PyTorch": {SET[0]: "a", SET[1]: "b", "pytorch_model.bin": "ab"},
    "two families": {"diffusion_pytorch_model.safetensors": "ab", "pytorch_model.bin": "ab"},
    "adapter": {"adapter_model.safetensors": "ab", "optimizer.pt": "o"},
    "two of one stem": {"pytorch_model.pt": "ab", "model.bin": "ab", "other.bin": "c"},
    "shards, one file": {"x-00001-of-00002.pt": "a", "x-00002-of-00002.pt": "b", "x.bin": "ab", "y.bin": "c"},
    "letter case": {"x.BIN": "ab", "y.bin": "c"},
    "other optimizers": {"pytorch_model.bin": "ab", "ema_optimizer.bin": "o"},
    "consolidated": {"consolidated00.bin": "ab"},
    "invalid index": {"vit.safetensors.index.json": "{", "vit.bin": "ab", "ema.bin": "c"},
    "both formats": {"model.safetensors": "ab", "pytorch_model.bin": "ab"},
    "one and shards of PyTorch": {"vit.safetensors": "ab", BIN_SET[0]: "a", BIN_SET[1]: "b",
                                  "pytorch_model.bin.index.json": index({BIN_SET[0]: "a", BIN_SET[1]: "b"})},
    "set and adapter of PyTorch": {SET[0]: "a", SET[1]: "b", "adapter_model.bin": "l"},
    "index names too many": {SET[0]: "a", SET[1]: "b", "vit.safetensors": "ab",
                             "model.safetensors.index.json": index({SET[0]: "a", SET[1]: "bc"})},
    "adapter of PyTorch": {"adapter_model.bin": "ab", "optimizer.bin": "o"},
}


def write(directory, files):
    for i, (name, keys) in enumerate(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {key: torch.full((4,), float(i)) for key in keys} if name[-5:] != ".json" else {}
        if name.endswith(".safetensors"):
            save_file(tensors, path, metadata={"format": "pt"})
        elif tensors:
            torch.save(tensors, path)
        else:
            path.write_text(keys)


@pytest.fixture(scope="module")
def source(shared_place):
    for directory, files in DIRECTORIES.items():
        write(shared_place / "choice" / directory, files)
    return shared_place / "choice"


def library(path):
    """libfstfs, which reads the source's files or those of the mount."""
    os.environ["FSTFS_LIBRARY"] = os.fspath(BUILD / "src/client/libfstfs.so.0")
    sys.path.insert(0, os.fspath(ROOT / "src/python"))
    import fstfs

    return fstfs.load_checkpoint(path)


LOADERS = {"vllm": serving.vllm, "sglang": serving.sglang, "libfstfs": library}


def outcomes(loader, root):
    """For each directory the tensors that are loaded, or the class of the error."""
    def outcome(path):
        try:
            return fingerprints(loader(path))
        except Exception as error:
            return type(error).__name__

    return run_captured(lambda: {name: outcome(f"{root}/{name}") for name in DIRECTORIES})[0]


@pytest.mark.parametrize("options", [[], ["--shards=2"], ["--shard-size=20"]], ids=" ".join)
@pytest.mark.parametrize("loader", LOADERS)
def test_same_weights(mount, models, source, loader, options):
    if loader != "libfstfs":
        check_that_it_runs(loader, models)
    want = outcomes(LOADERS[loader], source)
    loaded = [name for name in DIRECTORIES if not isinstance(want[name], str)]
    assert len(loaded) > len(DIRECTORIES) / 2
    m = mount(source, *options)
    for view in ("merged", "shards"):
        assert outcomes(LOADERS[loader], m / view) == want, view
