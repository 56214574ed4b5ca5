# SPDX-License-Identifier: Apache-2.0
"""The Python module with torch, compared with safetensors: with the file cached and not cached, mapped
and read."""

import gc
import os
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
from conftest import child, keep_in_memory  # noqa: E402

from . import files  # noqa: E402
from .module import fstfs  # noqa: E402
from .test_numpy import assert_no_leak, used  # noqa: E402

ALL = files.tensors_of(files.BITS, files.SHAPES)
WAYS = [(before, backend) for before in (files.forget, files.remember)
        for backend in ("mmap", "pread")]


@pytest.fixture
def path(place):
    files.write(place / "all.safetensors", ALL, {"format": "pt"})
    return place / "all.safetensors"


def raw(tensor):
    if not tensor.numel():
        return b""
    if tensor.stride()[-1:] != (1,):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


def same(found, want):
    assert type(found) is type(want) and found.device == want.device
    assert found.dtype == want.dtype and found.shape == want.shape
    assert raw(found) == raw(want)


def is_mapped(tensor, path):
    """Whether its memory is a mapping of the file."""
    at = tensor.data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            if start <= at < end:
                return os.fspath(path) in line
    raise AssertionError("its memory is not there")


@pytest.mark.parametrize("before, backend", WAYS)
def test_dtypes(path, before, backend):
    want = safetensors.torch.load_file(path)
    before(path)
    found = fstfs.torch.load_file(path, backend=backend)
    assert sorted(found) == sorted(want)
    for name, tensor in want.items():
        same(found[name], tensor)
        assert found[name].is_contiguous() and not found[name].requires_grad
    with fstfs.safe_open(path, "pt", backend=backend) as file:
        for name, tensor in want.items():
            before(path)
            same(file.get_tensor(name), tensor)
        before(path)
        for name, tensor in file.get_tensors().items():
            same(tensor, want[name])


@pytest.mark.parametrize("shift", (0, 1))
def test_large_tensors_have_the_alignment_of_the_file(place, shift, monkeypatch):
    """Large tensors have memory with the alignment of the file, so that they are read without a copy,
    unless their elements are not aligned in the file."""
    monkeypatch.setattr(fstfs._frameworks, "ALIGN_MIN_BYTES", 1 << 20)
    path = place / "large"
    files.write(path, files.tensors_of(("F32", "BF16", "C64"), [(4,), (700, 1026)]), shift=shift)
    want = safetensors.torch.load_file(path)
    with fstfs.safe_open(path, "pt", backend="pread") as file:
        offsets = {info.name: info.offset for info in file._source.opened().infos()}
        for name, tensor in want.items():
            found = file.get_tensor(name)
            same(found, tensor)
            if tensor.nbytes > 1 << 20 and not shift:
                assert (found.data_ptr() - offsets[name]) % 4096 == 0
            rows = file.get_slice(name)[1:]
            same(rows, tensor[1:])
            if rows.nbytes > 1 << 20 and not shift:
                assert (rows.data_ptr() - offsets[name] - tensor[0].nbytes) % 4096 == 0


def test_cached_files_are_mapped(place):
    path, name = place / "aligned", "F32.513x1026"
    files.write(path, files.tensors_of(("F32",), [(0,), (513, 1026)]))
    with keep_in_memory(path):
        assert is_mapped(fstfs.load_file(path)[name], path)
        assert not is_mapped(fstfs.load_file(path, backend="pread")[name], path)
        with fstfs.safe_open(path, "pt") as file:
            assert is_mapped(file.get_tensor(name), path)
            assert is_mapped(file.get_slice(name)[5:, 3:], path)
    files.forget(path)
    if not is_in_cache(path):  # some file systems keep files cached
        assert not is_mapped(fstfs.load_file(path)[name], path)


@pytest.mark.parametrize("before, backend", WAYS)
def test_default_device_of_torch_is_ignored(path, before, backend):
    name = "F32.513x1026"
    want = safetensors.torch.load_file(path)
    before(path)
    with torch.device("meta"):
        found = fstfs.torch.load_file(path, backend=backend)
        with fstfs.safe_open(path, "pt", backend=backend) as file:
            part = file.get_slice(name)[1:]
    for other, tensor in want.items():
        same(found[other], tensor)
    same(part, want[name][1:])


