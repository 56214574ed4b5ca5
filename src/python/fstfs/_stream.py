# SPDX-License-Identifier: Apache-2.0
"""Yields the tensors of many files in order, while reads of the next ones are in flight."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from . import _frameworks
from ._checkpoint import sort_by_offset
from ._library import Opened, Read, SafetensorError, find_device, process

Path = Union[str, "os.PathLike[str]"]

MEMORY_DEFAULT = 512 << 20
GROUP_BYTES_MAX = 32 << 20  # bytes of one read; a larger tensor is read alone
READS_MAX = 64  # reads in flight
OPENERS_MAX = 8  # threads that open files; each waits for the header of one file


class _Group:
    """Adjacent tensors of one file, which one read reads."""

    __slots__ = ("file_index", "opened", "items", "size")

    def __init__(self, file_index, opened):
        self.file_index, self.opened = file_index, opened
        self.items = []  # (info, dtype, shape)
        self.size = 0


class _GroupRead:
    """A group in flight. `memory`: [(tensor, address)]; `read` is None if all tensors are empty."""

    __slots__ = ("group", "memory", "read")

    def __init__(self, group, memory, device):
        self.group, self.memory, self.read = group, memory, None
        wanted = [(info, None, address) for (info, *_), (_, address) in zip(group.items, memory)
                  if info.size]
        if wanted:
            self.read = Read(group.opened, wanted, memory, device)

    def free(self):
        if self.read:
            self.read.free()


class Stream:
    """Iterates once over the tensors of files: (index of the file, name, tensor).

    The constructor takes the arguments of iter_tensors(), opens all files, and raises the errors
    that iter_tensors() raises before the iteration."""

    def __init__(self, files, device="cpu", *, framework="pt", select=None, memory=None, pin=False):
        self.framework = _frameworks.framework(framework)
        self.target = _frameworks.device(device)
        self.device = _frameworks.memory_device(self.framework, self.target)
        if self.device != "cpu" and self.framework.name != "pytorch":
            raise SafetensorError(f"Device {self.device} is not supported for framework "
                                  f"{self.framework.name}")
        if pin and self.framework.name != "pytorch":
            raise SafetensorError("Pinned memory is not supported for framework "
                                  f"{self.framework.name}")
        self.memory = MEMORY_DEFAULT if memory is None else memory
        if isinstance(self.memory, bool) or not isinstance(self.memory, int) or self.memory <= 0:
            raise ValueError(f"memory: expected a positive number of bytes, found {memory!r}")
        self.pin = pin
        self.generation = process.generation
        self.direct = None  # the library's device; None: read into host memory
        if str(self.device).startswith("cuda:"):
            self.direct = find_device(self.device)
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        self.groups = deque(self._plan(_open_all([os.fspath(path) for path in files]), select))

    def _plan(self, opened_files, select):
        limit = min(GROUP_BYTES_MAX, max(1, self.memory // 4))
        group = None
        for file_index, opened in enumerate(opened_files):
            for info in sort_by_offset(opened.infos()):
                if select is not None and not select(info.name):
                    continue
                if group is None or group.opened is not opened or group.size + info.size > limit:
                    if group is not None:
                        yield group
                    group = _Group(file_index, opened)
                group.items.append((info, *self.framework.prepare(info)))
                group.size += info.size
        if group is not None:
            yield group

    def _allocate(self, info, dtype, shape):
        """Allocates memory for a tensor; returns (tensor, address)."""
        framework = self.framework
        if self.direct is not None:
            tensor = framework.module.empty(shape, dtype=dtype, device=self.device)
        elif self.pin:
            tensor = self._allocate_pinned(info, dtype, shape)
        else:
            tensor = framework.empty(dtype, shape, info.offset)
        return tensor, framework.address(tensor)

    def _allocate_pinned(self, info, dtype, shape):
        # One allocation per tensor: torch tracks copies from pinned memory by the tensor's storage.
        try:
            return self.framework.module.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # no memory, or no more, can be pinned
            self.pin = False
            return self.framework.empty(dtype, shape, info.offset)

    def _start(self, group):
        if process.generation != self.generation:
            raise RuntimeError("tensors cannot be streamed in a child process of the process that "
                               "opened the files")
        memory = [self._allocate(*item) for item in group.items]
        if self.direct is not None:
            # torch may have reused memory that queued kernels still access
            self.framework.module.cuda.current_stream(self.device).synchronize()
        return _GroupRead(group, memory, self.direct)

    def _finish(self, tensor):
        if self.direct is None and self.device != "cpu":
            return tensor.to(self.device)
        return self.framework.finish(tensor, self.target)

    def __iter__(self):
        in_flight = deque()
        held = 0  # bytes in flight, or read but not yet yielded
        try:
            while True:
                while self.groups and len(in_flight) < READS_MAX and \
                        (not in_flight or held + self.groups[0].size <= self.memory):
                    in_flight.append(self._start(self.groups.popleft()))
                    held += in_flight[-1].group.size
                if not in_flight:
                    return
                if in_flight[0].read:
                    in_flight[0].read.wait()
                reading = in_flight.popleft()
                reading.free()
                group, memory = reading.group, deque(reading.memory)
                del reading  # each tensor is freed when the caller drops it
                for info, *_ in group.items:
                    yield group.file_index, info.name, self._finish(memory.popleft()[0])
                held -= group.size
        finally:
            for reading in in_flight:
                if reading.read:
                    reading.read.cancel()
            for reading in in_flight:
                reading.free()


def _open_all(paths):
    if len(paths) < 2:
        return [Opened(path) for path in paths]
    process.handle()  # before several threads need it
    with ThreadPoolExecutor(min(OPENERS_MAX, len(paths)), "fstfs-open") as pool:
        return list(pool.map(Opened, paths))


def iter_tensors(files: Union[Path, Iterable[Path]], device: Any = "cpu", *, framework: str = "pt",
                 select: Optional[Callable[[str], bool]] = None, memory: Optional[int] = None,
                 pin: bool = False) -> Iterator[tuple[str, Any]]:
    """Iterates over the (name, tensor) pairs of files, in the order of the files and of the offsets
    in them, while reads of the next tensors are in flight.

    files: one or several paths, as in load_checkpoint(). All are opened before the call returns.
    device, framework: as in load_checkpoint().
    select: called with each name; tensors for which it returns false are not read.
    memory: limit in bytes of the tensors that are in flight, or read but not yet yielded; a larger
    tensor is read alone. None: 512 MiB. Tensors that the caller keeps do not count.
    pin: read into pinned host memory, from which torch copies to a device without another copy, or
    into other memory if none can be pinned. Only for torch.

    The caller owns each tensor, and each has memory of its own. Closing the iterator cancels the
    reads in flight. Use it in one thread at a time. The call raises the errors of safe_open, and
    ValueError for `memory`. The iteration raises OSError and, in a child process, RuntimeError. If
    memory is exhausted, it raises MemoryError, or what the framework raises: torch raises
    RuntimeError.
    """
    stream = Stream(files, device, framework=framework, select=select, memory=memory, pin=pin)
    return ((name, tensor) for _, name, tensor in stream)
