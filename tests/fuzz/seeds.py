#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of a fuzz target from tests/corpus: seeds.py gguf|header|torch DIRECTORY."""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import gguffiles  # noqa: E402
import headers  # noqa: E402

MOST = 4096  # largest seed in bytes


def header_seed(data):
    """A file in the input format of fuzz-header: the data size, then the JSON."""
    n = struct.unpack("<Q", data[:8])[0]
    return struct.pack("<Q", max(0, len(data) - 8 - n)) + data[8 : 8 + n]


def header_seeds():
    """{name: seed} of the small cases of tests/corpus/headers.py."""
    return {name: header_seed(content) for name, content, *_ in headers.CASES
            if not callable(content) and 8 <= len(content) <= MOST}


def container_seeds(cases):
    return {name: content for name, _, content in cases if len(content) <= MOST}


def main():
    target, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {"gguf": lambda: container_seeds(gguffiles.BAD) | {"sound": gguffiles.gguf([gguffiles.W])}, "header": header_seeds,
             "torch": lambda: container_seeds(bad_torch.CASES + [(name, None, content) for name, content in bad_torch.READ]) | {"sound": bad_torch.SOUND}}[target]()
    for name, seed in seeds.items():
        (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
