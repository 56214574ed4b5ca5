# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints of checkpoints.py as pickles, with the packages that wrote or write such files.

transformers 5 writes safetensors only. Its older releases called what huggingface_hub.save_torch_state_dict() does with
safe_serialization=False: shards by torch.save(), and pytorch_model.bin.index.json.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import logging

import torch
from huggingface_hub import save_torch_state_dict
from transformers import BertConfig, BertForMaskedLM, MixtralConfig, MixtralForCausalLM, T5Config, T5ForConditionalGeneration

from .checkpoints import LARGER, SMALL, decoder


def save(model, path, size, **more):
    path.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = model.dtype
    model.config.save_pretrained(path)
    save_torch_state_dict(model.state_dict(), path, max_shard_size=size, safe_serialization=False, **more)


@dataclasses.dataclass
class Settings:
    """A class that a reader of the checkpoint cannot import."""

    rate: float
    layers: tuple


def write_lightning(path):
    """A checkpoint of a Lightning training run, with hyper-parameters and optimizer states."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self, settings, arguments):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))

        def training_step(self, batch):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=self.hparams.settings.rate)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8)), batch_size=8)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, default_root_dir=path.parent)
    trainer.fit(Model(Settings(0.01, (16, 1)), argparse.Namespace(name="run", depth=2)), batches)
    trainer.save_checkpoint(path)


def write_diffusers(root):
    import diffusers

    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(64, 96), layers_per_block=1, sample_size=16, cross_attention_dim=64,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), norm_num_groups=16,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=8)
    unet.save_pretrained(root / "unet", max_shard_size="1MB", safe_serialization=False)
    unet.save_pretrained(root / "unet-single", safe_serialization=False)


def write_peft(root):
    from peft import LoraConfig, get_peft_model

    save(decoder(), root / "lora/base", "1MB")
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(decoder(), adapter).save_pretrained(root / "lora/adapter", safe_serialization=False)


def write(root):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    save(decoder(), root / "llama", "1MB")
    save(decoder(), root / "llama-single", "5GB")
    save(decoder(torch.float16, sizes=SMALL), root / "llama-variant", "5GB", filename_pattern="pytorch_model.fp16{suffix}.bin")
    save(decoder(tied=True), root / "llama-tied", "1MB")
    save(MixtralForCausalLM(MixtralConfig(**dict(LARGER, num_hidden_layers=2), num_local_experts=4, num_experts_per_tok=2,
                                          tie_word_embeddings=False)).to(torch.bfloat16), root / "mixtral", "2MB")
    encoder = dict(LARGER)
    del encoder["num_key_value_heads"]
    save(BertForMaskedLM(BertConfig(**encoder)), root / "bert", "2MB")
    save(T5ForConditionalGeneration(T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=2000)), root / "t5", "300KB")
    legacy = decoder(sizes=SMALL)
    save(legacy, root / "legacy", "5GB")
    torch.save(legacy.state_dict(), root / "legacy/pytorch_model.bin", _use_new_zipfile_serialization=False)
    for package, write_files in (("peft", write_peft), ("diffusers", write_diffusers)):
        if importlib.util.find_spec(package):
            write_files(root)
    if importlib.util.find_spec("lightning"):
        (root / "lightning").mkdir()
        with contextlib.redirect_stderr(None):
            write_lightning(root / "lightning/last.ckpt")
