# SPDX-License-Identifier: Apache-2.0
"""Verdicts of fstfs and torch.load(weights_only=True) on the corpus. Every difference is in a table, with its reason."""

import struct
import sys
import warnings
from pathlib import Path

import pytest
from conftest import child

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402

from .test_containers import ask, compare  # noqa: E402

torch = pytest.importorskip("torch")

CASES = {name: content for name, _, content in bad_torch.CASES} | dict(bad_torch.READ)

# fstfs refuses the file, torch loads it.
REFUSED = {
    "torch searches the end record in the last 64 KiB; a reader that requires it at the end sees another archive": {
        "one-byte-more", "comment-too-long", "two-archives"},
    "big-endian; torch swaps the bytes": {"order-in-capitals"},
    "torch takes one of two descriptions of the archive; other readers take the other one": {
        "local-name", "local-method", "local-size", "local-patch", "local-of-unused", "overlapping", "overlapping-unused", "prefix-nul"},
    "torch loads memory that it has not written": {"directory-of-data-0", "deflate-of-data-0"},
    "a directory has no content, and torch would not read it": {"directory-with-content"},
    "torch accepts volume 1 in archives of one volume, number 0, and ignores the volume of the zip64 end record": {"volume-1", "zip64-other-volume"},
    "bytes between the records at the end belong to none of them": {"zip64-not-before-locator"},
    "torch takes an end record in the comment": {"end-in-comment"},
    "a name ends for torch at its first NUL": {"member-nul"},
    "of entries with equal keys, torch has the first key with the last value; no writer stores two": {
        "key-twice", "key-twice-with-none", "key-twice-with-dictionaries", "key-twice-as-float", "key-twice-as-large-float",
        "key-twice-as-boolean", "key-twice-as-long", "key-twice-in-pairs", "key-twice-of-lightning"},
    "torch takes the first object with this key, whatever the others are": {"old-view-twice", "old-view-dtype", "old-view-of-itself"},
    "torch accepts any keys and sequences": {"old-view-unnamed", "old-view-list", "old-key-257"},
    "memory is bounded by the size of the pickle": {
        "pickle-memo-gap", "pickle-memo-from-2", "pickle-tuple-bomb", "pickle-nested-tuples", "names-bomb"},
    "nesting is bounded": {"nested-too-deep", "nested-tuples-of-numbers", "state-shared-by-many"},
    "two tensors would have one name: keys contain the separator": {"name-twice"},
    "it has no tensors, or none with a name": {"pickle-memo-of-5-bytes", "set-of-tensors"},
}

# fstfs shows the other tensors, torch loads the file.
NOT_SHOWN = {
    "its bytes are not stored in order": {"stride-zero", "stride-transposed", "name-surrogate-in-two-passes"},
    "safetensors has no dtype for it": {"complex128", "dtype-unknown"},
    "torch changes its values after creating it": {"state-built", "state-of-parameter-data", "state-of-parameter-fill", "state-of-slots", "state-tuple-real",
                                                   "state-from-type-data", "state-from-type-tuple-data", "dtype-converted"},
    "its state contains other values than strings, numbers, lists and tuples, or calls a setter": {
        "state-of-parameter-tensor", "state-of-parameter-dictionary", "state-of-parameter-tuple", "state-hooks", "state-call", "state-class",
        "state-plain-dictionary", "state-too-nested"},
    "torch does not write such tensors": {"rank-65", "untyped-without-dtype", "built-from-storage", "wrappers-5"},
    "torch creates an empty dictionary": {"new-dictionary-of-pairs"},
    "keys of storages have at most 256 bytes": {"storage-key-257"},
    "a storage is no tensor": {"storage-alone", "lightning-storage"},
    "its name cannot be in a safetensors header": {"name-of-metadata", "name-of-metadata-inside", "name-surrogate", "name-too-long", "name-4097", "names-of-4097", "key-tuple", "key-none", "key-none-alone",
                                                "key-boolean"},
    "a key may be equal to another one that is not evaluated": {"key-complex", "key-in-pairs-of-lists", "key-encoded"},
    "its bytes may not be its values": {"lazy-counter"},
    "a name ends for torch at its first NUL": {"storage-key-nul"},
}

# fstfs shows the other tensors, torch refuses the file.
SHOWN_IN_PART = {
    "the storage is not as described": {
        "storage-missing", "storage-shorter", "storage-longer", "storage-overflow", "storage-negative", "storage-unknown-class",
        "storage-module", "storage-key-up", "storage-key-long", "storage-no-persistent", "storage-view", "old-key-missing", "old-kind-in-bytes"},
    "the tensor is not in its storage": {
        "offset-beyond", "offset-overflow", "shape-beyond", "shape-overflow", "shape-negative", "shape-no-tuple", "stride-short",
        "stride-negative", "stride-overflow", "old-view-outside"},
    "the arguments of a function that rebuilds tensors are invalid": {"lazy-conjugate", "metadata-unknown", "sparse", "quantised", "meta"},
    "its state cannot be assigned": {"state-imaginary", "state-key-number", "state-key-none", "state-string", "state-list", "state-empty-tuple",
                                     "state-three", "state-items-replaced"},
    "torch does not read the key that may be equal to another one": {
        "key-below-unsure", "key-escaped", "key-global", "key-global-number", "key-latin-1", "key-persistent", "key-quoted-escaped"},
    "a class that torch does not allow": {
        "subclass", "tensor-in-object", "tensor-in-defaultdict", "tensor-in-state", "pairs-that-are-none",
        "unknown-function", "unknown-function-of-two", *(f"lightning-{name}" for name in bad_torch.HOLDERS if name != "storage")},
}

