# SPDX-License-Identifier: Apache-2.0
"""Each torch tensor has its own storage, so saving, copying, pickling or sharing it includes no other
tensor. With the file cached and not cached, mapped and read."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402
from conftest import SLOW, child, keep_in_memory  # noqa: E402

from . import files  # noqa: E402
from .module import fstfs  # noqa: E402
from .test_torch import WAYS, is_mapped, raw  # noqa: E402

# 4 KiB, 512 KiB, and 2 MiB, which is allocated with huge pages
TENSORS = files.tensors_of(("F32",), [(32, 32), (256, 512), (512, 1024), (0, 3), ()]) | \
    files.tensors_of(("BF16",), [(4, 4), (64, 65), (1024, 1024)], seed=9)
FULL = {name: tensor for name, tensor in TENSORS.items() if tensor[2]}
LATENT = "F32.512x1024"


@pytest.fixture
def path(place):
    files.write(place / "model.safetensors", TENSORS, {"format": "pt"})
    return place / "model.safetensors"


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].__name__}-{way[1]}")
def loaded(path, request):
    before, backend = request.param
    before(path)
    found = fstfs.torch.load_file(path, backend=backend)
    assert found.keys() == TENSORS.keys()
    return found


class Model(torch.nn.Module):
    """A module with loaded tensors as parameters, like a model after from_pretrained()."""

    def __init__(self, tensors):
        super().__init__()
        for i, name in enumerate(sorted(FULL)):
            self.register_parameter(f"p{i}", torch.nn.Parameter(tensors[name]))


def assert_holds_all(path):
    found = safetensors.torch.load_file(path)
    assert len(found) == len(FULL)
    for i, name in enumerate(sorted(FULL)):
        assert raw(found[f"p{i}"]) == FULL[name][2]


def test_storage(loaded):
    for name, tensor in loaded.items():
        storage = tensor.untyped_storage()
        assert storage.nbytes() == tensor.nbytes == len(TENSORS[name][2])
        assert tensor.storage_offset() == 0
    assert len({loaded[name].untyped_storage().data_ptr() for name in FULL}) == len(FULL)


@pytest.mark.parametrize("before, backend", WAYS)
def test_storage_of_one_tensor_and_of_a_slice(path, before, backend):
    with fstfs.safe_open(path, "pt", backend=backend) as file, \
            safetensors.safe_open(path, "pt", backend=backend) as other:
        for name in TENSORS:
            before(path)
            tensor = file.get_tensor(name)
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
        before(path)
        for name in FULL:
            if len(TENSORS[name][1]) == 2:
                index = (slice(1, 3), slice(2, None))
                assert file.get_slice(name)[index].untyped_storage().nbytes() <= \
                    other.get_slice(name)[index].untyped_storage().nbytes()


def test_save_model(loaded, place):
    safetensors.torch.save_model(Model(loaded), place / "saved")
    assert_holds_all(place / "saved")


def test_save_file_and_load_model(loaded, place):
    model = Model({name: torch.zeros_like(tensor) for name, tensor in loaded.items()})
    safetensors.torch.save_file(Model(loaded).state_dict(), place / "saved")
    assert safetensors.torch.load_model(model, place / "saved") == (set(), [])
    safetensors.torch.save_model(model, place / "again")
    assert_holds_all(place / "again")


def test_save_torch_state_dict(loaded, place):
    hub = pytest.importorskip("huggingface_hub")
    hub.save_torch_state_dict(Model(loaded).state_dict(), place)
    os.rename(place / "model.safetensors", place / "saved")
    assert_holds_all(place / "saved")


def test_accelerate_save_model(loaded, place):
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True).save_model(Model(loaded), place / "saved")
    assert_holds_all(place / "saved/model.safetensors")


def saved(tensor):
    out = io.BytesIO()
    torch.save(tensor, out)
    return out.getvalue()


@pytest.mark.parametrize("name", ["BF16.4x4", LATENT])
def test_one_tensor_is_saved_alone(loaded, name):
    size = len(TENSORS[name][2])
    for data in (saved(loaded[name]), pickle.dumps(loaded[name])):
        assert len(data) < size + 4096
    for found in (torch.load(io.BytesIO(saved(loaded[name]))),
                  pickle.loads(pickle.dumps(loaded[name])), copy.deepcopy(loaded[name])):
        assert found.untyped_storage().nbytes() == size
        assert raw(found) == TENSORS[name][2]


def test_share_memory(loaded):
    """The parent sees what a child writes to a shared tensor; no other tensor changes."""
    data = {name: raw(tensor) for name, tensor in loaded.items()}
    tensor = loaded[LATENT].share_memory_()
    assert tensor.is_shared() and raw(tensor) == TENSORS[LATENT][2]

    def work():
        tensor[3, :5] = 7  # few elements: torch has no worker threads after fork()

    child(work)
    assert (tensor[3, :5] == 7).all()
    assert all(raw(other) == data[name] for name, other in loaded.items() if name != LATENT)


DATALOADER = """
import sys, torch, fstfs.torch
from torch.utils.data import DataLoader, TensorDataset
latent = fstfs.torch.load_file(sys.argv[1], backend=sys.argv[2])["F32.512x1024"]
torch.multiprocessing.set_sharing_strategy(sys.argv[3])
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return latent
rows = list(DataLoader(Rows(), batch_size=None, num_workers=1))
assert all(torch.equal(row.view(torch.int32), latent.view(torch.int32)) for row in rows)
print("loaded", len(rows))
"""


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("before, backend", WAYS)
def test_data_loader(path, before, backend, sharing):
    """A worker sends a tensor, whose storage torch then shares with the parent."""
    before(path)
    done = subprocess.run([sys.executable, "-c", DATALOADER, path, backend, sharing],
                          capture_output=True, text=True, timeout=15 * SLOW,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0 and done.stdout == "loaded 4\n", done.stderr[-4000:]


def mappings_of(path):
    with open("/proc/self/maps") as maps:
        return sum(line.rstrip("\n").endswith(os.fspath(path)) for line in maps)


def test_a_mapping_lives_as_long_as_its_last_tensor(path):
    """The file is unmapped when its last tensor is freed."""

    def work():
        with keep_in_memory(path) as kept:
            files.remember(path)
            found = fstfs.torch.load_file(path)
            mapped = is_mapped(found[LATENT], path)
            kept.close()
        one = found.pop(LATENT)
        part = one[3:5, 7:]
        found.clear()
        gc.collect()
        counts = [mappings_of(path)]
        del one
        gc.collect()
        counts.append(mappings_of(path))
        data = torch.frombuffer(bytearray(TENSORS[LATENT][2]), dtype=torch.float32)
        alive = raw(part) == raw(data.view(512, 1024)[3:5, 7:])
        del part
        gc.collect()
        return mapped, alive, [*counts, mappings_of(path)]

    assert child(work) == (True, True, [1, 1, 0])
