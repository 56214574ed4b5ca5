# SPDX-License-Identifier: Apache-2.0
"""Finds the programs of fstfs. Entry points of the wheel: each runs one of them."""

import functools
import os
import shutil
import sys
from typing import NoReturn


def find_program(name: str) -> str:
    """Returns the path of a program: in the package (a wheel), else in PATH. Raises
    FileNotFoundError."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    found = shutil.which(name, path=folder) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name}: not found in {folder} or in PATH")
    return found


def _run(name: str) -> NoReturn:
    path = find_program(name)
    os.execv(path, [path, *sys.argv[1:]])


fstfs = functools.partial(_run, "fstfs")
fstfs_bench = functools.partial(_run, "fstfs-bench")
fstfs_cache = functools.partial(_run, "fstfs-cache")
fstfs_check = functools.partial(_run, "fstfs-check")
fstfs_pack = functools.partial(_run, "fstfs-pack")
fstfs_top = functools.partial(_run, "fstfs-top")
