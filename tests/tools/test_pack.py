# SPDX-License-Identifier: Apache-2.0
"""fstfs-pack: its files compared with the mount's views and the Hugging Face libraries; its inputs and
its command line."""

import filecmp
import json
import mmap
import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import oracle
import pytest
import safetensors
import safetensors.numpy
from conftest import BUILD
from corpus import gguffiles, torchfiles, trees
from packing import PACK, content, expected, hidden, is_model, plain, run, snapshot

SLOWFS = BUILD / "tests/slowfs/slowfs"
needs_slowfs = pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built")

# ---- the same bytes as the views ----

@pytest.mark.parametrize("view", ["merged", "shards"])
def test_pytorch_files(mount, place, view):
    """They are converted to the files that the mount shows."""
    parts = [torchfiles.weights(i, {f"{i}.{name}": shape for name, shape in torchfiles.TINY.items()}) for i in range(2)]
    for i, tensors in enumerate(parts):
        torchfiles.save(place / f"s/x/pytorch_model-{i + 1:05}-of-00002.bin", tensors)
    torchfiles.save(place / "s/x/optimizer.pt", parts[0])
    (place / "s/x/training_args.bin").write_bytes(b"text")
    m = mount(place / "s", *(("--shard-size=400",) if view == "shards" else ()))
    out = place / "out"
    if view == "merged":
        run("--verify", place / "s/x/model", f"{out}.safetensors")
        assert filecmp.cmp(m / "merged/x/model.safetensors", f"{out}.safetensors", shallow=False)
        return
    out.mkdir()
    torchfiles.save(out / "pytorch_model.bin", parts[1])
    run("--verify", "--force", "--max-shard-size=400", place / "s/x/model", out)
    made = sorted(os.listdir(out))
    assert made == sorted(["pytorch_model.bin", *(n for n in os.listdir(m / "shards/x") if n.startswith("model"))])
    assert len(made) > 4 and (out / "pytorch_model.bin").read_bytes() == torchfiles.torch_file(parts[1])
    for name in made[:-1]:
        assert filecmp.cmp(m / f"shards/x/{name}", out / name, shallow=False)


def test_pytorch_file_with_a_tensor_that_is_not_shown(place):
    """Neither the file nor the checkpoint is converted without it."""
    whole = torchfiles.storage("0", 4)
    (place / "x.bin").write_bytes(torchfiles.archive({"a": torchfiles.tensor(whole, (4,)), "b": torchfiles.tensor(whole, (2, 2), strides=(1, 2))},
                                                     {"0": bytes(16)}))
    for source in ("x.bin", "x"):
        run(place / source, place / "out.safetensors", status=1)
    run("--shards=1", place / "x.bin", place, status=1)
    assert os.listdir(place) == ["x.bin"]


TREES = [("rich", "rich", "model"), ("in_root", "", "model"), ("names", "names", "model"),
         ("diffusers", "pipeline/unet", "diffusion_pytorch_model.fp16"),
         ("adapters", "base", "adapter_model"), ("sharded_without_index", "two", "beta")]


@pytest.mark.parametrize("tree, directory, stem", TREES, ids=[t[0] for t in TREES])
def test_merged_file(mount, place, tree, directory, stem):
    source = getattr(trees, tree)(place / "models")
    m = mount(source.root)
    out = place / "out.safetensors"
    run("--verify", source.path(directory, stem), out)
    made = next(c for c in source.checkpoints if (c.directory, c.stem) == (directory, stem))
    if len(made.shards) > 1:
        assert filecmp.cmp(out, m / f"merged/{directory}/{stem}.safetensors", shallow=False)
    else:  # the view shows the file unchanged
        oracle.check_file(out, oracle.file_order(made.tensors), made.merged_metadata, True)
    tensors, metadata = content(out)
    assert tensors == expected(made.tensors)
    assert metadata == (made.merged_metadata or None)


@pytest.mark.parametrize("cut", ["--shards=1", "--shards=4", "--shards=99", "--shard-size=1M",
                                 "--shard-size=70000"])
def test_shards(mount, place, cut):
    source = trees.rich(place / "models")
    m = mount(source.root, cut)
    out = place / "out"
    run("--verify", cut.replace("--shard-size", "--max-shard-size"), source.path("rich"), out)
    shown = set(os.listdir(m / "shards/rich"))
    assert {"config.json", "tokenizer.model", "empty.txt"} < shown == set(os.listdir(out))
    for name in shown:
        assert filecmp.cmp(out / name, m / f"shards/rich/{name}", shallow=False), name


@pytest.mark.parametrize("name, out", [("x.sft", "out.SFT"), ("x.SAFETENSORS", "out.sft")])
def test_files_of_other_suffixes(place, name, out):
    source = trees.Source(place / "models")
    source.add("", "x", plain(), names=[name])
    for given in (source.path(name), source.root):
        run("--force", given, place / out)
        assert content(place / out)[0] == expected(plain())


def test_force_keeps_files_of_another_suffix(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain(), names=["model.sft"])
    other = trees.Source(place / "out")
    for name in ("model.sft", "model.SAFETENSORS"):
        other.add("", "model", plain(seed=name), names=[name])
    run("--shards=2", "--force", source.root, other.root)
    assert sorted(os.listdir(other.root)) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.SAFETENSORS", "model.safetensors.index.json", "model.sft"]


def two_sources(place):
    """The input, the output, and the checkpoint of two shards that the output has."""
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    out = trees.Source(place / "out")
    return source, out, out.add("", "model", plain(seed=1), shards=2)


def index_text(checkpoint):
    return trees.index_bytes({t.name: name for name, held in checkpoint.shards for t in held})


