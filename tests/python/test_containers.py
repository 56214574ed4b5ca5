# SPDX-License-Identifier: Apache-2.0
"""The Python module opens PyTorch files, in plain directories and as a mount shows them."""

import sys
from pathlib import Path

import pytest

from .module import fstfs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import torchfiles  # noqa: E402

A, B = torchfiles.weights(1), torchfiles.weights(2, {f"b.{name}": shape for name, shape in torchfiles.TINY.items()})


@pytest.fixture
def source(place):
    torchfiles.save(place / "s/one/pytorch_model.bin", A)
    torchfiles.save(place / "s/old/pytorch_model.bin", B, torchfiles.legacy)
    torchfiles.save(place / "s/two/pytorch_model-00001-of-00002.bin", A)
    torchfiles.save(place / "s/two/pytorch_model-00002-of-00002.bin", B)
    (place / "s/two/training_args.bin").write_bytes(torchfiles.archive({"lr": 0.1}, {}))
    torchfiles.save(place / "s/two/optimizer.pt", A)
    return place / "s"


def check(path, expected):
    found = fstfs.numpy.load_file(path)
    assert {name: (array.shape, array.tobytes()) for name, array in found.items()} == expected
    with fstfs.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, (_, data) in expected.items():
            assert file.get_tensor(name).tobytes() == data


@pytest.mark.parametrize("path, expected", [
    ("one/pytorch_model.bin", A), ("one", A), ("old", B), ("two/pytorch_model-00002-of-00002.bin", B), ("two", A | B),
])
def test_plain(source, path, expected):
    check(source / path, expected)


@pytest.mark.parametrize("path, expected", [
    ("merged/one/model.safetensors", A), ("merged/one", A), ("shards/one", A), ("merged/old", B), ("merged/two", A | B),
    ("shards/two", A | B), ("shards/two/model-00002-of-00002.safetensors", B),
    ("shards/two/model.safetensors.index.json", A | B),
])
def test_on_a_mount(mount, source, path, expected):
    check(mount(source) / path, expected)


def test_tensors_on_a_mount(mount, source):
    found = fstfs.numpy.load_file(mount(source) / "tensors/two/model")
    assert {name: (array.shape, array.tobytes()) for name, array in found.items()} == A | B


def test_files_that_are_not_checkpoints(source):
    with pytest.raises(fstfs.SafetensorError):
        fstfs.numpy.load_file(source / "two/training_args.bin")
    (source / "two/pytorch_model-00001-of-00002.bin").unlink()
    (source / "two/pytorch_model-00002-of-00002.bin").unlink()
    check(source / "two", A)  # the optimizer is the only one
    (source / "two/pytorch_model.bin").touch()
    with pytest.raises(Exception, match="pytorch_model.bin"):
        fstfs.numpy.load_file(source / "two")
    (source / "two/pytorch_model.bin").unlink()
    (source / "two/pytorch_model.bin").symlink_to("nowhere")
    with pytest.raises(Exception, match="pytorch_model.bin: a link that leads to no file"):
        fstfs.numpy.load_file(source / "two")
    (source / "two/pytorch_model.bin").unlink()
    (source / "two/optimizer.pt").unlink()
    with pytest.raises(Exception, match="no checkpoint in this directory"):
        fstfs.numpy.load_file(source / "two")
