# SPDX-License-Identifier: Apache-2.0
"""safe_open with the interface of safetensors, and functions that load whole checkpoints."""

from __future__ import annotations

import errno
import itertools
import json
import os
import struct
from collections.abc import Iterable
from typing import Any

from . import _frameworks
from ._library import Info, Opened, SafetensorError, find_device, not_a_string, process
from ._mapping import MappedFiles
from ._slices import by_safetensors, by_torch

# Host memory, in bytes, that is filled before the tensors in it are copied to a device with .to().
# A larger tensor is read and copied alone.
BATCH_BYTES = 256 << 20
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors
BACKENDS = ("mmap", "pread")


def _absolute_path(path):
    """Returns the absolute path of the same file. os.path.abspath() removes "..", which names
    another directory after a symbolic link."""
    return os.path.join(os.getcwd(), path) if ".." in path.split("/") else os.path.abspath(path)


def _read_header(path):
    """Returns the header of a safetensors file as a dict; {} if the file is not one or cannot be
    read."""
    try:
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size):
                return {}
            header = json.loads(file.read(length))
            return header if isinstance(header, dict) else {}
    except (OSError, ValueError, struct.error):
        return {}


class Source:
    """An open checkpoint, and the framework, device and backend for its tensors. A safe_open and
    its slices share one."""

    def __init__(self, path, framework, device, backend):
        if isinstance(path, bytes):
            raise not_a_string("filename", path)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError("argument 'filename': expected str, bytes or os.PathLike object, not "
                            f"{type(path).__name__}")
        self.shown = os.fspath(path)
        self.path = _absolute_path(self.shown)
        self.framework = _frameworks.framework(framework)
        self.target = _frameworks.device(device)
        self.device = _frameworks.memory_device(self.framework, self.target)
        if not isinstance(backend, str):
            raise not_a_string("backend", backend)
        if backend not in BACKENDS:
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", '
                                  '"pread")')
        self.may_map = backend == "mmap" and self.device == "cpu" and \
            hasattr(self.framework, "map")
        self.current = Opened(self.shown)
        self.version = self.current.version()
        if self.device != "cpu" and self.framework.name != "pytorch":
            raise SafetensorError(f"Device {self.device} is not supported for framework "
                                  f"{self.framework.name}")
        self.mapped = MappedFiles()

    def opened(self):
        """Returns the Opened of this process. After fork() the child reopens the path once; if the
        file has changed since the parent opened it, raises OSError (ESTALE)."""
        opened = self.current
        if opened.generation != process.generation:
            opened = Opened(self.path)
            if opened.version() != self.version:
                raise OSError(errno.ESTALE, f"{self.shown}: changed or replaced since it was "
                              "opened")
            self.current = opened
        return opened

    def find(self, opened, name):
        if not isinstance(name, str):
            raise not_a_string("name", name)
        info = opened.find(name)
        if info is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return info

    def map(self, opened, infos, start, end):
        """Returns the mapped storage of the file that contains `infos`, or None: its bytes
        [start, end) must be read instead."""
        if not self.may_map or start == end:
            return None
        return self.mapped.find(opened, infos, self.framework, start, end)

    def tensors(self, opened, infos):
        """Returns {name: tensor}. `infos` must be sorted by file and offset."""
        framework = self.framework
        tensors = {info.name: None for info in infos}
        rest = []
        for _, group in itertools.groupby(infos, lambda info: info.file):
            group = list(group)
            full = [info for info in group if info.size]
            storage = full and self.map(opened, full, full[0].offset,
                                        max(info.offset + info.size for info in full))
            for info in group:
                tensor = None
                dtype, shape = framework.prepare(info)
                if storage and info.size:
                    tensor = framework.mapped(storage, info, dtype, shape)
                if tensor is None:
                    rest.append((info, dtype, shape))
                tensors[info.name] = tensor
        results = self._read(opened, [(info, None, dtype, shape) for info, dtype, shape in rest])
        tensors.update(zip((info.name for info, *_ in rest), results))
        return tensors

    def finish(self, tensor):
        """Converts what was read to a tensor of the framework on the requested device."""
        return self.framework.finish(tensor, self.target)

    def finish_all(self, tensors):
        """Applies finish() in place, one tensor after another, so that at most one of them is in
        memory twice. Returns `tensors`."""
        for name in tensors:
            tensors[name] = self.finish(tensors[name])
        return tensors

    def _read(self, opened, wanted):
        """Reads `wanted`, a list of (info, slices, dtype, shape), and returns the tensors in that
        order. `slices` is as in Opened.read(); `shape` is that of the result."""
        device = None
        if str(self.device).startswith("cuda:"):
            device = find_device(self.device)
        results = []
        for batch in self._batches(wanted, device):
            tensors = [self._allocate(*item, device) for item in batch]
            requests = [(info, slices, self.framework.address(tensor))
                        for (info, slices, *_), tensor in zip(batch, tensors) if tensor.nbytes]
            if device is not None:
                # torch may have reused memory that queued kernels still access
                self.framework.module.cuda.current_stream(self.device).synchronize()
            if requests:
                opened.read(requests, tensors, device)
            if self.device != "cpu" and device is None:
                tensors = [tensor.to(self.device) for tensor in tensors]
            results += tensors
        return results

    def _allocate(self, info, slices, dtype, shape, device):
        if device is None:
            start = info.offset if slices is None else _span(info, info.shape, slices)[0]
            return self.framework.empty(dtype, shape, start)
        return self.framework.module.empty(shape, dtype=dtype, device=self.device)

    def _batches(self, wanted, device):
        if self.device == "cpu" or device is not None:
            return [wanted]
        batches, room = [], 0
        for item in wanted:
            if not batches or item[0].size > room:
                batches.append([])
                room = BATCH_BYTES
            batches[-1].append(item)
            room -= item[0].size
        return batches

    def tensor(self, opened, info):
        framework = self.framework
        dtype, shape = framework.prepare(info)
        storage = self.map(opened, [info], info.offset, info.offset + info.size)
        tensor = storage and framework.mapped(storage, info, dtype, shape)
        if tensor is None:
            tensor, = self._read(opened, [(info, None, dtype, shape)])
        return tensor

    def slice(self, opened, info, index):
        framework = self.framework
        if framework.name != "pytorch":
            slices, result_shape = by_safetensors(index, framework.prepare(info)[1])
            if not _can_read_slices(info, slices):
                return self.tensor(opened, info)[index]
            return self._read_slices(opened, info, slices, result_shape)
        dtype, shape = framework.prepare(info)
        if info.size == 0:
            return self.tensor(opened, info)[index]  # torch sets the strides of the result
        found = by_torch(framework.module, index, shape)
        if found is None:
            return self.tensor(opened, info)[index]
        slices, result_shape = found
        storage = self.map(opened, [info], *_span(info, shape, slices))
        whole = storage and framework.mapped(storage, info, dtype, shape)
        if whole is not None:
            return whole[index]
        if not _can_read_slices(info, slices):
            return self.tensor(opened, info)[index]
        return self._read_slices(opened, info, slices, result_shape)

    def _read_slices(self, opened, info, slices, result_shape):
        dtype, _ = self.framework.prepare(info)
        if info.dtype == "F4":  # the index counts bytes, the library elements: two in a byte
            start, stop, step = slices[-1]
            slices = [*slices[:-1], (2 * start, 2 * stop, step)]
        tensor, = self._read(opened, [(info, slices, dtype, result_shape)])
        return tensor


