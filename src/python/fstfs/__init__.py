# SPDX-License-Identifier: Apache-2.0
"""Loads tensors with libfstfs, for torch, NumPy and other frameworks, and mounts directories of
checkpoints.

    from fstfs import safe_open, load_checkpoint  # replaces safetensors.safe_open
    from fstfs.torch import load_file             # replaces safetensors.torch.load_file

docs/libfstfs.md documents the module and its differences from safetensors.
"""

from ._checkpoint import load_checkpoint, load_file, safe_open
from ._library import SafetensorError, lib, status
from ._mount import Mount, mount
from ._stream import iter_tensors

__version__: str = lib.fstfs_version().decode()
__all__ = ["Mount", "SafetensorError", "iter_tensors", "load_checkpoint", "load_file", "mount",
           "safe_open", "status"]
