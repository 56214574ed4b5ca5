# SPDX-License-Identifier: Apache-2.0
"""For: from safetensors.torch import load_file."""

from ._checkpoint import load_file

__all__ = ["load_file"]
