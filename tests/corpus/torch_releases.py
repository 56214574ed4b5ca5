#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that old releases of torch wrote: torch-RELEASE-FORMAT.pt in tests/corpus/released.

    python tests/corpus/torch_releases.py    # with the release's Python and torch; writes its files

1.0.0 is the oldest release on PyPI, 1.6.0 the first that writes zip archives, and 1.13.0 the oldest for Python 3.11.
The tensors contain fixed bytes, so that a test knows them without torch.
"""

from collections import OrderedDict
from pathlib import Path

PLACE = Path(__file__).resolve().parent / "released"
# Storage class: dtype in safetensors, bytes of an element.
KINDS = OrderedDict([
    ("Double", ("F64", 8)), ("Float", ("F32", 4)), ("Half", ("F16", 2)), ("BFloat16", ("BF16", 2)), ("Long", ("I64", 8)),
    ("Int", ("I32", 4)), ("Short", ("I16", 2)), ("Char", ("I8", 1)), ("Byte", ("U8", 1)), ("Bool", ("BOOL", 1)),
    ("ComplexFloat", ("C64", 8)), ("ComplexDouble", (None, 16))])
ABSENT = {"1.0.0": {"BFloat16", "Bool", "ComplexFloat", "ComplexDouble"}}


def pattern(kind, elements):
    """The bytes of a storage."""
    size = elements * KINDS[kind][1]
    return bytes(i % 2 if kind == "Bool" else (i * 7 + len(kind)) % 251 for i in range(size))


def expected(release):
    """{name: (dtype, shape, bytes)} of the tensors that are shown."""
    found = {}
    for kind, (dtype, size) in KINDS.items():
        if dtype and kind not in ABSENT.get(release, ()):
            data = pattern(kind, 12)
            found["types." + kind] = (dtype, (3, 4), data)
            found["types.%s.row" % kind] = (dtype, (4,), data[4 * size : 8 * size])
    data = pattern("Float", 12)
    for name, shape, first, last in (("tied", (3, 4), 0, 12), ("item", (), 6, 7), ("none", (0, 4), 0, 0), ("parameter", (2, 6), 0, 12),
                                     ("module.0.weight", (3, 4), 0, 12), ("module.0.bias", (3,), 0, 3)):
        found[name] = ("F32", shape, data[4 * first : 4 * last])
    return found


def refused(release):
    """The number of tensors that are not shown: transposed and expanded; sparse, quantised, and two of complex128."""
    return 2 if release == "1.0.0" else 6


def values(torch):
    """The checkpoint."""
    state = OrderedDict()
    for kind in KINDS:
        storage = getattr(torch, kind + "Storage", None)
        if not hasattr(storage, "from_buffer"):
            continue
        new = getattr(torch, kind + "Tensor", None)
        whole = torch.tensor([], dtype=new.dtype if new else getattr(torch, {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}[kind]))
        whole.set_(storage.from_buffer(pattern(kind, 12), byte_order="little"), 0, (3, 4), (4, 1))
        state["types." + kind] = whole
        state["types.%s.row" % kind] = whole[1]
    whole = state["types.Float"]
    state["tied"] = whole
    state["item"] = whole[1, 2]
    state["none"] = torch.zeros(0, 4)
    state["transposed"] = whole.t()
    state["expanded"] = whole[0].expand(5, 4)
    state["parameter"] = torch.nn.Parameter(whole.clone().view(2, 6))
    if hasattr(torch, "quantize_per_tensor"):  # later than 1.0, which saves no sparse tensors either
        state["sparse"] = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2))
        state["quantised"] = torch.quantize_per_tensor(torch.ones(4), 0.5, 1, torch.qint8)
    module = torch.nn.Linear(4, 3)
    module.weight.data.copy_(whole)
    module.bias.data.copy_(whole.view(-1)[:3])
    state["module"] = torch.nn.Sequential(module).state_dict()
    return {"state_dict": state, "epoch": 3, "rate": 0.5, "big": 2**80, "names": ["a", ("b", None, True)], "optimizer": {"param_groups": [{"lr": 1e-3}]}}


def main():
    import torch

    PLACE.mkdir(exist_ok=True)
    release = torch.__version__.split("+")[0]
    ways = {"legacy": {}} if release == "1.0.0" else {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
    for way, options in ways.items():
        torch.save(values(torch), str(PLACE / ("torch-%s-%s.pt" % (release, way))), **options)


if __name__ == "__main__":
    main()
