# SPDX-License-Identifier: Apache-2.0
""".sft and .safetensors in any letter case are safetensors files, and none hides another."""

import json
import os

import oracle
import pytest
from corpus import trees

SUFFIXES = [".safetensors", ".sft", ".SAFETENSORS", ".SFT", ".SafeTensors"]


def tensors(seed, count=3):
    return [trees.tensor(f"t{i}", "F32", (3, i + 1), seed=seed) for i in range(count)]


def place_file(root, name, *args):
    root.mkdir(parents=True, exist_ok=True)
    data = trees.file_bytes(*args)
    (root / name).write_bytes(data)
    return data


def check_directory(m, name, made):
    """The directory of a checkpoint in tensors/ and npy/, and its index."""
    c = trees.Checkpoint("", name, [(None, made)])
    for t in made:
        assert oracle.read_all(oracle.tensor_file(m / "tensors", c, t)) == t.data
        assert oracle.read_all(oracle.tensor_file(m / "npy", c, t, npy=True)) == \
            oracle.npy_bytes(t.dtype, t.shape, t.data)
    assert {n for n in os.listdir(m / f"tensors/{name}")} == {t.name for t in made}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_suffix(mount, place, suffix):
    data = place_file(place / "s", f"flux{suffix}", tensors(suffix))
    m = mount(place / "s")
    assert sorted(os.listdir(m / "tensors")) == ["flux", "flux.index.json"]
    assert os.listdir(m / "npy") == ["flux"]
    check_directory(m, "flux", tensors(suffix))
    for view in ("merged", "shards"):
        assert os.listdir(m / view) == [f"flux{suffix}"]
        assert oracle.read_all(m / f"{view}/flux{suffix}") == data
    index = json.loads(oracle.read_all(m / "tensors/flux.index.json"))
    assert set(index["weight_map"].values()) == {f"flux{suffix}"}
    assert m.problems() == []


def test_bare_suffix_is_no_checkpoint(mount, place):
    (place / "s").mkdir()
    for name in (".sft", ".SFT", "sft", "xsft", "x.sft.txt"):
        (place / "s" / name).write_bytes(b"text")
    m = mount(place / "s")
    assert os.listdir(m / "tensors") == []
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == [".SFT", ".sft", "sft", "x.sft.txt", "xsft"]
    assert m.problems() == []


def test_refused_file_with_another_suffix(mount, place):
    (place / "s").mkdir()
    (place / "s/x.SFT").write_bytes(b"no header")
    m = mount(place / "s")
    assert os.listdir(m / "merged") == []
    with pytest.raises(OSError):
        oracle.read_all(m / "shards/x.SFT")
    assert len(m.problems()) == 1 and "x.SFT" in m.problems()[0]


@pytest.mark.parametrize("options", [(), ("--shard-size=40",)], ids=["as-source", "recut"])
def test_files_of_one_stem_do_not_hide_each_other(mount, place, options):
    data = {s: place_file(place / "s", f"a{s}", tensors(s)) for s in SUFFIXES}
    m = mount(place / "s", *options)
    assert sorted(os.listdir(m / "merged")) == sorted(f"a{s}" for s in SUFFIXES)
    for suffix in SUFFIXES:
        assert oracle.read_all(m / f"merged/a{suffix}") == data[suffix]
        name = "a" if suffix == ".safetensors" else f"a{suffix}"
        check_directory(m, name, tensors(suffix))
        if not options:
            assert oracle.read_all(m / f"shards/a{suffix}") == data[suffix]
            continue
        parts = [f"a-{i + 1:05}-of-00002{suffix}" for i in range(2)]
        found = {e.name: e.read() for part in parts
                 for e in oracle.read_header(m / f"shards/{part}")[0]}
        assert found == {t.name: t.data for t in tensors(suffix)}
        index = json.loads(oracle.read_all(m / f"shards/a{suffix}.index.json"))
        assert set(index["weight_map"].values()) == set(parts)
        assert index["weight_map"].keys() == found.keys()
        with pytest.raises(FileNotFoundError):
            os.stat(m / f"shards/a{suffix}")
    if options:
        assert len(os.listdir(m / "shards")) == 3 * len(SUFFIXES)
    else:
        assert sorted(os.listdir(m / "shards")) == sorted(f"a{s}" for s in SUFFIXES)
    assert m.problems() == []


def test_later_suffix_takes_no_name(mount, place):
    """tensors/a keeps its meaning when a.SAFETENSORS appears, although that sorts first."""
    place_file(place / "s", "a.safetensors", tensors(1))
    m = mount(place / "s")
    check_directory(m, "a", tensors(1))
    place_file(place / "s", "a.SAFETENSORS", tensors(2))
    check_directory(m, "a.SAFETENSORS", tensors(2))
    check_directory(m, "a", tensors(1))


def test_sets_of_one_stem_do_not_hide_each_other(mount, place):
    """Numbered shards: each suffix is a set of its own, with its own index."""
    for suffix in (".safetensors", ".sft"):
        for i, t in enumerate(tensors(suffix, 2)):
            place_file(place / "s", f"m-{i + 1:05}-of-00002{suffix}", [t])
    m = mount(place / "s")
    assert sorted(os.listdir(m / "merged")) == [
        "m.safetensors", "m.sft"]
    for suffix, name in ((".safetensors", "m"), (".sft", "m-00001-of-00002.sft")):
        entries, _, start = oracle.read_header(m / f"merged/m{suffix}")
        assert start % 4096 == 0
        assert {e.name: e.read() for e in entries} == \
            {t.name: t.data for t in tensors(suffix, 2)}
        check_directory(m, name, tensors(suffix, 2))
        index = json.loads(oracle.read_all(m / f"shards/m{suffix}.index.json"))
        assert index["weight_map"] == {f"t{i}": f"m-{i + 1:05}-of-00002{suffix}"
                                       for i in range(2)}
    assert len(os.listdir(m / "shards")) == 6
    assert m.problems() == []


def test_index_names_files_of_any_suffix(mount, place):
    names = ["x.sft", "y.SAFETENSORS"]
    for name, t in zip(names, tensors(7, 2)):
        place_file(place / "s", name, [t])
    text = trees.index_bytes({f"t{i}": name for i, name in enumerate(names)})
    (place / "s/both.sft.index.json").write_bytes(text)
    m = mount(place / "s")
    assert os.listdir(m / "merged") == ["both.sft"]
    assert {e.name: e.read() for e in oracle.read_header(m / "merged/both.sft")[0]} == \
        {t.name: t.data for t in tensors(7, 2)}
    assert sorted(os.listdir(m / "shards")) == sorted([*names, "both.sft.index.json"])
    check_directory(m, "both", tensors(7, 2))
    assert m.problems() == []
