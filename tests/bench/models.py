# SPDX-License-Identifier: Apache-2.0
"""The models for the loaders: random weights, in four shards.

`weights` is the checkpoint of bench-io, for loaders of files. `llama` and `diffuser` are models of
transformers and diffusers, saved by them.
"""

import os
import random

import torch
from checkpoint import SHARDS, Checkpoint


class Models:
    """Has the interface of Checkpoint; writes each model to a directory of its name."""

    def __init__(self, names, size):
        self.names, self.one = names, size
        self.size = size * len(names)

    def write(self, directory):
        for name in self.names:
            path = os.path.join(directory, name)
            os.mkdir(path)
            if name == "weights":
                Checkpoint(self.one, random.Random(1)).write(path)
            else:
                save(MAKERS[name], path, self.one)


def llama(layers):
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=16000, num_hidden_layers=layers))


def diffuser(layers):
    from diffusers import SD3Transformer2DModel, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return SD3Transformer2DModel(num_layers=layers)


MAKERS = {"llama": llama, "diffuser": diffuser}


def size_of(model):
    return sum(2 * tensor.numel() for tensor in model.state_dict().values())


def save(make, path, size, shards=SHARDS):
    """Saves a model of at least `size` bytes in bfloat16."""
    with torch.device("meta"):
        one, two = size_of(make(1)), size_of(make(2))
        model = make(max(1, (size - one) // (two - one) + 1))
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.uniform_(-1, 1)
    model.save_pretrained(path, max_shard_size=size_of(model) // shards + 1)
