# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.save() that libraries write: src/format finds the tensors that torch.load() returns, and the libraries
load the same from the mount as safetensors, while torch.load() raises."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import torch_releases  # noqa: E402
from test_check import run  # noqa: E402

from .loading import VIEWS, fingerprint, fingerprints, load, load_bare, state  # noqa: E402
from .test_containers import ask, compare, expected_of  # noqa: E402


@pytest.mark.parametrize("name", ["llama", "llama-single", "llama-variant", "llama-tied", "mixtral", "bert", "t5", "legacy"])
def test_transformers(pickled_models, name):
    check_directory(pickled_models / name)


def test_diffusers(pickled_models):
    pytest.importorskip("diffusers")
    check_directory(pickled_models / "unet")
    check_directory(pickled_models / "unet-single")


def test_peft(pickled_models):
    pytest.importorskip("peft")
    check_directory(pickled_models / "lora/base")
    check_directory(pickled_models / "lora/adapter")


def check_directory(directory):
    """Every file has the tensors of torch.load(weights_only=True), and all files those of the index."""
    paths = sorted(directory.glob("*.bin"))
    found = {}
    for path in paths:
        assert compare(path) == 0
        found |= dict.fromkeys(ask(path)[3], path.name)
    for index in directory.glob("*.bin.index.json"):
        assert json.loads(index.read_text())["weight_map"] == found
    assert found and (len(paths) == 1) == (not list(directory.glob("*.index.json")))


def test_lightning(pickled_models):
    """A training run whose hyper-parameters are of classes that torch.load(weights_only=True) rejects."""
    if not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed")
    path = pickled_models / "lightning/last.ckpt"
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)
    content = torch.load(path, weights_only=False)
    assert content["hyper_parameters"]["settings"].rate == 0.01
    assert compare(path, trusted=True) == 0
    tensors, imports = ask(path)[3], ask(path)[2]
    assert set(tensors) == set(content["state_dict"]) and len(tensors) == 9
    assert {"argparse.Namespace", "loaders.pickled.Settings"} <= set(imports)


@pytest.mark.parametrize("path", sorted(torch_releases.PLACE.iterdir()), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_files_of_old_releases(path):
    assert compare(path) == torch_releases.refused(path.stem.split("-")[1])


@pytest.mark.parametrize("has_crc", [True, False])
def test_crc_of_records(tmp_path, has_crc):
    """fstfs-check --deep compares the CRC-32 of each record that torch writes, if it writes any."""
    path = tmp_path / "model.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(has_crc)
    try:
        torch.save({"w": torch.arange(1000), "v": torch.ones(3)}, path)
    finally:
        torch.serialization.set_crc32_options(before)
    lines, err = run("--deep", path)
    assert lines == [] and ("no CRC for " in err) != has_crc
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(3).numpy().tobytes()) + 3] ^= 1
    path.write_bytes(content)
    lines = run("--deep", path, status=1 if has_crc else 0)[0]
    assert ['(tensor "v")' in line for line in lines] == [True] * has_crc


# ---- through the mount ----


def without_pickles(loader):
    """The loader, while torch.load() raises."""
    def load_without_pickles(path):
        def refuse(*_, **__):
            raise AssertionError("torch.load() was called")

        torch.load = torch.serialization.load = refuse
        return loader(path)

    return load_without_pickles


def causal(path):
    return state(transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto"))


def causal_variant(path):
    return state(transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", variant="fp16"))


def tied(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    return state(model)


def masked(path):
    return state(transformers.AutoModelForMaskedLM.from_pretrained(path, dtype="auto"))


def seq2seq(path):
    return state(transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype="auto"))


def unet(path, **more):
    import diffusers

    return state(diffusers.UNet2DConditionModel.from_pretrained(path, **more))


def unet_of_pickles(path):
    """diffusers looks for shards of pickles only on request."""
    return unet(path, use_safetensors=False)


def adapted(path):
    from peft import PeftModel

    base = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(path, "base"), dtype="auto")
    return state(PeftModel.from_pretrained(base, os.path.join(path, "adapter")))


CASES = {"llama": causal, "llama-single": causal, "llama-variant": causal_variant, "llama-tied": tied, "mixtral": causal,
         "bert": masked, "t5": seq2seq, "legacy": causal, "unet": unet, "unet-single": unet, "lora": adapted}
OF_PICKLES = {unet: unet_of_pickles}  # other loaders for the directory


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", CASES)
def test_load(mount, pickled_models, name, view):
    """A library loads from the mount what it loads from the directory by torch.load()."""
    source = pickled_models / name
    if not source.exists():
        pytest.skip("diffusers or peft is not installed")
    want = load_bare(OF_PICKLES.get(CASES[name], CASES[name]), source)
    assert want.tensors
    directory, options = VIEWS[view]
    m = mount(source, *options)
    assert not list(Path(m / directory).rglob("*.bin"))
    assert load(without_pickles(CASES[name]), m / directory).tensors == want.tensors


def test_the_patch_refuses_pickles(pickled_models):
    with pytest.raises(Exception, match="torch.load"):
        load(without_pickles(causal), pickled_models / "llama")


@pytest.mark.parametrize("name", [*CASES, "lightning"])
def test_tensor_files(mount, pickled_models, name):
    """Every file of tensors/ and npy/, by the tensors that torch.load() returns."""
    source = pickled_models / name
    if not source.exists():
        pytest.skip("diffusers, peft or lightning is not installed")
    m = mount(source)
    for directory in {path.parent for path in [*source.rglob("*.bin"), *source.rglob("*.ckpt")]}:
        want = {}
        for path in [*directory.glob("*.bin"), *directory.glob("*.ckpt")]:
            want |= expected_of(torch.load(path, weights_only=name != "lightning", map_location="cpu"))
        relative = directory.relative_to(source)
        assert check_files(Path(m / "tensors") / relative, want, read_raw) == check_files(Path(m / "npy") / relative, want, read_npy) == \
            len(want)
        assert m.problems() == []


def check_files(directory, want, read):
    """Compares the files of the only checkpoint in the directory; returns their number."""
    stem, = (path for path in directory.iterdir() if path.is_dir())
    names = os.listdir(stem)
    for file in names:
        name = file.removesuffix(".npy") if read is read_npy else file
        assert read(stem / file) == fingerprint(want[name])[2], name
    return len(names)


def read_raw(path):
    return fingerprint(np.fromfile(path, "u1"))[2]


def read_npy(path):
    return fingerprint(np.load(path).reshape(-1).view("u1"))[2]


def test_lightning_from_the_mount(mount, pickled_models):
    from safetensors.torch import load_file

    if not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed")
    source = pickled_models / "lightning"
    want = torch.load(source / "last.ckpt", weights_only=False)["state_dict"]
    m = mount(source)
    for view in ("merged", "shards"):
        assert fingerprints(load_file(m / f"{view}/last.safetensors")) == fingerprints(want)
