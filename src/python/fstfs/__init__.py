# SPDX-License-Identifier: Apache-2.0
"""Reads tensors of safetensors files into the memory of torch and NumPy, with libfstfs.

    from fstfs import safe_open, load_checkpoint    # for: from safetensors import safe_open
    from fstfs.torch import load_file               # for: from safetensors.torch import load_file

docs/libfstfs.md documents the module and its differences from safetensors.
"""

from ._checkpoint import load_checkpoint, load_file, safe_open
from ._library import SafetensorError, lib, status

__version__ = lib.fstfs_version().decode()
__all__ = ["SafetensorError", "load_checkpoint", "load_file", "safe_open", "status"]
