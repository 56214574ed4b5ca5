# SPDX-License-Identifier: Apache-2.0
"""fstfs-check on files of torch.save() and GGUF files."""

import hashlib
import io
import json
import pickle
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from test_check import needs_hashes, run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import gguffiles  # noqa: E402
from torchfiles import Call, Global, archive, legacy, storage, tensor  # noqa: E402

ONE = {"w": tensor(storage("0", 2), (2,))}
SOUND = {"pytorch_model.bin": archive(ONE, {"0": b"12345678"}), "old.pt": legacy(ONE, {"0": (2, b"12345678")}),
         "llama.gguf": gguffiles.gguf([gguffiles.W])}


@pytest.mark.parametrize("name", SOUND)
def test_sound(tmp_path, name):
    (tmp_path / name).write_bytes(SOUND[name])
    for path in (tmp_path / name, tmp_path):
        lines, err = run(path)
        assert lines == []
        assert err.removeprefix("sound: ").removeprefix("1 checkpoint, ").startswith("1 file, 1 tensor, ")


def torch_set(directory, total):
    """A set of two shards of 8 bytes of storage each; the second has two names for them."""
    two = {"a": tensor(storage("0", 2), (2,)), "b": tensor(storage("0", 2), (2,))}
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name, tensors in zip(names, (ONE, two)):
        (directory / name).write_bytes(archive(tensors, {"0": b"12345678"}))
    index = {"metadata": {"total_size": total},
             "weight_map": {"w": names[0], "a": names[1], "b": names[1]}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("total, is_wrong", [(1, True), (16, False), (24, False), (25, True)])
def test_total_size_of_torch(tmp_path, total, is_wrong):
    """Storage that tensors share may be counted once or for each."""
    torch_set(tmp_path, total)
    lines, _ = run(tmp_path, status=int(is_wrong))
    assert lines == is_wrong * [
        f"{tmp_path}/pytorch_model.bin.index.json: wrong metadata.total_size (found {total}, "
        "expected 16 to 24, the size of the tensors, which share storage)"]


def test_shard_number_of_torch_above_the_total(tmp_path):
    torch_set(tmp_path, 16)
    for name in ("pytorch_model-00009-of-00002.bin", "other-00000-of-00002.bin"):
        (tmp_path / name).write_bytes(archive(ONE, {"0": b"12345678"}))
    (tmp_path / "vocab-00009-of-00002.bin").write_bytes(b"no pickle")
    lines, _ = run(tmp_path, status=1)
    assert sorted(line.split(",")[0] for line in lines) == [
        f"{tmp_path}/other-00000-of-00002.bin: named as shard 0 of 2",
        f"{tmp_path}/pytorch_model-00009-of-00002.bin: named as shard 9 of 2"]


def test_directory_of_all(tmp_path):
    """Files that are no checkpoints are passed over in a directory, and a finding when they are named."""
    for name, content in SOUND.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "scheduler.bin").write_bytes(archive({"step": 3}, {}))
    (tmp_path / "vocab.bin").write_bytes(b"no pickle")
    assert run(tmp_path)[0] == []
    assert run(tmp_path / "scheduler.bin", status=1)[0] == [f"{tmp_path}/scheduler.bin: not a checkpoint: NoTensors: it contains no tensor in dictionaries, lists and tuples"]
    [line] = run(tmp_path / "vocab.bin", status=1)[0]
    assert line.startswith(f"{tmp_path}/vocab.bin: not a checkpoint: NotTorch: ")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@pytest.mark.parametrize("content", [LFS, b"", bytes(4096), b"<!DOCTYPE html>\n"], ids=["lfs", "empty", "zeros", "html"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "adapter_model.bin", "consolidated.00.pth",
                                  "diffusion_pytorch_model.fp16.bin"])
