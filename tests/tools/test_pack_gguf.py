# SPDX-License-Identifier: Apache-2.0
"""fstfs-pack merges the parts of a GGUF model."""

import pytest
from corpus import trees
from corpus.gguffiles import ARRAY, STRING, gguf, pair, split
from packing import hidden, run

TENSORS = [(f"blk.{i}.weight", (64, 3 + i), 8, bytes((i + j) % 251 for j in range(68 * (3 + i)))) for i in range(20)] + [("norm", (5,), 0, bytes(range(20)))]
PAIRS = [pair("general.architecture", STRING, "llama"), pair("tokens", ARRAY, (STRING, [f"token {i}" for i in range(5000)]))]
WHOLE = gguf(TENSORS, PAIRS)


@pytest.fixture
def source(place):
    (place / "m").mkdir()
    for i, part in enumerate(split(TENSORS, PAIRS, (7, 0, 14))):
        (place / f"m/m-{i + 1:05}-of-00003.gguf").write_bytes(part)
    (place / "m/config.json").write_bytes(b"{}")
    return place / "m"


@pytest.mark.parametrize("name", ["", "m"])
def test_merge(source, place, name):
    err = run("--verify", source / name, place / "out.gguf")
    assert "21 tensors, " in err and "; verified" in err
    assert (place / "out.gguf").read_bytes() == WHOLE
    assert hidden(place) == []


def test_merge_of_a_mount(source, place, mount):
    m = mount(source)
    for path in ("merged", "merged/m.gguf", "shards"):
        run("--force", m / path, place / "out.gguf")
        assert (place / "out.gguf").read_bytes() == WHOLE


def test_file_that_is_not_split(source, place):
    """It is copied byte for byte, also what a new header would not have."""
    (place / "one").mkdir()
    (place / "one/x.gguf").write_bytes(gguf(TENSORS, PAIRS, version=2) + b"after the tensors")
    for path in (place / "one", place / "one/x", place / "one/x.gguf"):
        run("--force", path, place / "out.gguf")
        assert (place / "out.gguf").read_bytes() == (place / "one/x.gguf").read_bytes()


def test_safetensors_beside_gguf_has_precedence(source, place):
    (source / "model.safetensors").write_bytes(trees.file_bytes([trees.tensor("w", "F32", (3, 4))]))
    run(source, place / "out.safetensors")
    run(source / "m", place / "out.gguf")
    assert (place / "out.gguf").read_bytes() == WHOLE


@pytest.mark.parametrize("arguments, output, text", [
    (["--shards=2", "m"], "out", "a GGUF model is written as one file"), (["--max-shard-size=1G", "m"], "out", "a GGUF model is written as one file"),
    (["--pick=norm", "m"], "out.gguf", "a GGUF model is written as one file"), (["m", "w.safetensors"], "out.gguf", "a GGUF model is written as one file"),
    (["m"], "out.safetensors", "a GGUF model is written to a file named *.gguf"),
    (["m/m-00001-of-00003.gguf"], "out.gguf", "one of several parts of a model; name the model: DIRECTORY/m"),
    (["w.safetensors"], "out.gguf", "only a GGUF model can be written to a file named *.gguf"),
    (["incomplete"], "out.gguf", "shards are missing; run fstfs-check for details"),
    (["wrong"], "out.gguf", "its files do not belong together; run fstfs-check for details"),
    (["m"], "m/m-00002-of-00003.gguf", "is an input"),
])
def test_refusals(source, place, arguments, output, text):
    (place / "w.safetensors").write_bytes(trees.file_bytes([trees.tensor("w", "F32", (3, 4))]))
    parts = split(TENSORS, PAIRS, (7, 0, 14))
    for directory, content in (("incomplete", parts[:2]), ("wrong", [parts[0], parts[2], parts[1]])):
        (place / directory).mkdir()
        for i, part in enumerate(content):
            (place / f"{directory}/m-{i + 1:05}-of-00003.gguf").write_bytes(part)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    *options, last = arguments
    paths = [option if option.startswith("--") else place / option for option in options]
    err = run("--force", *paths, place / last, place / output, status=1)
    assert text in err, err
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_part_of_a_model_whose_first_part_is_refused(source, place):
    (source / "m-00001-of-00003.gguf").write_bytes(b"GGUF")
    for number in (2, 3):
        err = run(source / f"m-0000{number}-of-00003.gguf", place / "out.gguf", status=1)
        assert "one of several parts of a model; name the model: DIRECTORY/m" in err, err
    assert "m-00001-of-00003.gguf: " in run(source / "m-00001-of-00003.gguf", place / "out.gguf", status=1)
