# SPDX-License-Identifier: Apache-2.0
"""The module of the checkout with the library of the build."""

import os
import sys

from conftest import BUILD, ROOT

LIBRARY = BUILD / "src/client/libfstfs.so.0"

# Before torch is imported: no accelerator.
os.environ.update(CUDA_VISIBLE_DEVICES="", FSTFS_LIBRARY=os.fspath(LIBRARY))
sys.path.insert(0, os.fspath(ROOT / "src/python"))
collect_ignore = ["swapped.py"]
