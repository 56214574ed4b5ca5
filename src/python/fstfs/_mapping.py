# SPDX-License-Identifier: Apache-2.0
"""Maps files that are in the page cache, as safetensors does, instead of reading them."""

import ctypes
import os

from ._library import identity

PROBES = 32  # most positions to probe for one answer
PROBE_STEP = 256 << 10  # least distance of two probes, in bytes
NOWAIT = getattr(os, "RWF_NOWAIT", None)  # None: the C library does not have it


class MappedFile:
    """A file of a checkpoint. It is mapped on first use."""

    def __init__(self, path):
        self.path = path
        self.storage = None
        self.identity = identity(path)

    def is_cached(self, start, end):
        """Whether the bytes [start, end) are in the page cache, judged by probes that never
        read from the storage. Keeps no descriptor open: a checkpoint can have a thousand files."""
        if NOWAIT is None:
            return False
        step = max(PROBE_STEP, (end - start) // PROBES)
        byte = [bytearray(1)]
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # From the end, because reading the header may have cached the start.
            return identity(fd) == self.identity and \
                all(os.preadv(fd, byte, at, NOWAIT) == 1
                    for at in (*range(end - 1, start, -step), start))
        except OSError:  # BlockingIOError: not cached; others: RWF_NOWAIT is not supported
            return False
        finally:
            os.close(fd)

    def map(self, opened, info, framework):
        """Maps the file, if that is not done yet. False: it cannot be mapped, or is not the
        version that was opened."""
        if self.storage is None:
            storage = framework.map(self.path)
            if storage is None or info.bits % 8:
                return False
            if self.identity != opened.identity:
                # Reading an element fails if the file, and so the mapping, is not the version that
                # the library opened.
                element = ctypes.create_string_buffer(info.bits // 8)
                opened.read([(info, [(0, 1, 1)] * len(info.shape), ctypes.addressof(element))])
            self.storage = storage
        return identity(self.path) == self.identity


class MappedFiles:
    """The mapped files of a checkpoint, for a framework that supports mapping."""

    def __init__(self):
        self.files = {}

    def find(self, opened, infos, framework, start, end):
        """The mapped storage of the file of the infos, if its bytes [start, end) are in the page
        cache; else None."""
        path = infos[0].file
        try:
            file = self.files.get(path) or self.files.setdefault(path, MappedFile(path))
            if file.is_cached(start, end) and file.map(opened, infos[0], framework):
                return file.storage
        except OSError:
            pass
        return None
