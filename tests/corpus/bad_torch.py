# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save() that are refused, or have tensors that are not shown: (name, rule, content).

The rule is the one by which the file is refused, or "refused N": the file is readable, but N tensors are not shown.
"""

import io
import struct
import zipfile

import torchfiles as t
from torchfiles import Call, Global, Persistent, Raw, archive, dumps, legacy, storage, tensor

F4 = b"\1\2\3\4"
ONE = {"w": tensor(storage("0", 2), (2,))}
SOUND = archive(ONE, {"0": F4 * 2})


def root(value, storages=None, **more):
    return archive(value, {"0": F4 * 6} if storages is None else storages, **more)


def pickled(instructions):
    return archive(None, {"0": F4 * 6}, pickled=instructions)


def patched(data, at, new):
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


def overlapping():
    """The entry of data/1 refers to a local header that is stored within data/0."""
    inner = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, 0, 4, 4, 14, 0) + b"archive/data/1" + F4
    value = {"a": tensor(storage("0", len(inner) // 4), (len(inner) // 4,)), "b": tensor(storage("1", 1), (1,))}
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


S = storage("0", 6)
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
    ("list-of-tensors", "NoTensors", root([tensor(S, (6,))])),
    # the archive
    ("cut-off", "ZipEnd", SOUND[:-1]),
    ("one-byte-more", "ZipEnd", SOUND + b"\0"),
    ("only-end", "ZipDirectory", b"PK\3\4" + SOUND[end_of(SOUND) :][:8] + b"\0" * 14),
    ("comment-too-long", "ZipEnd", patched(SOUND, end_of(SOUND) + 20, b"\1\0")),
    ("two-ends", "ZipEnd", SOUND[:-2] + b"\x16\0" + b"PK\5\6" + b"\0" * 18),
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
    ("two-pickles", "TorchRecords", twice("brchive/data.pkl")),
    ("compressed", "ZipCompressed", compressed()),
    ("encrypted", "ZipEncrypted", patched(SOUND, entry_of(SOUND, b"archive/data.pkl") + 8, b"\1\0")),
    ("local-magic", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/byteorder"), b"XX")),
    ("local-name", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 30, b"brchive")),
    ("local-method", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 8, b"\x08")),
    ("local-size", "ZipLocalHeader", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 22, b"\1\0\0\0")),
    ("local-extra-beyond", "ZipEntry", patched(SOUND, local_of(SOUND, b"archive/data.pkl") + 28, b"\xff\xff")),
    ("overlapping", "ZipOverlap", overlapping()),
    ("prefix-nul", "ZipLocalHeader", SOUND.replace(b"archive/", b"archiv\0/", 1)),
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
    ("pickle-call-chain", "NoTensors", pickled(b"\x80\x02cos\nsystem\n" + b")R" * 3000 + b".")),
    ("nested-too-deep", "TorchNesting", deep(65)),
    ("nested-bomb", "TorchNesting", bomb(40)),
    ("nested-self", "TorchNesting", self_containing()),
    ("names-bomb", "TorchNesting", archive(None, {"0": F4}, pickled=b"\x80\x02}(" + b"".join(
        [t.instructions_of("k" * 4000), b"}("] + [t.instructions_of(str(i)) + (t.instructions_of(tensor(storage("0", 1), (1,))) + b"q\0" if i == 0 else b"h\0") for i in range(9000)] + [b"uX\1\0\0\0zh\0u."]))),
    # tensors that are not shown
    ("storage-missing", "refused 1", root({"w": tensor(storage("7", 6), (6,))})),
    ("storage-shorter", "refused 1", root({"w": tensor(storage("0", 7), (6,))})),
    ("storage-longer", "refused 1", root({"w": tensor(storage("0", 5), (5,))})),
    ("storage-overflow", "refused 1", root({"w": tensor(storage("0", 2**62), (6,))})),
    ("storage-negative", "refused 1", root({"w": tensor(storage("0", -1), (6,))})),
    ("storage-unknown-class", "refused 1", root({"w": tensor(storage("0", 6, "StringStorage"), (6,))})),
    ("storage-module", "refused 1", root({"w": tensor(Persistent("module", Global("torch", "FloatStorage"), "0", "cpu", 6), (6,))})),
    ("storage-key-up", "refused 1", root({"w": tensor(storage("../data.pkl", 6), (6,))})),
    ("storage-key-long", "refused 1", root({"w": tensor(storage("k" * 2000, 6), (6,))})),
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
    ("rank-65", "refused 1", root({"w": tensor(S, (1,) * 65)})),
    ("stride-zero", "refused 1", root({"w": tensor(S, (6,), strides=(0,))})),
    ("stride-transposed", "refused 1", root({"w": tensor(S, (2, 3), strides=(1, 2))})),
    ("stride-short", "refused 1", root({"w": tensor(S, (2, 3), strides=(3,))})),
    ("stride-negative", "refused 1", root({"w": tensor(S, (6,), strides=(-1,))})),
    ("stride-overflow", "refused 1", root({"w": tensor(S, (2, 3), strides=(2**64 // 8, 1))})),
    ("lazy-conjugate", "refused 1", root({"w": tensor(S, (6,), more=({"conj": True},))})),
    ("sparse", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_sparse_tensor"), 0, 0)})),
    ("quantised", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_qtensor"), S, 0)})),
    ("meta", "refused 1", root({"w": Call(Global("torch._utils", "_rebuild_meta_tensor_no_storage"), 0)})),
    ("subclass", "refused 1", root({"w": Call(Global("torch._tensor", "_rebuild_from_type_v2"), Global("torch._utils", "_rebuild_tensor_v2"),
                                              Global("mylib", "MyTensor"), (), {})})),
    ("name-surrogate", "refused 1", root({"\udc80": tensor(S, (6,))})),
    ("name-too-long", "refused 1", root({"k" * 4100: tensor(S, (6,))})),
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
    ("old-view-outside", "refused 1", legacy({"w": tensor(storage("0", 2, "FloatStorage", ("v", 1, 2)), (2,))}, {"0": (2, F4 * 2)})),
]
