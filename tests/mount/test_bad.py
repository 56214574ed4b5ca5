# SPDX-License-Identifier: Apache-2.0
"""Broken input: the mount stands, the good neighbours read right, problems names the bad one."""

import errno
import importlib.util
import os

import oracle
import pytest
from conftest import child
from corpus import indexes, trees

headers = None
if importlib.util.find_spec("corpus.headers"):
    from corpus import headers

VIEWS = ("tensors", "merged", "shards", "npy")


def neighbours(root):
    source = trees.Source(root)
    source.add("good", "model", trees.small_tensors("g.", count=6), shards=2,
               metadata={"format": "pt"})
    source.add_side("good/config.json")
    source.add("bad", "neighbour", trees.small_tensors("n.", count=4))
    return source


def check_neighbours(root, source, recut):
    for c in source.checkpoints[:2]:
        oracle.check_tensors(f"{root}/tensors", c)
        oracle.check_merged(f"{root}/merged", c)
        oracle.check_npy(f"{root}/npy", c)
        if recut:
            oracle.check_recut(f"{root}/shards", c)
        else:
            oracle.check_shards_as_source(f"{root}/shards", source, c)


def read_everything(root):
    """Looks at all there is, as `find -exec cat` would. {path: errno} of what does not read."""
    failed = {}
    for view in VIEWS:
        base = os.fsencode(f"{root}/{view}")
        for path, kind in oracle.walk(base).items():
            assert kind in "df", (path, kind)
            full = os.path.join(base, path)
            os.lstat(full)
            os.listxattr(full)
            if kind == "f":
                try:
                    size = os.lstat(full).st_size
                    assert len(oracle.read_all(full)) == size, full
                except OSError as error:
                    failed[os.fsencode(view) + b"/" + path] = error.errno
    return failed


def said(problems, path, words):
    return any((path is None or line.startswith(path)) and all(w in line for w in words)
               for line in problems)


def check_problems_form(problems):
    for line in problems:
        assert ": " in line and all(0x20 <= ord(ch) != 0x7F for ch in line), line


@pytest.mark.parametrize("recut", [False, True], ids=["as-source", "recut"])
@pytest.mark.parametrize("case", indexes.CASES, ids=lambda c: c.__name__)
def test_tree(mount, place, case, recut):
    source = neighbours(place / "s")
    outside = place / "outside"
    outside.mkdir()
    expect = case(source, os.fspath(outside))
    if expect is None:
        pytest.skip("cannot be made here")
    m = mount(source.root, *(["--shards=3"] if recut else []))
    failed = child(read_everything, m.path)
    check_neighbours(m.path, source, recut)
    bad = {view: os.path.join(m.path, view, "bad") for view in VIEWS}

    for directory, tensors in expect.tensors.items():
        made = trees.Checkpoint("bad", directory, [("", tensors)])
        here = os.listdir(os.path.join(bad["tensors"], directory))
        assert len(here) == len(tensors), here
        for t in tensors:
            path = oracle.tensor_file(m / "tensors", made, t)
            assert oracle.read_all(path) == t.data
        index = oracle.json.loads(oracle.read_all(os.path.join(bad["tensors"],
                                                               f"{directory}.index.json")))
        assert set(index["weight_map"]) == {t.name for t in tensors}
        known = [t for t in tensors if t.dtype in trees.DTYPE_BITS]
        assert len(os.listdir(os.path.join(bad["npy"], directory))) == len(known)
        for t in known:
            path = oracle.tensor_file(m / "npy", made, t, npy=True)
            assert oracle.read_all(path) == oracle.npy_bytes(t.dtype, t.shape, t.data)
    for name, sound in expect.merged.items():
        path = os.path.join(bad["merged"], name)
        if not sound:
            assert not os.path.isfile(path)
            continue
        entries, _, _ = oracle.read_header(path)
        tensors = expect.tensors.get(name.removesuffix(".safetensors"))
        if tensors is not None:
            assert {e.name: e.read() for e in entries} == {t.name: t.data for t in tensors}
    for name, state in expect.shards.items() if not recut else ():
        path = os.path.join(bad["shards"], name)
        if state == "absent":
            assert not os.path.lexists(path)
            continue
        assert os.path.basename(name) in os.listdir(os.path.dirname(path))
        if state == "same":
            assert oracle.read_all(path) == oracle.read_all(source.path("bad", name))
        else:
            with pytest.raises(OSError) as raised:
                oracle.read_all(path)
            assert raised.value.errno == errno.EIO
    refused = {os.fsencode(f"shards/bad/{n}") for n, s in expect.shards.items() if s == "EIO"}
    assert set(failed) <= refused or recut and {f.split(b"-")[0] for f in failed} <= refused, failed
    for path in expect.absent:
        for view in VIEWS:
            assert not os.path.lexists(os.path.join(bad[view], path)), (view, path)
    problems = m.problems()
    check_problems_form(problems)
    for path, words in expect.said:
        assert said(problems, path, words), (path, words, problems)
    if expect.silent:
        assert problems == []
    assert not any(line.startswith("good/") for line in problems), problems
    assert len(problems) < 60


def header_cases():
    return [] if headers is None else headers.CASES


def case_name(case):
    return getattr(case, "name", None) or (case[0] if isinstance(case, tuple) else str(case))
