# SPDX-License-Identifier: Apache-2.0
"""Tables in docs/reliability.md that test runs make.

A test says what it saw, and check() compares it with the row that is committed. With
FSTFS_WRITE_TABLES=1 in the environment it writes the row instead; rows that are new come last.
"""

import os
import re

from conftest import ROOT

DOCUMENT = ROOT / "docs/reliability.md"
WRITE = os.environ.get("FSTFS_WRITE_TABLES") == "1"


def parts(name):
    """The document: what stands before the rows of a table, its rows, what stands behind."""
    text = DOCUMENT.read_text()
    found = re.search(rf"<!-- table {name} -->\n\|.*\n\|[-|]*\n((?:\|.*\n)*)<!-- end -->", text)
    assert found, f"{DOCUMENT} has no table {name}"
    return text[:found.start(1)], found[1].splitlines(), text[found.end(1):]


def key(line):
    return line.split(" | ")[0].removeprefix("| ")


def check(name, *cells):
    """Compares a row, whose first cell is its name, with the committed one."""
    line = f"| {' | '.join(cells)} |"
    before, lines, after = parts(name)
    at = [i for i, other in enumerate(lines) if key(other) == cells[0]]
    if WRITE:
        if at:
            lines[at[0]] = line
        else:
            lines.append(line)
        DOCUMENT.write_text(before + "".join(f"{row}\n" for row in lines) + after)
        return
    assert [lines[i] for i in at] == [line], \
        f"{DOCUMENT.name}, table {name}: FSTFS_WRITE_TABLES=1 writes what is seen now"


def names(name):
    """The first cells of a table's rows."""
    return [key(line) for line in parts(name)[1]]
