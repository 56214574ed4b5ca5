# SPDX-License-Identifier: Apache-2.0
"""The Python module with NumPy, compared with safetensors and with the bytes written."""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import BUILD, SLOW, child

from . import files
from .module import fstfs

NUMPY_DTYPES = [dtype for dtype in files.BITS if not dtype.startswith(("F8", "F4", "BF"))]
ALL = files.tensors_of(files.BITS, files.SHAPES)


@pytest.fixture
def path(place):
    files.write(place / "all.safetensors", ALL, {"format": "np", "é": "ü\n"})
    return place / "all.safetensors"


def same(found, want):
    assert type(found) is type(want)
    assert found.dtype == want.dtype and found.shape == want.shape
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("before", [files.forget, files.remember])
def test_dtypes(place, before):
    path = place / "plain"
    files.write(path, files.tensors_of(NUMPY_DTYPES, files.SHAPES))
    want = safetensors.numpy.load_file(path)
    before(path)
    found = fstfs.numpy.load_file(path)
    assert found.keys() == want.keys()
    for name, array in want.items():
        same(found[name], array)
        assert found[name].flags.writeable
    with fstfs.safe_open(path, "np") as file:
        for name, array in want.items():
            before(path)
            same(file.get_tensor(name), array)


def test_ml_dtypes(path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found = fstfs.numpy.load_file(path)
    for name, (dtype, shape, data) in ALL.items():
        assert found[name].tobytes() == data
        if dtype == "BF16":
            assert found[name].dtype == ml_dtypes.bfloat16 and found[name].shape == shape
        if dtype == "F8_E8M0":
            assert found[name].dtype == ml_dtypes.float8_e8m0fnu and found[name].shape == shape
        if dtype == "F4":
            assert found[name].dtype == "u1" and found[name].shape == (*shape[:-1], shape[-1] // 2)


def test_files_with_the_same_stem(place, mount):
    """Files with each suffix, read directly and through the mount."""
    (place / "s").mkdir()
    want = {}
    for i, name in enumerate(("a.safetensors", "a.sft", "a.SAFETENSORS")):
        want[name] = files.tensors_of(["F32"], [(i + 2, 3)])
        files.write(place / "s" / name, want[name])
    m = mount(place / "s")
    for name, tensors in want.items():
        for path in (place / "s" / name, m / f"merged/{name}", m / f"shards/{name}",
                     m / ("tensors/a" if name == "a.safetensors" else f"tensors/{name}")):
            with fstfs.safe_open(path, "np") as file:
                assert set(file.keys()) == set(tensors), path
                for tensor, (_, shape, data) in tensors.items():
                    found = file.get_tensor(tensor)
                    assert found.shape == tuple(shape) and found.tobytes() == data, path


@pytest.mark.parametrize("damage", ["garbage", "short"])
@pytest.mark.parametrize("view", ["tensors", "npy"])
def test_tensors_of_an_invalid_shard(mount, place, damage, view):
    """A directory of tensors of a checkpoint with an invalid shard is refused: it lacks some."""
    (place / "s").mkdir()
    files.write_checkpoint(place / "s/m", files.tensors_of(("F32", "U8"), [(6, 4), (3,)]))
    shard = sorted((place / "s/m").glob("*.safetensors"))[1]
    shard.write_bytes(b"garbage_garbage" if damage == "garbage" else shard.read_bytes()[:-1])
    directory = mount(place / "s") / f"{view}/m/model"
    for attempt in (fstfs.load_checkpoint, lambda path, framework: fstfs.safe_open(path, framework)):
        with pytest.raises(fstfs.SafetensorError, match=": a shard is refused; .fstfs/problems "):
            attempt(directory, framework="np")


def test_without_ml_dtypes(path):
    """The module works without ml_dtypes, safetensors and torch."""
    program = """
import sys
sys.modules.update(ml_dtypes=None, safetensors=None, torch=None)
import fstfs.numpy
found = fstfs.numpy.load_file(sys.argv[1])
print(found["BF16.6x4"].dtype.str, found["F8_E4M3.6x4"].dtype.str, found["F32.6x4"].dtype.str)
assert issubclass(fstfs.SafetensorError, Exception)
sys.stdout.flush()
sys.stdout.buffer.write(found["BF16.6x4"].tobytes())
"""
    done = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    line, _, data = done.stdout.partition(b"\n")
    assert line == b"|V2 |V1 <f4" and data == ALL["BF16.6x4"][2]


def test_unknown_dtype(place):
    header = json.dumps({"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (place / "f6").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    with fstfs.safe_open(place / "f6", "np") as file:
        assert file.keys() == ["a"] and file.get_slice("a").get_dtype() == "F6_E2M3"
        with pytest.raises(fstfs.SafetensorError, match="Dtype not understood: F6_E2M3"):
            file.get_tensor("a")


def test_names_and_metadata(path, place):
    with fstfs.safe_open(path, "np") as file, safetensors.safe_open(path, "np") as want:
        assert file.keys() == want.keys()
        assert file.metadata() == want.metadata()
        for name in file.keys():
            assert file.get_slice(name).get_shape() == want.get_slice(name).get_shape()
            assert file.get_slice(name).get_dtype() == want.get_slice(name).get_dtype()
    some = {name: ALL[name] for name in ("U8.6x4", "BOOL.1", "F32.2x3x4")}
    for metadata in (None, {}, {"a\0b": "1", "a\0c": "2", "a": "x\0y", "": "\0"}):
        files.write(place / "some", some, metadata)
        with fstfs.safe_open(place / "some", "np") as file, \
                safetensors.safe_open(place / "some", "np") as want:
            assert file.metadata() == want.metadata() == metadata
            assert file.offset_keys() == want.offset_keys() == list(some)


def test_length_of_a_header(place):
    """A file whose first bytes are not a valid length, such as a large GGUF file, is not read."""
    header = importlib.import_module("fstfs._checkpoint")._read_header
    for length, expected in ((100_000_000, {"a": 1}), (100_000_001, {})):
        (place / "long").write_bytes(length.to_bytes(8, "little") + b'{"a":1}'.ljust(length))
        assert header(place / "long") == expected


def test_strange_names(place):
    tensors = {name: ("U8", (1,), bytes([i])) for i, name in
               enumerate(("", "a\0b", "a", "é", "\U0001f600", "a\nb"))}
    files.write(place / "names", tensors)
    with fstfs.safe_open(place / "names", "np") as file:
        for name, (_, _, data) in tensors.items():
            assert file.get_tensor(name).tobytes() == data
        with pytest.raises(UnicodeEncodeError):  # as in safetensors
            file.get_tensor("\ud800")
        for name in ("b", "a\0"):
            with pytest.raises(fstfs.SafetensorError, match="File does not contain tensor"):
                file.get_tensor(name)


def test_slices(path):
    """Random indices return the same result as in safetensors, or raise the same exception."""
    rng = random.Random(3)
    names = [f"{dtype}.{shape}" for dtype in ("U8", "F32", "I64") for shape in
             ("", "1", "0", "6x4", "4x0x2", "2x3x4")]
    failed = 0
    with fstfs.safe_open(path, "np") as file, safetensors.safe_open(path, "np") as other:
        for _ in range(3000):
            name = rng.choice(names)
            index = files.slices_of(rng, ALL[name][1])
            if ends_before_it_starts(index):
                with pytest.raises((fstfs.SafetensorError, OverflowError)):
                    file.get_slice(name)[index]
                continue
            want = files.answer(lambda: other.get_slice(name)[index])
            found = files.answer(lambda: file.get_slice(name)[index])
            if isinstance(want, np.ndarray):
                assert isinstance(found, np.ndarray), (name, index, found)
                same(found, want)
            else:
                assert found == want, (name, index)
                failed += 1
    assert 500 < failed < 2500


def ends_before_it_starts(index):
    """Whether a slice ends before it starts; for these safetensors panics or requests a negative size."""
    return any(isinstance(item, slice) and item.start is not None and item.stop is not None
               and item.start > item.stop
               for item in (index if isinstance(index, tuple) else (index,)))


def test_large_slices(path):
    name = "U16.513x1026"
    array = np.frombuffer(ALL[name][2], "<u2").reshape(513, 1026)
    with fstfs.safe_open(path, "np") as file:
        for index in (np.s_[:], np.s_[100:300], np.s_[:, 513:], np.s_[::7, 5:900:3], np.s_[-1],
                      np.s_[..., 0], np.int64(5)):
            files.forget(path)
            same(file.get_slice(name)[index], array[index].copy())


@pytest.mark.parametrize("arguments, options", [
    (("zz",), {}), (("np", "quux"), {}), (("np", "cuda"), {}), (("np", "cuda:1"), {}),
    (("np", "mps:1"), {}), (("np", "cuda:x"), {}), (("np", 0), {}), (("np", -1), {}),
    (("np", 1.5), {}), ((3,), {}), (("np",), {"backend": "x"})])
def test_wrong_arguments(path, arguments, options):
    want = files.answer(lambda: safetensors.safe_open(path, *arguments, **options))
    assert isinstance(want, tuple)
    assert files.answer(lambda: fstfs.safe_open(path, *arguments, **options)) == want


def test_errors(place, path):
    with pytest.raises(FileNotFoundError, match=f"^No such file or directory: {place}/nothing$"):
        fstfs.safe_open(place / "nothing", "np")
    (place / "broken").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(fstfs.SafetensorError, match="^Error while deserializing header: ") as broken:
        fstfs.safe_open(place / "broken", "np")
    assert "broken: InvalidHeaderLength: " in str(broken.value.__cause__)
    assert fstfs.SafetensorError is safetensors.SafetensorError
    file = fstfs.safe_open(path, "np")
    for work in (lambda f: f.get_tensor("q"), lambda f: f.get_slice("q"),
                 lambda f: f.get_tensor(3)):
        assert files.answer(lambda: work(file)) == \
            files.answer(lambda: work(safetensors.safe_open(path, "np")))
    with file:
        part = file.get_slice("U8.6x4")
    for work in (file.keys, file.metadata, lambda: file.get_tensor("U8.6x4")):
        with pytest.raises(fstfs.SafetensorError, match="^File is closed$"):
            work()
    assert part[0].tobytes() == ALL["U8.6x4"][2][:4]  # as in safetensors


def test_change(path):
    """An open file never returns bytes of another version."""
    with fstfs.safe_open(path, "np") as file:
        with open(path, "r+b") as change:
            change.seek(-10, os.SEEK_END)
            change.write(b"0123456789")
        with pytest.raises(OSError, match="changed"):
            file.get_tensor("U64.513x1026")


def test_threads(path):
    failures = []

    def work(seed):
        rng = random.Random(seed)
        try:
            for _ in range(60):
                name = rng.choice(list(ALL))
                with fstfs.safe_open(path, "np") as mine:
                    for file in (mine, shared):
                        assert file.get_tensor(name).tobytes() == ALL[name][2]
        except BaseException as error:
            failures.append(error)

    with fstfs.safe_open(path, "np") as shared:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_closed_during_a_read(path):
    """A read in another thread keeps the checkpoint open."""
    for _ in range(20):
        file = fstfs.safe_open(path, "np")
        part = file.get_slice("U64.513x1026")
        found = []
        thread = threading.Thread(target=lambda: found.append(part[:]))
        thread.start()
        with file:
            pass
        del file, part
        thread.join()
        assert found[0].tobytes() == ALL["U64.513x1026"][2]


def test_fork(path):
    """A child process uses a file that its parent opened, and both close it."""
    file = fstfs.safe_open(path, "np")
    part = file.get_slice("F32.6x4")
    names = file.keys()

    def work():
        assert file.keys() == names
        assert part[1:3].tobytes() == ALL["F32.6x4"][2][16:48]
        found = {name: file.get_tensor(name).tobytes() for name in names}
        return found == {name: ALL[name][2] for name in names}

    assert child(work)
    assert child(lambda: child(work))
    assert work()
    os.utime(path, ns=(0, 0))
    with pytest.raises(OSError, match="changed or replaced"):
        child(file.keys)


@pytest.mark.parametrize("by", ["index", "directory", "mount"])
def test_fork_and_a_replaced_shard(place, by):
    """The child gets no other version of a checkpoint than its parent, although its index and its
    directory are unchanged."""
    root = place / "s"
    root.mkdir()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        files.write(root / name, {f"t{i}": ("U8", (4,), b"1111")})
    index = {"metadata": {}, "weight_map": {f"t{i}": name for i, name in enumerate(names)}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    with contextlib.ExitStack() as stack:
        path = root / "model.safetensors.index.json" if by == "index" else root
        if by == "mount":
            path = os.path.join(stack.enter_context(fstfs.mount(root)).path, "merged")
        file = stack.enter_context(fstfs.safe_open(path, "np"))
        part = file.get_slice("t1")
        assert child(lambda: part[:].tobytes()) == b"1111"
        with open(root / names[1], "r+b") as f:  # in place: the directory is unchanged
            f.seek(-4, os.SEEK_END)
            f.write(b"2222")
        with pytest.raises(OSError, match="changed or replaced"):
            child(lambda: part[:].tobytes())


def test_parent_of_a_link(path, place, monkeypatch):
    """".." after a symbolic link is the parent of the link's target, also in a child process."""
    (place / "a/b").mkdir(parents=True)
    (place / "link").symlink_to("a/b")
    want = {"x": ("U8", (1,), b"1"), "w": ("U8", (0,), b"")}
    files.write(place / "a/m", want, {"k": "v"})
    files.write(place / "m", {"y": ("U8", (1,), b"2")})
    monkeypatch.chdir(place)
    with fstfs.safe_open("link/../m", "np") as file:
        assert file.offset_keys() == list(want) and file.metadata() == {"k": "v"}
        assert child(lambda: file.get_tensor("x").tobytes() == b"1")
    files.write(place / "a/m", want, {})
    with fstfs.safe_open("link/../m", "np") as file:
        assert file.metadata() == {}


def used():
    """The resources of the process. Only anonymous memory counts, because pages of libraries become
    resident when their code first runs."""
    gc.collect()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    with open("/proc/self/maps") as maps:
        mapped = sum("/" in line for line in maps)
    return {"memory": 1024 * int(fields["RssAnon"].split()[0]), "mappings": mapped,
            "descriptors": len(os.listdir("/proc/self/fd")), "threads": int(fields["Threads"])}


def assert_no_leak(load):
    """`load(count)` loads a file `count` times; its tensors have 128 KiB or more, or are tiny."""
    before, after = child(lambda: (load(100), load(1000)), seconds=200)
    # far less than a tensor per load; allocators keep some memory, and threads start on demand
    most = {"memory": 64 << 20, "mappings": 50, "descriptors": 10, "threads": 10}
    assert all(after[what] < before[what] + more for what, more in most.items()), (before, after)


@pytest.mark.limit(240)
def test_a_thousand_loads(place):
    path = place / "small"
    files.write(path, files.tensors_of(("F32", "U8"), [(64, 1024), (0,), ()]))

    def load(count):
        for _ in range(count):
            fstfs.numpy.load_file(path)
            with fstfs.safe_open(path, "np") as file:
                file.get_slice("F32.64x1024")[:, 5:9]
        return used()

    assert_no_leak(load)


@pytest.fixture
def models(place):
    tensors = files.tensors_of(NUMPY_DTYPES, [(6, 4), (), (0,), (300, 100)])
    files.write_checkpoint(place / "model", tensors)
    return place, tensors


def check(found, tensors):
    assert found.keys() == tensors.keys()
    for name, (_, shape, data) in tensors.items():
        assert found[name].shape == shape and found[name].tobytes() == data


def test_checkpoint(models):
    place, tensors = models
    directory = place / "model"
    for path in (directory, directory / "model.safetensors.index.json"):
        files.forget(directory)
        check(fstfs.load_checkpoint(path, framework="np"), tensors)
    some = ["F32.6x4", "BOOL.", "F32.6x4", "U16.300x100"]
    check(fstfs.load_checkpoint(directory, tensors=some, framework="np"),
          {name: tensors[name] for name in some})
    with pytest.raises(fstfs.SafetensorError, match="File does not contain tensor q"):
        fstfs.load_checkpoint(directory, tensors=["q"], framework="np")


@pytest.mark.parametrize("view", ["merged", "shards", "tensors", "npy"])
def test_on_a_mount(mount, models, view):
    place, tensors = models
    m = mount(place / "model", "--shards=2")
    directory = m / view
    if view in ("tensors", "npy"):
        directory += "/model"
    check(fstfs.load_checkpoint(directory, framework="np"), tensors)
    if view == "merged":
        path = directory + "/model.safetensors"
        check(fstfs.numpy.load_file(path), tensors)
        with fstfs.safe_open(path, "np") as file, safetensors.safe_open(path, "np") as want:
            assert sorted(file.offset_keys()) == sorted(want.offset_keys())
            full = [name for name in want.offset_keys() if tensors[name][2]]
            assert [name for name in file.offset_keys() if tensors[name][2]] == full
            assert file.metadata() == want.metadata()
            same(file.get_slice("U16.300x100")[7:, ::9], want.get_slice("U16.300x100")[7:, ::9])


def test_structure_sizes():
    """ctypes and struct declare the structures with the sizes of the C compiler."""
    done = subprocess.run([BUILD / "tests/client/client", "sizes"], capture_output=True, check=True)
    library = fstfs._library
    assert json.loads(done.stdout) | {
        "fstfs_tensor": library.TENSOR.size, "fstfs_metadata": library.METADATA.size,
        "fstfs_slice": ctypes.sizeof(library.Slice), "fstfs_request": ctypes.sizeof(library.Request),
        "fstfs_read_options": ctypes.sizeof(library.Options)} == json.loads(done.stdout)


def test_library_is_missing(place):
    done = subprocess.run([sys.executable, "-c", "import fstfs"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path),
                               "FSTFS_LIBRARY": os.fspath(place / "nothing.so")})
    assert done.returncode == 1
    assert "ImportError: libfstfs cannot be loaded: " in done.stderr
    assert "FSTFS_LIBRARY" in done.stderr


def test_interrupted(place):
    """Ctrl-C cancels a long read; its memory can be freed afterwards."""
    path = place / "large"
    data = bytes(1 << 20)
    files.write(path, {f"{i:03}": ("U8", (1 << 20,), data) for i in range(200)})
    library = importlib.import_module("fstfs._library")

    def work():
        def interrupt(read, milliseconds):
            raise KeyboardInterrupt

        wait = library.lib.fstfs_wait
        library.lib.fstfs_wait = interrupt
        try:
            fstfs.numpy.load_file(path)
        except KeyboardInterrupt:
            library.lib.fstfs_wait = wait
            return len(fstfs.numpy.load_file(path))

    assert child(work, seconds=60 * SLOW) == 200
