# SPDX-License-Identifier: Apache-2.0
"""The structure of the C code: includes point down and form no cycles, no file is too long, and a
static function's name is unique in its program. docs/architecture.md has the graph."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 800
# the folders that a folder's files may include besides their own
LAYERS = {
    "src/base": (),
    "src/format": ("src/base",),
    "src/catalog": ("src/format", "src/base"),
    "src/io": ("src/base",),
    "src/view": ("src/catalog", "src/format", "src/base"),
    "src/fuse": ("src/view", "src/catalog", "src/format", "src/io", "src/base"),
    "src/client": ("src/catalog", "src/format", "src/io", "src/base"),
}
TOOLS = (*LAYERS, "tools/common")
# a definition, with its return type on a line of its own
NAME = re.compile(r"^static [^\n;={]*\n(?:/\*.*\*/\n)?(\w+)\([^;{]*\)\n\{", re.MULTILINE)


def folder_of(file):
    """As in LAYERS; "tools/common" or another folder of a tool."""
    return "/".join(file.split("/")[:2])


def files():
    return sorted(path.relative_to(ROOT).as_posix() for folder in ("src", "tools")
                  for path in (ROOT / folder).rglob("*.[ch]"))


def includes_of(file):
    """The project's files that a file includes, as paths from the root."""
    text = (ROOT / file).read_text()
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        places = [ROOT / "src" / name, ROOT / "tools" / name, (ROOT / file).parent / name]
        found = next((place for place in places if place.exists()), None)
        if found:
            yield found.resolve().relative_to(ROOT).as_posix()


def module_of(file):
    """A .c file and its header are one module."""
    return file.rsplit(".", 1)[0]


def graph():
    """{module: the other modules that it includes}, without the includes of a module's own private
    header, which has no .c file and includes the module's public one."""
    found = defaultdict(set)
    for file in files():
        found[module_of(file)].update(map(module_of, includes_of(file)))
    headers = {module for module in found if not (ROOT / f"{module}.c").exists()}
    return {module: sorted(other for other in others - {module}
                           if other not in headers or module not in found[other])
            for module, others in found.items()}


def cycles(edges):
    """Cycles of a graph, each once, as tuples of nodes."""
    state, found = {}, []

    def visit(node, path):
        state[node] = "open"
        for other in edges.get(node, ()):
            if state.get(other) == "open":
                found.append((*path[path.index(other):], other))
            elif other not in state:
                visit(other, [*path, other])
        state[node] = "done"

    for node in edges:
        if node not in state:
            visit(node, [node])
    return found


def test_no_cycles():
    found = [" -> ".join(cycle) for cycle in cycles(graph())]
    assert found == []


def test_includes_point_down():
    wrong = []
    for file in files():
        folder = folder_of(file)
        allowed = LAYERS.get(folder, TOOLS)
        wrong += [f"{file} includes {other}" for other in includes_of(file)
                  if folder_of(other) not in (folder, *allowed)]
    assert wrong == []


def test_files_are_not_too_long():
    lengths = {file: (ROOT / file).read_text().count("\n") for file in files()}
    found = {file: length for file, length in lengths.items() if length > MOST_LINES}
    assert found == {}


def statics_of(file):
    return NAME.findall((ROOT / file).read_text())


def repeated_names():
    """{name: files that define a static function of that name}, where they are several. src/ is
    one program here, and each tool is one together with src/ and tools/common."""
    owners = defaultdict(set)
    for file in files():
        for name in statics_of(file):
            owners[name].add(file)
    found = {}
    for name, places in owners.items():
        shared = {p for p in places if folder_of(p) in TOOLS}
        tools = defaultdict(set)
        for place in places - shared:
            tools[folder_of(place)].add(place)
        if len(shared) > 1 or any(len(own | shared) > 1 for own in tools.values()):
            found[name] = sorted(places)
    return found


def test_static_names_are_unique():
    assert repeated_names() == {}


# --- that the tests can fail ---


@pytest.mark.parametrize("edges, found", [
    ({"a": ["b"], "b": ["c"], "c": []}, []),
    ({"a": ["b"], "b": ["a"]}, [("a", "b", "a")]),
    ({"a": ["b"], "b": ["c"], "c": ["b"]}, [("b", "c", "b")]),
])
def test_cycles_are_found(edges, found):
    assert cycles(edges) == found


def test_statics_are_found():
    """Also with attributes and pointers, in this project's layout."""
    text = ('static int\nplain(int a)\n{\n}\n\nstatic const struct x *\npointer(void)\n{\n}\n\n'
            'static void __attribute__((format(printf, 1, 2)))\nlog_it(const char *f, ...)\n{\n}\n\n'
            'static int declared(int a);\nstatic int value = 3;\nint\npublic(void)\n{\n}\n')
    assert NAME.findall(text) == ["plain", "pointer", "log_it"]
