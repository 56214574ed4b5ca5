# SPDX-License-Identifier: Apache-2.0
"""GGUF files in the views: tensors, .npy files, and the parts of a split model merged into one file."""

import errno
import json
import os

import numpy as np
import oracle
import pytest
from conftest import eventually
from corpus import gguffiles, trees
from corpus.gguffiles import ARRAY, F32, STRING, U32, gguf, pair, split

RANDOM = np.random.default_rng(16)
# name, dims in GGUF's order, number and name of the type, bytes of a row, dtype of NumPy
DESCRIBED = [("token_embd.weight", (64, 30), 8, "Q8_0", 68, None), ("blk.0.attn_norm.weight", (64,), 0, "F32", 256, "<f4"),
             ("blk.0.attn_q.weight", (256, 7), 12, "Q4_K", 144, None), ("blk.0.ffn_exps.weight", (32, 3, 4), 2, "Q4_0", 18, None),
             ("blk.0.half", (3, 5), 1, "F16", 6, "<f2"), ("blk.0.brain", (4, 4), 30, "BF16", 8, None), ("blk.0.bytes", (33,), 24, "I8", 33, "|i1"),
             ("empty", (64, 0), 8, "Q8_0", 68, None), ("scalar", (), 0, "F32", 4, "<f4")]
TENSORS = [(name, dims, kind, RANDOM.bytes(row * int(np.prod(dims[1:])))) for name, dims, kind, _, row, _ in DESCRIBED]
PAIRS = [pair("general.architecture", STRING, "llama"), pair("general.name", STRING, "a \"name\" \u00e9"), pair("llama.block_count", U32, 1),
         pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), pair("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token {i}" for i in range(20000)])),
         pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "b c"]))]
KEYS = {"general.architecture": "llama", "general.name": "a \"name\" \u00e9", "llama.block_count": 1, "llama.attention.layer_norm_rms_epsilon": 1e-05,
        "tokenizer.ggml.tokens": {"type": "array", "of": "string", "count": 20000}, "tokenizer.ggml.merges": ["a b", "b c"]}
WHOLE = gguf(TENSORS, PAIRS)
PARTS = {f"m-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(split(TENSORS, PAIRS, (0, 4, 5)))}


def place_files(place, files):
    source = place / "s"
    source.mkdir(exist_ok=True)
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    return source


def check_tensors(m, directory, stem, tensors=TENSORS, described=DESCRIBED):
    """Every tensor of a model in tensors/ and npy/, with its xattrs."""
    names = sorted(name for name, *_ in tensors)
    assert sorted(os.listdir(m / f"tensors/{directory}{stem}")) == names
    assert sorted(os.listdir(m / f"npy/{directory}{stem}")) == sorted(f"{name}.npy" for name in names)
    for (name, dims, _, content), (_, _, _, kind, row, dtype) in zip(tensors, described, strict=True):
        path = m / f"tensors/{directory}{stem}/{name}"
        assert oracle.read_all(path) == content
        found = {key: os.getxattr(path, key).decode() for key in os.listxattr(path)}
        shape = str(list(reversed(dims)))
        assert {key: value for key, value in found.items() if key.startswith("user.gguf.")} == {
            "user.gguf.name": name, "user.gguf.type": kind, "user.gguf.shape": shape}
        if kind in ("Q8_0", "Q4_K", "Q4_0"):
            assert not any(key.startswith("user.safetensors.") for key in found)
            with pytest.raises(OSError):
                os.getxattr(path, "user.safetensors.dtype")
        else:
            assert (found["user.safetensors.name"], found["user.safetensors.dtype"], found["user.safetensors.shape"]) == (name, kind, shape)
        [extent] = json.loads(found["user.fstfs.extents"])
        with open(extent["path"], "rb") as f:
            f.seek(extent["offset"])
            assert f.read(extent["length"]) == content
        array = np.load(m / f"npy/{directory}{stem}/{name}.npy")
        assert array.tobytes() == content
        if dtype:
            assert array.dtype == np.dtype(dtype) and array.shape == tuple(reversed(dims))
        elif kind != "BF16":
            assert array.dtype == np.uint8 and array.shape == (*reversed(dims[1:]), row)


def read_index(m, path):
    return json.loads(oracle.read_all(m / path), object_pairs_hook=oracle.no_duplicates)


def test_single_file(mount, place):
    m = mount(place_files(place, {"llama/model-Q4_K_M.gguf": WHOLE, "llama/config.json": b"{}"}))
    check_tensors(m, "llama/", "model-Q4_K_M")
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / f"{view}/llama")) == ["config.json", "model-Q4_K_M.gguf"]
        assert oracle.read_all(m / f"{view}/llama/model-Q4_K_M.gguf") == WHOLE
    index = read_index(m, "tensors/llama/model-Q4_K_M.index.json")
    assert index["gguf"] == KEYS
    assert index["metadata"] == {"total_size": sum(len(content) for *_, content in TENSORS)}
    assert index["weight_map"] == {name: "model-Q4_K_M.gguf" for name, *_ in TENSORS}
    for name, dims, _, content in TENSORS:
        found = index["tensors"][name]
        kind, = (kind for other, _, _, kind, _, _ in DESCRIBED if other == name)
        assert (found["dtype"], found["shape"], found["bytes"], found["file"]) == (kind, list(reversed(dims)), len(content), f"model-Q4_K_M/{name}")
        assert WHOLE[found["offset"] : found["offset"] + found["bytes"]] == content
    assert m.problems() == []


