# SPDX-License-Identifier: Apache-2.0
"""fstfs-pack: its files compared with the mount's views and the Hugging Face libraries; old or new
files are complete after any failure, and other programs' files are not lost."""

import filecmp
import hashlib
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import oracle
import pytest
import safetensors
import safetensors.numpy
from conftest import INSTRUMENTED, SANITIZER, SLOW
from corpus import torchfiles, trees
from packing import (MIB, PACK, SYSTEMS, content, expected, hidden, misfortune, plain, run,
                     snapshot, tmpfs)

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


def test_nothing_picked(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    assert "exclude all tensors" in run("--pick=x*", source.root, place / "o.safetensors", status=1)


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
    run("--verify", m / "tensors/m/model", out)
    assert content(out)[0] == expected(source.checkpoints[0].tensors)
    for one in tensors:
        file = os.fsdecode(oracle.escape(one.name))
        if len(os.fsencode(file)) > 200 or "~" in file:
            continue  # the file name is shortened
        run("--force", f"{m.path}/npy/m/model/{file}.npy", place / "one.safetensors")
        assert content(place / "one.safetensors")[0] == expected([one])


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
    os.symlink("config.json", out / "link")
    before = snapshot(out)
    assert "--force" in run("--shards=2", source.root, out, status=1)
    assert snapshot(out) == before
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


# ---- failures ----

def test_a_full_disk(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain(scale=1000), metadata={"format": "pt"})  # 25 MB
    with tmpfs(place, "16M") as small:
        (small / "out.safetensors").write_bytes(b"old")
        assert "No space left" in run("--force", source.root, small / "out.safetensors", status=1)
        assert "No space left" in run("--shards=3", source.root, small / "out", status=1)
        (small / "kept").mkdir()
        (small / "kept/model.safetensors").write_bytes(b"old")
        assert "No space left" in run("--shards=3", "--force", source.root, small / "kept",
                                      status=1)
        assert snapshot(small / "kept") == {"model.safetensors": hashlib.sha256(b"old").hexdigest()}
        assert sorted(os.listdir(small)) == ["kept", "out.safetensors"]
        assert (small / "out.safetensors").read_bytes() == b"old"
        assert os.statvfs(small).f_bfree * 4096 > 15 * MIB


def test_directory_without_write_permission(place, test_user, user_program):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    program = user_program(PACK)
    shut = place / "shut"
    shut.mkdir(mode=0o555)
    for args in ([source.root, shut / "x.safetensors"], ["--shards=2", source.root, shut / "x"]):
        assert "Permission denied" in run(*args, status=1, user=test_user, program=program)
    assert os.listdir(shut) == []
    assert "No such file" in run(source.root, place / "no/where.safetensors", status=1)


def is_model(directory, tensors, alone=True):
    """Whether the index and its shards are one checkpoint of these tensors and, if `alone`, there
    are no other shards."""
    with open(directory / "model.safetensors.index.json") as f:
        index = json.load(f)
    shards = set(index["weight_map"].values())
    there = {p.name for p in directory.glob("*.safetensors")}
    assert shards == there if alone else shards <= there
    return {k: v for s in shards for k, v in content(directory / s)[0].items()} == tensors


def all_bytes(directory):
    """The contents of all files of a directory, without their names."""
    return {p.read_bytes() for p in Path(directory).iterdir() if p.is_file()}


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", ["file", "shards", "other shards"])
@pytest.mark.parametrize("replace", [True, False], ids=["replace", "new"])
def test_killed_at_every_step(place, replace, kind, system):
    """Before each call that changes something: the old or nothing, or the new; never half. Where
    shards are replaced by shards of the same names there may be no index, but never shards of
    both, and the old ones are there under hidden names."""
    old, new = plain(), plain(seed=1)
    source = trees.Source(place / "models")
    source.add("old", "model", old)
    source.add("new", "model", new)
    folder = place / "to"
    out = folder / ("out.safetensors" if kind == "file" else "out")
    cut = [] if kind == "file" else ["--shards=2"]
    first = [] if kind == "file" else ["--shards=2" if kind == "shards" else "--shards=3"]
    force = ["--force"] if replace else []
    index = out / "model.safetensors.index.json"
    states = []
    for step in range(1, 300):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        before = set()
        if replace:
            run(*first, source.path("old"), out)
            if cut:
                (out / "config.json").write_bytes(b"{}")
                before = all_bytes(out)
        done = subprocess.run([PACK, *cut, *force, source.path("new"), out], text=True,
                              env=misfortune(KILL_AT=step, **SYSTEMS[system]), capture_output=True)
        if not out.exists() and not (replace and system in ("nfs", "fuse")):
            assert not replace
            state = None
        elif not cut:
            if out.exists():
                state = content(out)[0] == expected(new)
                assert state or (replace and content(out)[0] == expected(old))
            else:  # without exchange of names it has another name for a moment
                kept, = (p for p in folder.iterdir() if p.name.endswith(".swap")
                         and content(p)[0] == expected(old))
                state = None
        elif index.exists():
            state = is_model(out, expected(new), alone=False)
            assert state or (replace and is_model(out, expected(old), alone=False))
        else:
            assert replace and (kind == "shards" or system in ("nfs", "fuse"))
            for number in (2, 3):
                shards = [content(p)[0] for p in out.glob(f"*-of-0000{number}.safetensors")]
                assert all(s.items() <= expected(new).items() for s in shards) or all(
                    s.items() <= expected(old).items() for s in shards)
            assert before <= all_bytes(out)
            state = None
        assert not (replace and cut) or (out / "config.json").read_bytes() == b"{}"
        states.append(state)
        assert len(hidden(folder)) <= (2 if kind == "file" else 1)
        inside = hidden(out) if cut and out.exists() else []
        assert all(re.fullmatch(r"\..+\.[0-9a-f]{8}\.(tmp|swap)", name)
                   for name in hidden(folder) + inside)
        if done.returncode == 0:
            assert hidden(folder) + inside == []
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        run("--force", *cut, source.path("new"), out)
        assert all(name.endswith(".swap") for name in hidden(folder) +
                   (hidden(out) if cut else []))  # the next run removes unfinished output
        assert is_model(out, expected(new)) if cut else content(out)[0] == expected(new)
    else:
        pytest.fail("killed at 300 steps without completing")
    assert states[0] is (False if replace else None) and states[-1] is True
    assert len(states) > 3
    gaps = [i for i, state in enumerate(states) if state is None]
    if replace and system in ("full", "named") and kind != "shards":
        assert gaps == []


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", ["new", "existing", "same names", "other names"])
def test_a_failure_at_every_step(place, existing, system):
    """Each call that changes something fails once with ENOSPC: the old files are restored, or the new
    ones are complete; status 0 only for the latter."""
    source = trees.Source(place / "models")
    source.add("old", "model", plain())
    source.add("new", "model", plain(seed=1))
    out, template, failed = place / "out", place / "template", 0
    template.mkdir()
    (template / "config.json").write_bytes(b"{}")
    if existing != "existing":
        run(f"--shards={2 if existing == 'same names' else 3}", source.path("old"), template)
    for step in range(1, 300):
        shutil.rmtree(out, ignore_errors=True)
        before = {}
        if existing != "new":
            shutil.copytree(template, out)
            before = snapshot(out)
        done = subprocess.run([PACK, "--shards=2", "--force", source.path("new"), out], text=True,
                              env=misfortune(FAIL_AT=step, **SYSTEMS[system]), capture_output=True)
        after = snapshot(out) if out.exists() else {}
        if after != before:
            assert is_model(out, expected(plain(seed=1)), alone=False), done.stderr
            assert existing == "new" or after["config.json"] == before["config.json"]
        assert done.returncode == 0 or "No space left" in done.stderr, done.stderr
        assert done.returncode or after != before
        failed += done.returncode
    assert failed > 8


# ---- other programs in the same directory ----

class Stopped:
    """A run that stops before its Nth call that changes a file system."""

    def __init__(self, step, *args, **settings):
        self.process = subprocess.Popen([PACK, *map(str, args)], env=misfortune(
            STOP_AT=step, **settings), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        self.over = not os.WIFSTOPPED(status)
        if self.over:
            self.process.returncode = os.waitstatus_to_exitcode(status)

    def go_on(self):
        """Continues the run and returns (exit status, standard error)."""
        if not self.over:
            os.kill(self.process.pid, signal.SIGCONT)
        err = self.process.communicate(timeout=50 * SLOW)[1]
        assert not any(sign in err for sign in SANITIZER), err
        return self.process.returncode, err


def at_every_step(begin, meddle, check):
    """Stops a run before each of its changes, calls meddle(), and continues it."""
    statuses = []
    for step in range(1, 300):
        run_of_it = begin(step)
        if run_of_it.over:
            assert run_of_it.go_on()[0] == 0
            return statuses
        try:
            known = meddle()
        finally:
            status, err = run_of_it.go_on()
        check(status, err, known)
        statuses.append(status)
    return pytest.fail("not completed after 300 steps")


def fill(out, source, existing):
    shutil.rmtree(out, ignore_errors=True)
    if existing:
        shutil.copytree(source.path("template"), out)
        if existing != "old":
            for path in out.glob("model*"):
                path.unlink()


@pytest.fixture
def pair_of_models(place):
    source = trees.Source(place / "models")
    source.add("old", "model", plain(prefix="old"))
    source.add("new", "model", plain(prefix="new", seed=1))
    source.add("other", "model", plain(prefix="other", seed=2))
    source.add_side("template/config.json", b"{}")
    run("--shards=2", source.path("old"), source.path("template"))
    return source


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", [False, True, "old"], ids=["new", "existing", "replace"])
@pytest.mark.parametrize("stem", ["model", "second"])
def test_a_second_run_into_the_directory(place, pair_of_models, stem, existing, system):
    """Exactly one run exits with 0, and its output is complete."""
    source, out = pair_of_models, place / "out"

    def begin(step):
        fill(out, source, existing)
        return Stopped(step, "--shards=2", "--force", source.path("new"), out, **SYSTEMS[system])

    def meddle():
        done = subprocess.run([PACK, "--shards=3", "--force", f"--stem={stem}",
                               source.path("other"), out], capture_output=True, text=True,
                              env=misfortune(**SYSTEMS[system]))
        if done.returncode:
            assert done.returncode == 1 and "locked by another program (process " in done.stderr
            assert str(out) in done.stderr
        return done.returncode

    def check(status, err, second):
        assert (status == 0) != (second == 0), (status, second, err)
        tensors = [set(content(p)[0]) for p in out.glob("*.safetensors")]
        names = set().union(*tensors)
        assert status or {f"newt{i}" for i in range(6)} <= names
        assert second or {f"othert{i}" for i in range(6)} <= names
        assert not existing or (out / "config.json").read_bytes() == b"{}"
        assert hidden(place) == hidden(out) == []

    statuses = at_every_step(begin, meddle, check)
    assert statuses.count(0) > 8


def replace_directory(out):
    """Returns the name of a file that must still exist afterwards."""
    if out.exists():
        shutil.rmtree(f"{out}-moved", ignore_errors=True)
        out.rename(f"{out}-moved")
    out.mkdir()
    (out / "thesis.txt").write_bytes(b"precious")
    return "thesis.txt"


def make_file(out):
    (out if out.exists() else out.parent).joinpath("notes.txt").write_bytes(b"precious")
    return "notes.txt" if out.exists() else "../notes.txt"


def renamed_over(name):
    def put(out):
        if not out.exists():
            out.mkdir()
        (out / ".saving").write_bytes(b"precious")
        (out / ".saving").rename(out / name)
        return name

    return put


MEDDLERS = {"directory": replace_directory, "file": make_file,
            "config": renamed_over("config.json"), "index": renamed_over(
                "model.safetensors.index.json"),
            "shard": renamed_over("model-00002-of-00002.safetensors"),
            "other shard": renamed_over("model-00003-of-00003.safetensors")}


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", [False, True, "old"], ids=["new", "existing", "replace"])
@pytest.mark.parametrize("what", MEDDLERS)
def test_files_of_other_programs_are_kept(place, pair_of_models, what, existing, system):
    """At every step: the file is kept, and so are all old files, or the new ones have status 0."""
    source, out = pair_of_models, place / "out"
    # without flags and links there is a gap between checking and giving a name
    unsafe = system == "fuse" and what in ("index", "shard")
    before = set()

    def begin(step):
        fill(out, source, existing)
        before.clear()
        before.update(all_bytes(out) if existing else ())
        return Stopped(step, "--shards=2", "--force", source.path("new"), out, **SYSTEMS[system])

    def check(status, err, name):
        moved = Path(f"{out}-moved")
        where = moved if what == "directory" and moved.exists() else out
        if not unsafe:
            assert (out / name).read_bytes() == b"precious", (status, err)
        if status == 0:
            tensors = set().union(*(content(p)[0] for p in where.glob("*-of-00002.safetensors")
                                    if p.read_bytes() != b"precious"))
            assert {f"newt{i}" for i in range(6)} <= tensors or what in ("index", "shard")
        else:
            assert status == 1 and err.count("\n") >= 1
            if existing and what not in ("index", "shard", "config"):
                assert before <= all_bytes(where)

    statuses = at_every_step(begin, lambda: MEDDLERS[what](out), check)
    if what in ("directory", "index", "shard") or (existing is False and what != "file"):
        assert statuses.count(1) > 3


@pytest.mark.parametrize("what", ["output", "input"])
def test_failing_readdir(place, what):
    """An error in the middle of a directory is not taken for its end."""
    source = trees.Source(place / "models")
    source.add("m", "model", plain(), shards=3)
    (place / "npy").mkdir()
    for name in "abc":
        np.save(place / f"npy/{name}.npy", np.arange(9))
    out, failed = place / "out", []
    for at in range(1, 80):  # more than there are calls
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name in ("config.json", "x.txt", "y.txt"):
            (out / name).write_bytes(b"{}")
        before = snapshot(out)
        args = [source.path("m"), out] if what == "output" else [place / "npy", out]
        done = subprocess.run([PACK, "--force", "--shards=2", *args], capture_output=True,
                              text=True, env=misfortune(READDIR_AT=at))
        if done.returncode:
            assert done.returncode == 1 and "Input/output error" in done.stderr, done.stderr
            assert snapshot(out) == before
        else:
            assert snapshot(out).items() > before.items()
            tensors = {k for p in out.glob("*.safetensors") for k in content(p)[0]}
            assert len(tensors) == (6 if what == "output" else 3)
        failed.append(done.returncode)
    assert sum(failed) > 3 and failed[-10:] == [0] * 10


def test_reader_sees_complete_checkpoints(place):
    """While a checkpoint is replaced repeatedly by one with other shards, there is always an index, and
    all of its shards exist."""
    source = trees.Source(place / "models")
    for seed in range(2):
        source.add(f"m{seed}", "model", plain(seed=seed))
    out = place / "out"
    index = out / "model.safetensors.index.json"
    run("--shards=4", source.path("m1"), out)
    looks = 0
    for i in range(12):
        process = subprocess.Popen([PACK, "--force", f"--shards={2 + i % 3}",
                                    source.path(f"m{i % 2}"), out], stderr=subprocess.DEVNULL)
        while process.poll() is None:
            looks += 1
            text = index.read_bytes()
            wanted, found = set(json.loads(text)["weight_map"].values()), set(os.listdir(out))
            assert wanted <= found or index.read_bytes() != text
        assert process.returncode == 0
    assert looks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_and_memory_limit(place, number):
    """A sparse file of 4 GiB; the signal is sent when the bar has moved."""
    trees.write_sparse(place / "model.safetensors", [("t", "U8", [1 << 32], 1 << 32)])
    for output in (["--shards=1"], place / "out"), ([], place / "out.safetensors"):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PACK, *output[0], place / "model.safetensors", output[1]],
                                   stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        progress = b""
        while not re.search(rb" [1-9]\d?% writing", progress):
            progress += os.read(ours, 65536)
        with open(f"/proc/{process.pid}/status") as f:
            most = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
        process.send_signal(number)
        process.wait(20 * SLOW)
        with suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                progress += piece
        os.close(ours)
        assert process.returncode == 128 + number
        assert b" GB/s" in progress and b"interrupted" in progress
        assert INSTRUMENTED or most < 192 * 1024  # KiB; sanitizers use memory of their own
        assert os.listdir(place) == ["model.safetensors"]


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
