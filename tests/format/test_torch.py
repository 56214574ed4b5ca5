# SPDX-License-Identifier: Apache-2.0
"""src/format reads files of torch.save(), reports the right rule for invalid ones, and executes nothing."""

import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import torch_releases  # noqa: E402
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


def imports_of(tmp_path, content):
    """(verdict, imports), also of a file that is refused."""
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    done = subprocess.run([BUILD / "tests/format/verdict", "imports", path], capture_output=True, text=True, check=True)
    verdict, *imports = done.stdout.splitlines()
    return verdict, imports


def read(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    return ask(path)


BAD = bad_torch.CASES + bad_torch.UNWRITTEN


@pytest.mark.parametrize("name, rule, content", BAD, ids=[case[0] for case in BAD])
def test_bad_file(tmp_path, name, rule, content):
    verdict, refusal, _, _ = read(tmp_path, content)
    if rule.startswith("refused "):
        assert verdict.split()[:1] == ["ok"] and verdict.split()[2] == rule.split()[1], verdict
        assert refusal.startswith(("tensor ", "storage ", "a tensor is in an object or a set")), refusal
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
    assert set(read(tmp_path, write({5: {"w": one}}, {"0": b"1234"}))[3]) == {"w"}
    assert set(read(tmp_path, write([{"w": one}], {"0": b"1234"}))[3]) == {"0.w"}
    assert set(read(tmp_path, write(({"w": one},), {"0": b"1234"}))[3]) == {"0.w"}
    assert set(read(tmp_path, write({-1: one, -(2**40): one, 2**40: one}, {"0": b"1234"}))[3]) == {"-1", str(-(2**40)), str(2**40)}
    assert set(read(tmp_path, write(one, {"0": b"1234"}))[3]) == {"tensor"}


@pytest.mark.parametrize("write", BOTH, ids=["zip", "legacy"])
def test_lists_tuples_and_pairs(tmp_path, write):
    """Positions are part of the names. Python 2 pickles an OrderedDict as a list of pairs."""
    def part(i):
        return tensor(storage("0", 6), (1,), offset=i)

    pairs = Call(Global("collections", "OrderedDict"), [["x", part(2)], ("y", part(3)), ["n", 1]])
    unnamed = Call(Global("collections", "OrderedDict"), [[1.5, part(4)]])
    whole = write({"a": [part(0), 1, (None, "text", part(1)), []], "b": pairs, "c": unnamed}, {"0": DATA[:24]})
    verdict, refusal, _, tensors = read(tmp_path, whole)
    assert tensors == {name: ("F32", (1,), DATA[4 * i : 4 * i + 4]) for i, name in enumerate(["a.0", "a.2.2", "b.x", "b.y"])}
    assert verdict.split()[2] == "1" and "a key in its path is not a string" in refusal
    whole = write({"state_dict": Call(Global("collections", "OrderedDict"), [["w", part(5)]]), "epoch": 3}, {"0": DATA[:24]})
    assert read(tmp_path, whole)[3] == {"w": ("F32", (1,), DATA[20:24])}
    assert set(read(tmp_path, write([part(0), part(1)], {"0": DATA[:24]}))[3]) == {"0", "1"}


def test_one_list_of_pairs_for_many_dictionaries(tmp_path):
    """Each takes the memory of all pairs; the pickle may take eight times its length."""
    pairs = torchfiles.instructions_of([["k", 1]] * 5000) + b"q\0"
    calls = b"ccollections\nOrderedDict\nq\1" + b"0h\1h\0\x85R" * 5000
    verdict = read(tmp_path, archive(None, {"0": DATA[:4]}, pickled=b"\x80\x02" + pairs + calls + b"."))[0]
    assert verdict.startswith("PickleMemory"), verdict


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


@pytest.mark.parametrize("path", sorted(torch_releases.PLACE.iterdir()), ids=lambda path: path.stem)
def test_files_of_old_releases(path):
    release = path.stem.split("-")[1]
    verdict, _, imports, tensors = ask(path)
    assert tensors == torch_releases.expected(release)
    assert verdict.split()[2] == str(torch_releases.refused(release)) and not imports


@pytest.mark.parametrize("prefix", ["archive", "model", "näme", "a b"])
def test_any_prefix_and_order(tmp_path, prefix):
    root = {"w": tensor(storage("0", 6), (6,))}
    for order in (b"little", None):
        assert read(tmp_path, archive(root, {"0": DATA[:24]}, prefix=prefix, order=order))[3] == {"w": ("F32", (6,), DATA[:24])}


def test_zip64(tmp_path):
    """An archive whose sizes and offsets are all in zip64 fields. The end record may have them, too."""
    content = torchfiles.zip64(archive({"w": tensor(storage("0", 6), (6,))}, {"0": DATA[:24]}))
    assert read(tmp_path, content)[3] == {"w": ("F32", (6,), DATA[:24])}
    end64 = content.rindex(b"PK\6\6")
    count, length, start = struct.unpack_from("<QQQ", content, end64 + 32)
    both = content[:-22] + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, length, start, 0)
    assert read(tmp_path, both)[3] == {"w": ("F32", (6,), DATA[:24])}


