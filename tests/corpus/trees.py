# SPDX-License-Identifier: Apache-2.0
"""Source trees for the mount tests and the benchmarks.

A `Source` writes files below a root and records what it wrote, so that the expected content of each
view is known independently of fstfs. Content depends on the seed only: every machine gets the same
tree.
"""

import hashlib
import json
import os
import random
import struct
from dataclasses import dataclass, field

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: list
    data: bytes

    @property
    def size(self):
        return len(self.data)


def byte_count(dtype, shape):
    count = 1
    for dim in shape:
        count *= dim
    bits = count * DTYPE_BITS[dtype]
    assert bits % 8 == 0, (dtype, shape)
    return bits // 8


def tensor(name, dtype="U8", shape=(0,), seed=None, fill=None):
    """A tensor of seeded random bytes, or of one byte value (`fill`)."""
    size = byte_count(dtype, shape)
    if fill is not None:
        data = bytes([fill]) * size
    else:
        data = random.Random(f"{name}/{seed}").randbytes(size)
        if dtype == "BOOL":
            data = bytes(b & 1 for b in data)
    return Tensor(name, dtype, list(shape), data)


def header(entries, metadata=None, pad=8):
    """The 8 + N bytes before the data. `entries`: (name, dtype, shape, size) in file order."""
    table = {}
    if metadata is not None:
        table["__metadata__"] = metadata
    at = 0
    for name, dtype, shape, size in entries:
        assert name not in table
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % pad)
    return struct.pack("<Q", len(text)) + text


def file_bytes(tensors, metadata=None, pad=8):
    """A safetensors file with the tensors in the given order."""
    head = header([(t.name, t.dtype, t.shape, t.size) for t in tensors], metadata, pad)
    return head + b"".join(t.data for t in tensors)


def index_bytes(weight_map, total_size=None, metadata=None):
    meta = dict(metadata or {})
    if total_size is not None:
        meta["total_size"] = total_size
    return json.dumps({"metadata": meta, "weight_map": weight_map}, indent=2).encode() + b"\n"


@dataclass
class Checkpoint:
    """A checkpoint of a source. `shards`: (file name, tensors), sorted by file name."""

    directory: str
    stem: str
    shards: list
    index: str | None = None  # its file name in the source
    metadata: list = field(default_factory=list)  # per shard; None without metadata
    index_metadata: dict = field(default_factory=dict)  # entries of the index besides total_size

    @property
    def one_file(self):
        return [name for name, _ in self.shards] == [f"{self.stem}.safetensors"]

    @property
    def tensors(self):
        return [t for _, tensors in self.shards for t in tensors]

    @property
    def sharded(self):
        return len(self.shards) > 1 or self.index is not None

    @property
    def merged_metadata(self):
        """The metadata that the shards agree on; None if no shard has any."""
        known = [m for m in self.metadata if m is not None]
        if not known:
            return None
        merged = {}
        for key in {k for m in known for k in m}:
            values = {m[key] for m in known if key in m}
            if len(values) == 1:
                merged[key] = values.pop()
        return merged


def join(*parts):
    return "/".join(p for p in parts if p)


