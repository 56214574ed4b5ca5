# SPDX-License-Identifier: Apache-2.0
"""GGUF models that llama.cpp loads, written by the gguf package."""

import gguf
import numpy as np


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(path, width=64, hidden=128, layers=2, **options):
    """A model of the architecture llama with random weights, and a tokenizer of a few tokens.
    `options` are those of GGUFWriter."""
    random, heads = np.random.default_rng(7), 4
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL),
              *((f"<0x{i:02X}>", kinds.BYTE) for i in range(256)),
              *((token, kinds.NORMAL) for token in ("\u2581", "a", "b", "c", "\u2581a"))]
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name, *shape):
        data = random.standard_normal(shape, np.float32) / 8
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), width)
    add("output_norm.weight", width)
    add("output.weight", len(tokens), width)
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", width, width)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", width)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}.weight", hidden, width)
        add(f"blk.{i}.ffn_down.weight", width, hidden)
    finish(writer)
