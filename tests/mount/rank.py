# SPDX-License-Identifier: Apache-2.0
"""Ranks: processes of one node that load the same checkpoint, each in its own way.

For test_ranks.py and for tests/bench/node.py, which count what they read from storage.
"""

import hashlib
import importlib
import json
import os
import random
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

PIECE = 1 << 20
ORDERS = ("file", "name", "random")
MODULE = Path(__file__).resolve().parents[2] / "src/python"


@dataclass
class Rank:
    """What one process reads of the checkpoint STEM in the directory `directory` of a mount."""

    number: int
    mountpoint: str
    view: str
    order: str = "file"
    half: int | None = None  # only the first (0) or the second (1) half of the tensors
    directory: str = ""
    stem: str = "model"
    environment: dict = field(default_factory=dict)

    def path(self, view, *names):
        return os.path.join(self.mountpoint, view, self.directory, *names)

    def choose(self, places):
        """The tensors to read, in their order. `places`: {name: sort key of the file order}."""
        names = sorted(places, key=places.get)
        if self.half is not None:
            names = names[self.half * len(names) // 2:(self.half + 1) * len(names) // 2]
        if self.order == "name":
            names.sort()
        elif self.order == "random":
            random.Random(self.number).shuffle(names)
        return names

    def prepare(self):
        """Sets the environment, and imports what load() needs."""
        os.environ.update(self.environment)
        if self.view == "libfstfs":
            sys.path.insert(0, os.fspath(MODULE))
            importlib.import_module("fstfs.numpy")

    def load(self):
        """Reads the tensors; returns {name: hash}."""
        return self._load_by_library() if self.view == "libfstfs" else self._load_files()

    def _load_files(self):
        segments = self._segments()
        names = self.choose({name: place for name, (*place, _) in segments.items()})
        files, found = {}, {}
        for name in names:
            path, offset, length = segments[name]
            if path not in files and self.view != "tensors":
                files[path] = os.open(path, os.O_RDONLY)
            fd = files[path] if path in files else os.open(path, os.O_RDONLY)
            found[name] = hash_of(fd, offset, length)
            if path not in files:
                os.close(fd)
        for fd in files.values():
            os.close(fd)
        return found

    def _segments(self):
        """{name: (path, offset, length)} of each tensor in this view."""
        if self.view != "tensors":
            paths = sorted(Path(self.path(self.view)).glob(f"{self.stem}*.safetensors"))
            return {name: place for path in map(str, paths)
                    for name, place in file_segments(path).items()}
        # File order is that of the merged index: by shard, and by offset in it.
        merged = [file_segments(str(path)) for path in
                  sorted(Path(self.path("shards")).glob(f"{self.stem}*.safetensors"))]
        return {name: (self.path("tensors", self.stem, name), 0, length)
                for segments in merged for name, (_, _, length) in segments.items()}

    def _load_by_library(self):
        fstfs = sys.modules["fstfs"]
        path = self.path("merged", f"{self.stem}.safetensors")
        if self.order == "file" and self.half is None:
            found = fstfs.load_checkpoint(path, framework="np")
            return {name: hashlib.sha256(tensor).hexdigest() for name, tensor in found.items()}
        with fstfs.safe_open(path, "np") as f:
            names = self.choose({name: i for i, name in enumerate(f.offset_keys())})
            return {name: hashlib.sha256(f.get_tensor(name)).hexdigest() for name in names}


def device_bytes(pid):
    """Bytes that storage devices have read for a process."""
    with open(f"/proc/{pid}/io") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("read_bytes:"))


def hash_of(fd, offset, length):
    """The hash of bytes of a file, read with a small buffer."""
    made = hashlib.sha256()
    buffer = memoryview(bytearray(PIECE))
    while length > 0:
        count = os.preadv(fd, [buffer[:min(length, PIECE)]], offset)
        if count == 0:
            raise EOFError(f"the file ends at {offset}")
        made.update(buffer[:count])
        offset += count
        length -= count
    return made.hexdigest()


def file_segments(path):
    """{name: (path, offset, length)} of a safetensors file, in file order."""
    with open(path, "rb", buffering=0) as f:
        length, = struct.unpack("<Q", f.read(8))
        text = b""
        while len(text) < length:
            text += f.read(length - len(text))
    start = 8 + length
    found = {name: (path, start + entry["data_offsets"][0],
                    entry["data_offsets"][1] - entry["data_offsets"][0])
             for name, entry in json.loads(text).items() if name != "__metadata__"}
    return dict(sorted(found.items(), key=lambda item: item[1][1]))


def hashes(directory):
    """{name: hash} of all tensors of the safetensors files of a directory, read directly."""
    found = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        for name, (_, offset, length) in file_segments(str(path)).items():
            with open(path, "rb", buffering=0) as f:
                found[name] = hash_of(f.fileno(), offset, length)
    return found
