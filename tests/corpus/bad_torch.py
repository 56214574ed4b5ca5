# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save() that are refused, or have tensors that are not shown: (name, rule, content).

The rule is the one by which the file is refused, or "refused N": the file is readable, but N tensors are not shown.
"""

import io
import struct
import zipfile

import torchfiles as t
from torchfiles import Call, Global, Persistent, Raw, archive, dumps, legacy, storage, tensor, zip64

F4 = b"\1\2\3\4"
ONE = {"w": tensor(storage("0", 2), (2,))}
SOUND = archive(ONE, {"0": F4 * 2})


def root(value, storages=None, **more):
    return archive(value, {"0": F4 * 6} if storages is None else storages, **more)


def one(value=None, **more):
    """An archive with the storage of ONE."""
    return archive(value, {"0": F4 * 2}, **more)


def pickled(instructions):
    return archive(None, {"0": F4 * 6}, pickled=instructions)


def patched(data, at, new):
    at %= len(data)
    return data[:at] + new + data[at + len(new) :]


def end_of(data):
    return data.rindex(b"PK\5\6")


def entry_of(data, name):
    """Offset of the entry of a member in the central directory."""
    return data.rindex(name) - 46


def local_of(data, name):
    return data.index(name) - 30


def compressed():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", dumps(ONE))
        file.writestr("archive/data/0", F4 * 100)
    return out.getvalue()


def twice(name):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for part in ("archive/data.pkl", name):
            file.writestr(part, dumps(ONE))
    return out.getvalue()


def entry_patched(name, at, new):
    """SOUND with the bytes `new` at offset `at` of a member's entry in the central directory. The local header is unchanged."""
    return patched(SOUND, entry_of(SOUND, name) + at, new)


def with_directories(size=0):
    """SOUND with entries for directories, as zip(1) adds them, and a compressed member that torch does not use. `size`: bytes of a
    directory."""
    out = io.BytesIO(SOUND)
    with zipfile.ZipFile(out, "a") as file:
        for name in "archive/", "archive/data/":
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o40755 << 16 | 0x10
            file.writestr(info, bytes(size))
        file.writestr("archive/notes.txt", b"compressed" * 100, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def streamed(compression=zipfile.ZIP_STORED):
    """SOUND as Python writes it to a pipe, with sizes after the data. `compression`: the method of the record `version`."""
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.content = b""

        def write(self, data):
            self.content += bytes(data)
            return len(data)

        def writable(self):
            return True

    pipe = Pipe()
    with zipfile.ZipFile(io.BytesIO(SOUND)) as old, zipfile.ZipFile(pipe, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info), compression if info.filename.endswith("/version") else zipfile.ZIP_STORED)
    return pipe.content


def overlapping(is_used=True):
    """The entry of data/1, which has a tensor if it `is_used`, refers to a local header that is stored within data/0."""
    inner = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, 0, 4, 4, 14, 0) + b"archive/data/1" + F4
    value = {"a": tensor(storage("0", len(inner) // 4), (len(inner) // 4,)), "b": tensor(storage("1", 1), (1,))}
    if not is_used:
        del value["b"]
    data = archive(value, {"0": inner, "1": F4}, order=None)
    at = data.index(b"archive/data/0") + 14
    at = data.index(inner, at)
    entry = entry_of(data, b"archive/data/1")
    return patched(patched(data, entry + 42, struct.pack("<I", at)), entry + 16, struct.pack("<I", 0))


def deep(levels):
    return pickled(b"\x80\x02" + b"}X\1\0\0\0a" * levels + b"N" + b"s" * levels + b".")


def bomb(levels):
    """Each dictionary contains the previous one twice."""
    code = b"\x80\x02}(X\1\0\0\0w" + t.instructions_of(ONE["w"]) + b"uq\0"
    for i in range(levels):
        get = b"h" + bytes([i])
        code += b"}(X\1\0\0\0a" + get + b"X\1\0\0\0b" + get + b"uq" + bytes([i + 1])
    return pickled(code + b".")


def names(length, count):
    inner = {str(i): tensor(storage("0", 1), (1,)) for i in range(2)}
    value = inner
    for i in range(count):
        value = {"x" * length: value, "y": 1}
    return root(value, {"0": F4})


def self_containing():
    return pickled(b"\x80\x02}q\0X\1\0\0\0ah\0sX\1\0\0\0w" + t.instructions_of(ONE["w"]) + b"s.")


def two_directories():
    """The end record describes one central directory, the zip64 end record another one: a second archive."""
    other = archive(ONE, {"0": F4 * 3})
    first = SOUND[: end_of(SOUND)]
    data = bytearray(first + zip64(other))
    end = end_of(bytes(data))
    struct.pack_into("<HHII", data, end + 8, *struct.unpack_from("<HHII", SOUND, end_of(SOUND) + 8))
    at = data.rindex(b"PK\6\6")
    struct.pack_into("<Q", data, at + 48, struct.unpack_from("<Q", data, at + 48)[0] + len(first))
    struct.pack_into("<Q", data, end - 12, at)
    return bytes(data)


def items(*pairs):
    """A dictionary with these keys and values, in the order in which Python sets them. A dict would keep one of equal keys."""
    return Raw(b"}(" + b"".join(t.instructions_of(value) for pair in pairs for value in pair) + b"u")


def end_in_comment(after):
    """The archive's comment has the end record of another archive, in front of it, and `after`."""
    other = archive({"w": tensor(storage("0", 2), (2,))}, {"0": b"abcdefgh"})
    first = other[: end_of(other)]
    count, length, start = struct.unpack_from("<HHII", other, end_of(other) + 8)[1:]
    data, at, end = bytearray(SOUND), struct.unpack_from("<I", SOUND, end_of(SOUND) + 16)[0], end_of(SOUND)
    struct.pack_into("<I", data, end + 16, at + len(first))
    while at < end:
        struct.pack_into("<I", data, at + 42, struct.unpack_from("<I", data, at + 42)[0] + len(first))
        at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))
    comment = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, length, start, 0xFFFF) + after
    struct.pack_into("<H", data, end + 20, len(comment))
    return first + bytes(data) + comment


