# SPDX-License-Identifier: Apache-2.0
"""Tests loading.py: every kind of wrong result is detected."""

import glob
import logging
import mmap
import os
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from .loading import compare  # noqa: E402


def is_mounted(path):
    return path.endswith("/merged")


def shards(path):
    return sorted(glob.glob(f"{path}/*.safetensors"))


def plain(path):
    return {name: tensor for shard in shards(path) for name, tensor in load_file(shard).items()}


def but(change):
    """A loader without faults on the source; on the mount, change(tensors, path) is also called."""
    def loader(path):
        tensors = plain(path)
        if is_mounted(path):
            change(tensors, path)
        return tensors
    return loader


def other_bit(tensors, _):
    name = min(tensors)
    tensors[name] = tensors[name].clone()
    tensors[name].view(torch.uint8).view(-1)[-1] ^= 1


def other_dtype(tensors, _):
    name = min(tensors)
    tensors[name] = tensors[name].view(torch.float16)


def other_shape(tensors, _):
    name = min(tensors)
    tensors[name] = tensors[name].reshape(-1)


def direct(_, path):
    """Reads everything again with O_DIRECT."""
    block = mmap.mmap(-1, 1 << 20)
    for shard in shards(path):
        fd = os.open(shard, os.O_RDONLY | os.O_DIRECT)
        while os.readv(fd, [block]):
            pass
        os.close(fd)


FAULTS = {
    "bit": other_bit, "dtype": other_dtype, "shape": other_shape,
    "name": lambda tensors, _: tensors.update(more=tensors[min(tensors)]),
    "missing": lambda tensors, _: tensors.pop(min(tensors)),
    "warning": lambda *_: warnings.warn("odd", stacklevel=1),
    "deprecation": lambda *_: warnings.warn("old", DeprecationWarning, stacklevel=1),
    "log": lambda *_: logging.getLogger("loader").warning("odd"),
    "stderr": lambda *_: print("odd", file=sys.stderr),
    "descriptor": lambda *_: os.write(2, b"odd\n"),
    "twice": direct,
}


def test_correct_loader(mount, models):
    compare(mount, plain, models / "experts", "merged")


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_loader(mount, models, fault):
    with pytest.raises(AssertionError):
        compare(mount, but(FAULTS[fault]), models / "experts", "merged")
