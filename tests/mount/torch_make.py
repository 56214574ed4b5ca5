# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints with transformers, huggingface_hub and safetensors.torch below argv[1].

Run by a Python that has torch (see test_libraries.py).
"""

import os
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

OUT = sys.argv[1]
torch.manual_seed(7)
SMALL = dict(hidden_size=48, intermediate_size=104, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=301, max_position_embeddings=64)


def save(model, name, size, **more):
    model.save_pretrained(os.path.join(OUT, name), max_shard_size=size, **more)


# the formats a full checkpoint comes in
for dtype, label in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
    model = LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)).to(dtype)
    save(model, f"llama-{label}", "60KB")
    save(model, f"llama-{label}-single", "5GB")
    save(model, f"llama-{label}-variant", "60KB", variant=label)
save(LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)).to(torch.bfloat16),
     "llama-tied", "50KB")
save(MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2,
                                      tie_word_embeddings=False)).to(torch.bfloat16),
     "mixtral", "100KB")


class OddConfig(transformers.PretrainedConfig):
    model_type = "odd"


class Odd(transformers.PreTrainedModel):
    """A model of the dtypes that quantized checkpoints have."""

    config_class = OddConfig

    def __init__(self, config):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.randn(33, 17))
        raw = torch.randint(0, 120, (64, 24), dtype=torch.uint8)
        for name in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8"):
            self.register_buffer(f"b_{name}", raw.clone().view(getattr(torch, name)))
        self.register_buffer("b_bool", torch.rand(7, 5) > 0.5)
        self.register_buffer("b_int64", torch.arange(11))
        self.register_buffer("b_int32", torch.arange(12, dtype=torch.int32).reshape(3, 4))
        self.register_buffer("b_int16", torch.arange(5, dtype=torch.int16))
        self.register_buffer("b_float64", torch.randn(2, 2, 2, dtype=torch.float64))
        self.register_buffer("b_complex64", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("b_scalar", torch.tensor(3.5, dtype=torch.bfloat16))
        self.register_buffer("b_empty", torch.zeros(4, 0))
        self.post_init()

    def _init_weights(self, module):
        pass


odd = Odd(OddConfig())
save(odd, "odd", "3KB")
save(odd, "odd-single", "5GB")
os.makedirs(os.path.join(OUT, "plain"))
save_file({k: v.contiguous() for k, v in odd.state_dict().items()},
          os.path.join(OUT, "plain/weights.safetensors"), metadata={"made": "by save_file"})
try:
    from huggingface_hub import save_torch_state_dict
except ImportError:
    pass
else:
    os.makedirs(os.path.join(OUT, "hub"))
    save_torch_state_dict(odd.state_dict(), os.path.join(OUT, "hub"), max_shard_size="3KB")