def old(root, *keys):
    """The older format with storages of 6 elements, whose first bytes are their keys."""
    return legacy(root, {key: (6, key[:1].encode() * 4 + F4 * 5) for key in keys})


def view(key, of, start, elements=2, kind="FloatStorage"):
    """A tensor of the older format in a view of a storage."""
    return tensor(storage(of, 6, kind, (key, start, elements)), (elements,))


def deep_tuples(inner):
    """A tuple in a tuple, 200000 times."""
    return pickled(b"\x80\x02" + inner + b"\x85" * 200000 + b".")


def memo(count):
    return b"".join(b"r" + struct.pack("<I", i) for i in range(count))


S = storage("0", 6)
A = tensor(S, (6,))
X = tensor(S, (2,))


def wrapped(times):
    value = ONE["w"]
    for _ in range(times):
        value = Call(Global("torch._utils", "_rebuild_parameter"), value, False, {})
    return value


def with_state(state, value=X):
    return Call(Global("torch._utils", "_rebuild_parameter_with_state"), value, False, {}, state)


def from_type(state, kind=Global("torch", "Tensor"), function="_rebuild_from_type_v2"):
    return Call(Global("torch._tensor", function), Global("torch._utils", "_rebuild_tensor_v2"), kind,
                (storage("0", 2), 0, (2,), (1,), False, {}), state)


def one_state(length, count):
    """`count` parameters with the same state, a dictionary of `length` entries."""
    state = t.instructions_of({f"a{i}": i for i in range(length)})
    calls = b"".join(t.instructions_of(str(i)) + b"ctorch._utils\n_rebuild_parameter_with_state\n(h\0\x88}h\1tR" for i in range(count))
    return one(pickled=b"\x80\2}(U\1w" + t.instructions_of(ONE["w"]) + b"q\0U\1s" + state + b"q\1" + calls + b"u.")


def lightning(value, **more):
    return root({"state_dict": {"w": A, "x": value}, "pytorch-lightning_version": "2.0"} | more)


def nested_object(lists):
    return Call(Global("mylib", "Thing"), Raw(b"]" * lists + b"a" * (lists - 1)))


def holder(instructions, value=X):
    return Raw(instructions.replace(b"%", t.instructions_of(value)))


# Values that contain the tensor X, but not in a way in which it has a name.
HOLDERS = {
    "argument": Call(Global("mylib", "Thing"), X), "argument-in-dictionary": Call(Global("mylib", "Thing"), {"a": [X]}),
    "state": holder(b"cmylib\nThing\n)\x81%b"), "state-of-dictionary": holder(b"ccollections\nOrderedDict\n)R%b"),
    "item": holder(b"ccollections\ndefaultdict\n)RK\1%s"), "key": holder(b"ccollections\ndefaultdict\n)R(%K\1u"),
    "element": holder(b"cmylib\nList\n)R%a"), "pairs": Call(Global("collections", "OrderedDict"), [[X]]),
    "keywords": holder(b"cmylib\nThing\n)}U\1a%s\x92"), "arguments-and-keywords": holder(b"cmylib\nThing\n%\x85}\x92"),
    "call-of-call": holder(b"cmylib\nmaker\n)R%\x85R"), "callee": holder(b"cmylib\nmaker\n%\x85R)R"), "no-tuple": holder(b"cmylib\nThing\n%R"),
    "set": holder(b"\x8f(%\x90"), "frozen-set": holder(b"(K\1%\x91"), "old-instance": holder(b"(%imylib\nThing\n"),
    "old-object": holder(b"(cmylib\nThing\n%o"),
    "storage": S, "unknown-function": Call(Global("torch._utils", "_rebuild_tensor_v4"), S, 0, (2,)),
    "deeper": Call(Global("mylib", "Thing"), [({"a": holder(b"cmylib\nThing\n)\x81%b")},)]),
}

MANY = {f"w{i}": tensor(storage("0", 1), (1,)) for i in range(20)}

