# SPDX-License-Identifier: Apache-2.0
"""Compares what the libraries read from a source (argv[1]) and from a mount of it (argv[2]).

Tensor by tensor and byte by byte, in every view. Run by a Python that has
torch; prints the number of comparisons. Raises at the first difference.
"""

import glob
import json
import os
import sys

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SOURCE, MOUNT = sys.argv[1:3]
transformers.logging.set_verbosity_error()
compared = 0


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() \
        if tensor.numel() else b""


def same(name, got, want):
    global compared
    assert got.dtype == want.dtype, (name, got.dtype, want.dtype)
    assert got.shape == want.shape, (name, got.shape, want.shape)
    assert raw(got) == raw(want), name
    compared += 1


def load_all(files, how):
    tensors = {}
    for path in files:
        if how == "load_file":
            part = load_file(path)
        else:
            with safe_open(path, "pt", **({"backend": "pread"} if how == "pread" else {})) as f:
                part = {k: f.get_tensor(k) for k in f.keys()}
        assert not tensors.keys() & part.keys(), path
        tensors.update(part)
    return tensors


def compare(directory):
    source = os.path.join(SOURCE, directory)
    want = load_all(sorted(glob.glob(f"{source}/*.safetensors")), "load_file")
    assert want, directory
    for view in ("merged", "shards"):
        files = sorted(glob.glob(f"{MOUNT}/{view}/{directory}/*.safetensors"))
        assert files and (view == "shards" or len(files) == 1), files
        for how in ("load_file", "safe_open", "pread"):
            got = load_all(files, how)
            assert got.keys() == want.keys()
            for name, tensor in want.items():
                same(f"{view}/{directory} {name} {how}", got[name], tensor)
    stem, = [e.name for e in os.scandir(f"{MOUNT}/tensors/{directory}") if e.is_dir()]
    with open(f"{MOUNT}/tensors/{directory}/{stem}.index.json") as f:
        assert json.load(f)["weight_map"].keys() == want.keys()
    for name, tensor in want.items():
        path = f"{MOUNT}/tensors/{directory}/{stem}/{name}"
        with open(path, "rb") as f:
            assert f.read() == raw(tensor), path
        if tensor.numel():
            mapped = torch.from_file(path, shared=False, size=tensor.numel(), dtype=tensor.dtype)
            same(path, mapped.reshape(tensor.shape), tensor)
        array = np.load(f"{MOUNT}/npy/{directory}/{stem}/{name}.npy")
        assert array.tobytes() == raw(tensor) and array.shape == tuple(tensor.shape), path


def compare_models(directory):
    variant = directory.removesuffix("-variant").rsplit("-", 1)[1] \
        if directory.endswith("-variant") else None
    def load(path):
        return AutoModelForCausalLM.from_pretrained(path, variant=variant, dtype="auto",
                                                    local_files_only=True).state_dict()

    want = load(os.path.join(SOURCE, directory))
    for view in ("merged", "shards"):
        got = load(f"{MOUNT}/{view}/{directory}")
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            same(f"from_pretrained {view}/{directory} {name}", got[name], tensor)


directories = sorted(os.listdir(SOURCE))
for directory in directories:
    compare(directory)
    if directory.startswith(("llama", "mixtral")):
        compare_models(directory)
print(compared)
