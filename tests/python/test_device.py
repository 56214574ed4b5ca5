# SPDX-License-Identifier: Apache-2.0
"""device="cuda:0" with the test double of libcuda.so.1 (tests/gpu): the library reads into device
memory that a stand-in for torch allocates."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, HERE, ROOT, SLOW

from . import files, module  # noqa: F401

pytest.importorskip("torch")

DOUBLES = BUILD / "tests/gpu"
PROGRAM = """
import ctypes, sys
import torch
import files
import fstfs
from fstfs import _frameworks

ALL = files.tensors_of(files.BITS, files.SHAPES)
cuda = ctypes.CDLL("libcuda.so.1")
cuda.double_cuda_reset(sys.argv[2].encode())
cuda.cuMemcpyDtoH_v2.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
synchronised = []


class Tensor:
    def __init__(self, shape, dtype):
        meta = torch.empty(shape, dtype=dtype, device="meta")
        self.nbytes, self.shape, self.dtype = meta.nbytes, meta.shape, dtype
        self.at = ctypes.c_void_p(0)
        if self.nbytes:
            assert cuda.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(self.nbytes)) == 0

    def data_ptr(self):
        return self.at.value or 0

    def bytes(self):
        to = ctypes.create_string_buffer(self.nbytes)
        assert not self.nbytes or cuda.cuMemcpyDtoH_v2(to, self.at, self.nbytes) == 0
        return to.raw


class Stream:
    def synchronize(self):
        synchronised.append(True)


class Cuda:
    def current_stream(self, device):
        assert device == "cuda:0"
        return Stream()


class Module:  # replaces torch and has a device
    cuda = Cuda()

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, shape, dtype, device):
        if device == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        assert device == "cuda:0" and retained
        return Tensor(shape, dtype)


context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
retained = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
_frameworks.framework("pt").module = Module()
for device in "cuda:0", 0:
    for name, tensor in fstfs.load_file(sys.argv[1], device=device).items():
        assert isinstance(tensor, Tensor) and tensor.bytes() == ALL[name][2], name
with fstfs.safe_open(sys.argv[1], "pt", device="cuda") as file:
    data = ALL["U8.6x4"][2]
    assert file.get_tensor("U8.6x4").bytes() == data
    assert file.get_slice("U8.6x4")[1:3].bytes() == data[4:12]
    assert file.get_slice("U8.6x4")[:, 2].bytes() == data[2::4]
assert len(synchronised) == 5
for device in "cuda:0", 0:
    found = 0
    for name, tensor in fstfs.iter_tensors([sys.argv[1]] * 3, device, memory=4 << 20):
        assert isinstance(tensor, Tensor) and tensor.bytes() == ALL[name][2], name
        found += 1
    assert found == 3 * len(ALL) and len(synchronised) > 5
assert '"cuda:0"' in fstfs.status()
"""


@pytest.mark.parametrize("profile", ["h200", "gb10"])
def test_cuda(place, profile):
    if not (DOUBLES / "libcuda.so.1").exists():
        pytest.skip("this build has no double of libcuda.so.1")
    files.write(place / "file", files.tensors_of(files.BITS, files.SHAPES))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, place / "file", profile], capture_output=True, text=True,
        timeout=60 * SLOW,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([f"{HERE}/python", *sys.path]),
             "LD_LIBRARY_PATH": os.fspath(DOUBLES)})
    assert done.returncode == 0, done.stderr


def test_the_script_for_machines_with_a_gpu(place):
    """Runs tests/gpu/with_torch.py on the CPU, which covers all but the device."""
    model = place / "model.safetensors"
    files.write(model, files.tensors_of(["BF16"], [(513, 1026)]))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/gpu/with_torch.py", place, model, "cpu"],
        capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert " BF16 " in said[0] and " F8_E4M3 " in said[0] and ": 0 tensors differ" in said[0]
    assert sum(line.startswith("fstfs, by its module, ") for line in said) == 2