@pytest.mark.parametrize("name, content", bad_torch.READ, ids=[case[0] for case in bad_torch.READ])
def test_unusual_file(tmp_path, name, content):
    verdict, _, _, tensors = read(tmp_path, content)
    assert any(tensor == ("F32", (2,), bad_torch.F4 * 2) for tensor in tensors.values()), verdict
    assert verdict.split()[2] == "0"
    assert name != "lightning" or (list(tensors) == ["w"] and verdict.split()[2] == "0")


@pytest.mark.parametrize("way", bad_torch.evil(""))
def test_nothing_is_executed(tmp_path, way):
    """Pickles that create a file in pickle.load(); the reader lists what they would import."""
    made = tmp_path / "made"
    verdict, _, imports, tensors = read(tmp_path, bad_torch.evil(f"touch {made}")[way])
    assert verdict.startswith("ok 1 0"), verdict
    assert imports == ["__builtin__.eval" if way == "eval" else "os.system"] and tensors["w"][2] == bad_torch.F4 * 2
    assert not made.exists()
    # pickle.loads() does execute them, so the test can fail.
    with zipfile.ZipFile(tmp_path / "model.pt") as file, pytest.raises(Exception):  # noqa: B017 torch, or persistent_load, is missing
        pickle.loads(file.read("archive/data.pkl"))
    assert made.exists()


def test_imports_are_listed_once_and_escaped(tmp_path):
    code = b"".join(b"c" + name + b"\n0" for name in (b"os\nsystem", b"os\nsystem", b"a\x1b[2J\nb", b"builtins\neval", b"torch\nSize"))
    verdict, _, imports, _ = read(tmp_path, archive(None, {"0": b"1234"}, pickled=b"\x80\x02" + code + torchfiles.instructions_of(
        {"w": tensor(storage("0", 1), (1,))}) + b"."))
    assert verdict.startswith("ok 1 0 3")
    assert imports == ["builtins.eval", "os.system", r"a\x1b[2J.b"]


def with_imports(data, count):
    """Each of the first `count` pickles imports a function of its own, and drops it."""
    out, at = b"", 0
    for i in range(count):
        file = io.BytesIO(data[at:])
        end = next(at + position + 1 for code, _, position in pickletools.genops(file) if code.name == "STOP")
        out += data[at : at + 2] + b"cos\nsystem%d\n0" % i + data[at + 2 : end]
        at = end
    return out + data[at:]


@pytest.mark.parametrize("little", [True, False])
def test_imports_of_all_pickles_of_a_file(tmp_path, little):
    """torch.load() executes five pickles of the older format, whatever the byte order is."""
    content = with_imports(legacy(bad_torch.ONE, {"0": (2, DATA[:8])}, little=little), 5)
    verdict, imports = imports_of(tmp_path, content)
    assert verdict.startswith("ok " if little else "TorchByteOrder "), verdict
    assert imports == [f"os.system{i}" for i in range(5)]


def test_imports_of_refused_files(tmp_path):
    """torch.load() executes a pickle up to an invalid instruction. After one that only fstfs refuses, there may be more."""
    code = b"\x80\2cos\nsystem\n0"
    old = legacy(bad_torch.ONE, {"0": (2, DATA[:8])})
    for rule, content, more in (("Pickle", bad_torch.pickled(code), []), ("Pickle", bad_torch.pickled(code + b"\xff."), ["..."]),
                                ("TorchByteOrder", archive(None, {}, order=b"big", pickled=code + b"N."), []),
                                ("PickleMemory", bad_torch.pickled(code + b")" * 200000 + b"cos\nexecv\n."), ["..."]),
                                ("Pickle", bad_torch.pickled(code + bad_torch.items(("a", 1), ("a", 2)).instructions + b"."), []),
                                ("TorchStorage", with_imports(old[:-2], 1).replace(b"system0", b"system"), [])):
        verdict, imports = imports_of(tmp_path, content)
        assert verdict.startswith(f"{rule} ") and imports == ["os.system", *more], (verdict, imports)


SYSTEM = b"cos\nsystem\nX\5\0\0\0false\x85R"


