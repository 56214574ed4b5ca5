# SPDX-License-Identifier: Apache-2.0
"""Tests use the module of the checkout, and the library and the programs of the build folder."""

import os
import sys

from conftest import BUILD, ROOT

LIBRARY = BUILD / "src/client/libfstfs.so.0"

# Before torch is imported: no accelerator.
os.environ.update(CUDA_VISIBLE_DEVICES="", FSTFS_LIBRARY=os.fspath(LIBRARY),
                  PATH=f"{BUILD}:{os.environ['PATH']}")
sys.path.insert(0, os.fspath(ROOT / "src/python"))
collect_ignore = ["swapped.py"]
