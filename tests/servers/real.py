# SPDX-License-Identifier: Apache-2.0
"""Functions that program_vllm.py and program_sglang.py share."""

import json
import os
import traceback

from files import forget as forget_files
from loading import by_libfstfs, contents, signatures

__all__ = ["by_libfstfs", "checks", "contents", "forget", "run", "signatures"]

found = {}
functions = []


def forget(path, subfolder=""):
    """Drops the files of a directory from the page cache."""
    for name in os.listdir(os.path.join(path, subfolder)):
        forget_files(os.path.join(path, subfolder, name))


def checks(function):
    functions.append(function)
    return function


def run():
    for function in functions:
        try:
            function()
            found[function.__name__] = "ok"
        except Exception:
            found[function.__name__] = traceback.format_exc()
    print(json.dumps(found), flush=True)
    os._exit(0)  # threads of the server may still run
