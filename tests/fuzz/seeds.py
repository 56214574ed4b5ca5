#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the header fuzzer that tests/corpus has already: seeds.py FOLDER."""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import headers  # noqa: E402

MOST = 4096  # bytes of a seed


def header_seed(data):
    """A file as fuzz-header takes it: how much data there is, and the JSON."""
    n = struct.unpack("<Q", data[:8])[0]
    return struct.pack("<Q", max(0, len(data) - 8 - n)) + data[8 : 8 + n]


def header_seeds():
    """{name: seed} of the cases of tests/corpus/headers.py that are small."""
    return {name: header_seed(content) for name, content, *_ in headers.CASES
            if not callable(content) and 8 <= len(content) <= MOST}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in header_seeds().items():
        (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
