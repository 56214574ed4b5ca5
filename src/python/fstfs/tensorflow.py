# SPDX-License-Identifier: Apache-2.0
"""A replacement of safetensors.tensorflow: load_file() uses libfstfs."""

from . import _checkpoint, _rest


def load_file(filename, *, backend="mmap"):
    """{name: tensor} of all tensors of a safetensors file."""
    return _checkpoint.load_file(filename, framework="tf", backend=backend)


__all__ = ["load_file"]
__getattr__ = _rest.of("tensorflow")