def test_force_keeps_shards_of_another_index(place):
    """A shard that the index of another checkpoint names, too, is not removed."""
    source, out, old = two_sources(place)
    (place / "out/variant.safetensors.index.json").write_bytes(index_text(old))
    before = snapshot(place / "out")
    err = run("--shards=3", "--force", source.root, out.root, status=1)
    assert "variant.safetensors.index.json" in err and "--stem" in err
    assert snapshot(place / "out") == before
    run("--shards=3", "--force", "--stem=third", source.root, out.root)


@pytest.mark.parametrize("index", [
    "variant.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("change", [
    lambda text: text.replace(b'"weight_map": {', b'"weight_map": {"q": "sub/y.safetensors", '),
    lambda text: text.replace(b': "model-', b': "./model-'),
    lambda text: text + b"garbage",
    lambda text: text[:-40]], ids=["directory", "dot", "garbage", "cut"])
def test_force_keeps_shards_of_an_invalid_index(place, index, change):
    """As above; fstfs cannot use the other index, but it contains the name of the shard."""
    source, out, old = two_sources(place)
    text = index_text(old)
    changed = change(text)
    assert changed != text
    (place / "out" / index).write_bytes(b" " * 65500 + changed)  # across a window of the search
    before = snapshot(place / "out")
    err = run("--shards=3", "--force", source.root, out.root, status=1)
    assert index in err and "--stem" in err
    assert snapshot(place / "out") == before


@pytest.mark.parametrize("stem", ["modèle", b"mod\xe8le".decode(errors="surrogateescape"), "quo\"te"], ids=ascii)
@pytest.mark.parametrize("index, end", [("other.bin.index.json", 0), ("other.safetensors.index.json", -2)],
                         ids=["another format", "cut"])
def test_force_keeps_a_file_that_an_index_names_by_escapes(place, stem, index, end):
    """json.dump() escapes each character that is not ASCII."""
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    (place / "out").mkdir()
    name = f"{stem}-00001-of-00002.safetensors"
    shutil.copy(source.path("model.safetensors"), place / "out" / name)
    text = json.dumps({"weight_map": {"t0": name, "t1": "x"}})
    (place / "out" / index).write_text(text[:end or None])
    before = snapshot(place / "out")
    err = run("--force", "--shards=2", f"--stem={stem}", source.root, place / "out", status=1)
    assert index in err
    assert snapshot(place / "out") == before


@pytest.mark.parametrize("text", [b"", b"garbage"], ids=["valid", "invalid"])
def test_force_keeps_a_file_that_an_index_names(place, text):
    source, out, old = two_sources(place)
    index = place / "out/model.safetensors.index.json"
    index.write_bytes(index.read_bytes() + text)
    before = snapshot(place / "out")
    err = run("--force", source.root, out.path(old.shards[1][0]), status=1)
    assert index.name in err and old.shards[1][0] in err
    assert snapshot(place / "out") == before
    run(source.root, out.path("other.safetensors"))
    run("--force", source.root, out.path("other.safetensors"))


@pytest.mark.parametrize("output", ["out", "out/model-00001-of-00002.safetensors"])
def test_force_with_an_index_that_cannot_be_read(place, test_user, user_program, output):
    source, out, old = two_sources(place)
    (place / "out/variant.safetensors.index.json").write_bytes(index_text(old))
    os.remove(place / "out/model.safetensors.index.json")
    os.chmod(place / "out", 0o777)
    before = snapshot(place / "out")
    os.chmod(place / "out/variant.safetensors.index.json", 0)
    shards = ["--shards=3"] if output == "out" else []
    err = run(*shards, "--force", source.root, place / output, status=1, user=test_user,
              program=user_program(PACK))
    os.chmod(place / "out/variant.safetensors.index.json", 0o600)
    assert "variant.safetensors.index.json" in err
    assert snapshot(place / "out") == before


@pytest.mark.parametrize("path", ["", "model"])
@pytest.mark.parametrize("what", ["invalid", "dangling"])
def test_index_that_cannot_be_used(place, path, what):
    """It may name other files than those that have the name of the checkpoint."""
    source = trees.Source(place / "models")
    source.add("", "model", plain(), shards=2)
    index = source.path("model.safetensors.index.json")
    os.remove(index)
    if what == "dangling":
        os.symlink("nowhere", index)
    else:
        with open(index, "w") as f:
            f.write('{"weight_map": {')
    err = run("--shards=3", source.path(path), place / "out", status=1)
    assert f"model.safetensors.index.json is {'a link' if what == 'dangling' else 'an index that is not valid'}" in err
    os.remove(index)
    run("--shards=3", source.path(path), place / "out")


