# SPDX-License-Identifier: Apache-2.0
"""A rank of tests/bench/servers.py: loads checkpoints with a server's own loader class. rank.py SERVER

For each line "FORMAT PATH" of its input, copies the tensors of a directory into its own memory, and
prints the number of bytes."""

import importlib
import os
import sys

setup = importlib.import_module(f"setup_{sys.argv[1]}")
print("ready", flush=True)
for line in sys.stdin:
    load_format, path = line.rstrip("\n").split(" ", 1)
    os.environ["FSTFS_SGLANG"] = "1" if load_format == "fstfs" else "0"
    tensors = [tensor.clone() for _, tensor in setup.weights(load_format, path)]
    print("loaded", sum(tensor.nbytes for tensor in tensors), flush=True)
    del tensors
os._exit(0)  # threads of the server may still run
