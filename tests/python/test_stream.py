# SPDX-License-Identifier: Apache-2.0
"""iter_tensors(): every tensor once, in the order of storage, with bounded memory."""

import errno
import gc
import json
import os

import numpy
import pytest
from conftest import child

from . import files
from .module import fstfs

NUMPY_DTYPES = [dtype for dtype in files.BITS if not dtype.startswith("F4")]
MIB = 1 << 20


def bytes_read():
    """The bytes of tensors that the library has returned in this process."""
    return json.loads(fstfs.status())["bytes"]


def data_of(array):
    return array.tobytes()


@pytest.fixture
def shards(place):
    """The paths of three shards whose names do not sort like their offsets, and their tensors in
    the order of storage."""
    paths, order = [], {}
    for i, dtypes in enumerate((("F32", "U8"), ("I64", "BOOL"), ("F16",))):
        made = files.tensors_of(dtypes, [(513, 1026), (), (0,), (6, 4)], seed=i)
        tensors = {f"{len(made) - n}.{i}": tensor for n, tensor in enumerate(made.values())}
        paths.append(place / f"model-{i + 1:05}-of-00003.safetensors")
        files.write(paths[-1], tensors, {"format": "pt"})
        order |= tensors
    return paths, order


def large(place, count=24, rows=1024):
    """A file of `count` tensors of `rows` KiB; returns its path and {name: bytes}."""
    tensors = files.tensors_of(["U8"], [(rows + i, 1024) for i in range(count)])
    files.write(place / "large.safetensors", tensors)
    files.forget(place / "large.safetensors")
    return place / "large.safetensors", {name: data for name, (_, _, data) in tensors.items()}


@pytest.mark.parametrize("before", [files.forget, files.remember])
def test_every_tensor_in_the_order_of_storage(shards, before):
    paths, order = shards
    for path in paths:
        before(path)
    found = list(fstfs.iter_tensors(paths, framework="np"))
    # empty tensors have the offset of their neighbour, and may come on either side of it
    assert [name for name, array in found if array.size] == \
        [name for name, (_, _, data) in order.items() if data]
    assert sorted(name for name, _ in found) == sorted(order)
    for name, array in found:
        assert array.shape == order[name][1] and data_of(array) == order[name][2], name


def test_the_order_of_files_is_the_callers(shards):
    paths, _ = shards
    names = [name for name, _ in fstfs.iter_tensors(reversed(paths), framework="np")]
    assert [name.split(".")[1] for name in names] == ["2"] * 4 + ["1"] * 8 + ["0"] * 8


def test_every_dtype(place):
    tensors = files.tensors_of(NUMPY_DTYPES, files.SHAPES)
    files.write(place / "all", tensors)
    found = {name: data_of(array)
             for name, array in fstfs.iter_tensors(place / "all", framework="np")}
    assert found == {name: data for name, (_, _, data) in tensors.items()}


@pytest.mark.parametrize("form", ["directory", "index", "mount"])
def test_whole_checkpoints(place, mount, form):
    tensors = files.tensors_of(("BF16", "I32"), [(300, 200), (7,)])
    files.write_checkpoint(place / "model", tensors)
    path = place / "model"
    if form == "index":
        path = path / "model.safetensors.index.json"
    if form == "mount":
        view = mount(place / "model", "--shards=2") / "shards"
        path = [f"{view}/{name}" for name in os.listdir(view) if name.endswith(".safetensors")]
        assert len(path) == 2
    found = {name: data_of(array) for name, array in fstfs.iter_tensors(path, framework="np")}
    assert found == {name: data for name, (_, _, data) in tensors.items()}


def test_only_selected_tensors_are_read(place):
    path, tensors = large(place)
    wanted = sorted(tensors)[::5]
    before = bytes_read()
    found = dict(fstfs.iter_tensors(path, framework="np", select=set(wanted).__contains__))
    assert sorted(found) == wanted
    assert bytes_read() - before == sum(len(tensors[name]) for name in wanted)


@pytest.mark.parametrize("memory", [2 * MIB, 6 * MIB])
def test_no_more_is_read_than_the_limit(place, memory):
    """Bytes that were read and not yet yielded never exceed the limit, however slow the caller."""
    path, tensors = large(place)
    before, taken = bytes_read(), 0
    for name, array in fstfs.iter_tensors(path, framework="np", memory=memory):
        assert bytes_read() - before - taken <= memory
        assert data_of(array) == tensors.pop(name)
        taken += array.nbytes
    assert not tensors and bytes_read() - before == taken


def test_a_tensor_larger_than_the_limit(place):
    path, tensors = large(place, count=3)
    found = {name: data_of(array) for name, array in
             fstfs.iter_tensors(path, framework="np", memory=4096)}
    assert found == tensors


