# SPDX-License-Identifier: Apache-2.0
"""The Python module opens PyTorch files, in plain directories and as a mount shows them."""

import errno
import sys
from pathlib import Path

import pytest
from conftest import BUILD
from corpus import trees

from .module import fstfs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import torchfiles  # noqa: E402

SLOWFS = BUILD / "tests/slowfs/slowfs"

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


def two_files(place, link, *more):
    """A directory with weights that are a link, and other files, all in one directory."""
    directory = place / "s"
    for name in more:
        (torchfiles.save(directory / name, A) if name.endswith(".bin") else
         (directory / name).write_bytes(trees.file_bytes(trees.small_tensors("t."))))
    (directory / link).symlink_to("blob")
    return directory


@pytest.mark.parametrize("link, file", [
    ("model.safetensors.index.json", "pytorch_model.bin"), ("consolidated.safetensors", "optimizer.bin"),
    ("pytorch_model.bin.index.json", "optimizer.bin")])
def test_lost_link_that_is_preferred(place, link, file):
    (place / "s").mkdir()
    directory = two_files(place, link, file)
    with pytest.raises(Exception, match=f"{link}: a link that leads to no file"):
        fstfs.numpy.load_file(directory)
    (directory / link).unlink()
    check(directory, A)


@pytest.mark.parametrize("preferred, name", [("model.safetensors", "t.t0.weight"), ("pytorch_model.bin", next(iter(A)))])
@pytest.mark.parametrize("other", ["lost", "sound", "text"])
def test_preferred_file_beside_another_one(place, mount, preferred, name, other):
    """It is opened in the source and on a mount, as in transformers, which tries no other name."""
    (place / "s").mkdir()
    directory = two_files(place, "consolidated.safetensors", preferred)
    if other != "lost":
        (directory / "blob").write_bytes(b"text" if other == "text" else trees.file_bytes([trees.tensor("x", "U8", (8,))]))
    m = mount(directory)
    for path in (directory, m / "merged", m / "shards"):
        assert name in fstfs.numpy.load_file(path)


def test_storage_fails_at_the_target_of_a_link(place, mount):
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    (place / "s").mkdir()
    directory = two_files(place, "model.safetensors", "pytorch_model.bin")
    (directory / "blob").write_bytes(trees.file_bytes(trees.small_tensors("t.")))
    (place / "faults").write_text("lookup blob error=EIO\n")
    m = mount(directory, "-o", f"valid=0,faults={place}/faults", binary=SLOWFS)
    with pytest.raises(OSError, match="model.safetensors.*Input/output error") as caught:
        fstfs.numpy.load_file(m.path)
    assert caught.value.errno == errno.EIO