@pytest.mark.parametrize("options", [(), ("--shards=2",), ("--shard-size=1K",)], ids=str)
def test_parts(mount, place, options):
    """merged/ has the file as it was before it was split. Parts are never re-cut."""
    m = mount(place_files(place, PARTS), *options)
    check_tensors(m, "", "m")
    assert os.listdir(m / "merged") == ["m.gguf"]
    assert oracle.read_all(m / "merged/m.gguf") == WHOLE
    assert sorted(os.listdir(m / "shards")) == sorted(PARTS)
    for name, content in PARTS.items():
        assert oracle.read_all(m / f"shards/{name}") == content
    index = read_index(m, "tensors/m.index.json")
    assert index["gguf"] == KEYS and index["weight_map"]["scalar"] == "m-00003-of-00003.gguf"
    assert m.problems() == []


@pytest.mark.parametrize("align, other", [(8, 8), (64, 64), (4096, 4096), (8, 32), (4096, 32)])
def test_random_reads_of_a_merged_file(mount, place, align, other):
    """Parts after the first may have another alignment."""
    more = [[pair("general.alignment", U32, align)]] + [[pair("general.alignment", U32, align)] if align == other else []] * 3
    whole = gguf(TENSORS, PAIRS + more[0], align=align)
    parts = split(TENSORS, PAIRS, (2, 3, 3, 1), align, more=more)[:1] + split(TENSORS, PAIRS, (2, 3, 3, 1), other, more=more)[1:]
    files = {f"a b-{i + 1:05}-of-00004.gguf": part for i, part in enumerate(parts)}
    m = mount(place_files(place, files))
    with open(m / "merged/a b.gguf", "rb") as f:
        for _ in range(300):
            offset, length = int(RANDOM.integers(0, len(whole) + 10)), int(RANDOM.integers(0, 5000))
            assert os.pread(f.fileno(), length, offset) == whole[offset : offset + length]
    assert np.memmap(m / "merged/a b.gguf", dtype=np.uint8, mode="r").tobytes() == whole


def test_several_models_in_one_directory(mount, place):
    """Each quantization, and the projector of a multimodal model, is a checkpoint. safetensors and GGUF files of one stem are
    two: the names and the index of the safetensors shards are those of a directory without GGUF files."""
    tensor = trees.tensor("w", "F32", (3, 4), seed=1)
    shards = {f"model-{i}-of-00002.safetensors": trees.file_bytes([trees.tensor(f"w{i}", "F32", (3, 4), seed=i)]) for i in ("00001", "00002")}
    m = mount(place_files(place, {"one/model.safetensors": trees.file_bytes([tensor]), "one/model.gguf": WHOLE, "one/mmproj-f16.gguf": WHOLE,
                                  "one/model-Q8_0.GGUF": WHOLE} | {f"two/{name}": content for name, content in (PARTS | shards).items()}))
    for directory, stem in (("one/", "model.gguf"), ("one/", "mmproj-f16"), ("one/", "model-Q8_0"), ("two/", "m")):
        check_tensors(m, directory, stem)
    assert oracle.read_all(m / "tensors/one/model/w") == tensor.data
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / f"{view}/one")) == ["mmproj-f16.gguf", "model-Q8_0.GGUF", "model.gguf", "model.safetensors"]
    assert sorted(os.listdir(m / "merged/two")) == ["m.gguf", "model.safetensors"]
    assert m.problems() == []


