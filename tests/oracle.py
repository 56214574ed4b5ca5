# SPDX-License-Identifier: Apache-2.0
"""An independent reader of safetensors files, with which the mount is compared.

It uses no code of fstfs, only the documented rules for escaped names and the order of the merged
file.
"""

import io
import json
import os
import re
import struct
from dataclasses import dataclass

import numpy as np
from corpus.trees import DTYPE_BITS

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

NUMPY = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4",
    "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}
ML_DTYPES = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@dataclass
class Entry:
    name: str
    dtype: str
    shape: list
    path: str
    offset: int  # of the file
    size: int

    def read(self):
        with open(self.path, "rb") as f:
            f.seek(self.offset)
            return f.read(self.size)


def read_header(path):
    """([Entry in file order], metadata or None, offset of the data)."""
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        text = f.read(n)
        size = os.fstat(f.fileno()).st_size  # not that of a version that begins meanwhile
    assert len(text) == n, path
    pairs = json.loads(text.decode(), object_pairs_hook=no_duplicates)
    metadata = pairs.pop("__metadata__", None)
    entries = [Entry(name, t["dtype"], t["shape"], os.fspath(path),
                     8 + n + t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0])
               for name, t in pairs.items()]
    entries.sort(key=lambda e: (e.offset, e.offset + e.size, e.name.encode()))
    at = 8 + n
    for e in entries:
        assert e.offset == at, f"{path}: {e.name!r} at {e.offset}, expected {at}"
        at += e.size
    assert at == size, f"{path}: data ends at {at}, the file at {size}"
    return entries, metadata, 8 + n


def no_duplicates(pairs):
    table = dict(pairs)
    assert len(table) == len(pairs), "a key twice"
    return table


def escape(name):
    """The file name of a tensor before truncation."""
    raw = name.encode() if isinstance(name, str) else name
    if not raw:
        return b"%"
    out = bytearray()
    for i, b in enumerate(raw):
        if b in b"/%" or b < 0x20 or b == 0x7F or (i == 0 and b == 0x2E):
            out += b"%%%02X" % b
        else:
            out.append(b)
    return bytes(out)


CUT = re.compile(rb"~[0-9a-f]{16}$")


def is_cut(name, limit=255):
    """Whether the file name of this tensor is truncated."""
    escaped = escape(name)
    return len(escaped) > limit or CUT.search(escaped) is not None


def check_cut(name, file_name, limit=255):
    escaped = escape(name)
    assert len(file_name) <= limit
    match = CUT.search(file_name)
    assert match, (name, file_name)
    stem = file_name[:match.start()]
    assert escaped.startswith(stem), (name, file_name)
    stem.decode()  # at the start of a character


def npy_bytes(dtype, shape, data):
    """The output of numpy.save for the tensor; dtypes below a byte as packed bytes. None if NumPy
    cannot represent it: more than 64 dimensions, or a size of 2^63 and more."""
    if len(shape) > 64 or any(dim >= 1 << 63 for dim in shape):
        return None
    if dtype in NUMPY:
        array = np.frombuffer(data, NUMPY[dtype]).reshape(shape)
    elif dtype in ML_DTYPES:
        if ml_dtypes is None:
            return None
        array = np.frombuffer(data, getattr(ml_dtypes, ML_DTYPES[dtype])).reshape(shape)
    else:
        array = np.frombuffer(data, "u1")
    out = io.BytesIO()
    np.save(out, array)
    # numpy.save writes "<f1" for float8_e5m2, which numpy.load refuses; the related dtypes get
    # "<V1"
    return out.getvalue().replace(b"'<f1'", b"'<V1'", 1)


def read_all(path):
    with open(path, "rb", buffering=0) as f:
        parts = []
        while part := f.read(1 << 22):
            parts.append(part)
    return b"".join(parts)


def walk(root):
    """{relative path (bytes): "d", "f", "l" or another type} of everything below root."""
    root = os.fsencode(root)
    found = {}
    pending = [b""]
    while pending:
        directory = pending.pop()
        with os.scandir(os.path.join(root, directory) if directory else root) as entries:
            for entry in entries:
                relative = os.path.join(directory, entry.name)
                if entry.is_symlink():
                    found[relative] = "l"
                elif entry.is_dir(follow_symlinks=False):
                    found[relative] = "d"
                    pending.append(relative)
                elif entry.is_file(follow_symlinks=False):
                    found[relative] = "f"
                else:
                    found[relative] = "?"
    return found


READ_BY_NAME = ("adapter_model", "pytorch_lora_weights", "consolidated")


