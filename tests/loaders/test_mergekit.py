# SPDX-License-Identifier: Apache-2.0
"""mergekit merges models of shards/ as it merges those of the source."""

import os

import pytest
from conftest import child

pytest.importorskip("mergekit")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def save_model(path, seed):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256, num_hidden_layers=4))
    model.to(torch.bfloat16).save_pretrained(path, max_shard_size="100KB")


def merged_by_mergekit(models, output):
    """The tensors of the merged model: {name: tensor}."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge
    from safetensors.torch import load_file

    config = MergeConfiguration.model_validate({
        "merge_method": "linear", "dtype": "float32",
        "models": [{"model": os.fspath(path), "parameters": {"weight": weight}}
                   for path, weight in zip(models, (0.25, 0.75))]})
    run_merge(config, os.fspath(output), MergeOptions(copy_tokenizer=False, quiet=True,
                                                      write_model_card=False))
    tensors = {}
    for shard in sorted(output.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def test_linear_merge(mount, place):
    names = ("one", "two")
    for seed, name in enumerate(names):
        save_model(place / "s" / name, seed)
        assert len(list((place / "s" / name).glob("model-*.safetensors"))) > 2
    m = mount(place / "s")

    def work():
        expected = merged_by_mergekit([place / "s" / name for name in names], place / "bare")
        assert len(expected) > 30
        found = merged_by_mergekit([m / f"shards/{name}" for name in names], place / "mounted")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name

    child(work, seconds=100)