def test_weights_that_are_no_weights(tmp_path, name, content):
    """In a directory they are a finding if loaders look for their name, or if they are pointers of Git LFS."""
    others = ["vocab.bin", "training_args.bin", "pytorch_models.bin"]
    for other in others:
        (tmp_path / other).write_bytes(content)
    (tmp_path / name).write_bytes(content)
    for path in tmp_path, tmp_path / name:
        lines = run(path, status=1)[0]
        if content == LFS:
            names = [name] if path != tmp_path else sorted([name, *others])
            assert len(lines) == len(names)
            for line, refused in zip(sorted(lines), names):
                assert line.startswith(f"{tmp_path}/{refused}: refused: NotTorch: a Git LFS pointer; run git lfs pull")
        else:
            [line] = lines
            assert line.startswith(f"{tmp_path}/{name}: not a checkpoint: NotTorch: ")


def test_refused(tmp_path):
    cases = [("model.bin", rule, content) for name, rule, content in bad_torch.CASES if name in ("cut-off", "two-ends", "old-cut-storage", "nested-bomb")]
    cases += [("model.gguf", rule, content) for name, rule, content in gguffiles.BAD if name in ("alignment-3", "data-one-byte-short")]
    for name, rule, content in cases:
        (tmp_path / name).write_bytes(content)
        for path in (tmp_path / name, tmp_path):
            [line] = run(path, status=1)[0]
            assert line.startswith(f"{tmp_path}/{name}: refused: {rule}: "), line
        (tmp_path / name).unlink()


def test_gguf_that_is_not_utf8(tmp_path):
    """llama.cpp reads such a file, the gguf package does not."""
    pairs = [gguffiles.pair(key, gguffiles.U32, 1) for key in ("größe", b"gr\xf6sse", b"\xff")]
    (tmp_path / "model.gguf").write_bytes(gguffiles.gguf([("gewicht-ß", *gguffiles.W[1:]), (b"w\xdf", *gguffiles.W[1:])], pairs))
    for path in (tmp_path / "model.gguf", tmp_path):
        lines = run(path, status=1)[0]
        assert lines == [f'{tmp_path}/model.gguf: {what} is not UTF-8: GGUFReader of the gguf package fails'
                         for what in (r'key "gr\xf6sse"', r'tensor "w\xdf"')], lines


def test_tensors_that_cannot_be_safetensors(tmp_path):
    root = ONE | {"t": tensor(storage("1", 6), (2, 3), strides=(1, 2))}
    (tmp_path / "model.bin").write_bytes(archive(root, {"0": b"12345678", "1": bytes(24)}))
    [line] = run(tmp_path, status=1)[0]
    assert line.startswith(f'{tmp_path}/model.bin: tensor "t": it is not contiguous: '), line


def test_imports(tmp_path):
    """What loading would import is a finding, also of a file without tensors, and runs nothing."""
    made = tmp_path / "made"
    evil = Call(Global("os", "system"), f"touch {made}")
    many = [Call(Global("pkg", f"f{i}")) for i in range(12)]
    for root, count in ((ONE | {"x": evil}, 1), ({"x": evil}, 1), (ONE | {"x": many}, 12)):
        (tmp_path / "training_args.bin").write_bytes(archive(root, {"0": b"12345678"}))
        [line] = run(tmp_path, status=1)[0]
        assert "its pickle imports " in line and ("os.system" in line) == (count == 1)
        assert (" and 4 more," in line) == (count == 12)
        assert not made.exists()


@pytest.mark.parametrize("count, more", [(7, ""), (8, " and 1 more"), (999, " and 992 more"), (1000, " and at least 992 more")])
def test_dangerous_imports_come_first(tmp_path, count, more):
    names = [*(f"osmodule.f{i:04}" for i in range(count - 1)), "aaa.f", "os.path.join"]
    root = ONE | {"x": [Global(*name.rsplit(".", 1)) for name in names]}
    (tmp_path / "model.bin").write_bytes(archive(root, {"0": b"12345678"}))
    [line] = run(tmp_path, status=1)[0]
    shown = ["os.path.join", "aaa.f", *(f"osmodule.f{i:04}" for i in range(6))]
    assert f": its pickle imports {', '.join(shown)}{more}, which " in line, line


