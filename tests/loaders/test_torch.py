# SPDX-License-Identifier: Apache-2.0
"""torch alone: side files, and tensor files as storages."""

import os

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from .loading import (VIEWS, compare, files_below, fingerprint, fingerprints,  # noqa: E402
                      run_silently)

NAMES = ("decoder", "experts", "small-fp16", "odd", "hub")


def side_files(path):
    """Maps and reads everything that torch.save wrote to the directory."""
    tensors = {}
    for name in ("optimizer.state", "legacy.state"):
        zipped = not name.startswith("legacy")  # what torch cannot map either
        for mapped in (True, False) if zipped else (False,):
            loaded = torch.load(f"{path}/{name}", mmap=mapped, weights_only=True)
            tensors |= {f"{name} {mapped} {key}": value for key, value in loaded.items()}
    return tensors


@pytest.mark.parametrize("view", VIEWS)
def test_side_files(mount, models, view):
    compare(mount, side_files, models / "side-files", *VIEWS[view], whole=False)


def test_tensor_files(mount, models):
    """Each tensor file is a torch storage of the tensor."""
    m = mount(models)

    def work():
        for name in NAMES:
            want = {}
            for path in files_below(models / name):
                if path.endswith(".safetensors"):
                    want |= load_file(path)
            stem, = (entry.path for entry in os.scandir(m / f"tensors/{name}") if entry.is_dir())
            assert sorted(os.listdir(stem)) == sorted(want)
            for key, tensor in want.items():
                if not tensor.numel():
                    assert os.path.getsize(f"{stem}/{key}") == 0  # torch does not map nothing
                    continue
                path, size = f"{stem}/{key}", tensor.numel()
                found = torch.from_file(path, shared=False, size=size, dtype=tensor.dtype)
                assert fingerprint(found.reshape(tensor.shape)) == fingerprint(tensor), path
                storage = torch.UntypedStorage.from_file(path, False, size * tensor.itemsize)
                found = torch.tensor([], dtype=tensor.dtype).set_(storage, 0, tensor.shape)
                assert fingerprint(found) == fingerprint(tensor), path
                found.zero_()  # a private mapping is the reader's own
            assert fingerprints(load_file(f"{m.path}/merged/{name}/{os.path.basename(stem)}"
                                          ".safetensors")) == fingerprints(want)

    run_silently(work)
