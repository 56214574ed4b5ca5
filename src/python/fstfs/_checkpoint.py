# SPDX-License-Identifier: Apache-2.0
"""safe_open with the interface of safetensors, and functions that load whole checkpoints."""

import errno
import itertools
import json
import os
import struct

from . import _frameworks
from ._library import Opened, SafetensorError, find_device, not_a_text, process
from ._mapping import MappedFiles
from ._slices import by_safetensors, by_torch

# Most bytes in host memory at a time when tensors are copied to a device with .to().
BATCH = 256 << 20
BACKENDS = ("mmap", "pread")


def _read_header(path):
    """The header of a safetensors file as a dict; {} if the file is not one or cannot be read."""
    try:
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            if length > os.fstat(file.fileno()).st_size:
                return {}
            header = json.loads(file.read(length))
            return header if isinstance(header, dict) else {}
    except (OSError, ValueError, struct.error):
        return {}


class Source:
    """An open checkpoint with the framework, device and backend of its tensors: the state that
    safe_open and its slices share."""

    def __init__(self, path, framework, device, backend):
        if isinstance(path, bytes):
            raise not_a_text("filename", path)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError("argument 'filename': expected str, bytes or os.PathLike object, not "
                            f"{type(path).__name__}")
        self.shown = os.fspath(path)
        self.path = os.path.abspath(self.shown)
        self.framework = _frameworks.framework(framework)
        self.target = self.device = _frameworks.device(device)
        if self.framework.name == "paddle":
            self.device = "cpu"  # read into host memory; paddle copies it to the device
        if not isinstance(backend, str):
            raise not_a_text("backend", backend)
        if backend not in BACKENDS:
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", '
                                  '"pread")')
        self.may_map = backend == "mmap" and self.device == "cpu" and \
            hasattr(self.framework, "map")
        self.current = Opened(self.shown)
        if self.device != "cpu" and self.framework.name != "pytorch":
            raise SafetensorError(f"Device {self.device} is not supported for framework "
                                  f"{self.framework.name}")
        self.mapped = MappedFiles()

    def opened(self):
        """The Opened. A child process reopens the path first; OSError with ESTALE if the file has
        changed."""
        opened = self.current
        if opened.generation != process.generation:
            opened = Opened(self.path)
            if opened.identity != self.current.identity:
                raise OSError(errno.ESTALE, f"{self.shown}: changed or replaced since it was "
                              "opened")
            self.current = opened
        return opened

    def find(self, opened, name):
        if not isinstance(name, str):
            raise not_a_text("name", name)
        info = opened.find(name)
        if info is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return info

    def map(self, opened, infos, start, end):
        if not self.may_map or start == end:
            return None
        return self.mapped.find(opened, infos, self.framework, start, end)

    def tensors(self, opened, infos):
        """{name: tensor} of the infos, which must be sorted by file and offset."""
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
        made = self._read(opened, [(info, None, dtype, shape) for info, dtype, shape in rest])
        tensors.update(zip((info.name for info, *_ in rest), made))
        return tensors

    def finish(self, tensor):
        """Converts a tensor to the object that the caller gets."""
        return self.framework.finish(tensor, self.target)

    def finished(self, tensors):
        """Applies finish() in place, so that at most one tensor exists twice at a time."""
        for name in tensors:
            tensors[name] = self.finish(tensors[name])
        return tensors

    def _read(self, opened, wanted):
        """Reads `wanted`, a list of (info, slices, dtype, shape); returns tensors on the requested
        device."""
        device = None
        if self.device != "cpu" and str(self.device).startswith("cuda:"):
            device = find_device(self.device)
        made = []
        for batch in self._batches(wanted, device):
            tensors = [self._memory(*item, device) for item in batch]
            requests = [(info, slices, self.framework.address(tensor))
                        for (info, slices, *_), tensor in zip(batch, tensors) if tensor.nbytes]
            if device is not None:
                # torch may have reused memory that queued kernels still access
                self.framework.module.cuda.current_stream(self.device).synchronize()
            if requests:
                opened.read(requests, device)
            if self.device != "cpu" and device is None:
                tensors = [tensor.to(self.device) for tensor in tensors]
            made += tensors
        return made

    def _memory(self, info, slices, dtype, shape, device):
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
                room = BATCH
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
            slices, taken = by_safetensors(index, framework.prepare(info)[1])
            if info.dtype == "F4" and slices[-1][2] != 1:
                return self.tensor(opened, info)[index]
            return self._read_slices(opened, info, slices, taken)
        dtype, shape = framework.prepare(info)
        if info.size == 0:
            return self.tensor(opened, info)[index]  # torch sets the strides of the result
        found = by_torch(framework.module, index, shape)
        if found is None:
            return self.tensor(opened, info)[index]
        slices, taken = found
        storage = self.map(opened, [info], *_span(info, shape, slices))
        whole = storage and framework.mapped(storage, info, dtype, shape)
        if whole is not None:
            return whole[index]
        if info.dtype == "F4" and slices[-1][2] != 1:
            return self.tensor(opened, info)[index]
        return self._read_slices(opened, info, slices, taken)

    def _read_slices(self, opened, info, slices, taken):
        dtype, _ = self.framework.prepare(info)
        if info.dtype == "F4":  # the index counts bytes, the library elements: two in a byte
            start, stop, step = slices[-1]
            slices = [*slices[:-1], (2 * start, 2 * stop, step)]
        tensor, = self._read(opened, [(info, slices, dtype, taken)])
        return tensor