def test_imports_of_a_pickle_that_is_refused(tmp_path):
    """Python executes the instructions in front of an invalid one."""
    (tmp_path / "model.bin").write_bytes(bad_torch.pickled(b"\x80\2cos\nsystem\n0\xff."))
    lines = run(tmp_path, status=1)[0]
    assert any(": its pickle imports os.system and perhaps others, which " in line for line in lines), lines
    assert any(": refused: Pickle: " in line for line in lines), lines


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model-00001-of-00001.bin", "training_args.bin"])
def test_imports_of_a_pickle_that_is_no_checkpoint(tmp_path, name):
    """torch.load() executes it, and then refuses the file."""
    (tmp_path / name).write_bytes(b"\x80\4cos\nsystem\nU\5false\x85R.")
    (tmp_path / "vocab.bin").write_bytes(b"carrot\ncabbage\n" * 1000)
    for path in (tmp_path, tmp_path / name):
        lines = run(path, status=1)[0]
        assert [line for line in lines if "not a checkpoint" not in line] == [
            f"{tmp_path}/{name}: its pickle imports os.system, which torch.load(weights_only=True) rejects; load it only if you trust its origin"]
    (tmp_path / name).write_bytes(b"\x80\4Nr\xff\xff\xff\x7fcos\nsystem\n.")
    [line] = [line for line in run(tmp_path, status=1)[0] if "not a checkpoint" not in line]
    assert line.startswith(f"{tmp_path}/{name}: it begins like a pickle, but cannot be read as one to its end, "), line


