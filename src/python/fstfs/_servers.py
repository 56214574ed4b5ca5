# SPDX-License-Identifier: Apache-2.0
"""Common to the plugins for vLLM and SGLang: options, the choice between libfstfs and the server's
own iterator, and checks of the server's code that the plugins rely on.

A plugin replaces the server's iterator over the tensors of safetensors files. The server's own code
selects the files, filters and renames tensors, and copies them into the model.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import types
from contextlib import closing
from typing import Any, Callable, Iterable, Iterator, Optional

from . import _frameworks
from ._library import SafetensorError
from ._mapping import MappedFile
from ._mount_table import read_mountinfo
from ._stream import Stream

SYS_CACHESTAT = 451  # the same on all architectures
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
CACHED_SHARE_MIN = 0.99  # files with this share of their pages in the page cache count as cached

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class IncompatibleServer(Exception):
    """The server's code is not what the plugin relies on. The message names the difference."""


def check_parameters(function: Callable[..., Any], required: Iterable[str],
                     ignored: Iterable[str] = ()) -> None:
    """Raises IncompatibleServer if a required parameter is missing, or if there is one that is
    neither required nor in `ignored`: it might change what must be loaded."""
    name = getattr(function, "__qualname__", repr(function))
    found = set(inspect.signature(function).parameters)
    missing = sorted(set(required) - found)
    unknown = sorted(found - set(required) - set(ignored))
    if missing or unknown:
        raise IncompatibleServer(f"{name}() has " + " and ".join(
            [f"no parameter {parameter}" for parameter in missing] +
            [f"an unknown parameter {parameter}" for parameter in unknown]))


def check_attributes(owner: Any, *names: str) -> None:
    """Raises IncompatibleServer unless the module or class has these attributes."""
    for name in names:
        if not hasattr(owner, name):
            raise IncompatibleServer(f"{owner.__name__} has no {name}")


def with_globals(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Returns a copy of a function in which these global names refer to these objects. The function
    and its module stay unchanged. Raises IncompatibleServer if it does not use one of the names."""
    code = getattr(function, "__code__", None)
    for name in names:
        if not isinstance(code, types.CodeType) or name not in code.co_names:
            raise IncompatibleServer(f"{getattr(function, '__qualname__', function)}() does not "
                                     f"use {name}")
    assert isinstance(code, types.CodeType)
    copied = types.FunctionType(code, {**function.__globals__, **names}, function.__name__,
                                function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class Options:
    """The keys of model_loader_extra_config: `device`, a device of torch or None, and `memory`, a
    number of bytes or None. Raises ValueError for any other key or value."""

    def __init__(self, extra: Any = None):
        if extra is None:
            extra = {}
        if not isinstance(extra, dict):
            raise ValueError("model_loader_extra_config of load format fstfs: expected an object, "
                             f"found {type(extra).__name__}")
        unknown = sorted(set(extra) - {"device", "memory"})
        if unknown:
            raise ValueError("model_loader_extra_config of load format fstfs: unknown key "
                             f"{', '.join(map(repr, unknown))} (expected: device, memory)")
        self.device, self.memory = extra.get("device"), extra.get("memory")
        if self.memory is not None and (type(self.memory) is not int or self.memory <= 0):
            raise ValueError("model_loader_extra_config of load format fstfs: memory: expected a "
                             f"positive number of bytes, found {self.memory!r}")
        try:
            _frameworks.device(self.device)
        except (SafetensorError, ValueError) as error:
            raise ValueError("model_loader_extra_config of load format fstfs: device: "
                             f"{error}") from None

    def stream(self, files: list[str], select: Optional[Callable[[str], bool]]) -> Stream:
        import torch

        device = self.device
        if device == "cuda":  # the device that the server has selected for this process
            device = f"cuda:{torch.cuda.current_device()}"
        return Stream(files, device, select=select, memory=self.memory,
                      pin=device in (None, "cpu") and torch.cuda.is_available())


def _count_pages(path: str) -> tuple[int, int]:
    """Returns how many pages of a file are in the page cache, and how many it has."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        pages = -(-size // PAGE_BYTES)
        span = (ctypes.c_uint64 * 2)(0, size)
        counts = (ctypes.c_uint64 * 5)()  # counts[0]: cached pages
        if _syscall(ctypes.c_long(SYS_CACHESTAT), ctypes.c_int(fd), span, counts,
                    ctypes.c_uint(0)) == 0:
            return counts[0], pages
    finally:
        os.close(fd)
    # Linux before 6.5, or a file of another user. On a mount of fstfs, is_cached() returns False.
    return (pages if MappedFile(path).is_cached(0, size) else 0), pages


def are_cached(files: Iterable[str]) -> bool:
    """Returns whether the files are in the page cache: then mapping them is fastest. A few missing
    pages, which the kernel has reclaimed, are tolerated (CACHED_SHARE_MIN)."""
    try:
        counts = [_count_pages(path) for path in files]
    except OSError:
        return False
    cached, pages = map(sum, zip(*counts)) if counts else (0, 0)
    return cached >= CACHED_SHARE_MIN * pages


def on_mount(files: Iterable[str]) -> bool:
    """Returns whether all files are on mounts of fstfs. False if that cannot be determined."""
    try:
        devices = {os.makedev(*map(int, mount.identity.device.split(b":")))
                   for mount in read_mountinfo() if mount.identity.kind == b"fuse.fstfs"}
        return bool(devices) and all(os.stat(path).st_dev in devices for path in files)
    except OSError:
        return False


def iterate(files: list[str], original: Callable[[], Iterable[tuple[str, Any]]], options: Options,
            log: Any, make_bar: Callable[[int], Any],
            select: Optional[Callable[[str], bool]] = None) -> Iterator[tuple[str, Any]]:
    """Yields the (name, tensor) pairs of the files in order.

    original: returns the server's own iterator. It is used if the files are cached, and if libfstfs
    cannot open one of them or torch does not have the device or a dtype; the server then reports
    the error itself. Later errors are raised.
    make_bar: returns a progress bar for a number of files.
    select: as in iter_tensors()."""
    if are_cached(files):
        log.info("fstfs: the files are in the page cache; the server's own loader maps them")
        yield from original()
        return
    try:
        stream = options.stream(files, select)
    except (SafetensorError, OSError, MemoryError, AttributeError, RuntimeError) as error:
        log.warning("fstfs: %s; the server's own loader reads the files", error)
        yield from original()
        return
    log.info("fstfs: libfstfs reads %d files", len(files))
    done = 0
    with closing(make_bar(len(files))) as bar, closing(iter(stream)) as tensors:
        for file_index, name, tensor in tensors:
            if file_index > done:
                bar.update(file_index - done)
                done = file_index
            yield name, tensor
            del tensor  # keep no reference while waiting for the next one
        bar.update(len(files) - done)
