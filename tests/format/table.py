#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/corpus.md: every invalid or unusual file of the corpus, and the verdicts of fstfs and
safetensors.

    FSTFS_BUILD=build tests/format/table.py > docs/corpus.md
"""

import collections
import sys
import tempfile
from pathlib import Path

import safetensors

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "corpus")]

import headers  # noqa: E402
from corpus import indexes  # noqa: E402
from test_differential import Verdicts, library_verdict, write  # noqa: E402


def rows():
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        for name, content, _, note in headers.CASES:
            path = Path(folder) / f"{len(name)}.safetensors"
            write(path, content)
            ours, theirs = verdicts.of(path)[0], library_verdict(path)
            path.unlink()
            yield name, ours or "read", theirs or "read", note
    verdicts.close()


def main():
    table = list(rows())
    same = sum(ours == theirs for _, ours, theirs, _ in table)
    refused = sum(ours != "read" for _, ours, *_ in table)
    print(f"""# Corpus of invalid files

Printed by `tests/format/table.py`. Tests run every case: `tests/format` compares the verdicts of fstfs and safetensors, and
`tests/mount/test_bad.py` reads each file, next to valid ones, on a mount.
Files of PyTorch are in `tests/corpus/bad_torch.py`, each with its rule; `tests/loaders/test_weights_only.py` explains each difference from torch.
GGUF files are in `tests/corpus/gguffiles.py`, each with its rule.

## Headers

{len(table)} files, of which fstfs refuses {refused}. It agrees with safetensors {safetensors.__version__} on {same}. The differences:

| cases | fstfs | safetensors | reason |
|---|---|---|---|""")
    differences = collections.defaultdict(list)
    for name, ours, theirs, note in table:
        if ours != theirs:
            differences[ours, theirs, " ".join(note.split())].append(name)
    for (ours, theirs, note), names in differences.items():
        print(f"| {', '.join(names)} | {ours} | {theirs} | {note} |")
    print("\nAll cases:\n\n| verdict of fstfs | number | cases |\n|---|---|---|")
    verdicts = collections.defaultdict(list)
    for name, ours, *_ in table:
        verdicts[ours].append(name)
    for verdict, names in sorted(verdicts.items()):
        print(f"| {verdict} | {len(names)} | {', '.join(names)} |")
    print(f"""
## Indexes, shard sets, links and names

{len(indexes.CASES)} directories, each next to valid ones, mounted without options and with `--shards=3`:
""")
    print(", ".join(f"`{case.__name__}`" for case in indexes.CASES) + ".")


main()
