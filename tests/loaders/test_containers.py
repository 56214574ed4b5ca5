# SPDX-License-Identifier: Apache-2.0
"""src/format finds the same tensors as torch and the gguf package in files that these wrote."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "format"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
from test_torch import BUILD, ask  # noqa: E402

torch = pytest.importorskip("torch")

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
          "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64"}
NEWER = {"uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
         "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0"}
NAMES = {getattr(torch, name): dtype for name, dtype in (DTYPES | NEWER).items() if hasattr(torch, name)}
WAYS = {"zip": {}, "zip-protocol-3": {"pickle_protocol": 3}, "zip-protocol-4": {"pickle_protocol": 4},
        "legacy": {"_use_new_zipfile_serialization": False}, "legacy-protocol-5": {"_use_new_zipfile_serialization": False, "pickle_protocol": 5}}


def random_tensor(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(*shape) > 0.5
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel()
    return torch.randint(0, 255, (count * size,), dtype=torch.uint8).view(dtype).reshape(*shape)


def tensors_of(value, name=()):
    if isinstance(value, torch.Tensor):
        yield ".".join(name) or "tensor", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_of(inner, name + (str(key),))


def expected_of(value):
    if isinstance(value, dict):
        having = [key for key, inner in value.items() if any(True for _ in tensors_of(inner))]
        if len(having) == 1 and isinstance(value[having[0]], dict):
            value = value[having[0]]
    return dict(tensors_of(value))


def is_shown(tensor):
    return (tensor.layout == torch.strided and not tensor.is_quantized and tensor.is_contiguous() and tensor.dtype in NAMES
            and not tensor.is_conj())


def bytes_of(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def compare(path, trusted=False):
    """Compares with torch.load(); returns the number of tensors that are not shown. Pickle protocols other than 2 and 3
    need `trusted` (weights_only=False)."""
    everything = expected_of(torch.load(path, weights_only=not trusted, map_location="cpu"))
    shown = {name: (NAMES[t.dtype], tuple(t.shape), bytes_of(t)) for name, t in everything.items() if is_shown(t)}
    verdict, refusal, _, tensors = ask(path)
    assert tensors == shown, (verdict, refusal)
    if everything:
        assert verdict.split()[:3] == ["ok", str(len(shown)), str(len(everything) - len(shown))]
    return len(everything) - len(shown)


@pytest.mark.parametrize("way", WAYS)
def test_torch_save(tmp_path, way):
    torch.manual_seed(7)
    path = tmp_path / "model.bin"
    shared = torch.randn(10, 10)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
    names = DTYPES if "legacy" in way else DTYPES | NEWER
    for value in ({name: random_tensor(getattr(torch, name), 3, 4) for name in names if hasattr(torch, name)},
                  {f"layers.{i}.weight": torch.randn(16, 16) for i in range(300)}, torch.randn(3), torch.nn.Parameter(torch.randn(3, 3)),
                  model.state_dict(), {"a": shared, "b": shared, "part": shared[2:4], "item": shared[0, 3]},
                  {"state_dict": {"x": {"y": torch.ones(2)}, 0: torch.zeros(1)}, "epoch": 3, "lr": 1e-3, "big": 2**70, "neg": -5, "none": None},
                  {"model": {"x": torch.ones(2)}, "ema": {"x": torch.ones(3)}}, {"none": torch.empty(0, 3), "scalar": torch.tensor(1.5)}):
        torch.save(value, path, **WAYS[way])
        assert compare(path, trusted="protocol" in way) == 0


@pytest.mark.parametrize("way", ["zip", "legacy"])
@pytest.mark.filterwarnings("ignore")
def test_every_dtype(tmp_path, way):
    """Each dtype that torch.save() writes is shown or refused, and none is an import. Legacy files of new dtypes are read although
    torch.load() cannot read them."""
    path = tmp_path / "model.pt"
    raw = torch.arange(64, dtype=torch.uint8) % 2
    shown = NAMES | {torch.float4_e2m1fn_x2: "F4"} if hasattr(torch, "float4_e2m1fn_x2") else NAMES
    saved = set()
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            torch.save({"w": raw.view(dtype)}, path, **WAYS[way])
        except (RuntimeError, KeyError):  # int4 and the like cannot be saved
            continue
        saved.add(dtype)
        verdict, _, imports, tensors = ask(path)
        if dtype in shown:
            count = 128 if shown[dtype] == "F4" else 64 // dtype.itemsize
            assert tensors == {"w": (shown[dtype], (count,), raw.numpy().tobytes())}, dtype
        else:
            assert verdict.startswith("ok 0 1 "), (dtype, verdict)
        assert imports == [], dtype
    assert saved >= set(shown)


class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 3))
        self.weight.tensor_model_parallel, self.weight.partition_dim, self.weight.shape_of_all = True, 0, (4, 3)
        self.register_buffer("mean", torch.nn.Buffer(torch.randn(3)))


@pytest.mark.parametrize("way", WAYS)
def test_attributes_of_tensors(tmp_path, way):
    """Attributes that cannot replace values are no reason to refuse a tensor."""
    path = tmp_path / "model.bin"
    plain, other = torch.randn(4), torch.randn(4)
    plain.note, plain.scale, plain.names_of_all = "text", 0.5, ["a", 1, None]
    torch.save({"plain": plain, **Wrapped().state_dict(keep_vars=True)}, path, **WAYS[way])
    assert b"_rebuild_from_type_v2" in path.read_bytes() and b"_rebuild_parameter_with_state" in path.read_bytes()
    assert compare(path, trusted="protocol" in way) == 0
    plain.other = other
    torch.save({"plain": plain, "other": other}, path, **WAYS[way])
    verdict, refusal, _, tensors = ask(path)
    assert set(tensors) == {"other"} and "state is set on it" in refusal, verdict


@pytest.mark.parametrize("way", WAYS)
def test_tensors_that_are_not_shown(tmp_path, way):
    path = tmp_path / "model.bin"
    shared = torch.randn(10, 10)
    torch.save({"transposed": shared.t(), "expanded": shared.expand(2, 10, 10), "sparse": torch.eye(3).to_sparse(),
                "conjugate": torch.randn(3, dtype=torch.complex64).conj(), "complex128": torch.randn(2, dtype=torch.complex128),
                "shown": shared[1]}, path, **WAYS[way])
    assert compare(path, trusted="protocol" in way) == 5


def test_training_checkpoint_of_unknown_classes(tmp_path):
    """Of PyTorch Lightning: objects of unknown classes and the state of optimizers do not affect the tensors of the model."""
    path = tmp_path / "last.ckpt"
    model = torch.nn.Linear(3, 3)
    torch.save({"pytorch-lightning_version": "2.0", "state_dict": model.state_dict(), "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
                "hyper_parameters": argparse.Namespace(rate=1, layers=[2, 3])}, path)
    assert compare(path, trusted=True) == 0
    verdict, _, imports, _ = ask(path)
    assert imports == ["argparse.Namespace"], verdict


def test_modules_and_torchscript_are_not_checkpoints(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    assert ask(path)[0].startswith("NoTensors ")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    assert ask(path)[0].startswith("TorchScript ")


def test_gguf_package(tmp_path):
    """Every type of the package but Q8_1, whose size differs between it (40 bytes) and llama.cpp (36)."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "model.gguf"
    random = numpy.random.default_rng(3)
    for align in (None, 64):
        writer = gguf.GGUFWriter(path, "llama")
        if align:
            writer.add_custom_alignment(align)
        writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(30000)])
        for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
            for shape in ((2 * elements,), (3, 2 * elements), (2, 3, elements)):
                raw = random.integers(0, 255, (*shape[:-1], shape[-1] // elements * size), dtype=numpy.uint8)
                if kind.name != "Q8_1":
                    writer.add_tensor(f"{kind.name}.{len(shape)}", raw, raw_shape=raw.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        expected = {t.name: (t.tensor_type.name, tuple(int(d) for d in reversed(t.shape)), t.data.tobytes())
                    for t in gguf.GGUFReader(path).tensors}
        verdict, _, _, found = ask(path)
        assert found == expected, verdict


def write_gguf(path, **split):
    """A model of several types with a tokenizer, written by the gguf package."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    random = numpy.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama", **split)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(30000)])
    for i, name in enumerate(["F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "I8", "F64", "MXFP4"]):
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 255, (i + 1, 2 * size), dtype=numpy.uint8)
        writer.add_tensor(f"blk.{i}.weight", raw, raw_shape=raw.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_parts_of_the_gguf_package_merge(tmp_path):
    """The merged file has all tensors, key-values and bytes of the file that was never split."""
    gguf = pytest.importorskip("gguf")
    write_gguf(tmp_path / "whole.gguf")
    write_gguf(tmp_path / "m.gguf", split_max_tensors=3)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 4
    done = subprocess.run([BUILD / "tests/format/verdict", "merge", tmp_path / "merged.gguf", *parts], capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    whole, merged = gguf.GGUFReader(tmp_path / "whole.gguf"), gguf.GGUFReader(tmp_path / "merged.gguf")
    assert list(merged.fields) == list(whole.fields)
    assert {name: field.contents() for name, field in merged.fields.items()} == {name: field.contents() for name, field in whole.fields.items()}
    assert [(t.name, t.tensor_type, t.data.tobytes()) for t in merged.tensors] == [(t.name, t.tensor_type, t.data.tobytes()) for t in whole.tensors]