class Source:
    """A source tree below `root`, and a record of its contents."""

    def __init__(self, root):
        self.root = os.fspath(root)
        os.makedirs(self.root, exist_ok=True)
        self.checkpoints = []
        self.side = {}  # relative path -> bytes
        self.directories = set()
        self.blobs = None  # if set, files are links to hashed blobs there (Hugging Face cache)

    @classmethod
    def at(cls, root, other):
        """The source `other`, whose copy is at another root."""
        source = cls(root)
        source.checkpoints, source.side, source.directories = \
            other.checkpoints, other.side, other.directories
        return source

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def directory(self, relative):
        os.makedirs(self.path(relative), exist_ok=True)
        while relative:
            self.directories.add(relative)
            relative = os.path.dirname(relative)

    def place(self, relative, data):
        """Writes a file, and records only its directory."""
        self.directory(os.path.dirname(relative))
        path = self.path(relative)
        if self.blobs is not None:
            name = hashlib.sha256(relative.encode() + data).hexdigest()
            self.directory(self.blobs)
            blob = self.path(self.blobs, name)
            with open(blob, "wb") as f:
                f.write(data)
            self.side[join(self.blobs, name)] = data
            os.symlink(os.path.relpath(blob, os.path.dirname(path)), path)
            return
        with open(path, "wb") as f:
            f.write(data)

    def add_side(self, relative, data=b"{}\n"):
        self.place(relative, data)
        self.side[relative] = data

    def add(self, directory, stem, tensors, shards=1, index=None, metadata=None, pad=8, names=None,
            index_metadata=None):
        """Adds a checkpoint. `index`: None is the usual spelling for several shards, False is none,
        otherwise a file name. `metadata`: one for all shards, or a list. `names`: of the shard
        files. `index_metadata`: of the index, besides its total_size."""
        if names is None:
            names = ([f"{stem}.safetensors"] if shards == 1 else
                     [f"{stem}-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)])
        count = len(names)
        per_shard = [tensors[i * len(tensors) // count:(i + 1) * len(tensors) // count]
                     for i in range(count)]
        metas = metadata if isinstance(metadata, list) else [metadata] * count
        for name, part, meta in zip(names, per_shard, metas):
            self.place(join(directory, name), file_bytes(part, meta, pad))
        if index is None and count > 1:
            index = f"{stem}.safetensors.index.json"
        if index:
            weight_map = {t.name: n for n, part in zip(names, per_shard) for t in part}
            self.place(join(directory, index),
                       index_bytes(weight_map, sum(t.size for t in tensors), index_metadata))
        checkpoint = Checkpoint(directory, stem, sorted(zip(names, per_shard)), index or None,
                                [m for _, m in sorted(zip(names, metas), key=lambda x: x[0])],
                                index_metadata or {})
        self.checkpoints.append(checkpoint)
        return checkpoint


def small_tensors(prefix="", seed=0, count=4):
    """A few small tensors of various unaligned sizes."""
    shapes = [("F32", (3, 5)), ("BF16", (7,)), ("U8", (4096,)), ("I64", ()), ("F16", (0, 3)),
              ("F32", (1024, 2)), ("U8", (5000,)), ("I8", (1,))]
    return [tensor(f"{prefix}t{i}.weight", *shapes[i % len(shapes)], seed=seed)
            for i in range(count)]


def rich_tensors(seed=0):
    """Every dtype, and sizes around a page, a request and a readahead window."""
    made = []
    for i, (dtype, bits) in enumerate(DTYPE_BITS.items()):
        made.append(tensor(f"dtype.{dtype}", dtype, (3 + i % 4, 8), seed))
        made.append(tensor(f"dtype.{dtype}.scalar" if bits >= 8 else f"dtype.{dtype}.small", dtype,
                           () if bits >= 8 else (4,), seed))
    for size in (0, 1, 7, 511, 512, 4095, 4096, 4097, 8192, 65536, 131071, 131072, 131073, 262144,
                 1 << 20, (1 << 20) + 1, (3 << 20) + 5, 2 << 20):
        made.append(tensor(f"size.{size}", "U8", (size,), seed))
    made.append(tensor("shape.deep", "F32", (1, 2, 1, 3, 1, 2, 1, 1), seed))
    made.append(tensor("shape.zero", "F32", (4, 0, 4), seed))
    random.Random(seed).shuffle(made)
    return made


def rich(root, stem="model", shards=3, directory="rich", **more):
    source = Source(root)
    metadata = [{"format": "pt", "shard": str(i), "note": "agreed"} for i in range(shards)]
    if shards > 1:
        metadata[1] = None
    source.add(directory, stem, rich_tensors(), shards=shards, metadata=metadata, **more)
    source.add_side(join(directory, "config.json"), b'{"model_type": "rich"}\n')
    source.add_side(join(directory, "tokenizer.model"), random.Random(5).randbytes(200001))
    source.add_side(join(directory, "empty.txt"), b"")
    return source


def in_root(root):
    """One checkpoint in the root of the source."""
    source = Source(root)
    source.add("", "model", small_tensors(count=8), metadata={"format": "pt"})
    source.add_side("config.json")
    return source


def nested(root, models=30):
    """Many models in nested directories, as one file and sharded, with side files and an empty
    directory."""
    source = Source(root)
    for i in range(models):
        directory = f"org{i % 5}/family{i % 3}/model{i:03}"
        source.add(directory, "model", small_tensors(f"m{i}.", seed=i, count=3 + i % 6),
                   shards=1 + i % 3, metadata={"format": "pt"})
        source.add_side(join(directory, "config.json"), b'{"i": %d}' % i)
    source.directory("org0/empty")
    source.add_side("README.md", b"# models\n")
    source.add_side("org1/notes/deep/er/notes.txt", b"notes\n")
    return source


def diffusers(root, directory="pipeline"):
    """A pipeline: components in subdirectories, stems and index names of both libraries, variants."""
    source = Source(root)
    d = directory
    source.add_side(join(d, "model_index.json"))
    # transformers components: one file, and a variant of it
    source.add(join(d, "text_encoder"), "model", small_tensors("te.", count=5))
    source.add(join(d, "text_encoder"), "model.fp16", small_tensors("te.", seed=1, count=5))
    source.add_side(join(d, "text_encoder/config.json"))
    # sharded with transformers' spelling of the variant's index
    source.add(join(d, "text_encoder_2"), "model", small_tensors("te2.", count=7), shards=2)
    source.add(join(d, "text_encoder_2"), "model.fp16", small_tensors("te2.", seed=1, count=7),
               shards=2, index="model.safetensors.index.fp16.json")
    # sharded diffusers, default and variant; the variant's shards have the older spelling
    source.add(join(d, "transformer"), "diffusion_pytorch_model", small_tensors("tr.", count=8),
               shards=3)
    source.add(join(d, "unet"), "diffusion_pytorch_model.fp16",
               small_tensors("unet.", seed=2, count=8), shards=2,
               index="diffusion_pytorch_model.safetensors.index.fp16.json",
               names=["diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
                      "diffusion_pytorch_model-00002-of-00002.fp16.safetensors"])
    source.add(join(d, "vae"), "diffusion_pytorch_model", small_tensors("vae.", count=3))
    source.add_side(join(d, "vae/config.json"))
    source.add_side(join(d, "scheduler/scheduler_config.json"))
    source.add_side(join(d, "tokenizer/vocab.json"), b'{"a": 1}')
    return source


def adapters(root):
    """LoRA adapters, one of them next to a full model."""
    source = Source(root)
    for i in range(3):
        d = f"loras/lora{i}"
        source.add(d, "adapter_model", small_tensors(f"base_model.model.l{i}.", seed=i, count=6))
        source.add_side(join(d, "adapter_config.json"), b'{"r": 8}')
    source.add("base", "model", small_tensors("b.", count=8), shards=2)
    source.add("base", "adapter_model", small_tensors("a.", count=4))
    source.add("base", "pytorch_lora_weights", small_tensors("p.", count=2))
    return source


def together(root):
    """Several checkpoints per directory: with one index, with none, with two, in unusual spellings."""
    source = Source(root)
    # a model as published by Mistral, with adapters for peft and diffusers
    source.add("mistral", "model", small_tensors("m.", count=8), shards=3, metadata={"format": "pt"},
               index_metadata={"total_parameters": 9007199254740993, "note": 'a "b" \u00e9\n',
                               "nested": {"total_size": [1, {}], "x": None}})
    source.add("mistral", "consolidated", small_tensors("c.", seed=1, count=8))
    source.add("mistral", "adapter_model", small_tensors("a.", count=4))
    source.add("mistral", "pytorch_lora_weights", small_tensors("l.", count=4))
    source.add_side("mistral/config.json")
    # shards without an index, and a file that SGLang reads by its name
    source.add("unnamed", "model", small_tensors("u.", count=6), shards=2, index=False)
    source.add("unnamed", "mtp", small_tensors("p.", count=4))
    # a variant, also in the spelling of older diffusers
    source.add("variants", "diffusion_pytorch_model", small_tensors("v.", count=6), shards=2)
    source.add("variants", "diffusion_pytorch_model.fp16", small_tensors("v.", seed=3, count=6),
               shards=2, index="diffusion_pytorch_model.safetensors.index.fp16.json")
    source.add("legacy", "diffusion_pytorch_model.fp16", small_tensors("g.", count=6), shards=2,
               index="diffusion_pytorch_model.safetensors.fp16.index.json",
               index_metadata={"total_parameters": 7})
    source.add("legacy", "other", small_tensors("o.", count=4))
    # one file with an index, alone and with others
    source.add("indexed", "model", small_tensors("i.", count=4), index="model.safetensors.index.json")
    source.add("indexed-beside", "model", small_tensors("i.", count=4),
               index="model.safetensors.index.json")
    source.add("indexed-beside", "extra", small_tensors("e.", count=4))
    # two models of one file each
    source.add("singles", "model", small_tensors("s.", count=6))
    source.add("singles", "model.fp16", small_tensors("s.", seed=2, count=6))
    return source


def sharded_without_index(root):
    """`-of-` sets without an index."""
    source = Source(root)
    source.add("plain", "model", small_tensors("x.", count=8), shards=4, index=False)
    source.add("two", "alpha", small_tensors("a.", count=4), shards=2, index=False)
    source.add("two", "beta", small_tensors("b.", count=6), shards=3, index=False)
    return source


def hub_cache(root):
    """The Hugging Face hub cache: snapshots of links to blobs named by hash, refs, two revisions."""
    source = Source(root)
    for org in ("org--small", "org--big"):
        base = f"models--{org}"
        for revision in ("a" * 40, "b" * 40):
            source.blobs = join(base, "blobs")
            snapshot = join(base, "snapshots", revision)
            source.add(snapshot, "model", small_tensors("h.", seed=revision[0], count=6),
                       shards=1 if org == "org--small" else 3)
            source.place(join(snapshot, "config.json"), b'{"rev": "%s"}' % revision[:1].encode())
            source.side[join(snapshot, "config.json")] = b'{"rev": "%s"}' % revision[:1].encode()
            source.blobs = None
        source.add_side(join(base, "refs/main"), b"b" * 40)
    return source


def linked_model(root, elsewhere):
    """A model directory that is a link out of the source, and a checkpoint of one linked file."""
    other = Source(elsewhere)
    far = other.add("far/model", "model", small_tensors("far.", count=6), shards=2)
    other.add_side("far/model/config.json", b'{"far": 1}')
    single = other.add("far", "single", small_tensors("single.", count=3))
    source = Source(root)
    source.add("near", "model", small_tensors("near.", count=3))
    os.symlink(other.path("far/model"), source.path("linked"))
    os.symlink(os.path.relpath(other.path("far/single.safetensors"), source.path("near")),
               source.path("near/renamed.safetensors"))
    source.directories.add("linked")
    source.checkpoints.append(Checkpoint("linked", "model", far.shards, far.index, far.metadata))
    source.checkpoints.append(Checkpoint("near", "renamed",
                                         [("renamed.safetensors", single.tensors)], None, [None]))
    source.side["linked/config.json"] = b'{"far": 1}'
    return source


def many_small(root, count=2000, directory="latents"):
    """A directory with `count` checkpoints of one file with one small tensor."""
    source = Source(root)
    source.directory(directory)
    base = source.path(directory)
    head = header([("latent", "F16", (4, 8), 64)])
    for i in range(count):
        stem = f"image_{i:06}"
        data = struct.pack("<Q", i) * 8
        with open(os.path.join(base, f"{stem}.safetensors"), "wb", buffering=0) as f:
            f.write(head + data)
        source.checkpoints.append(Checkpoint(
            directory, stem, [(f"{stem}.safetensors", [Tensor("latent", "F16", [4, 8], data)])],
            None, [None]))
    return source


# Unusual tensor names, all in one checkpoint.
HARD_NAMES = [
    "", ".", "..", "...", ".hidden", "%", "%25", "%2E", "%2F", "a/b", "a%2Fb", "/", "//", "../../etc/passwd",
    "/etc/passwd", "a\0b", "\0", "new\nline", "tab\there", "\x1b[31mred", "\x7f", "a b", " ", "~",
    "name~0123456789abcdef", "~0123456789abcdef", "x" * 251, "x" * 252, "x" * 254, "x" * 255,
    "x" * 256, "x" * 255 + "y", "x" * 255 + "z", "y" * 300, "é" * 200, "é" * 127, "é" * 128,
    "😀" * 70, "漢字.重み", "ÿ", "\u0080", "\u202e", "e\u0301", "\u00e9", "__metadata__x",
    "model.safetensors", "index.json", "a" * 239 + "~" + "0" * 15 + "1", "con", "a:b*c?",
    "back\\slash", '"quoted"', "-rf", "UPPER", "upper", "%" * 100, "/" * 90, "." * 255, "a.", "b..",
]


def names(root):
    source = Source(root)
    tensors = [tensor(name, "U8", (i + 1,), seed=f"name{i}") for i, name in enumerate(HARD_NAMES)]
    source.add("names", "model", tensors, shards=2)
    return source


def write_sparse(path, entries, file_size=None, metadata=None):
    """A shard with a hole for data, given its header and length. Returns the offset of the data."""
    head = header(entries, metadata)
    with open(path, "wb") as f:
        f.write(head)
        size = len(head) + sum(e[3] for e in entries)
        if file_size is not None and file_size != size:
            raise AssertionError(f"{path}: {size} bytes, published {file_size}")
        f.truncate(size)
    return len(head)


def published(description, root):
    """The checkpoint of a description file (../shared/data/*.json) as sparse shards.

    Returns {name: (file name, dtype, shape, offset in the file, bytes)}, in file order.
    """
    with open(description) as f:
        plan = json.load(f)
    bits = DTYPE_BITS[plan["dtype"]]
    os.makedirs(root, exist_ok=True)
    table = {}
    total = 0
    for shard, what in plan["shards"].items():
        entries = []
        for name, shape in sorted(what["tensors"]):
            size = bits // 8
            for dim in shape:
                size *= dim
            entries.append((name, plan["dtype"], shape, size))
        at = write_sparse(os.path.join(root, shard), entries, what["file_size"], plan["metadata"])
        for name, dtype, shape, size in entries:
            table[name] = (shard, dtype, shape, at, size)
            at += size
            total += size
    if total != plan["total_size"]:
        raise AssertionError(f"{total} bytes of tensors, published {plan['total_size']}")
    with open(os.path.join(root, "model.safetensors.index.json"), "wb") as f:
        f.write(index_bytes({n: t[0] for n, t in table.items()}, total))
    return table


def experts(root, tensors=230_000, shards=160):
    """A sparse mixture of experts with very many small tensors. Returns the same as published()."""
    os.makedirs(root, exist_ok=True)
    table = {}
    total = 0
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        first, last = i * tensors // shards, (i + 1) * tensors // shards
        entries = [(f"model.layers.{n // 3840}.mlp.experts.{n % 3840 // 3:04}."
                    f"{('gate', 'up', 'down')[n % 3]}_proj.weight", "BF16", (16, 8 + n % 5),
                    32 * (8 + n % 5)) for n in range(first, last)]
        at = write_sparse(os.path.join(root, shard), entries)
        for name, dtype, shape, size in entries:
            table[name] = (shard, dtype, list(shape), at, size)
            at += size
            total += size
    assert len(table) == tensors
    with open(os.path.join(root, "model.safetensors.index.json"), "wb") as f:
        f.write(index_bytes({n: t[0] for n, t in table.items()}, total))
    return table


def mark(root, table, names_to_mark):
    """Writes a unique mark at the first and last bytes of each named tensor.

    Returns {name: (first bytes, last bytes)}: up to 16 bytes, not overlapping.
    """
    marks = {}
    files = {}
    try:
        for name in names_to_mark:
            shard, _, _, offset, size = table[name]
            if shard not in files:
                files[shard] = os.open(os.path.join(root, shard), os.O_WRONLY)
            width = min(16, size // 2)
            first = hashlib.sha256(b"first" + name.encode()).digest()[:width]
            last = hashlib.sha256(b"last" + name.encode()).digest()[:width]
            os.pwrite(files[shard], first, offset)
            os.pwrite(files[shard], last, offset + size - width)
            marks[name] = (first, last)
    finally:
        for fd in files.values():
            os.close(fd)
    return marks


def versions(place, count):
    """Creates versions of a model under `place`, with the same shapes and different bytes."""
    made = []
    for seed in range(count):
        source = Source(place / f"version{seed}")
        tensors = [tensor(f"t{i:02}", "U8", (size,), seed=seed) for i, size in
                   enumerate([1 << 20, 5000, (1 << 20) + 4097, 0, 300_001, 2 << 20, 70_000] * 2)]
        source.add("m", "model", tensors, shards=2, metadata={"format": "pt"})
        made.append(source)
    return made