class Expected:
    """The expected content of a view of a source (corpus.trees.Source)."""

    def __init__(self, source, view, options=()):
        self.source = source
        self.view = view
        self.by_number = any(o.startswith("--shards=") for o in options)
        self.by_size = any(o.startswith("--shard-size=") for o in options)

    def beside(self, checkpoint):
        """The other checkpoints of its directory."""
        return [c for c in self.source.checkpoints
                if c.directory == checkpoint.directory and c is not checkpoint]

    def hides_others(self, checkpoint):
        """Whether a generated index would make vLLM and SGLang skip other files of the directory."""
        return checkpoint.stem == "model" and checkpoint.index is None and \
            bool(self.beside(checkpoint))

    def is_recut(self, checkpoint):
        """Whether its shards are re-cut, also into one file."""
        if self.hides_others(checkpoint):
            return False
        if not checkpoint.one_file:
            return self.by_number or self.by_size
        return self.by_size and not checkpoint.stem.startswith(READ_BY_NAME) and \
            (checkpoint.index is not None or not any(c.sharded for c in self.beside(checkpoint)))

    def keeps_index(self, checkpoint):
        """Whether it has an index even as a single file."""
        return checkpoint.index is not None and bool(self.beside(checkpoint))

    def paths(self):
        """{relative path: "d" or "f"}, without truncated names (see cut()) and re-cut shards."""
        found = {os.fsencode(d): "d" for d in self.source.directories}
        if self.view in ("merged", "shards"):
            found.update({os.fsencode(p): "f" for p in self.source.side})
        for c in self.source.checkpoints:
            base = os.fsencode(c.directory)
            stem = os.fsencode(c.stem)
            if self.view == "tensors":
                found[os.path.join(base, stem)] = "d"
                found[os.path.join(base, stem + b".index.json")] = "f"
                for t in c.tensors:
                    if not is_cut(t.name):
                        found[os.path.join(base, stem, escape(t.name))] = "f"
            elif self.view == "npy":
                found[os.path.join(base, stem)] = "d"
                for t in c.tensors:
                    if not is_cut(t.name, 251):
                        found[os.path.join(base, stem, escape(t.name) + b".npy")] = "f"
            elif self.view == "merged":
                found[os.path.join(base, stem + b".safetensors")] = "f"
                if self.keeps_index(c):
                    found[os.path.join(base, os.fsencode(c.index or index_name(c.stem)))] = "f"
            elif not self.is_recut(c):
                for name, _ in c.shards:
                    found[os.path.join(base, os.fsencode(name))] = "f"
                if c.index or (c.sharded and not self.hides_others(c)):
                    index = c.index or index_name(c.stem)
                    found[os.path.join(base, os.fsencode(index))] = "f"
        return found

    def cut(self):
        """The number of files with truncated names: {directory: count}."""
        found = {}
        for c in self.source.checkpoints:
            limit = {"tensors": 255, "npy": 251}.get(self.view)
            count = sum(is_cut(t.name, limit) for t in c.tensors) if limit else 0
            if count:
                found[os.path.join(os.fsencode(c.directory), os.fsencode(c.stem))] = count
        return found


def tensor_file(view_root, checkpoint, tensor, npy=False):
    """The path of a tensor's file, found by its xattr if the name is truncated."""
    directory = os.path.join(os.fsencode(view_root), os.fsencode(checkpoint.directory),
                             os.fsencode(checkpoint.stem))
    suffix = b".npy" if npy else b""
    limit = 251 if npy else 255
    if not is_cut(tensor.name, limit):
        return os.path.join(directory, escape(tensor.name) + suffix)
    for name in os.listdir(directory):
        plain = name[:-4] if npy else name
        if not CUT.search(plain) or len(plain) > limit:
            continue
        path = os.path.join(directory, name)
        if os.getxattr(path, "user.safetensors.name") == tensor.name.encode():
            check_cut(tensor.name, plain, limit)
            return path
    raise AssertionError(f"no file for {tensor.name!r} in {directory!r}")


def view_path(view_root, checkpoint, name):
    return os.path.join(view_root, checkpoint.directory, name)


def check_tensors(view_root, checkpoint):
    """Checks all tensor files and the index of a checkpoint in tensors/."""
    for t in checkpoint.tensors:
        path = tensor_file(view_root, checkpoint, t)
        assert os.stat(path).st_size == t.size, path
        assert read_all(path) == t.data, path
    check_merged_index(view_root, checkpoint)


def check_merged_index(view_root, checkpoint):
    path = view_path(view_root, checkpoint, f"{checkpoint.stem}.index.json")
    index = json.loads(read_all(path), object_pairs_hook=no_duplicates)
    where = {t.name: shard for shard, tensors in checkpoint.shards for t in tensors}
    assert index["weight_map"] == where
    assert index["metadata"]["total_size"] == sum(t.size for t in checkpoint.tensors)
    return index


