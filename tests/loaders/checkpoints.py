# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints, with the packages that users write them with.

Each is a directory of a few megabytes in several shards, unless its name says otherwise. The
weights are random.
"""

import importlib.util
import shutil

import torch
import transformers
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, CLIPTextConfig, CLIPTextModel,
                          CLIPTokenizer, LlamaConfig, LlamaForCausalLM, MixtralConfig,
                          MixtralForCausalLM)

SMALL = dict(hidden_size=48, intermediate_size=104, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=301, max_position_embeddings=64)
LARGER = dict(SMALL, hidden_size=192, intermediate_size=512, num_hidden_layers=3, vocab_size=4000)


class OddConfig(transformers.PretrainedConfig):
    model_type = "odd"


class Odd(transformers.PreTrainedModel):
    """A model with the dtypes of quantized checkpoints."""

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


def decoder(dtype=torch.bfloat16, tied=False, sizes=LARGER):
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied)).to(dtype)


def lora(path):
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(decoder(), adapter).save_pretrained(path)


def beside(path):
    """Adds the same weights in Mistral's format and an adapter to the directory of a model."""
    own = {f"layers.{i}.{part}.weight": torch.randn(64, 96).to(torch.bfloat16)
           for i in range(5) for part in ("attention.wq", "attention.wk", "feed_forward.w1")}
    save_file(own, path / "consolidated.safetensors", metadata={"format": "pt"})
    save_file({f"base_model.model.layers.{i}.lora_{side}.weight": torch.randn(8, 64)
               for i in range(2) for side in "AB"}, path / "adapter_model.safetensors")


def pipeline(root):
    """A diffusers pipeline in two variants, with its larger parts in shards; and its largest part
    alone, in shards and in one file."""
    import diffusers

    torch.manual_seed(11)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(64, 96), layers_per_block=1, sample_size=16, cross_attention_dim=64,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), norm_num_groups=16,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=8)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2)
    text_encoder = CLIPTextModel(CLIPTextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=1000, max_position_embeddings=32))
    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}
    made = diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text_encoder, tokenizer=CLIPTokenizer(words, []), unet=unet,
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False)
    unet.save_pretrained(root / "unet/unet", max_shard_size="1MB")
    unet.save_pretrained(root / "unet-single/unet")
    made.save_pretrained(root / "pipeline", max_shard_size="1MB")
    made.to(torch.float16).save_pretrained(root / "pipeline", max_shard_size="500KB",
                                           variant="fp16")


def write(root):
    torch.manual_seed(7)
    torch.set_num_threads(1)

    def save(model, name, size, **more):
        model.save_pretrained(root / name, max_shard_size=size, **more)

    save(decoder(), "decoder", "1MB")
    shutil.copytree(root / "decoder", root / "beside")
    beside(root / "beside")
    save(decoder(tied=True), "tied", "1MB")
    save(decoder(), "decoder-single", "5GB")
    if importlib.util.find_spec("peft"):
        save(decoder(), "lora/base", "1MB")
        lora(root / "lora/adapter")
    save(MixtralForCausalLM(MixtralConfig(
        **dict(LARGER, num_hidden_layers=2), num_local_experts=4, num_experts_per_tok=2,
        tie_word_embeddings=False)).to(torch.bfloat16), "experts", "2MB")
    encoder = dict(LARGER)
    del encoder["num_key_value_heads"]
    save(BertForMaskedLM(BertConfig(**encoder)), "encoder", "2MB")

    if importlib.util.find_spec("diffusers"):
        pipeline(root)

    save(decoder(sizes=SMALL), "side-files", "60KB")
    optimizer = {f"{moment}.{i}": torch.randn(300, 301)
                 for moment in ("exp_avg", "exp_avg_sq") for i in range(3)}
    torch.save(optimizer, root / "side-files/optimizer.state")
    torch.save(optimizer, root / "side-files/legacy.state", _use_new_zipfile_serialization=False)

    # formats of a full checkpoint
    for dtype, label in ((torch.float16, "fp16"), (torch.float32, "fp32")):
        save(decoder(dtype, sizes=SMALL), f"small-{label}", "60KB")
        save(decoder(dtype, sizes=SMALL), f"small-{label}-variant", "60KB", variant=label)
    odd = Odd(OddConfig())
    save(odd, "odd", "3KB")
    save(odd, "odd-single", "5GB")
    state = {name: tensor.contiguous() for name, tensor in odd.state_dict().items()}
    (root / "plain").mkdir()
    save_file(state, root / "plain/weights.safetensors", metadata={"made": "by save_file"})
    (root / "hub").mkdir()
    save_torch_state_dict(state, root / "hub", max_shard_size="3KB")