@pytest.mark.parametrize("content, imports", [
    (b"\x80\2" + SYSTEM + b".", ["os.system"]), (b"\x80\4" + SYSTEM + b"0" + torchfiles.instructions_of("x" * 100000) + SYSTEM.replace(b"os", b"nt") + b".", ["nt.system", "os.system"]),
    (SYSTEM + b".", ["os.system"]), (SYSTEM, ["os.system"]), (b"(S'false'\nios\nsystem\n.", ["os.system"]), (b"(lp0\n0(S'x'\nios\nsystem\n", ["os.system"]),
    (b"cos\nsystem\n.", ["os.system"]), (b"cos\nsystem\n", []), (b"\x80\2cos\nsystem\n", ["os.system"]), (b"\x80\6" + SYSTEM + b".", []),
    (b"\x80\2N.", []), (b"\x80\2\xff.", ["..."]), (b"\x80\2Nr\xff\xff\xff\x7f" + SYSTEM + b".", ["..."]), (b"\x80\2" + SYSTEM + b"\xff", ["os.system", "..."]),
    (b"carrot\ncabbage\ncauliflower\n" * 100, []), (b"X" * 20000, []), (b"\x80\2X\xff\xff\xff\x7f" + b"x" * 20000, []), (b"N" * 3, []),
], ids=lambda value: str(value)[:40])
def test_imports_of_other_pickles(tmp_path, content, imports):
    """torch.load() executes a pickle before it finds that torch.save() has not written the file."""
    verdict, found = imports_of(tmp_path, content)
    assert verdict.startswith("NotTorch ") and found == imports, verdict


@pytest.mark.parametrize("last", ["os.system", "zzz.f"])
def test_many_imports(tmp_path, last):
    """Each is counted once; of over 1000, the dangerous ones are kept."""
    for names in (["a.f0"] * 1500, [f"a.f{i:04}" for i in range(999)], [f"a.f{i:04}" for i in range(1500)], [f"a.f{i:04}" for i in range(1500)][::-1]):
        code = b"".join(b"c%s\n%s\n0" % tuple(part.encode() for part in name.split(".")) for name in [*names, last])
        imports = read(tmp_path, bad_torch.one(pickled=b"\x80\2" + code + torchfiles.instructions_of(bad_torch.ONE) + b"."))[2]
        expected = [last, *sorted(set(names))] if last == "os.system" else [*sorted(set(names)), last]
        assert imports == expected[:1000]


def test_pickle_larger_than_the_first_read(tmp_path):
    """In the older format, storages follow pickles of unknown length."""
    root = {f"layer.{i}": tensor(storage(str(i), 1), (1,)) for i in range(2000)}
    storages = {str(i): (1, struct.pack("<I", i)) for i in range(2000)}
    tensors = read(tmp_path, legacy(root, storages))[3]
    assert tensors == {f"layer.{i}": ("F32", (1,), struct.pack("<I", i)) for i in range(2000)}


@pytest.mark.parametrize("first, get", [(0, 1), (1, 1), (1, 0)])
def test_memoize_after_put(tmp_path, first, get):
    """MEMOIZE sets the entry whose index is the number of entries, as in Python, even if PUT began at 1."""
    parts = [torchfiles.instructions_of(tensor(storage("0", 6), (1,), offset=i)) for i in range(2)]
    code = b"}(" + b"".join(torchfiles.instructions_of(f"a{i}") + part + more for i, (part, more) in enumerate(zip(parts, (b"q%c" % first, b"\x94"))))
    code += torchfiles.instructions_of("b") + b"h%cu." % get
    verdict, _, _, tensors = read(tmp_path, archive(None, {"0": DATA[:24]}, pickled=b"\x80\4" + code))

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, identity):
            return identity

        def find_class(self, module, name):
            return str if name == "FloatStorage" else lambda *arguments: arguments[1] if arguments else None

    try:
        expected = Unpickler(io.BytesIO(b"\x80\4" + code)).load()
    except pickle.UnpicklingError:
        assert verdict.startswith("Pickle "), verdict
        return
    assert {name: part[2] for name, part in tensors.items()} == {name: DATA[4 * i : 4 * i + 4] for name, i in expected.items()}


def test_protocols(tmp_path):
    """Instructions of other protocols that create the same tensors."""
    body = torchfiles.instructions_of(tensor(storage("0", 1), (1,)))
    for code in (b"(dS'w'\n" + body + b"s", b"(S'w'\n" + body + b"d", b"(Vw\n" + body + b"d", b"}p0\n(S'w'\n" + body + b"u0g0\n",
                 b"}\x94\x8c\x01w\x94" + body + b"s", b"N0}(U\1w" + body + b"u", b"}2(X\1\0\0\0w" + body + b"u0",
                 b"}(X\1\0\0\0w" + body + b"u(I01\nL5L\nF1.5\nl0", b"}(X\1\0\0\0w" + body + b"uN(NNN10" ):
        verdict, _, _, tensors = read(tmp_path, archive(None, {"0": b"1234"}, pickled=b"\x80\x02" + code + b"."))
        assert tensors == {"w": ("F32", (1,), b"1234")}, (code, verdict)
