# SPDX-License-Identifier: Apache-2.0
"""The checkpoints for the loaders."""

import os

import pytest
from conftest import child

pytest.register_assert_rewrite("loaders.loading")  # enables detailed assertion messages

# Before any package is imported: no accelerator, no network, no progress bars.
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")


@pytest.fixture(scope="session")
def models(shared_place):
    """A directory with each checkpoint of checkpoints.py whose packages are installed."""
    pytest.importorskip("transformers")
    from . import checkpoints

    root = shared_place / "models"
    root.mkdir()
    child(checkpoints.write, root, seconds=120)
    return root
