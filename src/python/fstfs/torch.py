# SPDX-License-Identifier: Apache-2.0
"""Replaces safetensors.torch: load_file() reads with libfstfs."""

from __future__ import annotations

import os
from typing import Any

from . import _forward
from ._checkpoint import load_file as _load_file


def load_file(filename: str | os.PathLike[str], device: str | int | None = "cpu", *,
              backend: str = "mmap") -> dict[str, Any]:
    """Returns {name: tensor} of all tensors of a safetensors file. Arguments and errors are
    those of fstfs.safe_open."""
    return _load_file(filename, device, backend=backend)


__all__ = ["load_file"]
__getattr__ = _forward.forward_to("torch")
