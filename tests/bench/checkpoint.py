# SPDX-License-Identifier: Apache-2.0
"""A checkpoint like that of a large model, written without a library."""

import json
import os
import struct

BLOCK = (64 << 20) + 4099  # of random bytes; odd, so that no two tensors have the same bytes
SHARDS = 4


class Segment:
    """A byte range of a file, as a line of the reader's plan."""

    def __init__(self, path, offset, length):
        self.path, self.offset, self.length = path, offset, length

    def __str__(self):
        return f"{self.offset} {self.length} {self.path}"


class Checkpoint:
    """Names, sizes and shards of the tensors.

    Two tensors of a tenth of the size, and layers of 88 MiB: four tensors of 4 to 8 MiB, two norms
    of 4 KiB, a router whose size is no multiple of a page, and 8 experts of three tensors of 2 to
    4 MiB. File order is by layer number, and differs from name order (layers.10, layers.2).
    """

    def __init__(self, size, rng):
        self.rng = rng
        vocabulary = size // 10 // 4096 * 4096 + 2048
        tensors = {"model.embed_tokens.weight": vocabulary}
        number, one = 0, layer(0)
        while sum(tensors.values()) + vocabulary + sum(one.values()) <= size:
            tensors |= one
            number += 1
            one = layer(number)
        tensors["model.norm.weight"] = 4096
        tensors["lm_head.weight"] = vocabulary
        self.tensors = tensors
        self.size = sum(tensors.values())
        self.shards = self._cut(tensors)

    def _cut(self, sizes):
        shards, room = [{}], sum(sizes.values()) // SHARDS
        for name, length in sizes.items():
            if len(shards) < SHARDS and sum(shards[-1].values()) >= room:
                shards.append({})
            shards[-1][name] = length
        return shards

    def write(self, directory):
        """Writes shards and index, and waits until the shards are on storage."""
        block, at, weight_map = os.urandom(BLOCK), 0, {}
        for number, tensors in enumerate(self.shards, 1):
            name = f"model-{number:05}-of-{len(self.shards):05}.safetensors"
            weight_map |= dict.fromkeys(tensors, name)
            with open(os.path.join(directory, name), "wb") as f:
                f.write(header(tensors))
                for length in tensors.values():
                    at = write_random(f, block, at, length)
                f.flush()
                os.fsync(f.fileno())
        with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": sum(self.tensors.values())},
                       "weight_map": weight_map}, f)

    def some(self, share):
        """Names of random tensors that have about that share of the bytes."""
        chosen, size = [], 0
        for name in self.rng.sample(sorted(self.tensors), len(self.tensors)):
            if size + self.tensors[name] <= share * self.size:
                chosen.append(name)
                size += self.tensors[name]
        return chosen


def layer(number):
    """The sizes of the tensors of a layer, by name."""
    prefix = f"model.layers.{number}."
    sizes = {prefix + "input_layernorm.weight": 4096}
    for name, length in ("q_proj", 8), ("k_proj", 4), ("v_proj", 4), ("o_proj", 8):
        sizes[f"{prefix}self_attn.{name}.weight"] = length << 20
    sizes[prefix + "post_attention_layernorm.weight"] = 4096
    sizes[prefix + "mlp.gate.weight"] = 5002
    for expert in range(8):
        for name, length in ("gate_proj", 2), ("up_proj", 2), ("down_proj", 4):
            sizes[f"{prefix}mlp.experts.{expert}.{name}.weight"] = length << 20
    return sizes


def header(tensors):
    entries, at = {}, 0
    for name, length in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [length], "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_random(f, block, at, length):
    while length > 0:
        piece = block[at : at + length]
        f.write(piece)
        length -= len(piece)
        at = (at + len(piece)) % len(block)
    return at


def segments(path, start):
    """The tensors of a safetensors file by name. `start` has its first bytes."""
    (length,) = struct.unpack("<Q", start[:8])
    if len(start) < 8 + length:
        raise ValueError(f"{path}: header of {length} bytes")
    found = {
        name: Segment(path, 8 + length + entry["data_offsets"][0],
                      entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in json.loads(start[8 : 8 + length]).items()
        if name != "__metadata__"
    }
    return dict(sorted(found.items(), key=lambda item: item[1].offset))
