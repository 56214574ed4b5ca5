# SPDX-License-Identifier: Apache-2.0
"""A replacement of safetensors.torch: load_file() uses libfstfs."""

from . import _rest
from ._checkpoint import load_file as _load_file


def load_file(filename, device="cpu", *, backend="mmap"):
    """{name: tensor} of all tensors of a safetensors file."""
    return _load_file(filename, device, backend=backend)


__all__ = ["load_file"]
__getattr__ = _rest.of("torch")