def _can_read_slices(info, slices):
    """Returns whether the library can read these slices. It cannot read parts of quantized blocks,
    or F4 with a step (elements of half a byte)."""
    return info.dtype not in _frameworks.QUANTISED_BLOCKS and \
        (info.dtype != "F4" or slices[-1][2] == 1)


def _span(info, shape, slices):
    """Returns (start, end): the smallest range of bytes in the file that contains the slices."""
    first = last = 0
    stride = info.size
    for size, (start, stop, _) in zip(shape, slices):
        if start == stop:
            return info.offset, info.offset
        stride //= size
        first += start * stride
        last += (stop - 1) * stride
    return info.offset + first, info.offset + last + stride


class safe_open:
    """Opens a safetensors file for reading single tensors and slices, like safetensors.safe_open.

    filename: a path that fstfs_open() accepts: a file, an index, a directory, a path on a mount.
    PyTorch and GGUF files are accepted, too. A quantized GGUF tensor is an array of uint8 whose
    last dimension is the size of a row in bytes; metadata() of a GGUF file returns its key-value
    pairs, with numbers and arrays as JSON.
    framework: "pt", "np", "flax", "tf", "mlx", "paddle", or another of safetensors' names for them.
    device: where to create the tensors; only torch and paddle accept anything but "cpu".
    backend: "mmap" maps files that are in the page cache, copy-on-write, and reads others into new
    memory; "pread" always reads. Only torch tensors on the CPU are mapped.

    Tensors remain valid after the file is closed. A mapped tensor raises SIGBUS on access if its
    file is truncated. Any thread may call any method. A child process may use the object after
    fork(), unless the file has changed since (OSError, ESTALE).

    Raises SafetensorError (invalid file or argument), FileNotFoundError, OSError, TypeError. After
    the end of a `with` block all methods raise SafetensorError.
    """

    _source: Source | None

    def __init__(self, filename: str | os.PathLike[str], framework: str,
                 device: str | int | None = "cpu", *, backend: str = "mmap") -> None:
        self._source = Source(filename, framework, device, backend)

    def _open(self) -> tuple[Source, Opened]:
        source = self._source
        if source is None:
            raise SafetensorError("File is closed")
        return source, source.opened()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        self._source = None

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return [info.name for info in self._open()[1].infos()]

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors in the order of their offsets in the file."""
        source, opened = self._open()
        infos = opened.infos()
        if len({info.file for info in infos} - {os.fsencode(source.path)}) > 0:
            # The tensors are stored in other files, or the path contains symbolic links. The header
            # of the opened file has their order.
            header = _read_header(source.path)
            if all(info.name in header for info in infos):
                return sorted((info.name for info in infos),
                              key=lambda name: header[name]["data_offsets"])
        return [info.name for info in sort_by_offset(infos)]

    def metadata(self) -> dict[str, str] | None:
        """Returns `__metadata__` as a dict; None if the header has none, or null."""
        source, opened = self._open()
        pairs = opened.metadata()
        if not pairs and _read_header(source.path).get("__metadata__") is None:
            return None
        return pairs

    def get_tensor(self, name: str) -> Any:
        """Returns the tensor with this name, with the dtype and shape of the header. The last
        dimension of an F4 tensor is halved, because two elements share a byte.

        Raises SafetensorError if there is no such tensor or the framework does not have its dtype
        (AttributeError if only later versions of torch have it), and OSError if reading fails
        (ESTALE: the file has changed). If memory is exhausted, raises
        MemoryError, or what the framework raises: torch raises RuntimeError.
        """
        source, opened = self._open()
        return source.finish(source.tensor(opened, source.find(opened, name)))

    def get_tensors(self) -> dict[str, Any]:
        """Returns {name: tensor} of all tensors, read with one call of the library. Raises what
        get_tensor() raises."""
        source, opened = self._open()
        return source.finish_all(source.tensors(opened, sort_by_offset(opened.infos())))

    def get_slice(self, name: str) -> SafeSlice:
        """Returns a SafeSlice of the tensor with this name, without reading it. Raises
        SafetensorError if there is no such tensor."""
        source, opened = self._open()
        return SafeSlice(source, source.find(opened, name))


class SafeSlice:
    """A tensor that is read when it is indexed. If the index is a strided slice, only the selected
    bytes are read."""

    def __init__(self, source: Source, info: Info) -> None:
        self._source = source
        self._name, self._dtype, self._shape = info.name, info.dtype, info.shape

    def get_shape(self) -> list[int]:
        """Returns the shape in elements, as in the header."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Returns the dtype as the header names it, such as "BF16"."""
        return self._dtype

    def __getitem__(self, index: Any) -> Any:
        """Returns the part of the tensor that an index selects: integers, slices (start, stop and
        step in elements) and an ellipsis; for torch, any index of torch. The whole tensor is read
        if the index is not a strided slice (a list, a mask, a tensor, None), the tensor is a
        quantized one of a GGUF file, or the index of an F4 tensor has a step.

        Raises SafetensorError or IndexError for an invalid index, and what get_tensor() raises.
        """
        opened = self._source.opened()
        source = self._source
        return source.finish(source.slice(opened, source.find(opened, self._name), index))


