# SPDX-License-Identifier: Apache-2.0
"""Compares the declarations of CUDA and cuFile in src/client/gpu with NVIDIA's headers: those of an
installed toolkit, and those on PyPI for CUDA 12 and 13."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, SLOW

PACKAGES = {"cuda12": ["nvidia-cuda-runtime-cu12", "nvidia-cufile-cu12"],
            "cuda13": ["nvidia-cuda-runtime", "nvidia-cufile", "nvidia-cuda-crt"]}


def include_of_toolkit():
    """The folder with cuda.h of an installed toolkit, or None."""
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        places.append(Path(nvcc).resolve().parent.parent)
    for place in filter(None, places):
        if (Path(place) / "include/cuda.h").exists():
            return Path(place) / "include"
    return None


def includes_of_wheels(packages, place):
    """Fetches packages from PyPI; returns the folders of their headers."""
    for package in packages:
        try:
            done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                                   "--only-binary=:all:", "-d", place, package],
                                  capture_output=True, text=True, timeout=60 * SLOW)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{package} cannot be had from PyPI: it takes too long")
        if done.returncode != 0:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            pytest.skip(f"{package} cannot be had from PyPI: {reason}")
    for wheel in place.glob("*.whl"):
        with zipfile.ZipFile(wheel) as z:
            z.extractall(place, [n for n in z.namelist() if n.endswith((".h", ".hpp"))])
    return sorted({path.parent for path in place.rglob("cu*.h") if path.parent.name == "include"})


def compile_abi(source, includes, *defines):
    """Compiles tests/gpu/abi.c; returns the messages of the compiler, "" if there are none."""
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64",
               "-Wall", "-Werror", "-fsyntax-only", f"-I{source / 'src'}",
               *(f"-isystem{i}" for i in includes), *(f"-D{d}" for d in defines),
               ROOT / "tests/gpu/abi.c"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW).stderr


def test_toolkit():
    include = include_of_toolkit()
    if not include:
        pytest.skip("no CUDA toolkit is installed")
    assert compile_abi(ROOT, [include], "FSTFS_ABI_CUDA") == ""


@pytest.mark.limit(240)
@pytest.mark.parametrize("version", PACKAGES)
def test_wheels(version, place):
    includes = includes_of_wheels(PACKAGES[version], place)
    assert compile_abi(ROOT, includes, "FSTFS_ABI_CUDA", "FSTFS_ABI_CUFILE") == ""
    # The comparison can fail: change a declaration.
    copy = place / "copy"
    shutil.copytree(ROOT / "src", copy / "src")
    for name, old, new in (("cuda.h", "cuMemAlloc_v2, (CUdeviceptr * address, size_t size)",
                            "cuMemAlloc_v2, (CUdeviceptr * address, unsigned size)"),
                           ("cufile.h", "cuFileBufRegister(const void *memory, size_t size",
                            "cuFileBufRegister(const void *memory, unsigned size")):
        header = copy / "src/client/gpu" / name
        text = header.read_text()
        assert old in text
        header.write_text(text.replace(old, new))
        output = compile_abi(copy, includes, "FSTFS_ABI_CUDA", "FSTFS_ABI_CUFILE")
        assert "conflicting types" in output
        header.write_text(text)
