# SPDX-License-Identifier: Apache-2.0
"""accelerate and huggingface_hub: loading into an existing model."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .loading import VIEWS, compare, state  # noqa: E402



def empty(path):
    """The model without weights, but with the buffers that no checkpoint has."""
    accelerate = pytest.importorskip("accelerate")
    config = transformers.AutoConfig.from_pretrained(path)
    with accelerate.init_empty_weights(include_buffers=False):
        return transformers.AutoModelForCausalLM.from_config(config)


def dispatch(path):
    import accelerate

    return state(accelerate.load_checkpoint_and_dispatch(empty(path), path, device_map="auto"))


def in_model(path):
    import accelerate

    model = empty(path)
    accelerate.load_checkpoint_in_model(model, path, device_map={"": "cpu"})
    return state(model)


def hub(path):
    import huggingface_hub

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(path))
    found = huggingface_hub.load_torch_model(model, path, strict=True)
    assert not found.missing_keys and not found.unexpected_keys
    return state(model)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("loader", [dispatch, in_model, hub])
def test_load(mount, models, loader, view):
    pytest.importorskip("huggingface_hub" if loader is hub else "accelerate")
    compare(mount, loader, models / "decoder", *VIEWS[view])