def sort_by_offset(infos):
    """Returns the infos sorted by file and offset."""
    return sorted(infos, key=lambda info: (info.file, info.offset, info.offset + info.size))


def load_file(filename: str | os.PathLike[str], device: str | int | None = "cpu", *,
              framework: str = "pt", backend: str = "mmap") -> dict[str, Any]:
    """Returns {name: tensor} of all tensors of a safetensors file, like
    safetensors.torch.load_file(). Arguments and errors are those of safe_open."""
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()


def load_checkpoint(directory: str | os.PathLike[str], device: str | int | None = "cpu",
                    tensors: Iterable[str] | None = None, *, framework: str = "pt",
                    backend: str = "mmap") -> dict[str, Any]:
    """Returns {name: tensor} of a checkpoint. All shards are read with one call of the library.

    directory: a directory of shards, an index or a file, as safe_open accepts.
    tensors: the names of the tensors to load; None loads all.
    The other arguments and the errors are those of safe_open. Raises SafetensorError if two shards
    contain the same tensor.
    """
    source = Source(directory, framework, device, backend)
    opened = source.opened()
    infos = opened.infos() if tensors is None else \
        [source.find(opened, name) for name in dict.fromkeys(tensors)]
    return source.finish_all(source.tensors(opened, sort_by_offset(infos)))
