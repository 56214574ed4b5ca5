# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one file is that file in merged/, byte for byte, because tools identify models by
hash."""

import errno
import hashlib
import json
import os
import struct

import oracle
import pytest
from corpus import trees

TENSORS = [trees.tensor("b.weight", "F32", (33, 7)), trees.tensor("a.bias", "U8", (4096,)),
           trees.tensor("c.odd", "U8", (5,)), trees.tensor("a.half", "F16", (3, 3))]
DATA = b"".join(t.data for t in TENSORS)


def entries(fields=()):
    table, at = {}, 0
    for t in TENSORS:
        table[t.name] = {"dtype": t.dtype, "shape": t.shape,
                         "data_offsets": [at, at + t.size], **dict(fields)}
        at += t.size
    return table


def whole(text, data=DATA):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def dumped(table, **more):
    return json.dumps(table, separators=(",", ":"), **more)


def reverse(table):
    return dict(reversed(table.items()))


# Files that fstfs would write differently: {description: bytes of the file}.
SPELLINGS = {
    "usual": trees.file_bytes(TENSORS, {"format": "pt"}),
    "unpadded": trees.file_bytes(TENSORS, pad=1),
    "page": trees.file_bytes(TENSORS, pad=4096),
    "trailing_spaces": whole(dumped(entries()) + " " * 777),
    "trailing_newlines": whole(dumped(entries()) + "\n\t\r\n "),
    "leading_spaces": whole("  \n" + dumped(entries())),
    "not_in_the_order_of_offsets": whole(dumped(reverse(entries()))),
    "indented": whole(json.dumps(entries(), indent=4, sort_keys=True)),
    "fields_in_another_order": whole(dumped({n: reverse(e) for n, e in entries().items()})),
    "unknown_fields": whole(dumped(entries({"note": [1, {"x": None}]}))),
    "metadata_last": whole(dumped({**entries(), "__metadata__": {"z": "1", "a": "2"}})),
    "metadata_null": whole(dumped({"__metadata__": None, **entries()})),
    "metadata_empty": whole(dumped({"__metadata__": {}, **entries()})),
    "metadata_escaped": whole(dumped({"__metadata__": {"n": "é\n\u2028"}, **entries()})),
    "names_escaped": whole(dumped(entries()).replace("a.bias", "\\u0061.bias")),
    "unknown_dtype": whole(dumped(entries()).replace('"F32"', '"F99"')),
    "no_tensors": whole("{}", b""),
    "no_data": trees.file_bytes([trees.tensor("none", "F32", (0, 4))]),
}


def sha256(path):
    return hashlib.sha256(oracle.read_all(path)).hexdigest()


def write_all(root):
    """{path in merged/ and shards/: bytes} for each spelling, found in every way."""
    files, alone = {}, {}
    for what, data in SPELLINGS.items():
        alone[f"alone/{what}.safetensors"] = data
        files[f"alone/{what}.safetensors"] = data
        files[f"{what}/one-00001-of-00001.safetensors"] = data
        files[f"{what}/indexed.safetensors"] = data
        names = [n for n in json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
                 if n != "__metadata__"]
        files[f"{what}/indexed.safetensors.index.json"] = trees.index_bytes(
            {n: "indexed.safetensors" for n in names})
        alone[f"{what}/one.safetensors"] = data
        if names:
            alone[f"{what}/indexed.safetensors"] = data
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return alone, {name: data for name, data in files.items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("options", [(), ("--shards=1",), ("--shard-size=1T",)],
                         ids=["as-source", "one-shard", "large-shards"])
def test_single_file_has_its_own_hash(mount, place, options):
    merged, shards = write_all(place / "s")
    m = mount(place / "s", *options)
    for name, data in merged.items():
        want = hashlib.sha256(data).hexdigest()
        assert os.stat(m / f"merged/{name}").st_size == len(data), name
        assert sha256(m / f"merged/{name}") == want, name
        if options:
            assert sha256(m / f"shards/{name}") == want, name
    if not options:
        for name, data in shards.items():
            assert sha256(m / f"shards/{name}") == hashlib.sha256(data).hexdigest(), name


@pytest.mark.parametrize("options", [(), ("--shards=2",)], ids=["as-source", "recut"])
def test_single_file_behind_a_link_has_its_own_hash(mount, place, options):
    source = trees.hub_cache(place / "s")
    m = mount(source.root, *options)
    for revision in ("a" * 40, "b" * 40):
        name = f"models--org--small/snapshots/{revision}/model.safetensors"
        blob = os.path.realpath(source.path(name))
        assert sha256(m / f"merged/{name}") == sha256(blob)
        inside = os.path.relpath(blob, os.path.realpath(source.root))
        for view in ("merged", "shards"):
            assert sha256(m / f"{view}/{inside}") == sha256(blob)


def test_recut_shards_have_the_same_tensors(mount, place):
    """--shard-size requests other files in shards/; merged/ stays the same."""
    (place / "s").mkdir()
    (place / "s/m.safetensors").write_bytes(SPELLINGS["trailing_spaces"])
    m = mount(place / "s", "--shard-size=4200")
    assert sorted(os.listdir(m / "shards")) == [
        "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors",
        "m.safetensors.index.json"]
    oracle.check_recut(m / "shards", trees.Checkpoint("", "m", [("m.safetensors", TENSORS)],
                                                      None, [None]))
    assert oracle.read_all(m / "merged/m.safetensors") == SPELLINGS["trailing_spaces"]


@pytest.mark.parametrize("bad", {
    "hole": whole(dumped({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}), b"ab"),
    "trailing_bytes": SPELLINGS["usual"] + b"\0",
    "cut_short": SPELLINGS["usual"][:-1],
    "twice": whole('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                   '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "not_json": whole("{", b""),
    "empty": b"",
}.items(), ids=lambda x: x[0])
def test_refused_file_is_not_in_merged(mount, place, bad):
    (place / "s").mkdir()
    (place / "s/m.safetensors").write_bytes(bad[1])
    m = mount(place / "s")
    assert os.listdir(m / "merged") == []
    with pytest.raises(FileNotFoundError):
        os.stat(m / "merged/m.safetensors")
    with pytest.raises(OSError) as raised:
        oracle.read_all(m / "shards/m.safetensors")
    assert raised.value.errno == errno.EIO
    assert len(m.problems()) == 1