LOST = {"unreadable": torchfiles.torch_file(torchfiles.weights(1)), "truncated": torchfiles.torch_file(torchfiles.weights(1))[:-30],
        "empty": b"", "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}


def lost_beside(place, name, other, what):
    """A directory in which file `name` is lost and `other` is a checkpoint; and one for the output."""
    directory, out = place / "models", place / "out"
    torchfiles.save(directory / other, torchfiles.weights(2))
    (directory / name).write_bytes(LOST[what])
    os.chmod(directory / name, 0 if what == "unreadable" else 0o644)
    out.mkdir()
    os.chmod(out, 0o777)
    return directory, out


@pytest.mark.parametrize("what", LOST)
def test_lost_weights_beside_another_checkpoint(place, what, test_user, user_program):
    """The other one does not become the only checkpoint of the directory."""
    directory, out = lost_beside(place, "pytorch_model.bin", "optimizer.pt", what)
    for source in (directory, directory / "model"):
        err = run("--shards=1", source, out, status=1, user=test_user, program=user_program(PACK))
        assert ": pytorch_model.bin: " in err and os.listdir(out) == []
    os.remove(directory / "optimizer.pt")
    err = run("--shards=1", directory, out, status=1, user=test_user, program=user_program(PACK))
    assert "pytorch_model.bin" in err and os.listdir(out) == []


NPY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }".ljust(117) + b"\n1234"
NUMBERED = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
TORCH = torchfiles.torch_file(torchfiles.weights(1))
# names in a directory, links that lead to no file, other paths that name the checkpoint
DANGLING = {"single": ({"pytorch_model.bin": TORCH}, ["model.safetensors"], ["model"]),
            "beside an adapter": ({"adapter_model.safetensors": trees.file_bytes(plain())}, ["model.safetensors"], []),
            "PyTorch": ({"optimizer.pt": TORCH}, ["pytorch_model.bin"], []),
            "set": ({"adapter_model.safetensors": trees.file_bytes(plain())}, NUMBERED, []),
            "PyTorch set": ({"optimizer.pt": TORCH}, [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)], []),
            "tensor files": ({"a.npy": NPY}, ["b.npy"], []),
            "index": ({"pytorch_model.bin": TORCH}, ["model.safetensors.index.json"], ["model"]),
            "index of PyTorch": ({"optimizer.pt": TORCH}, ["pytorch_model.bin.index.json"], []),
            "GGUF": ({"optimizer.pt": TORCH}, ["model.gguf"], []),
            "PyTorch beside safetensors": ({"ema.safetensors": trees.file_bytes(plain())}, ["pytorch_model.bin"], []),
            "FIFO": ({"pytorch_model.bin": TORCH}, ["../fifo.safetensors"], []),
            "index without shards": ({"optimizer.pt": TORCH, "pytorch_model.bin.index.json":
                                      b'{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}'}, [], [])}


@pytest.mark.parametrize("case", DANGLING)
def test_weights_that_are_dangling_links(place, case):
    """As in a Hugging Face cache that lacks blobs. No other weights are taken instead."""
    files, links, more = DANGLING[case]
    directory = place / "models"
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    os.mkfifo(place / "fifo.safetensors")
    for name in links:
        (directory / os.path.basename(name)).symlink_to(name if "fifo" in name else f"../blobs/{name}")
    for source in (directory, *(directory / name for name in more)):
        err = run(source, place / "out.safetensors", status=1)
        reasons = [f"{os.path.basename(link)} is a link that leads to no file" for link in links] or ["shards are missing"]
        assert any(reason in err for reason in reasons)
    assert not (place / "out.safetensors").exists()


@pytest.mark.parametrize("side", ["ema.safetensors", "optimizer.safetensors", "adapter_model.safetensors", "model.fp16.safetensors"])
@pytest.mark.parametrize("main", ["sound", "truncated", "Git LFS pointer", "empty"])
def test_pytorch_weights_beside_other_safetensors(place, side, main):
    """Loaders open pytorch_model.bin, unless there is model.safetensors."""
    directory = place / "models"
    directory.mkdir()
    (directory / "pytorch_model.bin").write_bytes(LOST.get(main, TORCH))
    (directory / side).write_bytes(trees.file_bytes(plain()))
    torchfiles.save(directory / "optimizer.pt", torchfiles.weights(2))
    assert "contains 2 checkpoints" in run(directory, place / "out.safetensors", status=1)
    assert not (place / "out.safetensors").exists()
    os.rename(directory / side, directory / "model.safetensors")
    run(directory, place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected(plain())


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "adapter_model.bin"])
@pytest.mark.parametrize("state", ["optimizer.pt", "optimizer.bin"])
def test_weights_beside_training_state(place, weights, state):
    torchfiles.save(place / "models" / weights, torchfiles.weights(1))
    torchfiles.save(place / "models" / state, torchfiles.weights(2))
    run(place / "models", place / "out.safetensors")
    os.rename(place / "models" / state, place / "models/other.pt")
    assert "contains 2 checkpoints" in run("--force", place / "models", place / "out.safetensors", status=1)
    os.remove(place / "models/other.pt")
    run("--verify", place / "models", place / "alone.safetensors")
    assert filecmp.cmp(place / "alone.safetensors", place / "out.safetensors", shallow=False)


