# SPDX-License-Identifier: Apache-2.0
"""A replacement of safetensors.mlx: load_file() uses libfstfs."""

from . import _checkpoint, _rest


def load_file(filename, *, backend="mmap"):
    """{name: array} of all tensors of a safetensors file."""
    return _checkpoint.load_file(filename, framework="mlx", backend=backend)


__all__ = ["load_file"]
__getattr__ = _rest.of("mlx")