def is_in_cache(path):
    with open(path, "rb", buffering=0) as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], os.path.getsize(path) - 1,
                             os.RWF_NOWAIT) == 1
        except OSError:
            return False


def test_writes_do_not_change_the_file(path):
    data = path.read_bytes()
    files.remember(path)
    for tensor in fstfs.load_file(path).values():
        if tensor.numel() and tensor.dtype != torch.float4_e2m1fn_x2:
            tensor.flatten().view(torch.uint8).fill_(1)
    assert path.read_bytes() == data


@pytest.mark.parametrize("before, backend", WAYS)
def test_not_aligned(place, before, backend):
    for shift in (1, 2, 4):
        files.write(place / "odd", ALL, shift=shift)
        before(place / "odd")
        for name, tensor in fstfs.load_file(place / "odd", backend=backend).items():
            assert raw(tensor) == ALL[name][2]


@pytest.mark.parametrize("before, backend", WAYS)
def test_slices(path, before, backend):
    """Random indices return the same result as in safetensors, or raise the same exception."""
    rng = random.Random(5)
    names = [f"{dtype}.{shape}" for dtype in ("U8", "BF16", "F8_E4M3", "I64") for shape in
             ("", "1", "0", "6x4", "4x0x2", "2x3x4")]
    failed = 0
    with fstfs.safe_open(path, "pt", backend=backend) as file, \
            safetensors.safe_open(path, "pt") as other, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about indices whose meaning will change
        before(path)
        for _ in range(1500):
            name = rng.choice(names)
            index = files.slices_of(rng, ALL[name][1])
            want = files.answer(lambda: other.get_slice(name)[index])
            found = files.answer(lambda: file.get_slice(name)[index])
            if isinstance(want, torch.Tensor):
                assert isinstance(found, torch.Tensor), (name, index, found)
                same(found, want)
            else:
                assert found == want, (name, index)
                failed += 1
    assert 100 < failed < 1300


@pytest.mark.parametrize("before", [files.forget, files.remember])
def test_other_indices(path, before):
    """For indices other than strided slices, the whole tensor is read and indexed by torch."""
    mask = torch.arange(513) % 7 == 0
    with fstfs.safe_open(path, "pt") as file, safetensors.safe_open(path, "pt") as other:
        for index in ([0, 5, 3], None, mask, torch.tensor(2), torch.tensor([1, 2]), (None, 3),
                      (slice(None), [1, 2]), True, (Ellipsis, 0, Ellipsis),
                      (Ellipsis, Ellipsis, slice(3))):
            before(path)
            same(file.get_slice("F32.513x1026")[index], other.get_slice("F32.513x1026")[index])


@pytest.mark.parametrize("before, backend", WAYS)
def test_slices_of_fp4(path, before, backend):
    """Slices of F4 count pairs of elements, as torch does; safetensors does not support them."""
    name = "F4.513x1026"
    whole = torch.frombuffer(bytearray(ALL[name][2]), dtype=torch.uint8).reshape(513, 513)
    with fstfs.safe_open(path, "pt", backend=backend) as file:
        for index in ((slice(3, 9),), (slice(None), slice(5, 300)), (slice(None), slice(1, 300, 7)),
                      (4, 5), (Ellipsis, -1)):
            before(path)
            found = file.get_slice(name)[index]
            assert found.dtype == torch.float4_e2m1fn_x2
            assert found.shape == whole[index].shape and raw(found) == raw(whole[index])


@pytest.mark.parametrize("before, backend", WAYS)
def test_lifetimes(path, before, backend):
    """A tensor outlives the file and the module's handle of it."""
    before(path)
    with fstfs.safe_open(path, "pt", backend=backend) as file:
        whole, part = file.get_tensor("F64.513x1026"), file.get_slice("F64.513x1026")[7:9]
    del file
    os.unlink(path)
    gc.collect()
    data = ALL["F64.513x1026"][2]
    assert raw(whole) == data and raw(part) == data[7 * 1026 * 8:9 * 1026 * 8]


