# SPDX-License-Identifier: Apache-2.0
"""Invalid input: the mount works, valid neighbors read correctly, and problems lists what is
wrong."""

import errno
import importlib.util
import os
import re

import oracle
import pytest
import safetensors
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


def check_neighbours(root, source, options=()):
    expected = oracle.Expected(source, "shards", options)
    for c in source.checkpoints[:2]:
        oracle.check_tensors(f"{root}/tensors", c)
        oracle.check_merged(f"{root}/merged", c)
        oracle.check_npy(f"{root}/npy", c)
        if expected.is_recut(c):
            oracle.check_recut(f"{root}/shards", c)
        else:
            oracle.check_shards_as_source(f"{root}/shards", source, c)


def read_everything(root):
    """Reads everything, as `find -exec cat` would. Returns {path: errno} of unreadable files."""
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


def is_reported(problems, path, words):
    return any((path is None or line.startswith(path)) and all(w in line for w in words)
               for line in problems)


# Beginning of a line of problems.
CONSEQUENCE = re.compile(r"left out|missing|no merged file|(not|is|are|and) shown|shown (from|in)|"
                         r"not used|no checkpoint|ignored|served as bytes|no file|not re-cut|"
                         r"HeaderTooLarge: no |treated as|in a directory of this name")


def check_problems_form(problems):
    for line in problems:
        assert CONSEQUENCE.search(line), line
        assert ": " in line and all(0x20 <= ord(ch) != 0x7F for ch in line), line


@pytest.mark.parametrize("recut", [False, True], ids=["as-source", "recut"])
@pytest.mark.parametrize("case", indexes.CASES, ids=lambda c: c.__name__)
def test_tree(mount, place, case, recut):
    source = neighbours(place / "s")
    outside = place / "outside"
    outside.mkdir()
    expect = case(source, os.fspath(outside))
    if expect is None:
        pytest.skip("this machine cannot create it")
    options = ["--shards=3"] if recut else []
    m = mount(source.root, *options)
    failed = child(read_everything, m.path)
    check_neighbours(m.path, source, options)
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
    for path, words in expect.problems:
        assert is_reported(problems, path, words), (path, words, problems)
    if expect.silent:
        assert problems == []
    assert not any(line.startswith("good/") for line in problems), problems
    assert len(problems) < 60


BROKEN = [c for c in headers.CASES if c[2] is not None] if headers else []
SOUND = [c for c in headers.CASES if c[2] is None] if headers else []


def write_case(content, path):
    if callable(content):
        content(path)
    else:
        with open(path, "wb") as f:
            f.write(content)


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c[0])
def test_broken_header(mount, place, case):
    """The file alone, and as one shard of two."""
    name, content, rule, _ = case
    source = neighbours(place / "s")
    write_case(content, source.path("bad/broken.safetensors"))
    write_case(content, source.path("bad/set-00002-of-00002.safetensors"))
    first = trees.small_tensors("set.", count=5)
    source.place("bad/set-00001-of-00002.safetensors", trees.file_bytes(first))
    m = mount(source.root)
    check_neighbours(m.path, source)
    assert os.listdir(m / "tensors/bad/broken") == os.listdir(m / "npy/bad/broken") == []
    index = oracle.json.loads(m.read("tensors/bad/broken.index.json"))
    assert index["weight_map"] == {} and index["metadata"]["total_size"] == 0
    there = trees.Checkpoint("bad", "set", [("set-00001-of-00002.safetensors", first)])
    oracle.check_tensors(m / "tensors", there)
    oracle.check_npy(m / "npy", there)
    assert sorted(os.listdir(m / "merged/bad")) == ["neighbour.safetensors"]
    listed = os.listdir(m / "shards/bad")
    for shard in ("broken.safetensors", "set-00002-of-00002.safetensors"):
        assert shard in listed
        assert os.stat(m / f"shards/bad/{shard}").st_size == \
            os.stat(source.path("bad", shard)).st_size
        with pytest.raises(OSError) as raised:
            os.open(m / f"shards/bad/{shard}", os.O_RDONLY)
        assert raised.value.errno == errno.EIO
    problems = m.problems()
    check_problems_form(problems)
    for shard in ("broken.safetensors", "set-00002-of-00002.safetensors"):
        assert is_reported(problems, f"bad/{shard}: ", (rule,)), problems
    assert all(p.startswith("bad/broken") or p.startswith("bad/set") for p in problems), problems


