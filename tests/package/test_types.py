# SPDX-License-Identifier: Apache-2.0
"""The type hints of the Python package, checked by mypy: in itself, and for a program that calls
everything."""

import ast
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("mypy")

PROGRAM = """
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple
from typing_extensions import assert_type

import fstfs
import fstfs.flax
import fstfs.mlx
import fstfs.numpy
import fstfs.paddle
import fstfs.tensorflow
import fstfs.torch

with fstfs.mount("/models", memory="1G", shards=2) as mount:
    assert_type(mount, fstfs.Mount)
    assert_type(mount.path, str)
    assert_type(mount.view, Optional[str])
    assert_type(mount.checkpoint("llama"), str)
    assert_type(mount.status(), Dict[str, Any])
    mount.unmount()
fstfs.mount(Path("/models"), Path("/mnt"), "merged", 1 << 30, readahead="keep", options="noexec")

with fstfs.safe_open(Path("a"), "pt", device=0, backend="pread") as file:
    assert_type(file.keys(), List[str])
    assert_type(file.offset_keys(), List[str])
    assert_type(file.metadata(), Optional[Dict[str, str]])
    assert_type(file.get_tensors(), Dict[str, Any])
    rows = file.get_slice("a")
    assert_type(rows.get_shape(), List[int])
    assert_type(rows.get_dtype(), str)
    rows[1:2, ..., 0], file.get_tensor("a")
tensors = fstfs.load_checkpoint("a", "cuda:0", tensors=("a", "b"), framework="np")
assert_type(tensors, Dict[str, Any])
assert_type(fstfs.load_file("a", framework="np"), Dict[str, Any])
assert_type(fstfs.torch.load_file("a", "cuda:0"), Dict[str, Any])
assert_type(fstfs.paddle.load_file("a", "cpu"), Dict[str, Any])
for load in (fstfs.flax.load_file, fstfs.mlx.load_file, fstfs.numpy.load_file,
             fstfs.tensorflow.load_file):
    assert_type(load(Path("a"), backend="mmap"), Dict[str, Any])
stream = fstfs.iter_tensors(["a", Path("b")], "cuda:0", framework="pt", select="a".__eq__,
                            memory=1 << 20, pin=True)
assert_type(stream, Iterator[Tuple[str, Any]])
for name, tensor in fstfs.iter_tensors(Path("a"), 0):
    assert_type(name, str)
try:
    assert_type(fstfs.status(), str)
except fstfs.SafetensorError as error:
    print(error)
assert_type(fstfs.__version__, str)
"""
WRONG = {"fstfs.mount(3)": "arg-type", "fstfs.mount('a', sandbox=True)": "arg-type",
         "fstfs.mount('a', pid=3)": "call-arg", "fstfs.safe_open('a')": "call-arg",
         "fstfs.iter_tensors(3)": "arg-type", "fstfs.load_file('a').keys": None,
         "fstfs.nothing": "attr-defined"}


def mypy(place, cache, *arguments):
    return subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", cache, "--follow-imports=silent",
                           *arguments], capture_output=True, text=True, cwd=place,
                          env={**os.environ, "MYPYPATH": os.fspath(ROOT / "src/python")})


def test_package(place, shared_place):
    # torch, vLLM and SGLang are not installed here.
    result = mypy(place, shared_place / "mypy", "--ignore-missing-imports",
                  ROOT / "src/python/fstfs")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (ROOT / "src/python/fstfs/py.typed").exists()


def test_program_has_everything():
    text = (ROOT / "src/python/fstfs/__init__.py").read_text()
    names = ast.literal_eval(re.search(r"^__all__ = (.*?\])", text, re.DOTALL | re.MULTILINE)[1])
    assert [name for name in names if f"fstfs.{name}" not in PROGRAM] == []


def test_program(place, shared_place):
    """In strict mode, a call of a function without complete hints is an error."""
    program = place / "program.py"
    program.write_text(PROGRAM)
    result = mypy(place, shared_place / "mypy", "--strict", program)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("line", WRONG)
def test_wrong_program(place, shared_place, line):
    program = place / "program.py"
    program.write_text(f"import fstfs\n{line}\n")
    result = mypy(place, shared_place / "mypy", "--strict", program)
    found = [text.rsplit("[", 1)[1] for text in result.stdout.splitlines() if ": error: " in text]
    assert found == ([f"{WRONG[line]}]"] if WRONG[line] else []), result.stdout