@pytest.mark.parametrize("before", [files.forget, files.remember])
def test_change(path, before):
    with fstfs.safe_open(path, "pt") as file:
        file.get_tensor("U8.513x1026")
        with open(path, "r+b") as change:
            change.seek(-10, os.SEEK_END)
            change.write(b"0123456789")
        before(path)
        with pytest.raises(OSError, match="changed"):
            file.get_tensor("U8.513x1026")
        with pytest.raises(OSError, match="changed"):
            file.get_slice("U8.513x1026")[3:]


def test_devices(path):
    name = "F32.2x3x4"
    found = fstfs.load_file(path, device="cpu")
    assert all(tensor.device.type == "cpu" for tensor in found.values())
    for device in ("quux", "cuda:x", "mps:1", -1, 1.5):
        want = files.answer(lambda: safetensors.safe_open(path, "pt", device))
        assert isinstance(want, tuple)
        assert files.answer(lambda: fstfs.safe_open(path, "pt", device)) == want
    # no such device here: torch raises the same error as for its own tensors
    with fstfs.safe_open(path, "pt", "cuda:0") as file:
        with pytest.raises((RuntimeError, AssertionError)) as found:
            file.get_tensor(name)
    with pytest.raises((RuntimeError, AssertionError)) as want:
        torch.empty(1).to("cuda:0")
    assert str(found.value) == str(want.value)


def test_fork(path):
    files.remember(path)
    with fstfs.safe_open(path, "pt") as file:
        before = file.get_tensor("I32.6x4")

        def work():
            after = file.get_tensor("I32.6x4")
            loaded = fstfs.load_file(path)
            return raw(before) == raw(after) == raw(loaded["I32.6x4"])

        assert child(work) and work()


@pytest.mark.limit(240)
@pytest.mark.parametrize("before, backend", [(files.remember, "mmap"), (files.remember, "pread")])
def test_a_thousand_loads(place, before, backend):
    path = place / "small"
    files.write(path, files.tensors_of(("F32", "BF16"), [(64, 1024), (1024, 1024), (0,), ()]))
    before(path)

    def load(count):
        for _ in range(count):
            fstfs.load_file(path, backend=backend)
            with fstfs.safe_open(path, "pt", backend=backend) as file:
                file.get_slice("F32.64x1024")[:, 5:9]
        return used()

    assert_no_leak(load)


@pytest.fixture
def models(place):
    tensors = files.tensors_of(files.BITS, [(6, 4), (), (0,), (300, 100)])
    files.write_checkpoint(place / "model", tensors)
    return place, tensors


def check(found, tensors):
    assert found.keys() == tensors.keys()
    for name, (_, _, data) in tensors.items():
        assert raw(found[name]) == data


@pytest.mark.parametrize("before, backend", WAYS)
def test_checkpoint(models, before, backend):
    place, tensors = models
    directory = place / "model"
    before(directory)
    check(fstfs.load_checkpoint(directory, "cpu", backend=backend), tensors)
    some = ["BF16.6x4", "BOOL."]
    before(directory)
    check(fstfs.load_checkpoint(directory, tensors=some, backend=backend),
          {name: tensors[name] for name in some})
    assert fstfs.load_checkpoint(directory, tensors=[]) == {}


@pytest.mark.parametrize("before", [files.forget, files.remember])
@pytest.mark.parametrize("view", ["merged", "shards", "tensors", "npy"])
def test_on_a_mount(mount, models, view, before):
    place, tensors = models
    m = mount(place / "model", "--shards=2")
    before(place / "model")
    directory = m / view
    if view in ("tensors", "npy"):
        directory += "/model"
    check(fstfs.load_checkpoint(directory), tensors)
    if view == "merged":
        path = directory + "/model.safetensors"
        want = safetensors.torch.load_file(path)
        before(place / "model")
        found = fstfs.load_file(path)
        assert found.keys() == want.keys()
        for name, tensor in want.items():
            same(found[name], tensor)


def test_inaccessible_source(mount, models):
    """Reads through the mount if the source is inaccessible."""
    place, tensors = models
    m = mount(place / "model", "--view=merged")
    check(fstfs.load_checkpoint(m.path), tensors)
    os.rename(place / "model", place / "moved")
    with pytest.raises((OSError, fstfs.SafetensorError)):
        fstfs.load_checkpoint(place / "model")
    os.rename(place / "moved", place / "model")