@pytest.mark.parametrize("options", [(), ("--shards=3",), ("--shard-size=1M",)],
                         ids=["as-source", "recut", "recut-by-size"])
def test_broken_headers_all_together(mount, place, options):
    source = neighbours(place / "s")
    for name, content, _, _ in BROKEN:
        if not callable(content):
            write_case(content, source.path(f"bad/{name}.safetensors"))
    m = mount(source.root, *options)
    failed = child(read_everything, m.path)
    if options == ("--shard-size=1M",):
        assert failed == {}  # nothing of them can be re-cut
    else:
        assert len(failed) == sum(not callable(c[1]) for c in BROKEN)
        assert set(failed.values()) == {errno.EIO}
    check_neighbours(m.path, source, options)
    problems = m.problems()
    for name, content, rule, _ in BROKEN:
        if not callable(content):
            assert is_reported(problems, f"bad/{name}.safetensors: ", (rule,)), (name, problems)


@pytest.mark.parametrize("options", [(), ("--shard-size=64",)], ids=["as-source", "recut"])
def test_valid_headers(mount, place, options):
    """Unusual but valid files read correctly in every view."""
    source = neighbours(place / "s")
    small = [c for c in SOUND if not callable(c[1])]
    for name, content, _, _ in small:
        write_case(content, source.path(f"bad/{name}.safetensors"))
    m = mount(source.root, *options)
    assert child(read_everything, m.path) == {}
    check_neighbours(m.path, source, options)
    for name, content, _, _ in small:
        try:
            with safetensors.safe_open(source.path(f"bad/{name}.safetensors"), "numpy") as f:
                names = list(f.keys())
                metadata = f.metadata()
        except safetensors.SafetensorError:
            continue  # a dtype that it does not know
        with open(source.path(f"bad/{name}.safetensors"), "rb") as f:
            data = dict(safetensors.deserialize(f.read()))
        tensors = [trees.Tensor(n, data[n]["dtype"], data[n]["shape"], bytes(data[n]["data"]))
                   for n in names]
        c = trees.Checkpoint("bad", name, [(f"{name}.safetensors", tensors)], None, [metadata])
        oracle.check_tensors(m / "tensors", c)
        oracle.check_npy(m / "npy", c)
        with open(m / f"merged/bad/{name}.safetensors", "rb") as f:
            raw = f.read()
        merged = {n: (t["dtype"], t["shape"], bytes(t["data"]))
                  for n, t in safetensors.deserialize(raw)}
        assert merged == {t.name: (t.dtype, t.shape, t.data) for t in tensors}
        with safetensors.safe_open(m / f"merged/bad/{name}.safetensors", "numpy") as f:
            assert (f.metadata() or None) == (metadata or None)
    assert not [p for p in m.problems() if "dtype" not in p], m.problems()


@pytest.mark.limit(120)
@pytest.mark.parametrize("case", [c for c in SOUND if callable(c[1])], ids=lambda c: c[0])
def test_large_valid_header(mount, place, case):
    """Headers at their size limit."""
    name, content, _, _ = case
    source = neighbours(place / "s")
    write_case(content, source.path("bad/big.safetensors"))
    m = mount(source.root)
    os.listdir(m / "tensors/bad/big")
    check_neighbours(m.path, source)
    with safetensors.safe_open(m / "shards/bad/big.safetensors", "numpy") as f:
        names = set(f.keys())
    assert set(oracle.json.loads(m.read("tensors/bad/big.index.json"))["weight_map"]) == names
    assert not any("bad/big" in p and "dtype" not in p for p in m.problems())
