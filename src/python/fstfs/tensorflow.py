# SPDX-License-Identifier: Apache-2.0
"""Replaces safetensors.tensorflow: load_file() reads with libfstfs."""

from __future__ import annotations

import os
from typing import Any

from . import _checkpoint, _forward


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Returns {name: tensor} of all tensors of a safetensors file. Arguments and errors are
    those of fstfs.safe_open."""
    return _checkpoint.load_file(filename, framework="tf", backend=backend)


__all__ = ["load_file"]
__getattr__ = _forward.forward_to("tensorflow")