def test_original_weights_beside_the_converted_ones(place):
    """Such as consolidated.00.pth of Llama. Loaders prefer model.safetensors."""
    directory = place / "models"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(trees.file_bytes(plain()))
    (directory / "consolidated.00.pth").write_bytes(TORCH)
    (directory / "adapter_model.bin").symlink_to("nowhere")
    run(directory, place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected(plain())


@pytest.mark.parametrize("gguf", [b"GGUF", gguffiles.gguf([("a", (4,), 0, bytes(16))])], ids=["damaged", "sound"])
def test_gguf_weights_beside_another_checkpoint(place, gguf):
    """GGUF files are ignored beside safetensors or PyTorch weights. optimizer.pt is ignored beside them."""
    directory = place / "models"
    torchfiles.save(directory / "optimizer.pt", torchfiles.weights(1))
    (directory / "model.gguf").write_bytes(gguf)
    err = run(directory, place / "out.safetensors", status=1)
    assert ("model.gguf: GgufCutOff" if gguf == b"GGUF" else "a GGUF model is written to a file named *.gguf") in err
    os.remove(directory / "optimizer.pt")
    (directory / "pytorch_model.bin").write_bytes(TORCH)
    run(directory, place / "out.safetensors")
    assert set(content(place / "out.safetensors")[0]) == set(torchfiles.weights(1))
    (directory / "model.safetensors").write_bytes(trees.file_bytes(plain()))
    run("--force", directory, place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected(plain())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00001.bin"])
def test_pytorch_file_beside_its_safetensors_file(place, name):
    """For a directory the safetensors file is used; the PyTorch file can still be packed by name."""
    directory = place / "models"
    torchfiles.save(directory / name, torchfiles.weights(1))
    run(directory / name, place / "alone.safetensors")
    (directory / "model.safetensors").write_bytes(trees.file_bytes(plain()))
    run("--verify", directory / name, place / "beside.safetensors")
    assert filecmp.cmp(place / "alone.safetensors", place / "beside.safetensors", shallow=False)
    (directory / "pytorch_model.bin.index.json").write_bytes(trees.index_bytes({"a": name}, 1))
    assert "safetensors files have the same stem" in run(directory / "pytorch_model.bin.index.json", place / "x.safetensors", status=1)


@needs_slowfs
def test_dangling_link_with_a_long_name(place, mount):
    """FUSE file systems may have names of up to 1024 bytes; those of checkpoints have at most 255."""
    directory = place / "models"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(trees.file_bytes(plain()))
    (directory / "@.safetensors").symlink_to("nowhere")
    m = mount(directory, "-o", "at=988", binary=SLOWFS)
    assert max(map(len, os.listdir(m.path))) == 1000
    run(m.path, place / "out.safetensors")


@needs_slowfs
def test_storage_fails_at_the_target_of_a_link(place, mount):
    """It is not known that the link leads to no file, so it need not be repaired."""
    directory = place / "models"
    directory.mkdir()
    (directory / "blob").write_bytes(trees.file_bytes(plain()))
    (directory / "model.safetensors").symlink_to("blob")
    torchfiles.save(directory / "pytorch_model.bin", torchfiles.weights(1))
    (place / "faults").write_text("lookup blob error=EIO\n")
    m = mount(directory, "-o", f"valid=0,faults={place}/faults", binary=SLOWFS)
    err = run(m.path, place / "out.safetensors", status=1)
    assert "model.safetensors" in err and "Input/output error" in err and "no file" not in err


def test_dangling_link_of_another_checkpoint(place):
    """It does not matter for a checkpoint that is chosen otherwise."""
    directory = place / "models"
    directory.mkdir()
    for name in ("model.safetensors", "other.safetensors"):
        (directory / name).write_bytes(trees.file_bytes(plain()))
    (directory / "lost.safetensors").symlink_to("nowhere")
    (directory / "pytorch_model.bin").symlink_to("nowhere")
    run(directory / "other", place / "a.safetensors")
    os.remove(directory / "lost.safetensors")
    os.remove(directory / "other.safetensors")
    run(directory, place / "b.safetensors")
    assert filecmp.cmp(place / "a.safetensors", place / "b.safetensors", shallow=False)


@pytest.mark.parametrize("what", [what for what in LOST if what != "empty"])
def test_lost_file_beside_weights(place, what, test_user, user_program):
    """A file without the name of weights counts only if none has such a name."""
    directory, out = lost_beside(place, "b.bin", "a.pt", what)
    run("--shards=1", directory, out, status=1, user=test_user, program=user_program(PACK))
    os.rename(directory / "a.pt", directory / "pytorch_model.bin")
    run("--shards=1", directory, out, user=test_user, program=user_program(PACK))
    assert os.listdir(out) == ["model.safetensors"]


def test_force_with_a_dangling_index(place):
    source, out, old = two_sources(place)
    index = place / "out/model.safetensors.index.json"
    index.unlink()
    index.symlink_to("not mounted/index.json")
    shard = Path(out.path(old.shards[1][0]))
    before = shard.read_bytes()
    err = run("--force", source.root, shard, status=1)
    assert "cannot read model.safetensors.index.json" in err
    assert shard.read_bytes() == before


def test_side_file_that_aria2_has_not_completed(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    source.add_side("tokenizer.json", bytes(100))
    source.add_side("tokenizer.json.aria2", b"\0\1")
    err = run("--shards=1", source.root, place / "out", status=1)
    assert "tokenizer.json: its download by aria2 is not finished" in err
    assert not (place / "out").exists()
    run("--shards=1", "--tensors-only", source.root, place / "out")


def test_force_keeps_a_special_file(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    os.mkfifo(place / "out.safetensors")
    assert "not a file" in run("--force", source.root, place / "out.safetensors", status=1)
    assert stat.S_ISFIFO(os.lstat(place / "out.safetensors").st_mode)


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00002.safetensors"])
def test_unfinished_download(place, name):
    """Of aria2, which gives a file its full size first."""
    source = trees.Source(place / "models")
    source.add("", "model", plain(), shards=1 if name == "model.safetensors" else 2)
    source.add_side(f"{name}.aria2", b"\0\1")
    for path in (source.root, source.path(name)):
        assert "UnfinishedDownload" in run(path, place / "out.safetensors", status=1)
    os.remove(source.path(f"{name}.aria2"))
    run(source.root, place / "out.safetensors")


@pytest.mark.parametrize("view", ["tensors", "npy"])
@pytest.mark.parametrize("reason", ["missing shard", "unknown dtype"])
def test_incomplete_directory_of_tensors(mount, place, view, reason):
    """The directory of an incomplete checkpoint lacks tensors."""
    source = trees.Source(place / "s")
    tensors = plain(4)
    if reason == "unknown dtype":
        tensors.append(trees.Tensor("unknown", "I24", (2,), b"123456"))
    c = source.add("", "model", tensors, shards=2)
    if reason == "missing shard":
        os.remove(source.path(c.shards[1][0]))
    m = mount(source.root)
    if reason == "unknown dtype" and view == "tensors":
        pytest.skip("tensors/ has all of them")
    err = run(m / f"{view}/model", place / "out.safetensors", status=1)
    assert "shards are missing" in err or "expected 5" in err
    assert not os.path.exists(place / "out.safetensors")


# ---- the Hugging Face libraries ----

def as_arrays(tensors):
    return {t.name: np.frombuffer(t.data, oracle.NUMPY[t.dtype]).reshape(t.shape)
            for t in tensors}


def test_as_save_file(place):
    tensors = [t for t in trees.rich_tensors() if t.dtype in oracle.NUMPY]
    source = trees.Source(place / "models")
    source.add("", "model", tensors, shards=3, metadata={"format": "pt", "k": "ü\n"})
    theirs, ours = place / "theirs.safetensors", place / "ours.safetensors"
    safetensors.numpy.save_file(as_arrays(tensors), theirs, {"format": "pt", "k": "ü\n"})
    run(source.root, ours)
    assert content(ours) == content(theirs)
    with safetensors.safe_open(ours, "numpy") as a, safetensors.safe_open(theirs, "numpy") as b:
        assert sorted(a.keys()) == sorted(b.keys()) and a.metadata() == b.metadata()
        for name in a.keys():
            assert a.get_tensor(name).tobytes() == b.get_tensor(name).tobytes()


def their_split(arrays, size):
    """The shards of huggingface_hub for the tensors in this order."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    try:
        import torch
        from huggingface_hub import split_torch_state_dict_into_shards as split

        return split({k: torch.from_numpy(v.copy()) for k, v in arrays.items()},
                     filename_pattern="model{suffix}.safetensors", max_shard_size=size)
    except ImportError:  # the underlying function, which does not need torch
        from huggingface_hub.serialization._base import split_state_dict_into_shards_factory

        return split_state_dict_into_shards_factory(
            arrays, get_storage_size=lambda a: a.nbytes, max_shard_size=size,
            filename_pattern="model{suffix}.safetensors")


@pytest.mark.parametrize("size", ["5KB", "9KB", "100KB", "1MB"])
def test_as_huggingface_hub_splits(place, size):
    sizes = random.Random(4)
    tensors = [trees.tensor(f"layers.{i}.w", "F32", (sizes.randint(1, 1200),)) for i in range(60)]
    source = trees.Source(place / "models")
    source.add("", "model", tensors, metadata={"format": "pt"})
    theirs = their_split(as_arrays(tensors), size)
    run(f"--max-shard-size={size}", source.root, place / "out")
    names = {n for n in os.listdir(place / "out") if n.endswith(".safetensors")}
    assert names == set(theirs.filename_to_tensors)
    for name, inside in theirs.filename_to_tensors.items():
        tensors_of, metadata = content(place / "out" / name)
        assert set(tensors_of) == set(inside) and metadata == {"format": "pt"}
    index = place / "out/model.safetensors.index.json"
    if theirs.is_sharded:  # as save_torch_state_dict writes it
        text = json.dumps({"metadata": theirs.metadata, "weight_map": theirs.tensor_to_filename},
                          indent=2, sort_keys=True) + "\n"
        assert index.read_text() == text
    else:
        assert not index.exists()


# ---- inputs ----

def test_several_inputs(place):
    source = trees.Source(place / "models")
    source.add("a", "model", plain(prefix="a."), shards=2, metadata={"format": "pt", "n": "1"})
    source.add("b", "model", plain(prefix="b."), metadata={"format": "pt", "n": "2"})
    np.save(place / "extra.weight.npy", np.arange(24, dtype="<i2").reshape(2, 3, 4))
    out = place / "out.safetensors"
    err = run("--verify", source.path("a"), source.path("b/model.safetensors"),
              place / "extra.weight.npy", out)
    assert "key n differs" in err
    tensors, metadata = content(out)
    extra = tensors.pop("extra.weight")
    assert extra == ("I16", [2, 3, 4], np.arange(24, dtype="<i2").tobytes())
    assert tensors == expected(plain(prefix="a.") + plain(prefix="b."))
    assert metadata == {"format": "pt"}
    err = run(source.path("a"), source.path("a/model-00002-of-00002.safetensors"),
              place / "twice.safetensors", status=1)
    assert "tensor a.t3 is in" in err and not (place / "twice.safetensors").exists()


@pytest.mark.parametrize("shards", [2, 3])
def test_force_with_two_names_of_the_index(place, shards):
    """A variant has its index under both names that diffusers knows; both name the same shards."""
    source, out = trees.Source(place / "models"), trees.Source(place / "out")
    new = source.add("", "model.fp16", plain(prefix="new."))
    old = out.add("", "model.fp16", plain(prefix="old."), shards=3)
    shutil.copy(out.path("model.fp16.safetensors.index.json"), out.path("model.safetensors.index.fp16.json"))
    run("--force", f"--shards={shards}", "--stem=model.fp16", source.root, out.root)
    names = [f"model.fp16-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    assert sorted(os.listdir(out.root)) == sorted([*names, "model.safetensors.index.fp16.json"])
    assert {n: t for name in names for n, t in content(out.path(name))[0].items()} == expected(new.tensors)
    assert old.tensors[0].name not in expected(new.tensors)


def test_force_keeps_a_directory_with_the_name_of_the_index(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    kept = place / "out/model.safetensors.index.json/kept"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"x")
    err = run("--force", "--shards=2", source.root, place / "out", status=1)
    assert "model.safetensors.index.json exists and is not a file" in err
    assert os.listdir(place / "out") == [kept.parent.name] and kept.read_bytes() == b"x"


def test_two_checkpoints_of_one_stem(place):
    """The message names both in a way that selects them."""
    source = trees.Source(place / "models")
    sharded = source.add("m", "model", plain(prefix="a."), shards=2)
    single = source.add("m", "model", plain(prefix="b."))
    err = run(source.path("m"), place / "o.safetensors", status=1)
    assert "2 checkpoints, among them model and model.safetensors; name one of them: DIRECTORY/model\n" in err
    for name, made in (("model", sharded), ("model.safetensors", single)):
        run(source.path("m", name), place / f"{name}.out.safetensors")
        assert content(place / f"{name}.out.safetensors")[0] == expected(made.tensors)


def test_one_shard_only(place):
    source = trees.Source(place / "models")
    made = source.add("", "model", plain(), shards=2)
    run(source.path("model-00002-of-00002.safetensors"), place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected(made.shards[1][1])


@pytest.mark.parametrize("args, kept", [
    (["--pick=*.w"], ["a.w", "b.w", "v.w"]), (["--drop=v.*"], ["a.b", "a.w", "b.w"]),
    (["--pick=a.*", "--pick=v.*"], ["a.b", "a.w", "v.w"]),
    (["--pick=*", "--drop=a.*", "--pick=a.w"], ["a.w", "b.w", "v.w"]),
    (["--drop=*.w", "--pick=v.w"], ["a.b", "v.w"])])
def test_pick_and_drop(place, args, kept):
    tensors = [trees.tensor(n, "F32", (i + 3, 700)) for i, n in enumerate(["a.b", "a.w", "b.w",
                                                                          "v.w"])]
    source = trees.Source(place / "models")
    source.add("", "model", tensors, shards=2, metadata={"format": "pt"})
    wanted = [t for t in tensors if t.name in kept]
    run(*args, source.root, place / "out.safetensors")
    assert content(place / "out.safetensors") == (expected(wanted), {"format": "pt"})
    run(*args, "--shards=2", source.root, place / "out")
    parts = [content(p)[0] for p in sorted((place / "out").glob("*.safetensors"))]
    assert {k: v for part in parts for k, v in part.items()} == expected(wanted)
    with open(place / "out/model.safetensors.index.json") as f:
        index = json.load(f)
    assert index["metadata"]["total_size"] == sum(t.size for t in wanted)
    assert {n: (place / "out" / f).name for n, f in index["weight_map"].items()} == {
        n: f"model-{i + 1:05}-of-00002.safetensors" for i, part in enumerate(parts) for n in part}


NUL_NAMES = ["\0.w", "a", "a\0", "a\0.w", "a.w"]


@pytest.mark.parametrize("glob, matched", [
    ("*.w", ["\0.w", "a\0.w", "a.w"]), ("a", ["a"]), ("a?", ["a\0"]), ("a?.w", ["a\0.w"]), ("[!a].w", ["\0.w"]), ("?.w", ["\0.w", "a.w"])])
def test_names_with_nul(place, glob, matched):
    """A glob must match the whole name, including NUL."""
    source = trees.Source(place / "models")
    source.add("", "model", [trees.tensor(name, "U8", (5,)) for name in NUL_NAMES])
    run(f"--pick={glob}", source.root, place / "picked.safetensors")
    assert sorted(content(place / "picked.safetensors")[0]) == matched
    run(f"--drop={glob}", source.root, place / "rest.safetensors")
    assert sorted(content(place / "rest.safetensors")[0]) == sorted(set(NUL_NAMES) - set(matched))


def test_nothing_picked(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    assert "exclude all tensors" in run("--pick=x*", source.root, place / "o.safetensors", status=1)


def without_tensors(place, metadata=None):
    safetensors.numpy.save_file({}, place / "none.safetensors", metadata)
    return place / "none.safetensors"


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("output", [[], ["--shards=1"], ["--shards=2", "--tensors-only"], ["--max-shard-size=1G"]])
def test_input_without_tensors(place, output, metadata):
    """It is packed, but is an error with --pick or --drop."""
    source, out = without_tensors(place, metadata), place / ("out" if output else "out.safetensors")
    for args in ["--pick=*"], ["--pick=x"], ["--drop=x"], ["--drop=*", "--pick=x"]:
        assert "the input has no tensors" in run(*args, *output, source, out, status=1)
        assert not out.exists()
    run(*output, source, out)
    assert content(out / "model.safetensors" if output else out) == ({}, metadata)


@pytest.mark.parametrize("args", [[], ["--pick=*"], ["--drop=x"]])
@pytest.mark.parametrize("is_first", [True, False])
def test_one_input_without_tensors(place, args, is_first):
    """Its metadata is used, whether there is a selection or not."""
    none = without_tensors(place, {"format": "pt", "only": "here"})
    source = trees.Source(place / "models")
    source.add("", "model", plain(), metadata={"format": "pt"})
    inputs = [none, source.root][::1 if is_first else -1]
    run(*args, *inputs, place / "out.safetensors")
    assert content(place / "out.safetensors") == (expected(plain()), {"format": "pt", "only": "here"})
    run("--drop=*", *inputs, place / "no.safetensors", status=1)


NPY = {"BOOL": "?", **{k: v for k, v in oracle.NUMPY.items()}}


@pytest.mark.parametrize("dtype", NPY)
def test_npy_files(place, dtype):
    folder = place / "npy"
    folder.mkdir()
    kind = np.dtype(NPY[dtype])
    arrays = {"scalar": np.zeros((), kind), "empty": np.zeros((3, 0), kind),
              "line": np.arange(5).astype(kind), "a%2Fb": np.ones((2, 3, 4), kind)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "turned.npy", np.asfortranarray(np.ones(7, kind)))
    out = place / "out.safetensors"
    run("--verify", folder, out)
    tensors, metadata = content(out)
    arrays["a/b"] = arrays.pop("a%2Fb")
    arrays["turned"] = np.ones(7, kind)
    assert metadata is None
    assert tensors == {n: (dtype, list(a.shape), a.tobytes()) for n, a in arrays.items()}


def test_bfloat16_of_ml_dtypes(place):
    if oracle.ml_dtypes is None:
        pytest.skip("ml_dtypes is not installed")
    array = np.arange(9).astype(oracle.ml_dtypes.bfloat16)
    np.save(place / "w.npy", array)
    run(place / "w.npy", place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == {"w": ("BF16", [9], array.tobytes())}


@pytest.mark.parametrize("name, array, why", [
    ("fortran", np.asfortranarray(np.ones((2, 3))), "Fortran order"),
    ("big", np.ones(3, ">f4"), "type >f4"), ("text", np.array(["a"]), "type <U1"),
    ("complex", np.ones(3, "<c16"), "type <c16"), ("float8", np.zeros(3, "V1"), "type |V1"),
    ("record", np.zeros(3, [("a", "<f4")]), "not that of an array of numbers")])
def test_unsupported_npy_files(place, name, array, why):
    np.save(place / f"{name}.npy", array)
    err = run(place / f"{name}.npy", place / "out.safetensors", status=1)
    assert f"{name}.npy: " in err and why in err


@pytest.mark.parametrize("name, why", [("__metadata__", "the key of the metadata"), ("%FF", "not UTF-8"),
                                       (os.fsdecode(b"\xfe"), "not UTF-8")])
def test_npy_files_whose_names_no_header_can_have(place, name, why):
    np.save(place / f"{name}.npy", np.ones(3))
    assert why in run(place / f"{name}.npy", place / "out.safetensors", status=1)
    assert not (place / "out.safetensors").exists()


@pytest.mark.parametrize("damage", ["magic", "short", "header", "data", "empty", "shape"])
def test_broken_npy_files(place, damage):
    np.save(place / "x.npy", np.ones((3, 4), "<f4"))
    raw = (place / "x.npy").read_bytes()
    raw = {"magic": b"\x92" + raw[1:], "short": raw[:60], "header": raw[:8] + b"\xff\xff" + raw[10:],
           "data": raw[:-1], "empty": b"", "shape": raw.replace(b"(3, 4)", b"(3,-4)")}[damage]
    (place / "x.npy").write_bytes(raw)
    assert "x.npy: " in run(place / "x.npy", place / "out.safetensors", status=1)


def test_tensors_of_a_mount(mount, place):
    source = trees.Source(place / "models")
    tensors = [trees.tensor(name, "U8", (i + 1,)) for i, name in enumerate(trees.HARD_NAMES)
               if not name.endswith(".safetensors")]  # not in the directory of a checkpoint
    source.add("m", "model", tensors + trees.rich_tensors(), shards=2)
    m = mount(source.root)
    out = place / "out.safetensors"
    for view in ("tensors", "npy"):
        run("--verify", "--force", f"{m.path}/{view}/m/model", out)
        assert content(out)[0] == expected(source.checkpoints[0].tensors)


@pytest.mark.parametrize("view", ["tensors/m/model/{}", "npy/m/model/{}.npy"])
@pytest.mark.parametrize("dtype, shape", [*((dtype, [4, 8]) for dtype in trees.DTYPE_BITS),
                                          ("F4", [2]), ("F4", [0, 3]), ("U8", [])])
def test_each_dtype_of_a_mount(mount, place, dtype, shape, view):
    """Also those that NumPy's format does not have."""
    source = trees.Source(place / "models")
    tensor = trees.tensor("w.npy", dtype, shape)
    source.add("m", "model", [tensor])
    run(mount(source.root) / view.format("w.npy"), place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected([tensor])


def test_xattrs_of_a_tensor_outside_a_mount(place):
    """rsync -X and tar --xattrs restore them; they do not describe the file."""
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    path, text = source.path("model.safetensors"), place / "models/text"
    text.write_bytes(b"text")
    try:
        for file in path, text:
            size = os.path.getsize(file)
            for name, value in ("name", "x"), ("dtype", "U8"), ("shape", f"[{size}]"):
                os.setxattr(file, f"user.safetensors.{name}", value.encode())
    except OSError as error:
        pytest.skip(f"no user xattrs in {place}: {error}")
    run(path, place / "out.safetensors")
    assert content(place / "out.safetensors")[0] == expected(plain())
    run(text, place / "other.safetensors", status=1)


def test_invalid_inputs(place):
    source = trees.Source(place / "models")
    source.add("two", "a", plain())
    source.add("two", "b", plain())
    source.add("torn", "model", plain(), shards=2)
    os.remove(source.path("torn/model-00001-of-00002.safetensors"))
    source.add("bad", "model", plain(), shards=2)
    os.truncate(source.path("bad/model-00002-of-00002.safetensors"), 999)
    source.add_side("none/config.json")
    source.directory("empty")
    out = place / "out.safetensors"
    for name, words in {"two": "2 checkpoints", "torn": "shards are missing", "gone": "no such",
                        "bad": "MetadataIncompleteBuffer", "none": "config.json",
                        "none/config.json": "not a checkpoint", "empty": "no checkpoint"}.items():
        err = run(source.path(name), out, status=1)
        assert words in err and f"{source.path(name)}: " in err, (name, err)
        assert not out.exists()
    assert hidden(place) == []


# ---- existing files ----

def test_overwrites_only_with_force(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain(), metadata={"format": "pt"})
    out = place / "out.safetensors"
    out.write_bytes(b"old")
    assert "--force" in run(source.root, out, status=1)
    assert out.read_bytes() == b"old"
    run("--force", source.root, out)
    assert content(out)[0] == expected(plain())
    (place / "folder.safetensors").mkdir()
    assert "directory" in run("--force", source.root, place / "folder.safetensors", status=1)


def test_directory_keeps_files_of_others(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    out = place / "out"
    out.mkdir(mode=0o750)
    run("--shards=3", source.root, out)  # an empty directory
    (out / "config.json").write_bytes(b"{}")
    (out / "adapter.safetensors").write_bytes(b"other")
    (out / ".notes.txt.deadbeef.tmp").write_bytes(b"of an editor")
    os.symlink("config.json", out / "link")
    before = snapshot(out)
    assert "--force" in run("--shards=2", source.root, out, status=1)
    assert snapshot(out) == before
    (out / ".notes.txt.deadbeef.tmp").unlink()
    run("--shards=2", "--force", source.root, out)
    assert set(os.listdir(out)) == {"config.json", "adapter.safetensors", "link",
                                    "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors",
                                    "model.safetensors.index.json"}
    assert os.readlink(out / "link") == "config.json"
    run("--shards=2", "--stem=second", source.root, out)  # next to the other checkpoint
    assert len(os.listdir(out)) == 9
    (out / "sub").mkdir()
    (out / "sub/inner.txt").write_bytes(b"inner")
    inode, mode = os.stat(out).st_ino, os.stat(out).st_mode
    run("--shards=1", "--force", source.root, out)
    assert set(os.listdir(out)) == {"config.json", "adapter.safetensors", "link", "sub",
                                    "model.safetensors",
                                    "second-00001-of-00002.safetensors",
                                    "second-00002-of-00002.safetensors",
                                    "second.safetensors.index.json"}
    assert (out / "sub/inner.txt").read_bytes() == b"inner"
    assert (inode, mode) == (os.stat(out).st_ino, os.stat(out).st_mode)
    assert hidden(place) == hidden(out) == []


def test_stem_that_is_not_utf8(mount, place):
    """The index has the bytes in Python's notation, which all programs of fstfs read, too."""
    source = trees.Source(place / "models")
    source.add("", os.fsdecode(b"\xff"), plain())
    out = place / "out"
    run("--shards=2", source.root, out)
    index = json.loads((out / os.fsdecode(b"\xff.safetensors.index.json")).read_bytes())
    assert {name.encode(errors="surrogateescape") for name in index["weight_map"].values()} == {
        b"\xff-00001-of-00002.safetensors", b"\xff-00002-of-00002.safetensors"}
    m = mount(out)
    assert os.listdir(os.fsencode(m / "merged")) == [b"\xff.safetensors"] and m.problems() == []
    assert content(os.fsencode(m / "merged") + b"/\xff.safetensors")[0] == expected(plain())


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_input_that_is_being_written(place, how):
    """A write to a mapping with dirty pages changes no time stamp."""
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    path = place / "models/model.safetensors"
    before, out = path.read_bytes(), place / "out.safetensors"
    with open(path, "r+b") as writer:
        mapping = mmap.mmap(writer.fileno(), 0) if how == "mapped" else None
        if mapping:
            mapping[-1] = mapping[-1]
        assert "open for writing" in run(source.root, out, status=1)
        if mapping:
            mapping.close()
    assert not out.exists() and path.read_bytes() == before
    run(source.root, out)
    assert content(out)[0] == expected(plain())


def test_metadata_of_the_index_is_kept(place):
    """For one complete checkpoint, as in a mount, but not for a part of it or for several."""
    source = trees.Source(place / "s")
    tensors = plain()
    source.add("", "model", tensors, shards=2, index_metadata={"total_parameters": 5})
    for args, more in ((["--shards=3"], {"total_parameters": 5}), (["--shards=2", "--drop=none*"], {})):
        run(*args, "--force", source.root, place / "out")
        with open(place / "out/model.safetensors.index.json") as f:
            assert json.load(f)["metadata"] == {"total_size": sum(t.size for t in tensors), **more}


def test_invalid_index_is_replaced(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    out = place / "out"
    out.mkdir()
    (out / "model.safetensors.index.json").write_bytes(b"{")
    assert "exists and is not one of the files" in run("--shards=2", source.root, out, status=1)
    run("--shards=2", "--force", source.root, out)
    assert is_model(out, expected(plain())) and hidden(out) == []


@pytest.mark.parametrize("content", [b"", bytes(100), b"version https://git-lfs.github.com/spec/v1\n",
                                     b'{"weight_map": {"a": "sub/a.safetensors"}}'])
@pytest.mark.parametrize("index, other", [("model.safetensors.index.json", "pytorch_model.bin"),
                                          ("model.safetensors.index.json", "consolidated.safetensors"),
                                          ("pytorch_model.bin.index.json", "adapter_model.bin")])
def test_invalid_index_without_shards(place, index, other, content):
    """No other weights are packed instead of those that it names."""
    directory = place / "models"
    if other.endswith(".bin"):
        torchfiles.save(directory / other, torchfiles.weights(1))
    else:
        directory.mkdir()
        (directory / other).write_bytes(trees.file_bytes(plain()))
    (directory / index).write_bytes(content)
    for source in (directory, directory / "model"):
        run("--shards=1", source, place / "out", status=1)
    assert not (place / "out").exists()


# ---- the command line ----

@pytest.mark.parametrize("args", [
    [], ["a"], ["a", "b"], ["--shards=0", "a", "b"], ["--shards=2", "--max-shard-size=1G", "a", "b"],
    ["--max-shard-size=big", "a", "b"], ["--stem=a/b", "--shards=2", "a", "b"],
    ["--stem=x", "a", "b.safetensors"], ["--nothing", "a", "b.safetensors"]])
def test_wrong_command_lines(args):
    assert "fstfs-pack: " in run(*args, status=2)


def test_help_and_version():
    done = subprocess.run([PACK, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "Exit status" in done.stdout
    for option in ("--max-shard-size", "--shards", "--stem", "--pick", "--drop",
                   "--tensors-only", "--force", "--verify"):
        assert option in done.stdout
    assert all(len(line) <= 95 for line in done.stdout.splitlines())
    assert subprocess.run([PACK, "-V"], capture_output=True,
                          text=True).stdout.startswith("fstfs-pack ")