def check_npy(view_root, checkpoint):
    for t in checkpoint.tensors:
        path = tensor_file(view_root, checkpoint, t, npy=True)
        got = read_all(path)
        assert os.stat(path).st_size == len(got)
        want = npy_bytes(t.dtype, t.shape, t.data)
        if want is None:
            assert got.endswith(t.data)
        else:
            assert got == want, f"{path}: header {got[:128]!r}, expected {want[:128]!r}"


def check_file(path, tensors, metadata, page_aligned):
    """Compares a whole safetensors file of the mount with its tensors in order."""
    entries, found_metadata, start = read_header(path)
    if page_aligned:
        assert start % 4096 == 0
    assert [(e.name, e.dtype, list(e.shape), e.size) for e in entries] == \
        [(t.name, t.dtype, list(t.shape), t.size) for t in tensors]
    assert (found_metadata or None) == (metadata or None)
    got = read_all(path)
    assert len(got) == os.stat(path).st_size
    at = start
    for t in tensors:
        assert got[at:at + t.size] == t.data, f"{path}: {t.name!r}"
        at += t.size
    assert at == len(got)


def file_order(tensors):
    """The order of tensors (given in shard order) in a file that the mount generates: whole pages
    first, then by decreasing element size, so that each tensor is aligned for its dtype."""

    def rank(t):
        if t.size and t.size % 4096 == 0:
            return 0
        bits = DTYPE_BITS.get(t.dtype, 64 if t.size % 8 == 0 else 8)
        return 1 if bits >= 64 else 2 if bits >= 32 else 3 if bits >= 16 else 4

    return by_zero_size(sorted(tensors, key=rank))


def by_zero_size(tensors):
    """Sorts tensors at the same offset (empty ones) by name, as in a reader's table."""
    placed, at = [], 0
    for t in tensors:
        placed.append(((at, at + t.size, t.name.encode()), t))
        at += t.size
    return [t for _, t in sorted(placed, key=lambda p: p[0])]


def check_merged(view_root, checkpoint, keeps_index=False):
    name = f"{checkpoint.stem}.safetensors"
    path = view_path(view_root, checkpoint, name)
    if len(checkpoint.shards) == 1:  # the file itself
        check_file(path, by_zero_size(checkpoint.tensors), checkpoint.metadata[0], False)
    else:
        check_file(path, file_order(checkpoint.tensors), checkpoint.merged_metadata, True)
    if keeps_index:
        check_shard_index(view_root, checkpoint, checkpoint.index or index_name(checkpoint.stem),
                          {t.name: name for t in checkpoint.tensors})


def check_shards_as_source(view_root, source, checkpoint, generates_index=True):
    for name, _ in checkpoint.shards:
        relative = os.path.join(checkpoint.directory, name)
        assert read_all(os.path.join(view_root, relative)) == read_all(source.path(relative))
    if checkpoint.index:
        relative = os.path.join(checkpoint.directory, checkpoint.index)
        assert read_all(os.path.join(view_root, relative)) == read_all(source.path(relative))
    elif checkpoint.sharded and generates_index:
        check_shard_index(view_root, checkpoint, index_name(checkpoint.stem),
                          {t.name: n for n, tensors in checkpoint.shards for t in tensors})


def check_shard_index(view_root, checkpoint, name, weight_map):
    index = json.loads(read_all(view_path(view_root, checkpoint, name)),
                       object_pairs_hook=no_duplicates)
    assert list(index["weight_map"].items()) == \
        sorted(weight_map.items(), key=lambda item: item[0].encode())
    assert index["metadata"] == {"total_size": sum(t.size for t in checkpoint.tensors),
                                 **checkpoint.index_metadata}


def recut_files(view_root, checkpoint):
    """The names of re-cut shards, after checking that they are a complete `-of-` set or one file."""
    directory = os.path.join(view_root, checkpoint.directory)
    pattern = re.compile(re.escape(checkpoint.stem) + r"(-(\d{5})-of-(\d{5}))?\.safetensors$")
    found = sorted(n for n in os.listdir(directory) if pattern.match(n))
    if found == [f"{checkpoint.stem}.safetensors"]:
        return found
    count = len(found)
    assert found == [f"{checkpoint.stem}-{i + 1:05}-of-{count:05}.safetensors"
                     for i in range(count)], found
    return found


