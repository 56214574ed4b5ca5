# SPDX-License-Identifier: Apache-2.0
"""The tested module and library, the stubs of the servers, and a checkpoint."""

import os
import sys

import pytest
from conftest import BUILD, HERE, ROOT

# Before torch is imported: no accelerator.
os.environ.update(CUDA_VISIBLE_DEVICES="",
                  FSTFS_LIBRARY=os.fspath(BUILD / "src/client/libfstfs.so.0"))
sys.path[:0] = [os.fspath(ROOT / "src/python"), os.fspath(HERE / "python")]
collect_ignore = ["stubs", "program_vllm.py", "program_sglang.py"]


@pytest.fixture
def stubs(monkeypatch):
    """Replaces installed servers by the stubs, which each test imports again."""
    def forget():
        for name in list(sys.modules):
            if name.split(".")[0] in ("vllm", "sglang") or name in ("fstfs.vllm", "fstfs.sglang"):
                del sys.modules[name]

    monkeypatch.syspath_prepend(HERE / "servers/stubs")
    monkeypatch.delenv("FSTFS_SGLANG", raising=False)
    forget()
    yield
    forget()


@pytest.fixture
def model(place):
    """(directory, {name: bytes}) of a checkpoint of 12 shards with experts."""
    import files

    names = [f"layers.{i}.{part}" for i in range(6) for part in (
        "norm.weight", "experts.0.up.weight", "experts.1.up.weight", "q.weight")]
    made = {name: ("F32", (64 + i, 1000), files.content("F32", (64 + i, 1000), i))
            for i, name in enumerate(names)}
    files.write_checkpoint(place / "model", made, shards=12)
    files.forget(place / "model")
    return place / "model", {name: data for name, (_, _, data) in made.items()}