def _span(info, shape, slices):
    """(start, end): offsets in the file of the first byte of the slices and of the byte after the
    last."""
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
    framework: "pt", "np", "flax", "tf", "mlx", "paddle", or another of safetensors' names for them.
    device: of the tensors; only torch and paddle accept another than "cpu".
    backend: "mmap" maps files that are in the page cache and reads others; "pread" always reads.

    Raises SafetensorError (invalid file or argument), FileNotFoundError, OSError, TypeError.
    """

    def __init__(self, filename, framework, device="cpu", *, backend="mmap"):
        self._source = Source(filename, framework, device, backend)

    def _open(self):
        source = self._source
        if source is None:
            raise SafetensorError("File is closed")
        return source, source.opened()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._source = None

    def keys(self):
        """The names of the tensors, sorted."""
        return [info.name for info in self._open()[1].infos()]

    def offset_keys(self):
        """The names of the tensors in the order of their offsets in the file."""
        source, opened = self._open()
        infos = opened.infos()
        if len({info.file for info in infos} - {os.fsencode(source.path)}) > 0:
            # The tensors are read from other files than the opened one. The header of the opened
            # file has their order.
            header = _read_header(source.path)
            if all(info.name in header for info in infos):
                return sorted((info.name for info in infos),
                              key=lambda name: header[name]["data_offsets"])
        return [info.name for info in _by_place(infos)]

    def metadata(self):
        """{key: value} of `__metadata__`; None if the header has no `__metadata__`."""
        source, opened = self._open()
        pairs = opened.metadata()
        if not pairs and "__metadata__" not in _read_header(source.path):
            return None
        return pairs

    def get_tensor(self, name):
        """The tensor with this name; SafetensorError if there is none."""
        source, opened = self._open()
        return source.finish(source.tensor(opened, source.find(opened, name)))

    def get_tensors(self):
        """{name: tensor} of all tensors, read in one call of the library."""
        source, opened = self._open()
        return source.finished(source.tensors(opened, _by_place(opened.infos())))

    def get_slice(self, name):
        """A SafeSlice of the tensor with this name. Reads nothing yet."""
        source, opened = self._open()
        return SafeSlice(source, source.find(opened, name))


class SafeSlice:
    """A tensor that is read when it is indexed. Only the bytes that the index selects are read."""

    def __init__(self, source, info):
        self._source = source
        self._name, self._dtype, self._shape = info.name, info.dtype, info.shape

    def get_shape(self):
        """The shape as a list, in elements."""
        return list(self._shape)

    def get_dtype(self):
        """The dtype as safetensors names it, such as "BF16"."""
        return self._dtype

    def __getitem__(self, index):
        opened = self._source.opened()
        source = self._source
        return source.finish(source.slice(opened, source.find(opened, self._name), index))


def _by_place(infos):
    return sorted(infos, key=lambda info: (info.file, info.offset, info.offset + info.size))


def load_file(filename, device="cpu", *, framework="pt", backend="mmap"):
    """{name: tensor} of all tensors of a safetensors file, like safetensors.torch.load_file()."""
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()


def load_checkpoint(directory, device="cpu", tensors=None, *, framework="pt", backend="mmap"):
    """{name: tensor} of a checkpoint; all shards are read in one call of the library.

    directory: a directory of shards, an index or a file.
    tensors: the names of the tensors to load; None loads all.
    """
    source = Source(directory, framework, device, backend)
    opened = source.opened()
    infos = opened.infos() if tensors is None else \
        [source.find(opened, name) for name in dict.fromkeys(tensors)]
    return source.finished(source.tensors(opened, _by_place(infos)))