CASES = [
    # files of other kinds
    ("empty", "NotTorch", b""),
    ("three-bytes", "NotTorch", b"PK\3"),
    ("text", "NotTorch", b"not a checkpoint at all"),
    ("zeros", "NotTorch", b"\0" * 5000),
    ("plain-pickle", "NotTorch", dumps({"a": 1})),
    ("pickle-opening", "NotTorch", b"\x80" * 4000),
    ("pickle-long-string", "NotTorch", b"\x80\x02X\xff\xff\xff\x7f" + b"x" * 4000),
    ("other-zip", "NotTorch", archive({}, {}, prefix="a/b")),
    ("torchscript-code", "TorchScript", root(ONE, extra=[("code/__torch__.py", b"")])),
    ("torchscript-constants", "TorchScript", root(ONE, extra=[("constants.pkl", b"")])),
    ("no-tensors", "NoTensors", root({"epoch": 3, "args": Call(Global("argparse", "Namespace"))})),
    ("object", "NoTensors", root(Call(Global("mymodel", "Model")))),
    ("set-of-tensors", "NoTensors", root(Call(Global("builtins", "set"), [tensor(S, (6,))]))),
    # the archive
    ("cut-off", "ZipEnd", SOUND[:-1]),
    ("one-byte-more", "ZipEnd", SOUND + b"\0"),
    ("only-end", "ZipDirectory", b"PK\3\4" + SOUND[end_of(SOUND) :][:8] + b"\0" * 14),
    ("comment-too-long", "ZipEnd", patched(SOUND, end_of(SOUND) + 20, b"\1\0")),
    ("two-ends", "ZipEnd", SOUND[:-2] + b"\x16\0" + b"PK\5\6" + b"\0" * 18),
    ("end-in-comment", "ZipEnd", end_in_comment(b"xxxx")),
    ("volumes", "ZipEnd", patched(SOUND, end_of(SOUND) + 4, b"\1\0")),
    ("counts-differ", "ZipEnd", patched(SOUND, end_of(SOUND) + 8, b"\1\0")),
    ("count-too-high", "ZipDirectory", patched(SOUND, end_of(SOUND) + 8, b"\xff\xff\xff\xff")),
    ("count-too-low", "ZipDirectory", patched(SOUND, end_of(SOUND) + 8, b"\1\0\1\0")),
    ("directory-beyond", "ZipDirectory", patched(SOUND, end_of(SOUND) + 16, b"\xff\xff\xff\x7f")),
    ("directory-earlier", "ZipDirectory", patched(SOUND, end_of(SOUND) + 12, b"\1\0\0\0")),
    ("entry-magic", "ZipDirectory", patched(SOUND, entry_of(SOUND, b"archive/data.pkl"), b"XX")),
    ("entry-name-long", "ZipDirectory", patched(SOUND, entry_of(SOUND, b"archive/version") + 28, b"\xff\xff")),
    ("entry-zip64-missing", "ZipEntry", patched(SOUND, entry_of(SOUND, b"archive/data/0") + 24, b"\xff\xff\xff\xff")),
    ("entry-beyond", "ZipEntry", patched(SOUND, entry_of(SOUND, b"archive/data/0") + 42, b"\xff\xff\xff\x7f")),
    ("duplicate-member", "ZipDuplicate", twice("archive/data.pkl")),
    ("duplicate-in-case", "ZipDuplicate", twice("ARCHIVE/Data.pkl")),
    ("order-in-capitals", "TorchByteOrder", one(ONE, order=None, extra=[("BYTEORDER", b"big")])),
    ("two-pickles", "TorchRecords", twice("brchive/data.pkl")),
    ("compressed", "ZipCompressed", compressed()),
    ("encrypted", "ZipEncrypted", patched(SOUND, entry_of(SOUND, b"archive/data.pkl") + 8, b"\1\0")),
    *((f"{kind}-of-{name.replace('/', '-')}", rule, entry_patched(f"archive/{name}".encode(), at, new)) for name in ("data.pkl", "data/0", "byteorder", "version")
      for kind, rule, at, new in (
          ("encryption", "ZipEncrypted", 8, b"\1"), ("strong-encryption", "ZipEncrypted", 8, b"\x40"), ("masked-header", "ZipEncrypted", 9, b"\x20"),
          ("patch", "ZipEntry", 8, b"\x20"), ("volume", "ZipEntry", 34, b"\2"), ("last-volume", "ZipEntry", 34, b"\xff\xff"),
          ("size", "ZipEntry", 24, b"\1"), ("packed-size", "ZipEntry", 20, b"\0"),
          ("other-method", "ZipLocalHeader", 10, b"\0\1"))),
    ("deflated-from-0-bytes", "ZipEntry", entry_patched(b"archive/version", 10, b"\x08" + SOUND[entry_of(SOUND, b"archive/version") + 11 :][:9] + b"\0")),
    ("directory-of-data-0", "ZipEntry", entry_patched(b"archive/data/0", 38, b"\x10")),
    ("deflate-of-data-0", "ZipLocalHeader", entry_patched(b"archive/data/0", 10, b"\x08")),
    ("volume-1", "ZipEntry", entry_patched(b"archive/data.pkl", 34, b"\1")),
    ("directory-with-content", "ZipEntry", with_directories(1)),
    ("local-patch", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 6, b"\x20")),
    ("local-of-unused", "ZipLocalHeader", (lambda data: patched(data, local_of(data, b"archive/more"), b"XX"))(one(ONE, extra=[("more", b"")]))),
    ("local-magic", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/byteorder"), b"XX")),
    ("local-name", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 30, b"brchive")),
    ("local-method", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 8, b"\x08")),
    ("local-size", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 22, b"\1\0\0\0")),
    ("local-extra-beyond", "ZipEntry", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 28, b"\xff\xff")),
    ("overlapping", "ZipOverlap", overlapping()),
    ("overlapping-unused", "ZipOverlap", overlapping(is_used=False)),
    ("two-archives", "ZipDirectory", SOUND + SOUND),
    ("two-directories", "ZipEnd", two_directories()),
    ("zip64-entries-2-32", "ZipDirectory", zip64(SOUND, count=2**32)),
    ("zip64-entries-2-64", "ZipDirectory", zip64(SOUND, count=2**64 - 1)),
    ("zip64-directory-2-63", "ZipDirectory", zip64(SOUND, start=2**63, length=2**63)),
    ("zip64-directory-negative", "ZipDirectory", zip64(SOUND, start=2**64 - 1, length=2**64 - 1)),
    ("zip64-volumes", "ZipEnd", patched(zip64(SOUND), -26, b"\2")),
    ("zip64-no-volume", "ZipEnd", patched(zip64(SOUND), -26, b"\0")),
    ("zip64-other-volume", "ZipEnd", patched(zip64(SOUND), -38, b"\1")),
    ("zip64-not-before-locator", "ZipEnd", zip64(SOUND, between=b"X")),
    ("prefix-nul", "ZipLocalHeader", SOUND.replace(b"archive/", b"archiv\0/", 1)),
    ("member-nul", "ZipEntry", root({"w": tensor(storage("0\0x", 2), (2,))}, {"0": F4 * 2, "0?x": F4[::-1] * 2}).replace(b"0?x", b"0\0x")),
    # the byte order
    ("big-endian", "TorchByteOrder", root(ONE, order=b"big")),
    ("order-unknown", "TorchByteOrder", root(ONE, order=b"middle")),
    # the pickle
    ("pickle-empty", "Pickle", pickled(b"")),
    ("pickle-no-stop", "Pickle", pickled(dumps(ONE)[:-1])),
    ("pickle-cut-string", "Pickle", pickled(b"\x80\x02X\xff\0\0\0abc")),
    ("pickle-stop-alone", "Pickle", pickled(b".")),
    ("pickle-opcode", "Pickle", pickled(b"\x80\x02\xff.")),
    ("pickle-out-of-band", "Pickle", pickled(b"\x80\x05\x97.")),
    ("pickle-reduce-empty", "Pickle", pickled(b"\x80\x02R.")),
    ("pickle-mark-missing", "Pickle", pickled(b"\x80\x02t.")),
    ("pickle-mark-as-value", "Pickle", pickled(b"\x80\x02((\x86.")),
    ("pickle-mark-as-result", "Pickle", pickled(b"\x80\x02(.")),
    ("pickle-tuple-short", "Pickle", pickled(b"\x80\x02N\x86.")),
    ("pickle-odd-items", "Pickle", pickled(b"\x80\x02}(Nu.")),
    ("pickle-items-of-number", "Pickle", pickled(b"\x80\x02K\1(NNu.")),
    ("pickle-memo-missing", "Pickle", pickled(b"\x80\x02h\5.")),
    ("pickle-memo-gap", "Pickle", pickled(b"\x80\x02Nr\xff\xff\xff\x7f.")),
    ("pickle-memo-of-nothing", "Pickle", pickled(b"\x80\x02q\0.")),
    ("pickle-global-cut", "Pickle", pickled(b"\x80\x02ctorch\nSi")),
    ("pickle-stack-global", "Pickle", pickled(b"\x80\x04NN\x93.")),
    ("pickle-frame-long", "NoTensors", pickled(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.")),
    ("pickle-long-integer", "NoTensors", pickled(b"\x80\x02\x8b\xe8\3\0\0" + b"\xff" * 1000 + b".")),
    ("pickle-long-beyond", "Pickle", pickled(b"\x80\x02\x8b\xff\xff\xff\x7f.")),
    ("pickle-string-8", "Pickle", pickled(b"\x80\x04\x8d" + b"\xff" * 8 + b".")),
    ("pickle-tuple-bomb", "PickleMemory", pickled(b"\x80\x02" + b")" * 200000 + b".")),
    ("pickle-nested-tuples", "PickleMemory", deep_tuples(b"N")),
    ("pickle-memo-growth", "NoTensors", pickled(b"\x80\x02N" + b"\x94" * 400000 + b".")),
    ("pickle-memo-of-5-bytes", "NoTensors", pickled(b"\x80\x02N" + memo(40000) + b".")),
    ("pickle-long-integers", "NoTensors", pickled(b"\x80\x02" + (b"\x8a\xff" + b"\x7f" * 255 + b"0") * 2000 + b"N.")),
    ("pickle-reduce-of-reduce", "PickleMemory", pickled(b"\x80\x02cos\nsystem\n" + b"N\x85R" * 100000 + b".")),
    ("pickle-call-chain", "NoTensors", pickled(b"\x80\x02cos\nsystem\n" + b")R" * 2000 + b".")),
    ("key-twice", "Pickle", root(items(("a", A), ("a", tensor(S, (1,)))))),
    ("key-twice-with-none", "Pickle", root(items(("a", A), ("a", None), ("b", A)))),
    ("key-twice-with-dictionaries", "Pickle", root(items(("a", {"x": A}), ("a", {"y": A})))),
    ("key-twice-as-float", "Pickle", root(items((1, A), (1.0, None), ("b", A)))),
    ("key-twice-as-large-float", "Pickle", root(items((-(2**40), A), (-(2.0**40), None), ("b", A)))),
    ("key-twice-as-boolean", "Pickle", root(items((True, None), ("b", A), (1, A)))),
    ("key-twice-as-long", "Pickle", root(items((-2, A), (Raw(b"\x8a\x0a\xfe" + b"\xff" * 9), None), ("b", A)))),
    ("key-twice-in-pairs", "Pickle", root({"m": Call(Global("collections", "OrderedDict"), [("a", A), ("b", A), ("a", None)])})),
    ("key-twice-of-lightning", "Pickle", root(items(("pytorch-lightning_version", "1"), ("state_dict", {"x": A}), ("state_dict", {})))),
    ("nested-too-deep", "TorchNesting", deep(65)),
    ("nested-bomb", "TorchNesting", bomb(40)),
    ("nested-tuples-of-numbers", "TorchNesting", one(ONE | {"x": Raw(b"]((" + b"N" * 1000 + b"tq\0" + b"h\0" * 999 + b"e")})),
    ("nested-self", "TorchNesting", self_containing()),
    ("names-bomb", "TorchNesting", archive(None, {"0": F4}, pickled=b"\x80\x02}(" + b"".join(
        [t.instructions_of("k" * 4000), b"}("] + [t.instructions_of(str(i)) + (t.instructions_of(tensor(storage("0", 1), (1,))) + b"q\0" if i == 0 else b"h\0") for i in range(9000)] + [b"uX\1\0\0\0zh\0u."]))),
    # tensors that are not shown
    ("name-of-metadata", "refused 1", root({"__metadata__": tensor(storage("0", 6), (6,))})),
    ("name-of-metadata-inside", "refused 1", root({"state_dict": {"__metadata__": tensor(storage("0", 6), (6,))}})),
    ("storage-missing", "refused 1", root({"w": tensor(storage("7", 6), (6,))})),
    ("storage-shorter", "refused 1", root({"w": tensor(storage("0", 7), (6,))})),
    ("storage-longer", "refused 1", root({"w": tensor(storage("0", 5), (5,))})),
    ("storage-overflow", "refused 1", root({"w": tensor(storage("0", 2**62), (6,))})),
    ("storage-negative", "refused 1", root({"w": tensor(storage("0", -1), (6,))})),
    ("storage-unknown-class", "refused 1", root({"w": tensor(storage("0", 6, "StringStorage"), (6,))})),
    ("storage-module", "refused 1", root({"w": tensor(Persistent("module", Global("torch", "FloatStorage"), "0", "cpu", 6), (6,))})),
    ("storage-key-up", "refused 1", root({"w": tensor(storage("../data.pkl", 6), (6,))})),
    ("storage-key-long", "refused 1", root({"w": tensor(storage("k" * 2000, 6), (6,))})),
    ("storage-key-nul", "refused 1", root({"w": tensor(storage("0\0x", 6), (6,))})),
    ("storage-view", "refused 1", root({"w": tensor(storage("0", 6, "FloatStorage", ("v", 0, 2)), (2,))})),
    ("storage-no-persistent", "refused 1", root({"w": tensor(5, (6,))})),
    ("complex128", "refused 1", root({"w": tensor(storage("0", 1, "ComplexDoubleStorage"), (1,))}, {"0": F4 * 4})),
    ("untyped-without-dtype", "refused 1", root({"w": tensor(storage("0", 24, "UntypedStorage"), (6,))})),
    ("dtype-unknown", "refused 1", root({"w": tensor(storage("0", 24, "UntypedStorage"), (6,), function="_rebuild_tensor_v3",
                                                     more=(Global("torch", "bits8"),))})),
    ("offset-beyond", "refused 1", root({"w": tensor(S, (6,), offset=1)})),
    ("offset-overflow", "refused 1", root({"w": tensor(S, (1,), offset=2**63 - 1)})),
    ("shape-beyond", "refused 1", root({"w": tensor(S, (7,))})),
    ("shape-overflow", "refused 1", root({"w": tensor(S, (2**32, 2**32, 1), strides=(2**32, 1, 1))})),
    ("shape-negative", "refused 1", root({"w": tensor(S, (-6,))})),
    ("shape-no-tuple", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_tensor_v2"), S, 0, 6, (1,), False, None)})),
    ("name-4097", "refused 1", one(ONE | {"k" * 4097: ONE["w"]})),
    ("names-of-4097", "refused 1", one(ONE | {"a": {"k" * 4095: ONE["w"]}})),
    ("storage-key-257", "refused 1", archive({"w": tensor(storage("k" * 257, 2), (2,))}, {"k" * 257: F4 * 2})),
    ("old-key-257", "TorchStorage", old({"a": tensor(storage("k" * 257, 6, "FloatStorage", None), (6,))}, "k" * 257)),
    ("wrappers-5", "refused 1", one({"v": ONE["w"], "w": wrapped(5)})),
    *((f"pickle-{name}", "Pickle", root(ONE | {"x": Raw(code)})) for name, code in {
        "extension-1": b"\x82\1", "extension-2": b"\x83\1\0", "extension-4": b"\x84\1\0\0\0", "extension-called": b"\x82\1)R", "persistent-text": b"Pabc\n",
        "persistent-string": b"U\3abcQ", "persistent-number": b"K\1Q", "persistent-list": b"]Q", "persistent-none": b"NQ"}.items()),
    *((f"pickle-number-{name}", "Pickle", root(items((8, A), (Raw(code), None)))) for name, code in {
        "octal": b"I010\n", "octal-negative": b"I-010\n", "long-octal": b"L010L\n"}.items()),
    ("pickle-memo-from-2", "Pickle", pickled(b"\x80\x02Nq\2.")),
    ("rank-65", "refused 1", root({"w": tensor(S, (1,) * 65)})),
    ("stride-zero", "refused 1", root({"w": tensor(S, (6,), strides=(0,))})),
    ("stride-transposed", "refused 1", root({"w": tensor(S, (2, 3), strides=(1, 2))})),
    ("stride-short", "refused 1", root({"w": tensor(S, (2, 3), strides=(3,))})),
    ("stride-negative", "refused 1", root({"w": tensor(S, (6,), strides=(-1,))})),
    ("stride-overflow", "refused 1", root({"w": tensor(S, (2, 3), strides=(2**64 // 8, 1))})),
    ("lazy-conjugate", "refused 1", root({"w": tensor(S, (6,), more=({"conj": True},))})),
    ("lazy-counter", "refused 2", root({"w": tensor(S, (6,), more=(Call(Global("collections", "Counter"), {"neg": True}),)),
                                        "x": tensor(S, (6,), more=(Call(Global("collections", "Counter"), {}),))})),
    ("metadata-unknown", "refused 1", root({"w": tensor(S, (6,), more=("neg",))})),
    ("sparse", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_sparse_tensor"), 0, 0)})),
    ("quantised", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_qtensor"), S, 0)})),
    ("meta", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_meta_tensor_no_storage"), 0)})),
    ("subclass", "refused 1", root({"w": Call(Global("torch._tensor", "_rebuild_from_type_v2"), Global("torch._utils", "_rebuild_tensor_v2"),
                                              Global("mylib", "MyTensor"), (), {})})),
    ("name-surrogate", "refused 1", root({"\udc80": tensor(S, (6,))})),
    ("name-surrogate-in-two-passes", "refused 1", root({"e": 1, "\udc80": {"a": tensor(S, (6,), strides=(0,)), "b": tensor(S, (6,))}})),
    ("name-too-long", "refused 1", root({"k" * 4100: tensor(S, (6,))})),
    ("tensor-in-object", "refused 1", root({"w": tensor(S, (6,)), "x": Call(Global("mylib", "Thing"), tensor(S, (1,)))})),
    ("tensor-in-state", "refused 2", archive(None, {"0": F4 * 6}, pickled=b"\x80\x02}(" + t.instructions_of("w") + t.instructions_of(tensor(S, (6,))) +
                                             t.instructions_of("x") + b"cmylib\nThing\n)\x81" + t.instructions_of([tensor(S, (1,)), tensor(S, (2,))]) + b"bu.")),
    ("tensor-in-defaultdict", "refused 1", archive(None, {"0": F4 * 6}, pickled=b"\x80\x02}(" + t.instructions_of("w") + t.instructions_of(tensor(S, (6,))) +
                                                   t.instructions_of("x") + b"ccollections\ndefaultdict\n)R" + t.instructions_of(1) +
                                                   t.instructions_of(tensor(S, (1,))) + b"su.")),
    ("state-built", "refused 1", archive(None, {"0": F4 * 6}, pickled=b"\x80\x02}(" + t.instructions_of("v") + t.instructions_of(tensor(S, (6,))) +
                                         t.instructions_of("w") + t.instructions_of(tensor(S, (6,))) + t.instructions_of((S, 1, (1,), (1,))) + b"bu.")),
    *((f"state-of-parameter-{name}", f"refused {1 + (name != 'fill')}", root({"v": A, "w": with_state(state)})) for name, state in {
        "data": {"data": tensor(S, (2,), offset=2)}, "fill": {"real": 5}, "tensor": {"other": X}, "dictionary": {"other": {"a": [X]}},
        "tuple": {"a": 1, "other": (1, [2, X])}}.items()),
    *((f"state-{name}", "refused 1", root({"v": A, "w": with_state(state)})) for name, state in {
        "imaginary": {"imag": 5}, "hooks": {"_backward_hooks": None}, "call": {"a": Call(Global("torch", "Size"), (1,))},
        "class": {"to": Global("torch", "Size")}, "plain-dictionary": {"a": {"b": 1}}, "key-number": {1: 1}, "key-none": {None: 1}, "string": "a",
        "list": [("real", 5)], "empty-tuple": (), "of-slots": (None, {"real": 5}), "three": ({"a": 1}, None, None), "tuple-real": ({"real": 5}, None),
        "too-nested": {"a": [[[[[[1]]]]]]}, "items-replaced": Raw(b"ccollections\nOrderedDict\n)RU\1aK\1s}U\5itemsK\1sb")}.items()),
    ("state-shared-by-many", "TorchNesting", one_state(1000, 1000)),
    *((f"state-from-type-{name}", "refused 2", root({"v": A, "w": from_type(state)})) for name, state in {
        "data": {"data": tensor(S, (2,), offset=2)}, "tuple-data": ({"a": 1, "data": tensor(S, (2,), offset=2)}, None)}.items()),
    ("built-from-storage", "refused 1", root({"v": A, "w": Raw(b"ctorch\nTensor\n)\x81" + t.instructions_of((S, 0, (2,), (1,))) + b"b")})),
    ("unknown-function", "refused 1", root({"v": A, "w": Call(Global("torch._utils", "_rebuild_tensor_v4"), S, 0, (2,), (1,))})),
    ("unknown-function-of-two", "refused 2", root({"v": A, "w": Call(Global("mylib", "rebuild"), [S, {"more": storage("1", 6)}])})),
    ("new-dictionary-of-pairs", "refused 1", root({"v": A, "w": Raw(b"ccollections\nOrderedDict\n" + t.instructions_of(([("x", A)],)) + b"\x81")})),
    ("storage-alone", "refused 1", root({"v": A, "w": S})),
    *((f"lightning-{name}", "refused 1", lightning(value)) for name, value in HOLDERS.items()),
    ("lightning-nested-257", "TorchNesting", lightning(nested_object(255))),
    ("dtype-converted", "refused 1", root({"v": tensor(S, (6,)), "w": Call(Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
                                                                           tensor(S, (6,)), Global("torch", "int32"), "cpu", False)})),
    ("pairs-that-are-none", "refused 1", root({"w": tensor(S, (6,)), "x": Call(Global("collections", "OrderedDict"), [[tensor(S, (1,))]])})),
    ("key-complex", "refused 2", root(items((1, A), (Call(Global("builtins", "complex"), 1, 0), None), ("b", A)))),
    *((f"key-{name}", "refused 2", root(items((shown, A), (Raw(other), X)))) for name, shown, other in (
        ("escaped", "a", b"V\\u0061\n"), ("quoted-escaped", "a", b"S'\\x61'\n"), ("latin-1", "\xc3\xa9", b"V\xc3\xa9\n"),
        ("encoded", "a", t.instructions_of(Call(Global("_codecs", "encode"), "n", "rot13"))), ("global", "posix", b"cos\nname\n"),
        ("global-number", 2, b"cerrno\nENOENT\n"), ("persistent", "a", t.instructions_of(Persistent("module", "a", None, None))))),
    ("key-below-unsure", "refused 1", root(items(("m", {"a": A}), (Global("os", "name"), {})))),
    ("key-in-pairs-of-lists", "refused 2", root({"m": Call(Global("collections", "OrderedDict"), [(1, A), [1.0, None], ("b", A)])})),
    ("key-boolean", "refused 1", root({True: A, "b": A})),
    ("key-none-alone", "refused 1", root({None: {"w": A}})),
    ("key-tuple", "refused 1", root({(1, 2): tensor(S, (6,))})),
    ("key-none", "refused 1", root({None: {"w": tensor(S, (6,))}, "a": tensor(S, (1,))})),
    ("name-twice", "DuplicateTensorName", root({"a.b": tensor(S, (6,)), "a": {"b": tensor(S, (1,))}})),
    # the older format
    ("old-version", "TorchVersion", legacy(ONE, {"0": (2, F4 * 2)}).replace(b"M\xe9\x03.", b"M\xe8\x03.", 1)),
    ("old-big-endian", "TorchByteOrder", legacy(ONE, {"0": (2, F4 * 2)}, little=False)),
    ("old-cut-head", "Pickle", legacy(ONE, {"0": (2, F4 * 2)})[:40]),
    ("old-cut-storage", "TorchStorage", legacy(ONE, {"0": (2, F4 * 2)})[:-1]),
    ("old-cut-length", "TorchStorage", legacy(ONE, {"0": (2, F4 * 2)})[:-9]),
    ("old-length-differs", "TorchStorage", legacy(ONE, {"0": (3, F4 * 3)})),
    ("old-key-unknown", "TorchStorage", legacy(ONE, {"0": (2, F4 * 2), "1": (1, F4)})),
    ("old-key-missing", "refused 1", legacy(ONE, {})),
    ("old-storage-differs", "TorchStorage", legacy({"a": tensor(storage("0", 2), (2,)), "b": tensor(storage("0", 1), (1,))}, {"0": (2, F4 * 2)})),
    ("old-storage-empty-or-not", "TorchStorage", legacy(ONE | {"a": tensor(storage("0", 0), (0,))}, {"0": (2, F4 * 2)})),
    ("old-view-twice", "TorchStorage", old({"a": view("v", "0", 0), "b": view("v", "0", 2)}, "0")),
    ("old-view-dtype", "TorchStorage", old({"a": view("v", "0", 0), "b": view("v", "0", 0, kind="IntStorage")}, "0")),
    ("old-view-is-storage", "TorchStorage", old({"a": view("1", "0", 0), "c": tensor(storage("1", 6), (6,))}, "0", "1")),
    ("old-view-of-itself", "TorchStorage", old({"a": view("0", "0", 2)}, "0")),
    ("old-view-listed", "TorchStorage", old({"a": view("v", "0", 2)}, "0", "v")),
    ("old-view-unnamed", "TorchStorage", old({"a": view(5, "0", 2)}, "0")),
    ("old-view-list", "TorchStorage", old({"a": tensor(storage("0", 6, "FloatStorage", ["v", 0, 2]), (2,))}, "0")),
    ("old-kind-in-bytes", "refused 1", old({"a": tensor(Persistent(Raw(b"C\7storage"), Global("torch", "FloatStorage"), "0", "cpu", 6, None), (6,))}, "0")),
    ("old-key-long", "TorchStorage", old({"a": tensor(storage("k" * 300, 6), (6,))}, "k" * 300)),
    ("old-view-outside", "refused 1", legacy({"w": tensor(storage("0", 2, "FloatStorage", ("v", 1, 2)), (2,))}, {"0": (2, F4 * 2)})),
]


def evil(command):
    """Pickles that run a command under pickle.load(), by each instruction that calls, and then give the tensors of ONE."""
    text = command.encode()
    long, code = t.instructions_of(command), t.instructions_of(f"__import__('os').system({command!r})")
    calls = {"reduce": b"cos\nsystem\n(" + long + b"tR0", "inst": b"(S'" + text + b"'\nios\nsystem\n0",
             "stack-global": b"\x8c\x02os\x8c\x06system\x93" + long + b"\x85R0", "obj": b"(cos\nsystem\n" + long + b"o0",
             "in-key": b"}cos\nsystem\n" + long + b"\x85RK\1s0",
             "eval": b"c__builtin__\neval\n" + code + b"\x85R0"}
    return {name: one(pickled=b"\x80\x02" + calling + t.instructions_of(ONE) + b".") for name, calling in calls.items()}


# Cases like CASES in which torch.load() uses memory that it has not written, so that its verdict varies: (name, rule, content).
UNWRITTEN = [(f"{kind}-of-{name}", rule, entry_patched(f"archive/{name}".encode(), at, new)) for name in ("data.pkl", "byteorder", "version")
             for kind, rule, at, new in (("directory", "ZipEntry", 38, b"\x10"), ("deflate", "ZipLocalHeader", 10, b"\x08"))]

# Unusual files that have the tensor w of ONE: (name, content).
READ = [(f"calls-{name}", content) for name, content in evil("false").items()] + [
    ("directories", with_directories()),
    ("streamed", streamed()),
    ("streamed-deflated", streamed(zipfile.ZIP_DEFLATED)),
    ("calls-newobj", one(pickled=b"\x80\x02csubprocess\nPopen\nX\1\0\0\0x\x85\x810" + t.instructions_of(ONE) + b".")),
    ("calls-newobj-ex", one(pickled=b"\x80\x04csubprocess\nPopen\nX\1\0\0\0x\x85}\x920" + t.instructions_of(ONE) + b".")),
    ("calls-build", one(pickled=b"\x80\x02cos\nsystem\nX\1\0\0\0xb0" + t.instructions_of(ONE) + b".")),
    ("unknown-class", one(ONE | {"args": Call(Global("argparse", "Namespace"), "x")})),
    ("unknown-persistent", one(ONE | {"x": Persistent("object", 1)})),
    ("integers-of-protocol-0", one(pickled=b"(dS'w'\n" + t.instructions_of(ONE["w"]) + b"sS'n'\nL5L\nsS'm'\nI01\ns.")),
    ("protocol-5", one(pickled=b"\x80\x05" + t.instructions_of(ONE) + b".")),
    ("frame", one(pickled=b"\x80\x04\x95" + struct.pack("<Q", len(t.instructions_of(ONE)) + 1) + t.instructions_of(ONE) + b".")),
    ("memoize", one(pickled=b"\x80\x04}\x94" + t.instructions_of("w") + b"\x94" + t.instructions_of(ONE["w"]) + b"\x94s.")),
    ("nested-64", one(pickled=b"\x80\x02" + b"}X\1\0\0\0a" * 63 + t.instructions_of(ONE) + b"s" * 63 + b".")),
    ("prefix-up", one(ONE, prefix="..")),
    ("name-up", one(ONE | {"../../etc/passwd": ONE["w"]})),
    ("member-up", one(ONE, extra=[("../../../etc/passwd", b"x")])),
    ("archive-in-archive", SOUND[:4] + archive(ONE, {"0": F4 * 2, "inner": SOUND[4:]})[4:]),
    ("state-that-is-empty", one({"w": Call(Global("torch._utils", "_rebuild_parameter_with_state"), ONE["w"], True, {}, {})})),
    *((f"state-{name}", one({"w": with_state(state, ONE["w"])})) for name, state in {
        "plain": {"tensor_model_parallel": True, "partition_dim": 0, "none": None, "long": 2**80, "float": 0.5, "text": "real", "note": 1, "data2": -1},
        "of-sequences": {"shape_of_all": (1, (2, 3), "a", None), "names_of_all": [1, "b", [(2.5,)]]}, "none": None, "in-tuple": ({"a": 1}, None),
        "of-no-slots": (None, None), "ordered": Call(Global("collections", "OrderedDict"), [["a", "b"]]),
        "empty-built": Raw(b"ccollections\nOrderedDict\n)R}U\5itemsK\1sb")}.items()),
    *((f"from-type-{name}", one({"w": from_type(state, kind)})) for name, state, kind in (
        ("plain", {"_is_buffer": True}, Global("torch", "Tensor")), ("in-tuple", ({"a": 1}, None), Global("torch", "Tensor")),
        ("parameter", {"a": [1]}, Global("torch.nn.parameter", "Parameter")))),
    ("state-shared", one_state(100, 100)),
    ("from-type-v1-plain", one({"w": from_type({"a": 1}, Global("torch.nn.parameter", "Parameter"), "_rebuild_from_type")})),
    ("dtype-not-converted", one({"w": Call(Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"), ONE["w"],
                                           Global("torch", "float32"), "cpu", False)})),
    ("from-type-v1", one({"w": Call(Global("torch._tensor", "_rebuild_from_type"), Global("torch._utils", "_rebuild_tensor_v2"),
                                    Global("torch", "Tensor"), (storage("0", 2), 0, (2,), (1,), False, {}), {})})),
    *((f"lightning-beside-{name}", lightning(A, hyper_parameters=value, state_dict={"w": tensor(S, (2,))})) for name, value in HOLDERS.items()),
    ("lightning-nested-256", lightning(nested_object(254), state_dict={"w": tensor(S, (2,)), "x": nested_object(254)})),
    ("lightning", one({"pytorch-lightning_version": "2.0", "state_dict": ONE, "optimizer_states": [{"state": {0: {"exp_avg": ONE["w"]}}}],
                       "hyper_parameters": Call(Global("mylib", "Settings"), ONE["w"])})),
    ("keys-alike", one(items((1, 0), ("1", 0), ("1.0", 0), (1.5, 0), (1.5, 0), (2**70, 0), (None, 0), ((1,), 0), ("W", 0), ("w\0", 0), *ONE.items()))),
    ("rank-64", one(ONE | {"x": tensor(storage("0", 2), (1,) * 63 + (2,))})),
    ("name-4096", one(ONE | {"k" * 4096: ONE["w"]})),
    ("names-of-4096", one(ONE | {"a": {"k" * 4094: ONE["w"]}})),
    ("storage-key-256", archive({"w": tensor(storage("k" * 256, 2), (2,))}, {"k" * 256: F4 * 2})),
    ("old-key-256", legacy({"w": tensor(storage("k" * 256, 2, "FloatStorage", None), (2,))}, {"k" * 256: (2, F4 * 2)})),
    ("wrappers-4", one({"w": wrapped(4)})),
    ("memo-from-1", one(pickled=b"\x80\x02}q\1" + t.instructions_of("w") + t.instructions_of(ONE["w"]) + b"s.")),
    ("tuple-under-long-key", one(ONE | {"k" * 4000: tuple(range(100000)), "j" * 4000: Raw(b"(" + b"N" * 100000 + b"t")})),
    ("old-storage-empty", legacy({"w": tensor(storage("0", 2, "FloatStorage", None), (2,)), "a": tensor(storage("1", 0, "FloatStorage", None), (0,)),
                                  "b": tensor(storage("1", 0, "LongStorage", None), (0, 3))}, {"0": (2, F4 * 2), "1": (0, b"")})),
    ("old-view-shared", legacy({"w": view("v", "0", 2), "x": view("v", "0", 2), "y": view("u", "0", 2)}, {"0": (6, b"1234" * 2 + F4 * 2 + b"1234" * 2)})),
    ("comment", patched(SOUND, end_of(SOUND) + 20, b"\7\0") + b"PK\5\6abc"),
    ("order-missing", one(ONE, order=None)),
    ("zip64", zip64(SOUND)),
]
