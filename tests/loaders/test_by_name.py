# SPDX-License-Identifier: Apache-2.0
"""Loaders that open one file by name without an index: it is complete in every view."""

import pytest

torch = pytest.importorskip("torch")

from conftest import child  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from .loading import VIEWS as ALL_VIEWS, load, load_bare  # noqa: E402

# Larger than the files, because a smaller size would re-cut them.
VIEWS = {**ALL_VIEWS, "recut-by-size": ("shards", ("--shard-size=5GB",))}


def lora(path):
    """As pipeline.load_lora_weights(path): diffusers guesses the file name."""
    from diffusers.loaders.lora_pipeline import StableDiffusionLoraLoaderMixin

    tensors = StableDiffusionLoraLoaderMixin.lora_state_dict(path)[0]
    assert len(tensors) == 32
    return tensors


def write_lora(path, name):
    save_file({f"unet.blocks.{i}.to_q.lora_{side}.weight": torch.randn(16, 512)
               for i in range(16) for side in "AB"}, path / name)


def accelerator(path, save=False):
    import accelerate

    state = accelerate.Accelerator(cpu=True)
    model = state.prepare(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(5))))
    state.save_state(path) if save else state.load_state(path)
    return model.state_dict()


def timm(path, save=False):
    import timm

    name = "test_vit"
    if save:
        timm.models.save_for_hf(timm.create_model(name), path, safe_serialization=True)
    return timm.create_model(name, checkpoint_path=f"{path}/model.safetensors").state_dict()


def timm_directory(path):
    import timm

    return timm.create_model(f"local-dir:{path}", pretrained=True).state_dict()


def dense(path, save=False):
    from sentence_transformers.sentence_transformer.modules import Dense

    if save:
        Dense(96, 128).save(str(path), safe_serialization=True)
    return Dense.load(str(path)).state_dict()


def safetensors(path):
    return load_file(f"{path}/model.safetensors")


DIFFUSERS = "diffusers.loaders.lora_pipeline"
# {loader: (function, required module, writer of its file)}
LOADERS = {
    "diffusers-lora": (lora, DIFFUSERS, lambda path: write_lora(
        path, "pytorch_lora_weights.safetensors")),
    "accelerate-load_state": (accelerator, "accelerate", lambda path: accelerator(path, True)),
    "timm": (timm, "timm", lambda path: timm(path, True)),
    "timm-directory": (timm_directory, "timm", lambda path: timm(path, True)),
    "sentence-transformers-dense": (
        dense, "sentence_transformers.sentence_transformer.modules", lambda path: dense(path, True)),
    "safetensors": (safetensors, "safetensors", lambda path: save_file(
        {f"t{i}": torch.randn(50, 20) for i in range(21)}, path / "model.safetensors")),
}


def check(mount, loader, source, view):
    folder, options = VIEWS[view]
    want = load_bare(loader, source)
    assert want.tensors
    assert load(loader, mount(source, *options) / folder) == want


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", LOADERS)
def test_load(mount, place, name, view):
    loader, module, write = LOADERS[name]
    pytest.importorskip(module)  # imported here so that no child has to
    source = place / "source"
    source.mkdir()
    child(write, source)
    check(mount, loader, source, view)


@pytest.mark.parametrize("view", ["merged", "shards", "recut"])
def test_lora_of_any_name(mount, place, view):
    """Only re-cutting to a size cuts it, if it is larger."""
    pytest.importorskip(DIFFUSERS)
    source = place / "source"
    source.mkdir()
    child(write_lora, source, "watercolour.safetensors")
    check(mount, lora, source, view)
