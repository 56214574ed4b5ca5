# SPDX-License-Identifier: Apache-2.0
"""Imports the tested module; skips tests if this Python cannot load its library."""

import pytest
from conftest import SANITIZED

if SANITIZED:
    pytest.skip("a sanitized library cannot be loaded into a Python that is not",
                allow_module_level=True)

import fstfs  # noqa: E402
import fstfs.numpy  # noqa: E402
import fstfs.torch  # noqa: E402, F401

__all__ = ["fstfs"]
