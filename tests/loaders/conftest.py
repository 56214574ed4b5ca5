# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that the loaders are given."""

import os

import pytest
from conftest import child

pytest.register_assert_rewrite("loaders.loading")  # its assertions tell what they compare

# Before any package is imported: no accelerator, no network, no progress bars.
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")


@pytest.fixture(scope="session")
def models(shared_place):
    """The folder with one directory for each checkpoint of checkpoints.py; those that need a
    package which is not installed are left out."""
    pytest.importorskip("transformers")
    from . import checkpoints

    root = shared_place / "models"
    root.mkdir()
    child(checkpoints.write, root, seconds=120)
    return root
