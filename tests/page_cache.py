# SPDX-License-Identifier: Apache-2.0
"""What is in the page cache, by mincore(), which reports all of a file that the caller does not own."""

import contextlib
import ctypes
import mmap
import os
import struct

from conftest import drop_from_page_cache, eventually

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]


@contextlib.contextmanager
def mapped(path):
    """The address and size of a read-only mapping of a file, without readahead."""
    size = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        at = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    assert at != ctypes.c_void_p(-1).value
    try:
        assert LIBC.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), mmap.MADV_RANDOM) == 0
        yield at, size
    finally:
        LIBC.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))


def cached(path):
    """A flag for each page of a file: whether it is in the page cache."""
    with mapped(path) as (at, size):
        flags = (ctypes.c_ubyte * -(-size // PAGE))()
        assert LIBC.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), flags) == 0
    return [flag & 1 for flag in flags]


def cachestat_is_allowed(path):
    """Whether the calling user may ask the kernel by cachestat(2) what is cached of a file: newer
    kernels (6.14) require that the user owns the file or may write to it."""
    number, first_page = 451, struct.pack("QQ", 0, PAGE)  # of <asm-generic/unistd.h>
    fd = os.open(path, os.O_RDONLY)
    try:
        return LIBC.syscall(number, fd, first_page, ctypes.create_string_buffer(5 * 8), 0) == 0
    finally:
        os.close(fd)


def drop(path):
    """Evicts a file without the program."""
    def is_dropped():
        drop_from_page_cache([path])
        return not any(cached(path))
    assert eventually(is_dropped)
