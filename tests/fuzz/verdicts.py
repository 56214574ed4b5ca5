#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares src/format with the libraries on fuzzer inputs and mutations of them.

    FSTFS_BUILD=DIR tests/fuzz/verdicts.py [--corpus DIRECTORY] [--seed N] MINUTES

Headers: safetensors' verdict, and how it reads the rewritten header. Indexes: Python's json with
the rules of src/format/index.h. Headers of .npy: NumPy's reader. DIRECTORY has the corpora of
tools/fuzz as DIRECTORY/header and DIRECTORY/index. tests/format compares hand-written cases.
"""

import argparse
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [os.fspath(HERE), os.fspath(HERE.parent / "format")]

import numpy as np  # noqa: E402
import safetensors  # noqa: E402
from seeds import header_seeds  # noqa: E402
from test_differential import (  # noqa: E402
    NUMPY, VERDICT, Verdicts, index_of, known_difference, library_verdict, mutate, npy_header)

MOST_DATA = 1 << 40  # largest sparse file in bytes


def corpus(name, grown=None):
    """The inputs of a fuzzer: committed ones, and those that it has found."""
    folders = [HERE / "corpus" / name] + ([Path(grown) / name] if grown else [])
    return [path.read_bytes() for folder in folders if folder.is_dir()
            for path in sorted(folder.iterdir())]


# ---- headers ----


def header_inputs(grown=None):
    return [seed.ljust(8, b"\0") for seed in (*header_seeds().values(), *corpus("header", grown))]


def write_header(path, seed):
    """Writes the file that an input of fuzz-header represents, with a hole for the data. Returns the
    bytes before the hole."""
    length = struct.unpack("<Q", seed[:8])[0] & (1 << 62) - 1
    start = struct.pack("<Q", len(seed[8:])) + seed[8:]
    path.write_bytes(start)
    os.truncate(path, len(start) + min(length, MOST_DATA))
    return start


def check_header(verdicts, path, seed):
    """Compares both verdicts on an input; returns ours."""
    start = write_header(path, seed)
    ours, text = verdicts.of(path)
    theirs = library_verdict(path)
    assert ours == theirs or known_difference(start, ours, theirs), \
        f"{seed!r}: ours {ours} ({text}), safetensors {theirs}"
    return ours if theirs == ours else "known difference"


def check_written(path, folder):
    """The rewritten header of a valid file means the same to the library."""
    anew = folder / "anew.safetensors"
    head = subprocess.run([VERDICT, "dump", path], check=True, capture_output=True).stdout
    anew.write_bytes(head)
    n = struct.unpack("<Q", path.open("rb").read(8))[0]
    os.truncate(anew, len(head) + path.stat().st_size - 8 - n)
    with safetensors.safe_open(path, "np") as a, safetensors.safe_open(anew, "np") as b:
        assert sorted(a.keys()) == sorted(b.keys()) and (a.metadata() or {}) == (b.metadata() or {})
        for name in a.keys():
            x, y = a.get_slice(name), b.get_slice(name)
            assert (x.get_dtype(), x.get_shape()) == (y.get_dtype(), y.get_shape()), name


def mutated(rng, seed):
    changed = mutate(rng, struct.pack("<Q", len(seed) - 8) + seed[8:])[8:]
    return seed[:8] + changed


# ---- indexes ----


def is_text(value, depth=1):
    """No lone surrogate in any string, and no nesting deeper than serde permits."""
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, Pairs):
        return depth <= 127 and all(is_text(k) and is_text(v, depth + 1) for k, v in value)
    if isinstance(value, list):
        return depth <= 127 and all(is_text(v, depth + 1) for v in value)
    return True


class Pairs(list):
    """The pairs of a JSON object, which may have duplicate keys."""


def number(text):
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("too big")
    return value


SUFFIX = re.compile(r"\.(safetensors|sft)\Z", re.IGNORECASE | re.ASCII)


def never(text):
    raise ValueError(text)


def read_index(data):
    """{tensor: shard} by the rules of src/format/index.h; None: refused."""
    try:
        root = json.loads(data.removeprefix(b"\xef\xbb\xbf").decode(), object_pairs_hook=Pairs,
                          parse_int=number, parse_float=number, parse_constant=never)
    except (ValueError, RecursionError):
        return None
    if not isinstance(root, Pairs) or not is_text(root):
        return None
    maps = [value for key, value in root if key == "weight_map"]
    if len(maps) != 1 or not isinstance(maps[0], Pairs) or len(dict(maps[0])) != len(maps[0]):
        return None
    for _, shard in maps[0]:
        if not isinstance(shard, str) or not SUFFIX.search(shard) or shard[0] == "." \
                or set(shard) & set("/\\\0"):
            return None
    return dict(maps[0])


def check_index(folder, data):
    if data.startswith(b"\xef\xbb\xbf\xef\xbb\xbf"):  # json.loads accepts a second byte order mark
        return None
    answer = index_of(folder, data)
    want = read_index(data)
    assert (answer[0] == "ok") == (want is not None), f"{data!r}: {answer[0]}, expected {want}"
    if want is None or any(c in "\n\t\0" for text in (*want, *want.values()) for c in text):
        return want is not None
    got = [line.split("\t") for line in answer[2:-1]]
    assert {name: shard for shard, name in got} == want and len(got) == len(want), f"{data!r}"
    return True


def mutated_text(rng, text):
    return mutate(rng, struct.pack("<Q", len(text)) + text)[8:]


# ---- .npy ----


def check_npy(rng):
    """NumPy's reader returns the dtype and shape, of any size."""
    dtype = rng.choice(list(NUMPY))
    shape = tuple(rng.choice((0, 1, 7, 2**31, rng.randrange(2**63), 10**rng.randrange(19)))
                  for _ in range(rng.choice((0, 1, 2, 3, 8, 60, 200))))
    data = npy_header(dtype, shape)
    version = np.lib.format.read_magic(file := io.BytesIO(data))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) \
        else np.lib.format.read_array_header_2_0
    assert read(file, max_header_size=1 << 20) == (shape, False, np.dtype(NUMPY[dtype]))
    assert file.tell() == len(data) and len(data) % 64 == 0


# ---- main ----


def run(rng, folder, grown, enough):
    """Runs comparisons until enough() is true, and at least all of the corpora. Returns the counts."""
    inputs, indexes = header_inputs(grown), corpus("index", grown)
    verdicts = Verdicts()
    path = folder / "x.safetensors"
    counts = dict.fromkeys(("headers", "known differences", "written anew", "indexes", "npy"), 0)
    asked = 0
    while asked < len(inputs) or not enough():
        seed = inputs[asked] if asked < len(inputs) else mutated(rng, rng.choice(inputs))
        ours = check_header(verdicts, path, seed)
        counts["headers"] += 1
        counts["known differences"] += ours == "known difference"
        if ours is None and asked % 20 == 0:
            check_written(path, folder)
            counts["written anew"] += 1
        if asked % 20 == 0:
            text = rng.choice(indexes)
            check_index(folder, text if rng.random() < 0.2 else mutated_text(rng, text))
            counts["indexes"] += 1
        if asked % 40 == 0:
            check_npy(rng)
            counts["npy"] += 1
        asked += 1
    verdicts.close()
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", help="corpora that were grown")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("minutes", type=float)
    args = parser.parse_args()
    end = time.monotonic() + args.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        counts = run(random.Random(args.seed), Path(folder), args.corpus,
                     lambda: time.monotonic() > end)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
