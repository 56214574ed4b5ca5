# SPDX-License-Identifier: Apache-2.0
"""src/format reads files of torch.save(), reports the right rule for invalid ones, and executes nothing."""

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import torchfiles  # noqa: E402
from torchfiles import Call, Global, archive, legacy, storage, tensor  # noqa: E402

BUILD = Path(os.environ.get("FSTFS_BUILD", "build"))
DATA = bytes(range(256))


def ask(path):
    """(verdict, first refusal, imports, tensors: name -> (dtype, shape, bytes))."""
    done = subprocess.run([BUILD / "tests/format/verdict", "container"], input=f"{path}\n", capture_output=True, text=True, check=True,
                          errors="surrogateescape")
    head, *lines = done.stdout.splitlines()
    if not head.startswith("ok "):
        return head, "", [], {}
    count, imports = int(head.split()[1]), int(head.split()[3])
    data = path.read_bytes()
    tensors = {}
    for line in lines[1 + imports :]:
        name, dtype, begin, end, dims = line.split("\t")
        tensors[name] = (dtype, tuple(int(d) for d in dims.split(",") if d), data[int(begin) : int(end)])
    assert len(tensors) == count
    return head, lines[0], lines[1 : 1 + imports], tensors


def read(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    return ask(path)


@pytest.mark.parametrize("name, rule, content", bad_torch.CASES, ids=[case[0] for case in bad_torch.CASES])
def test_bad_file(tmp_path, name, rule, content):
    verdict, refusal, _, _ = read(tmp_path, content)
    if rule.startswith("refused "):
        assert verdict.split()[:1] == ["ok"] and verdict.split()[2] == rule.split()[1], verdict
        assert refusal.startswith("tensor "), refusal
    else:
        assert verdict.split()[0] == rule, verdict


BOTH = [lambda root, storages: archive(root, storages),
        lambda root, storages: legacy(root, {key: (len(data) // 4, data) for key, data in storages.items()})]


@pytest.mark.parametrize("write", BOTH, ids=["zip", "legacy"])
def test_tensors(tmp_path, write):
    """Offsets, shapes, tied tensors and nested names; the key of the one dictionary with all tensors is omitted."""
    whole, other = storage("0", 6), storage("1", 2)
    content = write({"state_dict": {"a": tensor(whole, (2, 3)), "tied": tensor(whole, (2, 3)), "part": tensor(whole, (2,), offset=3),
                                    "sub": {7: {"x": tensor(other, (2, 1, 1))}}, "scalar": tensor(other, (), offset=1),
                                    "none": tensor(storage("9", 0), (0, 5)),
                                    "parameter": Call(Global("torch._utils", "_rebuild_parameter"), tensor(whole, (6,)), True, {})},
                     "epoch": 3, "lr": 0.1, "big": 2**80, "list": [1, 2], "flag": True, "args": Call(Global("os", "system"), "true")},
                    {"0": DATA[:24], "1": DATA[24:32]})
    verdict, _, imports, tensors = read(tmp_path, content)
    assert verdict.split()[:3] == ["ok", "7", "0"]
    assert imports == ["os.system"]
    assert tensors == {"a": ("F32", (2, 3), DATA[:24]), "tied": ("F32", (2, 3), DATA[:24]), "part": ("F32", (2,), DATA[12:20]),
                       "sub.7.x": ("F32", (2, 1, 1), DATA[24:32]), "scalar": ("F32", (), DATA[28:32]), "none": ("F32", (0, 5), b""),
                       "parameter": ("F32", (6,), DATA[:24])}


@pytest.mark.parametrize("write", BOTH, ids=["zip", "legacy"])
def test_two_dictionaries_keep_their_names(tmp_path, write):
    one = tensor(storage("0", 1), (1,))
    assert set(read(tmp_path, write({"model": {"w": one}, "ema": {"w": one}}, {"0": b"1234"}))[3]) == {"model.w", "ema.w"}
    assert set(read(tmp_path, write({"w": one}, {"0": b"1234"}))[3]) == {"w"}
    assert set(read(tmp_path, write(one, {"0": b"1234"}))[3]) == {"tensor"}


DTYPES = {"DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64",
          "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
          "ComplexFloatStorage": "C64"}
NAMED = {"float64": ("F64", 8), "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8), "float8_e4m3fn": ("F8_E4M3", 1),
         "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1), "float8_e5m2": ("F8_E5M2", 1), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
         "float8_e8m0fnu": ("F8_E8M0", 1), "bfloat16": ("BF16", 2)}


def test_dtypes(tmp_path):
    root, storages, expected = {}, {}, {}
    for i, (kind, dtype) in enumerate(DTYPES.items()):
        size = torchfiles.SIZES[kind]
        root[kind] = tensor(storage(str(i), 3, kind), (2,), offset=1)
        storages[str(i)] = DATA[i : i + 3 * size]
        expected[kind] = (dtype, (2,), DATA[i + size : i + 3 * size])
    for i, (name, (dtype, size)) in enumerate(NAMED.items(), start=100):
        root[name] = tensor(storage(str(i), 3 * size, "UntypedStorage"), (2,), offset=1, function="_rebuild_tensor_v3", more=(Global("torch", name),))
        storages[str(i)] = DATA[i : i + 3 * size]
        expected[name] = (dtype, (2,), DATA[i + size : i + 3 * size])
    root["f4"] = tensor(storage("200", 6, "UntypedStorage"), (2, 2), offset=1, function="_rebuild_tensor_v3", more=(Global("torch", "float4_e2m1fn_x2"),))
    storages["200"] = DATA[:6]
    expected["f4"] = ("F4", (2, 4), DATA[1:5])
    assert read(tmp_path, archive(root, storages))[3] == expected


@pytest.mark.parametrize("prefix", ["archive", "model", "näme", "a b"])
def test_any_prefix_and_order(tmp_path, prefix):
    root = {"w": tensor(storage("0", 6), (6,))}
    for order in (b"little", None):
        assert read(tmp_path, archive(root, {"0": DATA[:24]}, prefix=prefix, order=order))[3] == {"w": ("F32", (6,), DATA[:24])}


def test_zip64(tmp_path):
    """An archive whose sizes and offsets are all in zip64 fields, as PyTorch writes above 4 GiB."""
    content = archive({"w": tensor(storage("0", 6), (6,))}, {"0": DATA[:24]})
    end = content.rindex(b"PK\5\6")
    count, length, start = struct.unpack_from("<HII", content, end + 10)
    directory, at = b"", start
    while at < end:
        fields = bytearray(content[at : at + 46])
        name, extra, comment = struct.unpack_from("<HHH", fields, 28)
        packed, size, header = struct.unpack_from("<I", fields, 20)[0], struct.unpack_from("<I", fields, 24)[0], struct.unpack_from("<I", fields, 42)[0]
        more = struct.pack("<HHQQQ", 1, 24, size, packed, header)
        struct.pack_into("<II", fields, 20, 0xFFFFFFFF, 0xFFFFFFFF)
        struct.pack_into("<I", fields, 42, 0xFFFFFFFF)
        struct.pack_into("<H", fields, 30, len(more))
        directory += bytes(fields) + content[at + 46 : at + 46 + name] + more
        at += 46 + name + extra + comment
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(directory), start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + len(directory), 1)
    tail = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path = tmp_path / "z64.pt"
    path.write_bytes(content[:start] + directory + end64 + locator + tail)
    assert ask(path)[3] == {"w": ("F32", (6,), DATA[:24])}
    path.write_bytes(content[:start] + directory + end64 + b"X" + locator + tail)
    assert ask(path)[0].startswith("ZipEnd ")


def test_nothing_is_executed(tmp_path):
    """Pickles that would create a file in pickle.load(); the reader lists what they would import."""
    made = tmp_path / "made"
    evil = f"touch {made}".encode()
    one = torchfiles.instructions_of({"w": tensor(storage("0", 1), (1,))})
    codes = [b"cos\nsystem\n(X" + struct.pack("<I", len(evil)) + evil + b"tR0" + one,
             b"(S'" + evil + b"'\nios\nsystem\n0" + one,
             b"\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(evil)]) + evil + b"\x85R0" + one,
             b"(cos\nsystem\nX" + struct.pack("<I", len(evil)) + evil + b"o0" + one]
    for code in codes:
        verdict, _, imports, tensors = read(tmp_path, archive(None, {"0": b"1234"}, pickled=b"\x80\x04" + code + b"."))
        assert verdict.startswith("ok 1 0"), verdict
        assert imports == ["os.system"] and tensors["w"][2] == b"1234"
        assert not made.exists()
    # pickle.loads() does execute them, so the test can fail.
    with pytest.raises(Exception):  # noqa: B017 there is no persistent_load
        pickle.loads(b"\x80\x04" + codes[0] + b".")
    assert made.exists()


def test_imports_are_listed_once_and_escaped(tmp_path):
    code = b"".join(b"c" + name + b"\n0" for name in (b"os\nsystem", b"os\nsystem", b"a\x1b[2J\nb", b"builtins\neval", b"torch\nSize"))
    verdict, _, imports, _ = read(tmp_path, archive(None, {"0": b"1234"}, pickled=b"\x80\x02" + code + torchfiles.instructions_of(
        {"w": tensor(storage("0", 1), (1,))}) + b"."))
    assert verdict.startswith("ok 1 0 3")
    assert imports == [r"a\x1b[2J.b", "builtins.eval", "os.system"]


def test_pickle_larger_than_the_first_read(tmp_path):
    """In the older format, storages follow pickles of unknown length."""
    root = {f"layer.{i}": tensor(storage(str(i), 1), (1,)) for i in range(2000)}
    storages = {str(i): (1, struct.pack("<I", i)) for i in range(2000)}
    tensors = read(tmp_path, legacy(root, storages))[3]
    assert tensors == {f"layer.{i}": ("F32", (1,), struct.pack("<I", i)) for i in range(2000)}


def test_protocols(tmp_path):
    """Instructions of other protocols that create the same tensors."""
    body = torchfiles.instructions_of(tensor(storage("0", 1), (1,)))
    for code in (b"(dS'w'\n" + body + b"s", b"(S'w'\n" + body + b"d", b"(Vw\n" + body + b"d", b"}p0\n(S'w'\n" + body + b"u0g0\n",
                 b"}\x94\x8c\x01w\x94" + body + b"s", b"N0}(U\1w" + body + b"u", b"}2(X\1\0\0\0w" + body + b"u0",
                 b"}(X\1\0\0\0w" + body + b"u(I01\nL5L\nF1.5\nl0", b"}(X\1\0\0\0w" + body + b"uN(NNN10" ):
        verdict, _, _, tensors = read(tmp_path, archive(None, {"0": b"1234"}, pickled=b"\x80\x02" + code + b"."))
        assert tensors == {"w": ("F32", (1,), b"1234")}, (code, verdict)