def check_recut(view_root, checkpoint, keeps_index=False):
    """Checks re-cut shards: each tensor exactly once, and a matching index if there are several
    files or the source has one. Returns [(file name, data bytes, tensors)]."""
    files = recut_files(view_root, checkpoint)
    known = {t.name: t for t in checkpoint.tensors}
    assert len(known) == len(checkpoint.tensors)
    weight_map, shards, at = {}, [], 0
    for name in files:
        path = view_path(view_root, checkpoint, name)
        entries, metadata, start = read_header(path)
        part = checkpoint.tensors[at:at + len(entries)]
        if len(files) == len(checkpoint.shards) == 1:  # the file itself
            order = by_zero_size(part)
        else:
            assert start % 4096 == 0
            order = file_order(part)
        assert [e.name for e in entries] == [t.name for t in order], path
        at += len(entries)
        got = read_all(path)
        assert len(got) == os.stat(path).st_size
        for e in entries:
            t = known[e.name]
            assert e.name not in weight_map, f"{e.name!r} twice"
            weight_map[e.name] = name
            assert (e.dtype, list(e.shape)) == (t.dtype, list(t.shape))
            assert got[e.offset:e.offset + e.size] == t.data, (name, e.name)
        assert (metadata or None) == (checkpoint.merged_metadata or None)
        shards.append((name, len(got) - start, len(entries)))
    assert weight_map.keys() == known.keys()
    name = checkpoint.index or index_name(checkpoint.stem)
    if len(files) > 1 or keeps_index:
        check_shard_index(view_root, checkpoint, name, weight_map)
    else:
        assert not os.path.lexists(view_path(view_root, checkpoint, name))
    return shards


def index_name(stem):
    """The libraries' spelling of the index that the mount generates for a stem."""
    for known in ("model", "diffusion_pytorch_model", "pytorch_model"):
        variant = stem.removeprefix(known + ".")
        if variant != stem and variant and "." not in variant:
            return f"{known}.safetensors.index.{variant}.json"
    return f"{stem}.safetensors.index.json"


def check_side(view_root, source):
    for relative, data in source.side.items():
        path = os.path.join(view_root, relative)
        assert os.stat(path).st_size == len(data)
        assert read_all(path) == data, path


def plain_files(root, source):
    """[(path in the mount, expected content)] of all views."""
    found = []
    for c in source.checkpoints:
        for t in c.tensors:
            found.append((tensor_file(f"{root}/tensors", c, t), t.data))
            npy = tensor_file(f"{root}/npy", c, t, npy=True)
            found.append((npy, npy_bytes(t.dtype, t.shape, t.data)))
        path = view_path(f"{root}/merged", c, f"{c.stem}.safetensors")
        entries, _, start = read_header(path)
        with open(path, "rb") as f:
            head = f.read(start)
        known = {t.name: t.data for t in c.tensors}
        found.append((os.fsencode(path), head + b"".join(known[e.name] for e in entries)))
        directory = os.path.join(root, "shards", c.directory)
        for name in sorted(os.listdir(directory)):
            if name.endswith(".safetensors"):
                path = os.path.join(directory, name)
                entries, _, start = read_header(path)
                with open(path, "rb") as f:
                    head = f.read(start)
                found.append((os.fsencode(path),
                              head + b"".join(known[e.name] for e in entries)))
    for relative, data in source.side.items():
        found.append((os.fsencode(f"{root}/merged/{relative}"), data))
        found.append((os.fsencode(f"{root}/shards/{relative}"), data))
    return found


def check_source(root, source, options=(), views=("tensors", "merged", "shards", "npy")):
    """Checks all views of a source completely: names and contents."""
    for view in views:
        view_root = os.path.join(root, view)
        expected = Expected(source, view, options)
        found = walk(view_root)
        cut = expected.cut()
        known = expected.paths()
        if view == "shards":
            for c in filter(expected.is_recut, source.checkpoints):
                files = recut_files(view_root, c)
                if len(files) > 1 or expected.keeps_index(c):
                    files.append(c.index or index_name(c.stem))
                known.update({os.path.join(os.fsencode(c.directory), os.fsencode(f)): "f"
                              for f in files})
        plain = {p: kind for p, kind in found.items()
                 if not (os.path.dirname(p) in cut and p not in known)}
        assert plain == known, view
        for directory, count in cut.items():
            assert sum(os.path.dirname(p) == directory for p in found.keys() - plain.keys()) \
                == count
        if view in ("merged", "shards"):
            check_side(view_root, source)
        for c in source.checkpoints:
            if view == "tensors":
                check_tensors(view_root, c)
            elif view == "npy":
                check_npy(view_root, c)
            elif view == "merged":
                check_merged(view_root, c, expected.keeps_index(c))
                if len(c.shards) == 1:
                    name = os.path.join(c.directory, f"{c.stem}.safetensors")
                    assert read_all(os.path.join(view_root, name)) == \
                        read_all(source.path(c.directory, c.shards[0][0])), name
            elif expected.is_recut(c):
                check_recut(view_root, c, expected.keeps_index(c))
            else:
                check_shards_as_source(view_root, source, c, not expected.hides_others(c))
