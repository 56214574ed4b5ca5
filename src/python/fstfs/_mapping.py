# SPDX-License-Identifier: Apache-2.0
"""Files that are in the page cache already: mapped rather than read, as safetensors maps them."""

import ctypes
import os

from ._library import identity

PROBES = 32  # at most so many looks into the page cache for one answer
PROBE_STEP = 256 << 10
NOWAIT = getattr(os, "RWF_NOWAIT", None)  # not with every C library


class MappedFile:
    """One file of a checkpoint, mapped when it is first of use."""

    def __init__(self, path):
        self.path = path
        self.storage = None
        self.identity = identity(path)

    def is_cached(self, start, end):
        """Whether these bytes are in the page cache, as far as some looks can tell; none of them
        reads anything from the storage. Keeps no descriptor: a checkpoint has a thousand files."""
        if NOWAIT is None:
            return False
        step = max(PROBE_STEP, (end - start) // PROBES)
        byte = [bytearray(1)]
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # from the end: the start may have come in with the header
            return identity(fd) == self.identity and \
                all(os.preadv(fd, byte, at, NOWAIT) == 1
                    for at in (*range(end - 1, start, -step), start))
        except OSError:  # BlockingIOError: they are not; others: the file system cannot say
            return False
        finally:
            os.close(fd)

    def map(self, opened, info, framework):
        """Has a storage of the version that was opened; False where there can be none."""
        if self.storage is None:
            storage = framework.map(self.path)
            if storage is None or info.bits % 8:
                return False
            if self.identity != opened.identity:
                # The library compares the file with what it opened; so it has been mapped.
                element = ctypes.create_string_buffer(info.bits // 8)
                opened.read([(info, [(0, 1, 1)] * len(info.shape), ctypes.addressof(element))])
            self.storage = storage
        return identity(self.path) == self.identity


class MappedFiles:
    """Those of an opened checkpoint, for a framework that can map."""

    def __init__(self):
        self.files = {}

    def find(self, opened, infos, framework, start, end):
        """The storage of the file that the infos lie in, if its bytes [start, end) are in the page
        cache; else None."""
        path = infos[0].file
        try:
            file = self.files.get(path) or self.files.setdefault(path, MappedFile(path))
            if file.is_cached(start, end) and file.map(opened, infos[0], framework):
                return file.storage
        except OSError:
            pass
        return None
