# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that replaces the loading functions of safetensors by those of fstfs."""

import importlib
import os

import fstfs
import fstfs.numpy
import fstfs.torch
import safetensors
import safetensors.numpy
import safetensors.torch

safetensors.safe_open = safetensors.torch.safe_open = fstfs.safe_open
safetensors.torch.load_file = fstfs.torch.load_file
safetensors.numpy.load_file = fstfs.numpy.load_file
other = os.environ.get("SWAPPED_FRAMEWORK")  # one per process, because each loads its own libraries
if other:
    module = importlib.import_module(f"safetensors.{other}")
    module.safe_open = fstfs.safe_open
    module.load_file = importlib.import_module(f"fstfs.{other}").load_file
