# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what is imported of safetensors to load by is fstfs's."""

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
other = os.environ.get("SWAPPED_FRAMEWORK")  # not all in one process: each brings libraries
if other:
    module = importlib.import_module(f"safetensors.{other}")
    module.safe_open = fstfs.safe_open
    module.load_file = importlib.import_module(f"fstfs.{other}").load_file
