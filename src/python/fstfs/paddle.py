# SPDX-License-Identifier: Apache-2.0
"""A replacement of safetensors.paddle: load_file() uses libfstfs."""

from . import _checkpoint, _rest


def load_file(filename, device="cpu", *, backend="mmap"):
    """{name: tensor} of all tensors of a safetensors file."""
    return _checkpoint.load_file(filename, device, framework="paddle", backend=backend)


__all__ = ["load_file"]
__getattr__ = _rest.of("paddle")