FIRST, *REST = PARTS
CASES = [
    ("a part is missing", {name: PARTS[name] for name in (FIRST, REST[0])}, "shard 3 of 3 of m does not exist: its tensors are missing, and there is no merged file"),
    ("another part", PARTS | {REST[1]: PARTS[REST[0]]}, "GgufSplit: split.no is 1, expected 2; the files themselves are shown"),
    ("another count", PARTS | {FIRST: split(TENSORS, PAIRS, (0, 4, 4, 1))[0]}, "GgufSplit: split.count is 4, expected 3; the files themselves are shown"),
    ("another alignment than in the first part's key", PARTS | {FIRST: split(TENSORS, PAIRS + [pair("general.alignment", U32, 32)], (0, 4, 5))[0],
     REST[0]: split(TENSORS, [], (0, 4, 5), align=64, more=[[], [pair("general.alignment", U32, 64)], []])[1]},
     'GgufSplit: the value of key "general.alignment" differs from that in the first part; the files themselves are shown'),
    ("too large an alignment", {f"m-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(split(
        TENSORS, PAIRS, (0, 4, 5), align=131072, more=[[pair("general.alignment", U32, 131072)]] * 3))},
     "GgufAlignment: general.alignment is 131072, expected at most 65536 to merge the parts; the files themselves are shown"),
    ("another value", PARTS | {REST[0]: split(TENSORS, [], (0, 4, 5), more=[[], [pair("llama.block_count", U32, 2)], []])[1]},
     'GgufSplit: the value of key "llama.block_count" differs from that in the first part; the files themselves are shown'),
    ("a tensor is in two parts", PARTS | {REST[1]: split(TENSORS[:4] + TENSORS[:1] + TENSORS[5:], [], (0, 4, 5))[2]},
     "DuplicateTensorName: tensor token_embd.weight is also in m-00002-of-00003.gguf: shown from neither, and there is no merged file"),
    ("an invalid part", PARTS | {REST[0]: b"GGUF" + bytes(100)}, "refused: GgufVersion: its version is 0, expected 2 or 3; the file is big-endian"),
]


@pytest.mark.parametrize("files, problem", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_parts_that_cannot_be_merged(mount, place, files, problem):
    """The parts and their tensors are shown, and .fstfs/problems names the rule."""
    m = mount(place_files(place, files | {"beside.gguf": WHOLE}))
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == sorted([*files, "beside.gguf"])
        for name, content in files.items():
            assert oracle.read_all(m / f"{view}/{name}") == content
    with pytest.raises(FileNotFoundError):
        os.stat(m / "merged/m.gguf")
    check_tensors(m, "", "beside")
    if files.get(REST[1]) == PARTS[REST[1]]:
        assert oracle.read_all(m / "tensors/m/blk.0.bytes") == TENSORS[6][3]
    assert any(problem in line for line in m.problems()), m.problems()


def test_renamed_part_is_shown_as_it_is(mount, place):
    m = mount(place_files(place, {"model.gguf": PARTS[REST[0]]}))
    check_tensors(m, "", "model", TENSORS[:4], DESCRIBED[:4])
    for view in ("merged", "shards"):
        assert oracle.read_all(m / f"{view}/model.gguf") == PARTS[REST[0]]
    assert [line for line in m.problems() if "GgufSplit: split.no is 1, expected 0" in line]


def test_model_that_is_also_merged_in_the_source(mount, place):
    """The source's merged file is shown, and so are the parts."""
    m = mount(place_files(place, PARTS | {"m.gguf": WHOLE + b"of its own"}))
    assert sorted(os.listdir(m / "merged")) == sorted(os.listdir(m / "shards")) == sorted([*PARTS, "m.gguf"])
    assert oracle.read_all(m / "merged/m.gguf") == WHOLE + b"of its own"
    for name, content in PARTS.items():
        assert oracle.read_all(m / f"merged/{name}") == content
    check_tensors(m, "", "m")
    check_tensors(m, "", "m.gguf")


def test_invalid_files(mount, place):
    """A file that fstfs refuses is shown unchanged, and does not affect a valid file beside it."""
    files = {}
    for name, _, content in gguffiles.BAD:
        files |= {f"{name}/bad.gguf": content, f"{name}/sound.gguf": WHOLE}
    m = mount(place_files(place, files))
    problems = m.problems()
    for name, rule, content in gguffiles.BAD:
        for view in ("merged", "shards"):
            assert sorted(os.listdir(m / f"{view}/{name}")) == ["bad.gguf", "sound.gguf"]
            assert oracle.read_all(m / f"{view}/{name}/bad.gguf") == content
        assert os.listdir(m / f"tensors/{name}/bad") == []
        check_tensors(m, f"{name}/", "sound")
        assert any(line.startswith(f"{name}/bad.gguf: refused: {rule}: ") for line in problems), (name, rule)


def test_parts_that_change(mount, place):
    """New versions of the parts result in a new merged file. An open one returns one version, or an error."""
    source = place_files(place, PARTS)
    m = mount(source)
    assert oracle.read_all(m / "merged/m.gguf") == WHOLE
    changed = [(name, dims, kind, bytes(len(content))) for name, dims, kind, content in TENSORS]
    with open(m / "merged/m.gguf", "rb") as f:
        for i, part in enumerate(split(changed, PAIRS, (0, 4, 5))):
            (source / "new").write_bytes(part)
            (source / "new").rename(source / f"m-{i + 1:05}-of-00003.gguf")

        def read_again():
            try:
                return oracle.read_all(m / "merged/m.gguf")
            except OSError:
                return None

        assert eventually(lambda: read_again() == gguf(changed, PAIRS))
        try:
            assert f.read() == WHOLE
        except OSError as error:
            assert error.errno == errno.ESTALE
