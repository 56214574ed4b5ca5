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
    print(f"""# The corpus

Made by `tests/format/table.py`; the tests run every case: `tests/format` asks both libraries for their verdicts,
`tests/mount/test_bad.py` puts each file beside a good neighbour on a mount and reads everything.

## Headers

{len(table)} files, {refused} of them refused; the verdicts of fstfs and of safetensors {safetensors.__version__} are the same for {same}.
The others:

| case | fstfs | safetensors | why |
|---|---|---|---|""")
    for name, ours, theirs, note in table:
        if ours != theirs:
            print(f"| {name} | {ours} | {theirs} | {' '.join(note.split())} |")
    print("\nHow often each verdict of fstfs was given:\n\n| verdict | cases |\n|---|---|")
    for verdict, count in sorted(collections.Counter(ours for _, ours, *_ in table).items()):
        print(f"| {verdict} | {count} |")
    print("\n<details><summary>All header cases</summary>\n\n| case | fstfs | safetensors |\n|---|---|---|")
    for name, ours, theirs, _ in table:
        print(f"| {name} | {ours} | {theirs} |")
    print(f"""
</details>

## Indexes, sets, links and names

{len(indexes.CASES)} directories, each beside good neighbours, as in the source and with `--shards=3`:
""")
    print(", ".join(f"`{case.__name__}`" for case in indexes.CASES) + ".")


main()