# fstfs shows all tensors, torch refuses the file.
SHOWN = {
    "calls and objects are data: nothing is executed, and no tensor depends on them": {
        "calls-reduce", "calls-in-key", "calls-eval", "calls-obj", "calls-newobj", "calls-newobj-ex", "calls-build", "unknown-class",
        "unknown-persistent", "lightning", "lightning-nested-256", "from-type-v1", "from-type-v1-plain",
        *(f"lightning-beside-{name}" for name in bad_torch.HOLDERS if name != "storage")},
    "torch's reader lacks instructions of protocols 0, 1 and 4": {
        "calls-inst", "calls-stack-global", "integers-of-protocol-0", "frame", "memoize"},
}


def verdicts_of_torch(folder):
    """{name: whether torch.load() succeeds}. Of files that fstfs shows completely, too, the tensors are compared."""
    found, compared = {}, []
    for name, content in CASES.items():
        path = folder / "model.pt"
        path.write_bytes(content)
        try:
            torch.load(path, weights_only=True, map_location="cpu")
            found[name] = True
        except Exception:
            found[name] = False
            continue
        verdict = ask(path)[0].split()
        if verdict[0] == "ok" and verdict[2] == "0":
            assert compare(path) == 0, name
            compared.append(name)
    assert len(compared) > 15
    return found


def test_differences(tmp_path):
    warnings.simplefilter("ignore")
    theirs = child(verdicts_of_torch, tmp_path, seconds=200)
    found = {"REFUSED": set(), "NOT_SHOWN": set(), "SHOWN_IN_PART": set(), "SHOWN": set()}
    for name, content in CASES.items():
        path = tmp_path / "model.pt"
        path.write_bytes(content)
        verdict = ask(path)[0].split()
        if verdict[0] != "ok":
            kind = "REFUSED" if theirs[name] else None
        elif verdict[2] != "0":
            kind = "NOT_SHOWN" if theirs[name] else "SHOWN_IN_PART"
        else:
            kind = None if theirs[name] else "SHOWN"
        if kind:
            found[kind].add(name)
    assert found == {kind: set().union(*globals()[kind].values()) for kind in found}


def test_imports_are_what_torch_does_not_allow(tmp_path):
    from torch._weights_only_unpickler import _get_allowed_globals

    names = sorted(_get_allowed_globals())
    assert len(names) > 100 and "torch._utils._rebuild_tensor_v2" in names
    others = ["builtins.eval", "torch.FloatTensors", "torch.load"]
    code = b"".join(b"c%s\n%s\n0" % tuple(name.rpartition(".")[i].encode() for i in (0, 2)) for name in names + others)
    path = tmp_path / "model.pt"
    path.write_bytes(bad_torch.one(pickled=b"\x80\2" + code + bad_torch.t.instructions_of(bad_torch.ONE) + b"."))
    assert ask(path)[2] == others


def descriptors(cls):
    """The attributes of a class whose assignment calls a setter."""
    return {name for each in cls.__mro__ for name, value in vars(each).items() if hasattr(type(value), "__set__")}


@pytest.mark.parametrize("cls, made", [(torch.Tensor, bad_torch.from_type),
                                       (torch.nn.Parameter, lambda state: bad_torch.with_state(state, bad_torch.ONE["w"]))])
def test_state_that_calls_setters(tmp_path, cls, made):
    """State that calls a setter, such as that of `real`, is refused. No other name of a tensor's attribute changes its values."""
    refused = descriptors(cls) | {"names"}
    assert refused > {"data", "real", "imag", "grad", "requires_grad", "_backward_hooks"}
    states = [{name: value} for name in sorted(set(dir(cls)) | refused) for value in (True, 5, 2.5, "x", None, (1,), [1])]
    path = tmp_path / "model.pt"
    path.write_bytes(bad_torch.one({"w": bad_torch.ONE["w"], "x": [made(state) for state in states if set(state) <= refused]}))
    assert ask(path)[0].split()[:3] == ["ok", "1", str(7 * len(refused))]
    shown = [state for state in states if not set(state) <= refused]
    assert len(shown) > 1000
    path.write_bytes(bad_torch.one({"x": [made(state) for state in shown]}))
    tensors = ask(path)[3]
    assert len(tensors) == len(shown)
    for i, tensor in enumerate(torch.load(path, weights_only=True)["x"]):
        assert type(tensor) is cls and tensor.__dict__ == shown[i]
        assert tensors[f"x.{i}"] == ("F32", (2,), struct.pack("<2f", *torch.Tensor.tolist(tensor)))