@pytest.mark.parametrize("magic", [b"L119547037146038801333356L\n.", b"\x80\2" + 40 * b"N0" + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."],
                         ids=["decimal", "long"])
def test_imports_after_a_magic_number(tmp_path, magic):
    """torch.load() accepts these spellings of the magic number, too, and executes the next pickle."""
    made = tmp_path / "made"
    evil = f"cos\nsystem\n(S'touch {made}'\ntR.".encode()
    (tmp_path / "training_args.bin").write_bytes(magic + evil)
    assert pickle.loads(magic) == 0x1950a86a20f9469cfc6c
    [line] = run(tmp_path, status=1)[0]
    assert line.startswith(f"{tmp_path}/training_args.bin: its pickle imports os.system, "), line
    assert not made.exists()
    (tmp_path / "training_args.bin").write_bytes(b"K\1." + evil)  # any other number: nothing is executed
    run(tmp_path)


def test_imports_after_an_object_that_equals_everything(tmp_path):
    """unittest.mock.ANY is equal to the magic number, too."""
    (tmp_path / "training_args.bin").write_bytes(b"cunittest.mock\nANY\n.cos\nsystem\n(S'true'\ntR.")
    [line] = run(tmp_path, status=1)[0]
    assert ": its pickle imports os.system, unittest.mock.ANY, " in line or ": its pickle imports unittest.mock.ANY, os.system, " in line, line


@pytest.mark.parametrize("length", [16383, 16384, 16385, 32768])
def test_imports_after_a_first_pickle_of_the_length_of_a_read(tmp_path, length):
    """The beginning of the file is read, 16384 bytes and then twice as many, until all pickles are complete."""
    magic = b"L119547037146038801333356L\n."
    padded = b"(" * ((length - len(magic)) % 2) + b"N0" * ((length - len(magic)) // 2) + magic
    assert len(padded) == length and pickle.loads(padded) == 0x1950a86a20f9469cfc6c
    (tmp_path / "training_args.bin").write_bytes(padded + b"cos\nsystem\n(S'true'\ntR.")
    [line] = run(tmp_path, status=1)[0]
    assert line.startswith(f"{tmp_path}/training_args.bin: its pickle imports os.system, "), line


def with_version(name, value):
    """A sound archive, but for its version."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(SOUND["pytorch_model.bin"])) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith("/version"):
                new.writestr(info, old.read(info))
        if value is not None:
            new.writestr(f"archive/{name}", value)
    return out.getvalue()


@pytest.mark.parametrize("name", ["version", ".data/version"])
@pytest.mark.parametrize("value, is_read", [(None, False), (b"", False), (b"0", False), (b"1", True), (b"3\n", True), (b" +10 ", True),
                                            (b"11\n", False), (b"x", False), (b"-1", False), (b"9" * 30, False), (b"9" * 300, False), (b"3x", True)])
def test_version_of_the_archive(tmp_path, name, value, is_read):
    """The results are those of torch.load() of PyTorch 2.15."""
    for file in ("model.bin", "model-00001-of-00001.bin"):
        (tmp_path / file).write_bytes(with_version(name, value))
        for path in (tmp_path, tmp_path / file):
            lines = run(path, status=int(not is_read))[0]
            found = 'has no member "version"' if value is None else ", expected 1 to 10"
            assert len(lines) == int(not is_read) and all(line.endswith(found) for line in lines), lines
            assert all(line.startswith(f"{tmp_path}/{file}: torch.load() refuses it: TorchVersion: ") for line in lines), lines
        (tmp_path / file).unlink()


def test_header_that_is_too_large(tmp_path):
    """The directory and the file have the same result."""
    content = archive(ONE | {"x": "x" * 63_000_000}, {"0": b"12345678"}, extra=[("x" * 63_000 + str(i), b"") for i in range(1000)])
    (tmp_path / "model.bin").write_bytes(content)
    for path in (tmp_path, tmp_path / "model.bin"):
        [line] = run(path, status=2)[0]
        assert line.startswith(f"{tmp_path}/model.bin: cannot be checked: NoMemoryForHeaders: its header needs about "), line
        assert "--memory" not in line


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 64]) + content[at + 1 :]


def test_deep_reads_every_byte(tmp_path):
    for name, content in SOUND.items():
        (tmp_path / name).write_bytes(content)
    size = sum(map(len, SOUND.values()))
    result = json.loads("".join(run("--deep", "--json", tmp_path)[0]))
    assert result["bytes"] == result["bytes_read"] == size
    assert (result["records_compared"], result["records_without_crc"], result["findings"]) == (4, 0, [])
    assert json.loads("".join(run("--json", tmp_path)[0]))["bytes_read"] == 0


def test_deep_names_the_damaged_record(tmp_path):
    """A flipped byte of any record is found, with the tensors that are stored in the record."""
    root = {"a": tensor(storage("0", 2), (2,)), "tied": tensor(storage("0", 2), (2,)), "b\n": tensor(storage("1", 1), (1,)),
            "none": tensor(storage("2", 0), (0,))}
    content = archive(root, {"0": b"ABCDEFGH", "1": b"IJKL", "unused": b"MNOP"})
    path = tmp_path / "model.pt"
    for data, record in ((b"FGH", 'data/0" (tensor "a" and 1 more)'), (b"IJKL", 'data/1" (tensor "b\\x0a")'), (b"NOP", 'data/unused"'),
                         (b"3\nPK", 'version"')):
        path.write_bytes(flipped(content, content.index(data) + (record == 'version"')))  # 3J is read as 3
        assert run(path)[0] == []
        [line] = run("--deep", path, status=1)[0]
        assert line.startswith(f'{path}: damaged: wrong CRC-32 of record "archive/{record} (found '), line
        assert line.endswith(f", expected {zlib.crc32(record_of(content, data)):08x})")


def record_of(content, data):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return next(part for part in map(file.read, file.namelist()) if data.removesuffix(b"PK") in part)


def test_deep_of_records_without_crc(tmp_path):
    """torch.serialization.set_crc32_options(False) writes 0 for each."""
    content = bytearray(SOUND["pytorch_model.bin"])
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        crcs = [struct.pack("<I", info.CRC) for info in file.infolist()]
    for crc in crcs:
        content = content.replace(crc, bytes(4))
    (tmp_path / "model.pt").write_bytes(flipped(content, content.index(b"12345678")))
    lines, err = run("--deep", tmp_path)
    assert lines == [] and err.rstrip().endswith("; no CRC for 4 of 4 records")


@needs_hashes
def test_deep_of_large_records(tmp_path):
    """Archives are read in parts of over 64 MiB; those of another format are compared with the hub's hash, too."""
    size = 66 << 20
    storages = {str(i): bytes(size) for i in range(3)}
    root = {f"w{i}": tensor(storage(str(i), size // 4), (size // 4,)) for i in range(3)}
    content = bytearray(archive(root, storages))
    blob = tmp_path / hashlib.sha256(content).hexdigest()
    link = tmp_path / "model.bin"
    link.symlink_to(blob.name)
    blob.write_bytes(content)
    assert "1 compared with the hub's SHA-256" in run("--deep", link)[1]
    at = [content.index(f"data/{i}".encode()) + size for i in range(3)]
    for i in (0, 2):
        content[at[i]] = 1
    blob.write_bytes(content)
    lines = run("--deep", link, status=1)[0]
    assert [f"(tensor \"w{i}\")" in line for i, line in zip((0, 2), lines[:2], strict=True)] == [True, True]
    assert len(lines) == 3 and "wrong SHA-256" in lines[2]
    (tmp_path / "plain.bin").write_bytes(content)
    assert len(run("--deep", tmp_path / "plain.bin", status=1)[0]) == 2


@needs_hashes
def test_hashes_need_safetensors(tmp_path):
    (tmp_path / "model.bin").write_bytes(SOUND["pytorch_model.bin"])
    hashes = tmp_path / "hashes"
    lines, err = run(f"--hashes={hashes}", tmp_path, status=2)
    assert lines == [] and f"{hashes}: not used because" in err and not hashes.exists()


@pytest.mark.parametrize("options", [(), ("--deep",)], ids=str)
def test_headers_of_records_without_tensors(tmp_path, options):
    """Local headers of records without tensors must be valid, too: torch.load() reads some of these records."""
    content = archive(ONE, {"0": b"12345678", "unused": b"MNOP"})
    at = content.index(b"archive/data/unused")
    path = tmp_path / "model.pt"
    path.write_bytes(content[:at] + b"X" + content[at + 1 :])
    [line] = run(*options, path, status=1)[0]
    assert line.startswith(f"{path}: refused: ZipLocalHeader: ")


GGUF = [(f"t{i}", (4, 1000), 0, bytes([i]) * 16000) for i in range(6)]


def write_parts(tmp_path, parts):
    for i, part in enumerate(parts):
        (tmp_path / f"m-{i + 1:05}-of-00003.gguf").write_bytes(part)


@pytest.mark.parametrize("options", [(), ("--deep",)], ids=str)
def test_parts_of_gguf(tmp_path, options):
    write_parts(tmp_path, gguffiles.split(GGUF, [gguffiles.pair("general.architecture", gguffiles.STRING, "llama")], (1, 2, 3)))
    lines, err = run(*options, tmp_path)
    assert lines == [] and err.startswith("sound: 1 checkpoint, 3 files, 6 tensors, ")
    if options:
        assert "read 0.00 GB" in err
    [metrics] = [line for line in run("--json", *options, tmp_path)[0] if "bytes_read" in line]
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert metrics.strip() == f'"bytes_read": {size if options else 0},'


@pytest.mark.parametrize("order, text", [((0, 2, 1), "GgufSplit: split.no is 2, expected 1; the files themselves are shown"),
                                         ((0, 1), "shard 3 of 3 of m does not exist: its tensors are missing, and there is no merged file"),
                                         ((0, 1, 0), "GgufSplit: split.no is 0, expected 2; the files themselves are shown")])
def test_parts_of_gguf_that_do_not_belong_together(tmp_path, order, text):
    parts = gguffiles.split(GGUF, [], (1, 2, 3))
    write_parts(tmp_path, [parts[i] for i in order])
    assert any(text in line for line in run(tmp_path, status=1)[0])