def test_the_iterator_keeps_no_tensor(place):
    """A yielded tensor is freed when the caller drops it."""
    path, tensors = large(place, count=4)

    def most_memory():
        def used():
            with open("/proc/self/status") as status:
                return 1024 * int(next(line for line in status if "RssAnon" in line).split()[1])

        most = 0
        stream = fstfs.iter_tensors([path] * 40, framework="np", memory=8 * MIB)
        start = used()
        for _ in stream:
            most = max(most, used() - start)
        return most

    size = sum(map(len, tensors.values()))
    assert 40 * size > 150 * MIB
    assert child(most_memory) < 120 * MIB  # with the buffers of the library


def test_closing_it_cancels_the_reads(place):
    path, tensors = large(place)

    def start_and_close():
        for _ in range(30):
            stream = fstfs.iter_tensors(path, framework="np")
            next(stream)
            stream.close()
            assert list(stream) == []
            for _ in fstfs.iter_tensors(path, framework="np"):
                break  # the iterator is closed when it is collected
        gc.collect()
        return {name: data_of(array) for name, array in fstfs.iter_tensors(path, framework="np")}

    assert child(start_and_close) == tensors


def test_files_are_opened_before_it_returns(shards, place):
    paths, _ = shards
    with pytest.raises(FileNotFoundError):
        fstfs.iter_tensors([*paths, place / "none"], framework="np")
    (place / "bad").write_bytes(b"\xff" * 100)
    with pytest.raises(fstfs.SafetensorError, match="header too large"):
        fstfs.iter_tensors([*paths, place / "bad"], framework="np")
    files.write(place / "f4", files.tensors_of(["F4"], [(4,)]))
    with open(place / "f4", "r+b") as file:
        text = file.read().replace(b'"F4"', b'"F9"')
        file.seek(0)
        file.write(text)
    with pytest.raises(fstfs.SafetensorError, match="Dtype not understood"):
        fstfs.iter_tensors(place / "f4", framework="np")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True])
def test_a_limit_that_is_not_a_number_of_bytes(shards, wrong):
    with pytest.raises(ValueError, match="memory: expected a positive number of bytes"):
        fstfs.iter_tensors(shards[0], framework="np", memory=wrong)


def test_devices_and_frameworks(shards):
    with pytest.raises(fstfs.SafetensorError, match="not supported for framework numpy"):
        fstfs.iter_tensors(shards[0], "cuda:0", framework="np")
    with pytest.raises(fstfs.SafetensorError, match="^Device 0 is not supported for framework"):
        fstfs.iter_tensors(shards[0], 0, framework="np")
    for wrong in (True, False):
        with pytest.raises(fstfs.SafetensorError, match=f"^device {wrong} is invalid$"):
            fstfs.iter_tensors(shards[0], wrong, framework="np")
    with pytest.raises(fstfs.SafetensorError, match="Pinned memory"):
        fstfs.iter_tensors(shards[0], framework="np", pin=True)


def test_a_file_that_changes_meanwhile(place):
    path, _ = large(place)
    stream = fstfs.iter_tensors(path, framework="np", memory=2 * MIB)
    next(stream)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(OSError) as caught:
        list(stream)
    assert caught.value.errno == errno.ESTALE


def test_a_child_process_must_open_its_own(shards):
    stream = fstfs.iter_tensors(shards[0], framework="np")
    half = fstfs.iter_tensors(shards[0], framework="np")
    next(half)

    def in_child():
        half.close()  # must not free the parent's reads
        with pytest.raises(RuntimeError, match="child process"):
            list(stream)
        return [name for name, _ in fstfs.iter_tensors(shards[0], framework="np")]

    assert len(child(in_child)) == len(shards[1])
    assert len(list(half)) == len(shards[1]) - 1
    assert len(list(stream)) == len(shards[1])


def test_torch(shards):
    torch = pytest.importorskip("torch")
    paths, order = shards
    for name, tensor in fstfs.iter_tensors(paths):
        assert list(tensor.shape) == list(order[name][1])
        assert tensor.untyped_storage().nbytes() == tensor.nbytes == len(order[name][2])
        if tensor.nbytes:
            assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == order[name][2]


def test_pinned_memory(shards, monkeypatch):
    """Memory is requested as pinned memory of its own; a machine without a GPU cannot pin."""
    torch = pytest.importorskip("torch")
    empty, pinned = torch.empty, []

    def record(*args, pin_memory=False, **named):
        pinned.append(pin_memory)
        return empty(*args, **named)

    monkeypatch.setattr(torch, "empty", record)
    found = dict(fstfs.iter_tensors(shards[0], pin=True))
    assert pinned == [True] * len(shards[1])
    for name, (_, _, data) in shards[1].items():
        assert found[name].numpy().tobytes() == data
        assert isinstance(found[name].numpy(), numpy.ndarray)
