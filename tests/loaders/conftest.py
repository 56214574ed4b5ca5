# SPDX-License-Identifier: Apache-2.0
"""The checkpoints for the loaders."""

import importlib
import os

import pytest
from conftest import child

pytest.register_assert_rewrite("loaders.loading")  # enables detailed assertion messages

# Before any package is imported: no accelerator, no network, no progress bars.
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")


def written(place, name, seconds):
    """The directory `place`, with what the module `name` of this package writes to it."""
    pytest.importorskip("transformers")
    place.mkdir()
    child(importlib.import_module(f".{name}", __package__).write, place, seconds=seconds)
    return place


@pytest.fixture(scope="session")
def models(shared_place):
    """A directory with each checkpoint of checkpoints.py whose packages are installed."""
    return written(shared_place / "models", "checkpoints", 120)


@pytest.fixture(scope="session")
def pickled_models(shared_place):
    """A directory with each checkpoint of pickled.py whose packages are installed."""
    return written(shared_place / "pickled", "pickled", 200)
