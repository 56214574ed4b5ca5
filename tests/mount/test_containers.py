# SPDX-License-Identifier: Apache-2.0
"""PyTorch checkpoints are shown as safetensors files; other files with their suffixes are shown unchanged."""

import concurrent.futures
import errno
import io
import json
import os
import random
import sys
import tarfile
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, child, eventually

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import torchfiles as t  # noqa: E402
import trees  # noqa: E402
from torchfiles import TINY, save, torch_file, weights  # noqa: E402

def tar_file():
    """A file in the format before PyTorch 0.1.11: pickles in a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            file.addfile(tarfile.TarInfo(name), None)
    return out.getvalue()


NO_CHECKPOINTS = {
    "training_args.bin": t.archive({"lr": 0.1, "args": t.Call(t.Global("transformers", "TrainingArguments"))}, {}),
    "scheduler.pt": t.archive({"step": 5, "lr": 0.1}, {}),
    "scripted.pt": t.archive(bad_torch.ONE, {"0": b"12345678"}, extra=[("code/__torch__.py", b"")]),
    "sentencepiece.bpe.bin": b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02",
    "vocab.pth": b"",
    "old.pth": tar_file(),
    "rows-00001-of-00003.pth": b"rows",
}


def write_safetensors(path, tensors):
    path.write_bytes(trees.file_bytes([trees.tensor(name, "F32", shape, seed=name) for name, (shape, _) in tensors.items()]))


def contents(path):
    """The tensors of a generated safetensors file, in the form of weights()."""
    entries, metadata, start = oracle.read_header(path)
    assert metadata == {"format": "pt"} and start % 4096 == 0
    assert all(entry.dtype == "F32" for entry in entries)
    return {entry.name: (tuple(entry.shape), entry.read()) for entry in entries}


def check_tensors(m, directory, tensors, index=None):
    """A checkpoint in tensors/ and npy/, with xattrs and index."""
    assert set(os.listdir(m / f"tensors/{directory}")) == set(tensors)
    assert set(os.listdir(m / f"npy/{directory}")) == {f"{name}.npy" for name in tensors}
    assert json.loads(m.read(f"tensors/{index or directory}.index.json"))["weight_map"].keys() == tensors.keys()
    for name, (shape, data) in tensors.items():
        path = m / f"tensors/{directory}/{name}"
        assert oracle.read_all(path) == data
        assert oracle.read_all(m / f"npy/{directory}/{name}.npy") == oracle.npy_bytes("F32", shape, data)
        assert json.loads(os.getxattr(path, "user.safetensors.shape")) == list(shape)
        assert os.getxattr(path, "user.safetensors.dtype") == b"F32"
        extent, = json.loads(os.getxattr(path, "user.fstfs.extents"))
        with open(extent["path"], "rb") as file:
            file.seek(extent["offset"])
            assert file.read(extent["length"]) == data


def check_unchanged(m, source, names):
    """These files are unchanged in merged/ and shards/, and are in no other view."""
    for name in names:
        for view in ("merged", "shards"):
            assert oracle.read_all(m / f"{view}/{name}") == (source / name).read_bytes(), (view, name)


def lists(m, directory="."):
    return [sorted(os.listdir(m / f"{view}/{directory}")) for view in ("merged", "shards", "tensors", "npy")]


@pytest.mark.parametrize("how", [t.archive, t.legacy])
def test_one_file_in_all_views(mount, place, how):
    tensors = weights(1)
    save(place / "s/llama/pytorch_model.bin", tensors, how)
    (place / "s/llama/config.json").write_text("{}")
    m = mount(place / "s")
    files = ["config.json", "model.safetensors"]
    assert lists(m, "llama") == [files, files, ["model", "model.index.json"], ["model"]]
    for view in ("merged", "shards"):
        assert contents(m / f"{view}/llama/model.safetensors") == tensors
        assert not os.path.exists(m / f"{view}/llama/pytorch_model.bin")
    check_tensors(m, "llama/model", tensors)
    assert m.problems() == []


@pytest.mark.parametrize("source, stem", [
    ("pytorch_model.bin", "model"), ("pytorch_model.fp16.bin", "model.fp16"), ("pytorch_model_fsdp.bin", "pytorch_model_fsdp"),
    ("diffusion_pytorch_model.bin", "diffusion_pytorch_model"), ("adapter_model.bin", "adapter_model"), ("x.pt", "x"),
    ("last.CKPT", "last"), ("model.bin", "model"),
])
def test_names_that_loaders_look_for(mount, place, source, stem):
    tensors = weights(2)
    save(place / "s" / source, tensors)
    m = mount(place / "s")
    assert lists(m) == [[f"{stem}.safetensors"], [f"{stem}.safetensors"], [stem, f"{stem}.index.json"], [stem]]
    for view in ("merged", "shards"):
        assert contents(m / f"{view}/{stem}.safetensors") == tensors
    check_tensors(m, stem, tensors)


@pytest.mark.parametrize("shard, index, stem, shown_index", [
    ("pytorch_model-{:05}-of-00003.bin", "pytorch_model.bin.index.json", "model", "model.safetensors.index.json"),
    ("pytorch_model.fp16-{:05}-of-00003.bin", "pytorch_model.bin.index.fp16.json", "model.fp16",
     "model.safetensors.index.fp16.json"),
    ("pytorch_model-{:05}-of-00003.fp16.bin", None, "model.fp16", "model.safetensors.index.fp16.json"),
    ("diffusion_pytorch_model-{:05}-of-00003.bin", "diffusion_pytorch_model.bin.index.json", "diffusion_pytorch_model",
     "diffusion_pytorch_model.safetensors.index.json"),
    ("part-{}.bin", "whole.bin.index.json", "whole", "whole.safetensors.index.json"),
    ("x-{:05}-of-00003.pt", None, "x", "x.safetensors.index.json"),
])
def test_shards_and_their_index(mount, place, shard, index, stem, shown_index):
    shards = [weights(i, {f"{i}.{name}": shape for name, shape in TINY.items()}) for i in range(3)]
    everything = {name: tensor for tensors in shards for name, tensor in tensors.items()}
    for i, tensors in enumerate(shards):
        save(place / "s" / shard.format(i + 1), tensors)
    if index:
        weight_map = {name: shard.format(i + 1) for i, tensors in enumerate(shards) for name in tensors}
        (place / "s" / index).write_bytes(trees.index_bytes(weight_map))
    m = mount(place / "s")
    parts = [f"{stem}-{i + 1:05}-of-00003.safetensors" for i in range(3)]
    assert lists(m) == [[f"{stem}.safetensors"], sorted([*parts, shown_index]), [stem, f"{stem}.index.json"], [stem]]
    assert contents(m / f"merged/{stem}.safetensors") == everything
    for part, tensors in zip(parts, shards):
        assert contents(m / f"shards/{part}") == tensors
    assert json.loads(m.read(f"shards/{shown_index}"))["weight_map"] == \
        {name: part for part, tensors in zip(parts, shards) for name in tensors}
    check_tensors(m, stem, everything)
    assert m.problems() == []


def test_tensor_parallel_parts(mount, place):
    """Parts that have the same names are checkpoints of their own."""
    parts = [weights(i) for i in range(2)]
    for i, tensors in enumerate(parts):
        save(place / f"s/consolidated.{i:02}.pth", tensors)
    (place / "s/params.json").write_text("{}")
    m = mount(place / "s")
    files = ["consolidated.00.pth", "consolidated.01.pth", "params.json"]
    assert lists(m)[:2] == [files, files]
    check_unchanged(m, place / "s", files)
    for i, tensors in enumerate(parts):
        check_tensors(m, f"consolidated.{i:02}", tensors)
    assert m.problems() == []


def test_recut(mount, place):
    shards = [weights(i, {f"{i}.{name}": (1024,) for name in "abcd"}) for i in range(2)]
    for i, tensors in enumerate(shards):
        save(place / f"s/pytorch_model-{i + 1:05}-of-00002.bin", tensors)
    m = mount(place / "s", "--shard-size=12K")
    parts = [f"model-{i + 1:05}-of-00003.safetensors" for i in range(3)]
    assert sorted(os.listdir(m / "shards")) == [*parts, "model.safetensors.index.json"]
    found = [contents(m / f"shards/{part}") for part in parts]
    assert [len(part) for part in found] == [3, 3, 2]
    assert {name: value for part in found for name, value in part.items()} == shards[0] | shards[1]


def test_tensors_that_share_a_storage(mount, place):
    data = random.Random(3).randbytes(4 * 24)
    storage = t.storage("0", 24)
    (place / "s").mkdir()
    (place / "s/pytorch_model.bin").write_bytes(t.archive({
        "embed": t.tensor(storage, (4, 6)), "head": t.tensor(storage, (4, 6)), "tail": t.tensor(storage, (6,), offset=18),
        "own": t.tensor(t.storage("1", 2), (2,)), "nothing": t.tensor(t.storage("2", 0), (0,)),
    }, {"0": data, "1": b"12345678", "2": b""}))
    expected = {"embed": ((4, 6), data), "head": ((4, 6), data), "tail": ((6,), data[72:]), "own": ((2,), b"12345678"),
                "nothing": ((0,), b"")}
    m = mount(place / "s")
    assert contents(m / "merged/model.safetensors") == contents(m / "shards/model.safetensors") == expected
    check_tensors(m, "model", expected)
    extents = {name: json.loads(os.getxattr(m / f"tensors/model/{name}", "user.fstfs.extents"))[0]["offset"] for name in expected}
    assert extents["embed"] == extents["head"] == extents["tail"] - 72
    assert m.problems() == []


def test_other_files_are_shown_unchanged(mount, place):
    (place / "s").mkdir()
    names = ["pytorch_model.bin", *NO_CHECKPOINTS]
    for name, data in NO_CHECKPOINTS.items():
        (place / "s" / name).write_bytes(data)
        (place / "s/each" / name).mkdir(parents=True)
        (place / "s/each" / name / name).write_bytes(data)
    save(place / "s/pytorch_model.bin", weights(4))
    m = mount(place / "s")
    check_unchanged(m, place / "s", [*names, *(f"each/{name}/{name}" for name in NO_CHECKPOINTS)])
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == sorted(["each", *names])
        for name in NO_CHECKPOINTS:
            assert os.listdir(m / f"{view}/each/{name}") == [name]
    assert sorted(os.listdir(m / "tensors")) == ["each", "model", "model.index.json"]
    for name in NO_CHECKPOINTS:
        assert not os.path.exists(m / f"tensors/{Path(name).stem}")
        assert not os.path.exists(m / f"merged/{Path(name).stem}.safetensors")
    assert m.problems() == []


A, B = weights(11), weights(12, {"other": (3,)})
SET = ["model-00001-of-00002", "model-00002-of-00002"]
UNCHANGED = {  # {directory: files}; all of them are shown as in the source
    "beside other safetensors": ["gptq_model-4bit.safetensors", "pytorch_model.bin", "llama_ema.pt", "model.ckpt"],
    "beside a set": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "mtp.safetensors", "consolidated.00.pth"],
    "set or PyTorch": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "pytorch_model.bin"],
    "set or shards of PyTorch": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", *(f"pytorch_{name}.bin" for name in SET)],
    "training state": ["adapter_model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"],
    "training state only": ["optimizer.bin", "optimizer_1.bin", "scheduler.bin", "random_states_0.pt"],
    "other format": ["consolidated.00.pth", "consolidated.01.pth"],
    "shards beside a part": [*(f"pytorch_{name}.bin" for name in SET), "mm_projector.bin"],
    "shards beside one file": [*(f"pytorch_{name}.bin" for name in SET), "pytorch_model.bin"],
    "two of PyTorch": ["pytorch_model.bin", "mm_projector.bin", "training_args.bin"],
    "two suffixes": ["a.pth", "b.bin"],
    "one stem, two suffixes": ["pytorch_model.pt", "model.bin"],
    "two optimizers": ["model.pt", "actor_optimizer.pt"],
    "set and one file": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "model.safetensors"],
    "two sets or PyTorch": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "model-00001-of-00003.safetensors", "x.txt",
                            "pytorch_model.bin"],
    "invalid index": ["vit.safetensors.index.json", "ema.bin"],
    "its invalid index": ["model.safetensors", "model.safetensors.index.json", "mtp.safetensors"],
    "invalid index of another suffix": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "model.sft.index.json",
                                        "mtp.safetensors"],
    "invalid index of PyTorch": ["pytorch_model.bin", "pytorch_model.bin.index.json", "ema.bin"],
    "invalid index of PyTorch shards": [*(f"pytorch_{name}.bin" for name in SET), "pytorch_model.bin.index.json", "ema.bin"],
    "one of both": ["model.safetensors", "pytorch_model.bin"],
    "one and an adapter of PyTorch": ["model.safetensors", "adapter_model.bin", "optimizer.pt"],
    "one and shards of PyTorch": ["vit.safetensors", *(f"pytorch_{name}.bin" for name in SET)],
    "one or shards of PyTorch": ["model.safetensors", *(f"pytorch_{name}.bin" for name in SET), "pytorch_model.bin.index.json"],
    "set and an adapter of PyTorch": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "adapter_model.bin"],
    "download of safetensors": ["pytorch_model.bin", "model.safetensors.aria2"],
    "index of diffusers or PyTorch": ["model-00001-of-00001.fp16.safetensors", "model.safetensors.fp16.index.json",
                                      "pytorch_model.fp16.bin"],
    "set or one file of diffusers": [*(f"diffusion_pytorch_{name}.safetensors" for name in SET),
                                     "diffusion_pytorch_model.safetensors"],
    "one file and a lost set": ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"],
    "two suffixes or PyTorch": [f"{SET[0]}.safetensors", f"{SET[1]}.safetensors", "model.sft.index.json", "x.sft",
                                "pytorch_model.bin"],
}
NAMES_OF_OTHERS = {  # {directory: {index: its files}}; generated files would have names of these files
    "numbered": {"model.safetensors.index.json": ["a0.safetensors", "a1.safetensors"],
                 "model.fp16.safetensors.index.json": ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
                 "": ["pytorch_model.fp16.bin"]},
    "two indexes": {"vit.safetensors.index.json": ["a0.safetensors", "a1.safetensors"],
                    "model.fp16.safetensors.index.json": ["vit-00001-of-00002.safetensors", "vit-00002-of-00002.safetensors"],
                    "model.safetensors.index.fp16.json": ["vit-00001-of-00002.safetensors", "vit-00002-of-00002.safetensors"]},
    "single": {"model.safetensors.index.json": ["a0.safetensors", "a1.safetensors"],
               "model.fp16.safetensors.index.json": ["model.safetensors"], "": ["pytorch_model.fp16.bin"]},
}


@pytest.mark.parametrize("options", [[], ["--shards=1"], ["--shards=2"], ["--shard-size=20"]], ids=" ".join)
@pytest.mark.parametrize("directory", NAMES_OF_OTHERS)
def test_names_of_other_checkpoints(mount, place, directory, options):
    """In each view an index names files with the bytes that its files have in the source."""
    (place / "s").mkdir()
    for index, names in NAMES_OF_OTHERS[directory].items():
        tensors = {name: {f"{i}.{key}": value for key, value in A.items()} for i, name in enumerate(names)}
        for name in names:
            if name.endswith(".bin"):
                save(place / "s" / name, tensors[name])
            elif not (place / "s" / name).exists():
                (place / "s" / name).write_bytes(trees.file_bytes(
                    [trees.tensor(key, "F32", shape, seed=index) for key, (shape, _) in tensors[name].items()]))
        if index:
            (place / "s" / index).write_bytes(trees.index_bytes({key: name for name in names for key in tensors[name]}))

    def find(path):
        shards = set(json.loads((path).read_bytes())["weight_map"].values())
        return {e.name: e.read() for shard in shards for e in oracle.read_header(path.parent / shard)[0]}

    m = mount(place / "s", *options)
    for view in ("merged", "shards"):
        for index in filter(None, NAMES_OF_OTHERS[directory]):
            if os.path.exists(m / f"{view}/{index}"):
                assert find(Path(m / f"{view}/{index}")) == find(place / "s" / index), (view, index)


NOT_CUT = ["beside a set", "set or PyTorch", "set and one file", "one of both",
           "one and an adapter of PyTorch", "one and shards of PyTorch", "one or shards of PyTorch",
           "set and an adapter of PyTorch", "one file and a lost set", "set or one file of diffusers", "index of diffusers or PyTorch"]
TEXTS = {"one file and a lost set": trees.index_bytes({"b": f"{SET[0]}.safetensors"}).decode(),
         "two suffixes or PyTorch": trees.index_bytes({"x.sft.a": "x.sft"}).decode(),
         "index of diffusers or PyTorch": trees.index_bytes({"b": "model-00001-of-00001.fp16.safetensors"}).decode()}


@pytest.mark.parametrize("options", [[], ["--shards=3"], ["--shard-size=1M"], ["--shard-size=20"]], ids=" ".join)
def test_directories_in_which_nothing_is_converted(mount, place, options):
    """Loaders that are given the directory find the same weights as in the source: those with certain names, or all with
    the suffix that they prefer, without files that model.safetensors.index.json does not name."""
    for directory, names in UNCHANGED.items():
        for name in names:
            path = place / "s" / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {f"{name}.{key}": value for key, value in A.items()}
            if name.endswith((".json", ".txt", ".aria2")):
                path.write_text(TEXTS.get(directory, "{}"))
            elif name.endswith((".safetensors", ".sft")):
                write_safetensors(path, tensors)
            else:
                save(path, tensors)
    m = mount(place / "s", *options)
    for directory, names in UNCHANGED.items():
        if options == ["--shard-size=20"] and directory not in NOT_CUT:
            continue
        merged, shards, tensors, _ = lists(m, directory)
        if directory in ("beside a set", "set and one file", "invalid index of another suffix",
                         "set and an adapter of PyTorch"):
            assert merged == sorted({"model.safetensors", *names[2:]})
        elif directory == "set or one file of diffusers":
            assert merged == names[2:]
        elif directory == "one file and a lost set":
            assert merged == ["model.safetensors", "pytorch_model.bin"]
            assert {e.name for e in oracle.read_header(m / f"merged/{directory}/model.safetensors")[0]} == {
                f"model.safetensors.{key}" for key in A}
        else:
            check_unchanged(m, place / "s", [f"{directory}/{name}" for name in names])
            assert merged == sorted(names), directory
        assert shards == sorted(names), directory
        for name in names:
            assert oracle.read_all(m / f"shards/{directory}/{name}") == (place / "s" / directory / name).read_bytes()
        assert tensors
    check_tensors(m, "other format/consolidated.00", {f"consolidated.00.pth.{key}": value for key, value in A.items()})
    shadowed = [line for line in m.problems() if "another checkpoint has the name" in line]
    assert {line.split("/")[0] for line in shadowed} == {"set and one file", "set or one file of diffusers",
                                                         "one file and a lost set"}
    assert all(name in UNCHANGED for name in NOT_CUT)


@pytest.mark.parametrize("options", [[], ["--shard-size=1M"]], ids=" ".join)
@pytest.mark.parametrize("link", ["model.safetensors", "other.safetensors", f"{SET[0]}.safetensors",
                                  "model.safetensors.index.json", "other.bin"])
def test_broken_link_beside_a_file_of_pytorch(mount, place, link, options):
    """The link may be what loaders open in the source, so no converted file takes its place."""
    save(place / "s/pytorch_model.bin", A)
    (place / "s" / link).symlink_to("missing")
    m = mount(place / "s", *options)
    for view in ("merged", "shards"):
        assert os.listdir(m / view) == ["pytorch_model.bin"]
        assert oracle.read_all(m / f"{view}/pytorch_model.bin") == (place / "s/pytorch_model.bin").read_bytes()
    (place / "s" / link).unlink()
    (place / "s/optimizer.pt").symlink_to("missing")
    for view in ("merged", "shards"):
        assert eventually(lambda: os.listdir(m / view) == ["model.safetensors"])
        assert contents(m / f"{view}/model.safetensors") == A


@pytest.mark.parametrize("names, shown", [
    (["pytorch_model.bin", "optimizer.pt", "rng_state.pth", "training_args.bin"],
     ["model.safetensors", "optimizer.pt", "rng_state.pth", "training_args.bin"]),
    (["last.ckpt", "consolidated00.bin"], ["last.safetensors", "consolidated00.bin"]),
    (["adapter_model.bin", "optimizer.bin", "x.gguf"], ["adapter_model.safetensors", "optimizer.bin", "x.gguf"]),
])
def test_checkpoint_beside_other_files(mount, place, names, shown):
    """It is converted if it is the only one, apart from training state and other formats."""
    for name in names:
        save(place / "s" / name, A)
    m = mount(place / "s")
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == sorted(shown)
        for name, made in zip(names, shown):
            if name == made:
                assert oracle.read_all(m / f"{view}/{name}") == (place / "s" / name).read_bytes()
            else:
                assert contents(m / f"{view}/{made}") == A


def test_a_safetensors_file_is_added(mount, place):
    """PyTorch files of the directory are shown unchanged from then on, and as safetensors when it is removed."""
    save(place / "s/pytorch_model.bin", A)
    m = mount(place / "s")
    assert os.listdir(m / "merged") == ["model.safetensors"]
    write_safetensors(place / "s/other.safetensors", B)
    for view in ("merged", "shards"):
        assert eventually(lambda: sorted(os.listdir(m / view)) == ["other.safetensors", "pytorch_model.bin"])
    check_unchanged(m, place / "s", ["other.safetensors", "pytorch_model.bin"])
    check_tensors(m, "model", A)
    (place / "s/other.safetensors").unlink()
    for view in ("merged", "shards"):
        assert eventually(lambda: os.listdir(m / view) == ["model.safetensors"])
        assert contents(m / f"{view}/model.safetensors") == A


def test_safetensors_with_the_same_stem_is_preferred(mount, place):
    tensors = weights(5)
    names = ["pytorch_model.bin", "x.pt", "y-00001-of-00002.bin", "y-00002-of-00002.bin"]
    for name in names:
        save(place / "s" / name, tensors)
    (place / "s/pytorch_model.bin.index.json").write_bytes(trees.index_bytes({"a": "pytorch_model-00001-of-00001.bin"}))
    for name in ("model.safetensors", "x.sft", "y.safetensors"):
        write_safetensors(place / "s" / name, tensors)
    m = mount(place / "s")
    check_unchanged(m, place / "s", os.listdir(place / "s"))
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == sorted(os.listdir(place / "s"))
    assert sorted(os.listdir(m / "npy")) == ["model", "x", "y"]
    assert m.problems() == []


def test_files_of_pytorch_with_one_stem(mount, place):
    """None is converted; each has a directory of tensors."""
    first, second = weights(6), weights(7)
    save(place / "s/pytorch_model.bin", first)
    save(place / "s/model.bin", second)
    save(place / "s/x.bin", first)
    save(place / "s/x.pt", second)
    m = mount(place / "s")
    names = ["model.bin", "pytorch_model.bin", "x.bin", "x.pt"]
    assert lists(m)[:2] == [names, names]
    check_unchanged(m, place / "s", names)
    assert sorted(os.listdir(m / "npy")) == ["model", "model.bin", "x", "x.pt"]
    check_tensors(m, "model", first)
    check_tensors(m, "model.bin", second)
    check_tensors(m, "x.pt", second)
    assert m.problems() == []


def test_directories_with_names_of_checkpoints(mount, place):
    tensors = weights(8)
    save(place / "s/1/x.pt", tensors)
    (place / "s/1/x").mkdir()
    save(place / "s/2/y.pt", tensors)
    (place / "s/2/y.safetensors").mkdir()
    m = mount(place / "s")
    check_tensors(m, "1/x.pt", tensors, index="1/x")
    check_tensors(m, "2/y", tensors)
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / f"{view}/1")) == ["x", "x.safetensors"]
        assert sorted(os.listdir(m / f"{view}/2")) == ["y.pt", "y.safetensors"]
        assert os.path.isdir(m / f"{view}/2/y.safetensors")
    check_unchanged(m, place / "s", ["2/y.pt"])
    assert {line.split(":")[0] for line in m.problems()} == {"1/x.pt", "2/y.pt"}


@pytest.mark.parametrize("beside", ["mtp.safetensors", "pytorch_model.bin"])
def test_set_with_an_invalid_index(mount, place, beside):
    """It has a generated index, as without other files. In the source loaders fail to read the index."""
    index = "model.safetensors.index.json"
    for i, name in enumerate(SET):
        (place / "s").mkdir(exist_ok=True)
        write_safetensors(place / f"s/{name}.safetensors", {f"{i}": A["scale"]})
    write_safetensors(place / f"s/{beside}", B) if beside.endswith(".safetensors") else save(place / "s" / beside, B)
    (place / "s" / index).write_text("{")
    m = mount(place / "s")
    assert lists(m)[1] == sorted([*(f"{name}.safetensors" for name in SET), beside, index])
    assert json.loads(m.read(f"shards/{index}"))["weight_map"] == {f"{i}": f"{name}.safetensors" for i, name in enumerate(SET)}


def test_incomplete_shards(mount, place):
    shards = [weights(i, {f"{i}.a": (4,)}) for i in range(2)]
    for i, tensors in enumerate(shards):
        save(place / f"s/pytorch_model-{i + 1:05}-of-00003.bin", tensors)
    m = mount(place / "s")
    check_unchanged(m, place / "s", os.listdir(place / "s"))
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / view)) == sorted(os.listdir(place / "s"))
    check_tensors(m, "model", shards[0] | shards[1])
    line, = m.problems()
    assert line.startswith("pytorch_model-00001-of-00003.bin: 1 of the 3 shards of model do not exist")


def test_shard_that_is_not_a_checkpoint(mount, place):
    tensors = weights(9)
    save(place / "s/pytorch_model-00001-of-00002.bin", tensors)
    (place / "s/pytorch_model-00002-of-00002.bin").write_bytes(b"text")
    m = mount(place / "s")
    check_unchanged(m, place / "s", os.listdir(place / "s"))
    assert lists(m)[0] == lists(m)[1] == sorted(os.listdir(place / "s"))
    check_tensors(m, "model", tensors)
    line, = m.problems()
    assert line.startswith("pytorch_model-00002-of-00002.bin: refused: NotTorch")


def test_tensors_that_safetensors_cannot_represent(mount, place):
    data = random.Random(10).randbytes(24)
    (place / "s").mkdir()
    (place / "s/x.pt").write_bytes(t.archive({
        "good": t.tensor(t.storage("0", 6), (6,)), "turned": t.tensor(t.storage("0", 6), (2, 3), strides=(1, 2))}, {"0": data}))
    m = mount(place / "s")
    assert lists(m) == [["x.pt"], ["x.pt"], ["x", "x.index.json"], ["x"]]
    check_tensors(m, "x", {"good": ((6,), data)})
    check_unchanged(m, place / "s", ["x.pt"])
    line, = m.problems()
    assert line.startswith('x.pt: tensor "turned": it is not contiguous: ')
    assert line.endswith("; it is missing, and the files themselves are shown")


def test_many_tensors_that_safetensors_cannot_represent(mount, place):
    """.fstfs/problems names the first three and counts all."""
    (place / "s").mkdir()
    root = {f"t{i}": t.tensor(t.storage("0", 6), (2, 3), strides=(1, 2)) for i in range(5)}
    (place / "s/x.pt").write_bytes(t.archive(root | {"good": t.tensor(t.storage("0", 6), (6,))}, {"0": bytes(24)}))
    m = mount(place / "s")
    lines = m.problems()
    assert [line.startswith('x.pt: tensor "t') for line in lines] == [False] + [True] * 3
    assert lines[0] == "x.pt: 5 of its 6 tensors cannot be shown"


def current(read, path):
    """What read(path) returns, or nothing if the mount still has an older version of the file."""
    try:
        return read(path)
    except OSError as error:
        assert error.errno == errno.ESTALE, error
        return b""


def test_file_that_changes_its_role_in_place(mount, place):
    """The file keeps its inode, and its directory does not change."""
    tensors, other = weights(11), weights(12)
    path = place / "s/x.bin"
    path.parent.mkdir()
    path.write_bytes(b"text")
    m = mount(place / "s")
    assert lists(m) == [["x.bin"], ["x.bin"], [], []]
    for made in (tensors, other):
        path.write_bytes(torch_file(made))
        assert eventually(lambda: lists(m) == [["x.safetensors"], ["x.safetensors"], ["x", "x.index.json"], ["x"]])
        for view in ("merged", "shards"):
            assert eventually(lambda: current(contents, m / f"{view}/x.safetensors") == made)
        for name, (_, data) in made.items():
            assert eventually(lambda: current(oracle.read_all, m / f"tensors/x/{name}") == data)
            assert eventually(lambda: current(oracle.read_all, m / f"npy/x/{name}.npy").endswith(data))
        check_tensors(m, "x", made)
    path.write_bytes(b"text again")
    assert eventually(lambda: lists(m) == [["x.bin"], ["x.bin"], [], []])
    for view in ("merged", "shards"):
        assert eventually(lambda: current(oracle.read_all, m / f"{view}/x.bin") == b"text again")
        assert eventually(lambda: not os.path.exists(m / f"{view}/x.safetensors"))
    assert m.problems() == []


def refusals(paths):
    """The errors of opening each, or None."""
    errors = []
    for path in paths:
        try:
            with open(path, "rb"):
                errors.append(None)
        except OSError as error:
            errors.append(error.errno)
    return errors


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_permissions_of_the_source(mount, place):
    tensors = weights(14)
    for name in ("open", "closed"):
        save(place / "s" / name / "x.bin", tensors)
    (place / "s/text").mkdir()
    (place / "s/text/x.bin").write_bytes(b"text")
    for name in ("closed", "text"):
        (place / "s" / name / "x.bin").chmod(0o600)
    m = mount(place / "s", "-o", "allow_other")
    of_closed = [m / "merged/closed/x.safetensors", m / "shards/closed/x.safetensors", m / "tensors/closed/x/scale",
                 m / "npy/closed/x/scale.npy", m / "merged/text/x.bin", m / "shards/text/x.bin", m / "tensors/closed/x.index.json"]
    of_open = [path.replace("closed", "open") for path in of_closed if "closed" in path]
    assert child(refusals, of_closed, user="nobody") == [errno.EACCES] * len(of_closed)
    assert child(refusals, of_open, user="nobody") == [None] * len(of_open)
    assert child(refusals, of_closed + of_open) == [None] * len(of_closed + of_open)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_file_that_the_daemon_cannot_read(mount, place, test_user, user_binary):
    """The file is shown unchanged."""
    save(place / "s/closed/x.bin", weights(15))
    save(place / "s/open/x.bin", weights(16))
    (place / "s/closed/x.bin").chmod(0o600)
    m = mount(place / "s", user=test_user, binary=user_binary)
    def look():
        return [lists(m, name) for name in ("closed", "open")], refusals([m / "merged/closed/x.bin", m / "merged/open/x.safetensors"])

    names, there = child(look, user=test_user)
    assert names == [[["x.bin"], ["x.bin"], [], []], [["x.safetensors"], ["x.safetensors"], ["x", "x.index.json"], ["x"]]]
    assert there == [errno.EACCES, None]
    line, = child(m.problems, user=test_user)
    assert line.startswith("closed/x.bin: refused: IoError: open: Permission denied")


def test_bad_files_beside_a_good_one(mount, place):
    (place / "s").mkdir()
    tensors = weights(13)
    rules = {}
    for i, (name, rule, data) in enumerate(bad_torch.CASES):
        (place / f"s/{name}").mkdir()
        (place / f"s/{name}/x.pt").write_bytes(data)
        rules[f"{name}/x.pt"] = rule
    save(place / "s/good.pt", tensors)
    m = mount(place / "s")
    assert contents(m / "merged/good.safetensors") == contents(m / "shards/good.safetensors") == tensors
    for view in ("merged", "shards"):
        assert "good.safetensors" in os.listdir(m / view)
        for name in rules:
            assert os.listdir(os.path.dirname(m / f"{view}/{name}")) == ["x.pt"]
    check_unchanged(m, place / "s", rules)
    problems = {}
    for line in m.problems():
        name, text = line.split(": ", 1)
        problems.setdefault(name, []).append(text)
    for name, rule in rules.items():
        if rule in ("NotTorch", "NoTensors", "TorchScript"):
            assert name not in problems, (name, problems[name])
        elif rule.startswith("refused "):
            # a line for each tensor, but tensors of objects have no names, and equal lines are listed once
            missing = [text for text in problems[name] if text.endswith("; it is missing, and the files themselves are shown")]
            without_name = sum(text.startswith("a tensor ") for text in missing)
            assert without_name <= 1, (name, missing)
            assert len(missing) == int(rule.split()[1]) or without_name, (name, missing)
        else:
            assert any(text.startswith(f"refused: {rule}: ") for text in problems[name]), (name, problems)


def test_pickle_runs_nothing(mount, place):
    """pickle.load() would create the file."""
    (place / "s").mkdir()
    ran = place / "ran"
    code = t.Call(t.Global("posix", "system"), f"touch {ran}")
    (place / "s/x.bin").write_bytes(t.archive({"w": t.tensor(t.storage("0", 2), (2,)), "code": code}, {"0": b"12345678"}))
    m = mount(place / "s")
    assert contents(m / "merged/x.safetensors") == {"w": ((2,), b"12345678")}
    assert not ran.exists()


SLOWFS = BUILD / "tests/slowfs/slowfs"


class Slow:
    """Two directories on storage that fails or hangs on demand, and a mount of it."""

    def __init__(self, mount, place):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        self.rules = place / "rules"
        self.tensors = weights(17, {"large": (50000,), "small": (4,)})
        for directory in "ab":
            save(place / f"real/{directory}/x.pt", self.tensors)
            (place / f"real/{directory}/config.json").write_text("{}")
        (place / "s").mkdir()
        others = ",allow_other" if os.geteuid() == 0 else ""
        self.storage = mount(place / "real", "-o", f"faults={self.rules},valid=0,age=60{others}", binary=SLOWFS,
                             mountpoint=place / "s")
        self.local_header = (place / "real/a/x.pt").read_bytes().index(b"archive/data/1") - 30
        self.m = mount(place / "s")

    def set(self, *rules):
        new = self.rules.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in rules))
        os.rename(new, self.rules)


@pytest.mark.parametrize("part", ["all", "local-header"])
def test_file_that_cannot_be_read(mount, place, part):
    """The file is shown unchanged until it can be read, whichever part of it fails."""
    slow = Slow(mount, place)
    m = slow.m
    where = f"{slow.local_header}+8 " if part == "local-header" else ""
    slow.set(f"read a/x.pt {where}error=EIO")
    assert lists(m, "a") == [["config.json", "x.pt"], ["config.json", "x.pt"], [], []]
    assert not os.path.exists(m / "merged/a/x.safetensors")
    assert contents(m / "merged/b/x.safetensors") == slow.tensors
    line, = m.problems()
    assert line.startswith("a/x.pt: refused: IoError: ") and "Input/output error" in line
    slow.set()
    assert eventually(lambda: lists(m, "a") == lists(m, "b"))
    assert contents(m / "merged/a/x.safetensors") == contents(m / "shards/a/x.safetensors") == slow.tensors
    check_tensors(m, "a/x", slow.tensors)
    assert eventually(lambda: m.problems() == [])


def test_file_that_hangs(mount, place):
    """Only requests in its directory wait, because libfuse 3.14 serializes lookups in a directory."""
    slow = Slow(mount, place)
    m = slow.m
    slow.set("read a/x.pt hang")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(call, m / path) for call, path in [
            (os.listdir, "merged/a"), (os.listdir, "tensors/a"), (os.stat, "shards/a/x.pt"), (os.stat, "merged/a/x.safetensors")]]
        try:
            assert child(lists, m, "b", seconds=30)[0] == ["config.json", "x.safetensors"]
            assert child(contents, m / "merged/b/x.safetensors", seconds=30) == slow.tensors
            for view in ("merged", "shards"):
                assert sorted(child(os.listdir, m / view, seconds=30)) == ["a", "b"]
            assert not any(call.done() for call in waiting)
        finally:
            slow.set()  # the pool waits for its threads
        assert [sorted(waiting[i].result(60)) for i in (0, 1)] == [["config.json", "x.safetensors"], ["x", "x.index.json"]]
        with pytest.raises(FileNotFoundError):
            waiting[2].result(60)
        assert waiting[3].result(60).st_size == os.stat(m / "merged/b/x.safetensors").st_size
