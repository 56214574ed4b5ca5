# SPDX-License-Identifier: Apache-2.0
"""diffusers: a pipeline in shards and variants, whose text encoder is loaded by transformers."""

import os

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from .loading import VIEWS, at_best, check_read, compare, load, load_bare, state  # noqa: E402

PARTS = ("unet", "vae", "text_encoder")


def pipeline(path, dtype=torch.float32, **more):
    loaded = diffusers.StableDiffusionPipeline.from_pretrained(
        path, torch_dtype=dtype, safety_checker=None, feature_extractor=None, **more)
    return {f"{part}.{name}": tensor for part in PARTS
            for name, tensor in state(getattr(loaded, part)).items()}


def fp16(path):
    return pipeline(path, torch.float16, variant="fp16")


def in_parallel(path):
    """As with HF_ENABLE_PARALLEL_LOADING=1, which is only read when diffusers is imported."""
    diffusers.models.modeling_utils.HF_ENABLE_PARALLEL_LOADING = True
    return state(diffusers.UNet2DConditionModel.from_pretrained(path, subfolder="unet"))


def single_file(path):
    return state(diffusers.UNet2DConditionModel.from_single_file(path,
                                                                 config=os.path.dirname(path)))


@pytest.mark.parametrize("view", VIEWS)
def test_pipeline(mount, models, view):
    compare(mount, pipeline, models / "pipeline", *VIEWS[view],
            which=lambda name: name.endswith(".safetensors") and "fp16" not in name)


@pytest.mark.parametrize("view", VIEWS)
def test_variant(mount, models, view):
    compare(mount, fp16, models / "pipeline", *VIEWS[view],
            which=lambda name: name.endswith(".safetensors") and "fp16" in name)


@pytest.mark.parametrize("view", VIEWS)
def test_parallel_loading(mount, models, view):
    compare(mount, in_parallel, models / "unet", *VIEWS[view])


def test_single_file(mount, models):
    """The merged file of a sharded model, like one that its library saves as a single file."""
    name = "unet/diffusion_pytorch_model.safetensors"
    want = load_bare(single_file, models / "unet-single" / name)

    def once():
        m = mount(models / "unet")
        assert load(single_file, m / f"merged/{name}") == want
        check_read(m, "merged")

    at_best(once)
