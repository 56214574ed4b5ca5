# SPDX-License-Identifier: Apache-2.0
"""Maps files that are in the page cache, as safetensors does, instead of reading them."""

import ctypes
import os

from ._library import identity

PROBES_MAX = 32  # per call of is_cached()
PROBE_STEP_MIN = 256 << 10  # bytes between two probes
NOWAIT = getattr(os, "RWF_NOWAIT", None)  # None: the C library of the Python build lacks it


class MappedFile:
    """A file of a checkpoint, mapped on first use. The mapping lasts as long as the storage."""

    def __init__(self, path):
        self.path = path
        self.storage = None
        self.identity = identity(path)

    def is_cached(self, start, end):
        """Returns whether the bytes [start, end) seem to be in the page cache: probes single bytes
        without reading from storage. Keeps no file open, because a checkpoint can have a thousand
        files."""
        if NOWAIT is None:
            return False
        step = max(PROBE_STEP_MIN, (end - start) // PROBES_MAX)
        byte = [bytearray(1)]
        with open(self.path, "rb", buffering=0) as file:
            fd = file.fileno()
            try:
                # Starts at the end: reading the header may have cached only the start.
                return identity(fd) == self.identity and \
                    all(os.preadv(fd, byte, at, NOWAIT) == 1
                        for at in (*range(end - 1, start, -step), start))
            except OSError:  # BlockingIOError: not cached; others: RWF_NOWAIT is not supported
                return False

    def map(self, opened, info, framework):
        """Maps the file unless it is mapped. Returns False if it cannot be mapped or is not the
        version that was opened."""
        if self.storage is None:
            storage = framework.map(self.path)
            if storage is None or info.bits % 8:
                return False
            if self.identity != opened.identity:
                if not info.bits:
                    return False  # a quantized type of GGUF: single elements cannot be read
                # Compare versions: the read fails if the file is not the version that the library
                # opened.
                element = ctypes.create_string_buffer(info.bits // 8)
                opened.read([(info, [(0, 1, 1)] * len(info.shape), ctypes.addressof(element))],
                            [element])
            self.storage = storage
        return identity(self.path) == self.identity


class MappedFiles:
    """The mapped files of a checkpoint, for a framework that supports mapping."""

    def __init__(self):
        self.files = {}

    def find(self, opened, infos, framework, start, end):
        """Returns the mapped storage of the file that contains `infos`, or None if its bytes
        [start, end) are not in the page cache or it cannot be mapped."""
        path = infos[0].file
        try:
            file = self.files.get(path) or self.files.setdefault(path, MappedFile(path))
            if file.is_cached(start, end) and file.map(opened, infos[0], framework):
                return file.storage
        except OSError:
            pass
        return None
