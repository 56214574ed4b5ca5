# SPDX-License-Identifier: Apache-2.0
"""The frameworks: each allocates memory for tensors and converts it to tensors of its own type.

A framework has these methods:
    prepare(info)                 returns (dtype, shape) for empty(); raises if it has no such dtype
    empty(dtype, shape, offset)   allocates memory to read into; `offset` is that of the tensor in
                                  its file
    address(memory)               returns the address of that memory
    finish(memory, device)        converts the memory to the tensor that is returned to the caller
Torch can also map files: map(), mapped().
"""

import ctypes
import importlib
import math
import mmap
import os
from typing import Any

from ._library import SafetensorError, not_a_string

# Size in bytes from which torch tensors are allocated in huge pages. With small pages, loading
# takes a quarter longer.
HUGE_PAGE_MIN_BYTES = 1 << 20
# Size in bytes from which tensors are allocated with the same offset in a BLOCK as in the file, so
# that the library reads into them without a copy. Smaller tensors are mostly in small pages, which
# split a read into many: on a disk that took a third longer than the copy.
ALIGN_MIN_BYTES = 32 << 20
BLOCK = 4096
DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16",
    "U8": "uint8", "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}
# Elements and bytes per block of the quantized types of GGUF. Such a tensor is an array of uint8
# whose last dimension is the size of a row in bytes, as in the package gguf.
QUANTISED_BLOCKS = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q8_1": (32, 36), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "Q8_K": (256, 292), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74),
    "IQ3_XXS": (256, 98), "IQ1_S": (256, 50), "IQ4_NL": (32, 18), "IQ3_S": (256, 110),
    "IQ2_S": (256, 82), "IQ4_XS": (256, 136), "IQ1_M": (256, 56), "TQ1_0": (256, 54),
    "TQ2_0": (256, 66), "MXFP4": (32, 17), "NVFP4": (64, 36), "Q1_0": (128, 18)}

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def _unknown_dtype(info):
    return SafetensorError(f"Dtype not understood: {info.dtype}")


def _aligned_start(offset, address, size, dtype):
    """Returns where in the memory at `address`, which has BLOCK bytes more than `size`, the tensor
    starts: where the address equals `offset` modulo BLOCK, or at 0 if that is not worthwhile or
    would misalign the elements."""
    if size < ALIGN_MIN_BYTES or offset % dtype.itemsize:
        return 0
    return (offset - address) % BLOCK


def packed_shape(info):
    """Returns the shape of the array in memory. Two elements of F4 share a byte, so the last
    dimension is halved. The last dimension of a quantized tensor is the size of a row in bytes."""
    if info.dtype in QUANTISED_BLOCKS:
        elements, size = QUANTISED_BLOCKS[info.dtype]
        shape = [*info.shape[:-1], info.shape[-1] // elements * size] if info.shape else []
        if not shape or math.prod(shape) != info.size:
            raise SafetensorError(f"{info.name}: {info.size} bytes do not match its shape "
                                  f"{info.shape} and type {info.dtype}")
        return shape
    if info.dtype != "F4":
        return info.shape
    if info.shape[-1] % 2:
        raise SafetensorError("f4_x2 dtype requires that the last dim be divisible by 2 in torch: "
                              f"got {info.shape}")
    return [*info.shape[:-1], info.shape[-1] // 2]


class Torch:
    name = "pytorch"

    def __init__(self):
        self.module = importlib.import_module("torch")

    def prepare(self, info):
        name = "uint8" if info.dtype in QUANTISED_BLOCKS else DTYPE_NAMES.get(info.dtype)
        if name is None:
            raise _unknown_dtype(info)
        return getattr(self.module, name), packed_shape(info)

    def empty(self, dtype, shape, offset):
        size = math.prod(shape) * dtype.itemsize
        if size < HUGE_PAGE_MIN_BYTES:
            return self.module.empty(shape, dtype=dtype, device="cpu")  # not torch's default device
        memory = self.module.empty(size + BLOCK, dtype=self.module.uint8, device="cpu")
        start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (memory.data_ptr() + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise(start, end - start, mmap.MADV_HUGEPAGE)  # a hint: errors are ignored
        first = _aligned_start(offset, memory.data_ptr(), size, dtype)
        return self._tensor(memory.untyped_storage(), first, size, dtype, shape)

    def _tensor(self, storage, start, size, dtype, shape):
        """Returns a tensor of the `size` bytes at `start` in `storage`. It gets a storage object of
        its own, which keeps the original alive: torch saves and shares whole storages, so with the
        original, saving one tensor would save all of its bytes."""
        tensor = self.module.empty(0, dtype=dtype, device="cpu")
        return tensor.set_(storage[start:start + size], 0, shape)

    def address(self, tensor):
        return tensor.data_ptr()

    def finish(self, tensor, device):
        return tensor

    def map(self, file):
        """Returns a storage that maps the file copy-on-write, as safetensors does; None if that
        fails."""
        try:
            path = os.fsdecode(file)
            path.encode()
            return self.module.UntypedStorage.from_file(path, False, os.path.getsize(path))
        except (OSError, RuntimeError, UnicodeEncodeError):
            return None  # out of address space, or a path that torch does not accept

    def mapped(self, storage, info, dtype, shape):
        """Returns a tensor in a mapped file, without a copy. None if its offset is not aligned to
        its elements, or the file is too short."""
        if info.offset % dtype.itemsize or info.offset + info.size > storage.nbytes():
            return None
        return self._tensor(storage, info.offset, info.size, dtype, shape)


class Numpy:
    name = "numpy"

    def __init__(self):
        self.module = importlib.import_module("numpy")
        try:
            self.ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError:
            self.ml_dtypes = None

    def prepare(self, info):
        if info.dtype == "F4" or info.dtype in QUANTISED_BLOCKS:
            return self.module.dtype("uint8"), packed_shape(info)
        name = DTYPE_NAMES.get(info.dtype)
        if name is None:
            raise _unknown_dtype(info)
        if name != "bfloat16" and not name.startswith("float8"):
            return self.module.dtype(name), info.shape
        # Without ml_dtypes: V1 or V2, as numpy.save() writes such dtypes, and as in the mount's
        # .npy files.
        dtype = getattr(self.ml_dtypes, name, f"V{info.bits // 8}")
        return self.module.dtype(dtype), info.shape

    def empty(self, dtype, shape, offset):
        size = math.prod(shape) * dtype.itemsize
        if size < ALIGN_MIN_BYTES:
            return self.module.empty(shape, dtype=dtype)  # NumPy itself requests huge pages
        memory = self.module.empty(size + BLOCK, dtype=self.module.uint8)
        first = _aligned_start(offset, memory.ctypes.data, size, dtype)
        return memory[first:first + size].view(dtype).reshape(shape)

    def address(self, array):
        return array.ctypes.data

    def finish(self, array, device):
        return array


class FromNumpy(Numpy):
    """A framework whose tensors are converted from NumPy arrays, as in safetensors."""

    unsupported: tuple[str, ...] = ()  # dtypes that the framework rejects or converts to others

    def __init__(self, name, module):
        super().__init__()
        self.name = name
        try:
            self.target_module = importlib.import_module(module)
        except ImportError as error:
            text = f'{error}; framework="np" needs only NumPy'
            raise type(error)(text, name=error.name) from None

    def prepare(self, info):
        if info.dtype in self.unsupported:
            raise SafetensorError(f'{info.name}: {self.name} has no dtype for {info.dtype}; '
                                  'framework="np" reads it')
        return super().prepare(info)


class Flax(FromNumpy):
    def __init__(self):
        super().__init__("flax", "jax.numpy")

    def finish(self, array, device):
        return self.target_module.array(array)


class Tensorflow(FromNumpy):
    unsupported = ("F8_E8M0",)

    def __init__(self):
        super().__init__("tensorflow", "tensorflow")

    def finish(self, array, device):
        return self.target_module.convert_to_tensor(array)


class Mlx(FromNumpy):
    unsupported = ("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0")

    def __init__(self):
        super().__init__("mlx", "mlx.core")

    def finish(self, array, device):
        if array.dtype.name == "bfloat16":  # mlx does not know the dtypes of ml_dtypes
            return self.target_module.array(array.view("uint16")).view(self.target_module.bfloat16)
        return self.target_module.array(array)


class Paddle(FromNumpy):
    unsupported = ("U16", "U32", "U64", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")

    def __init__(self):
        super().__init__("paddle", "paddle")

    def finish(self, array, device):
        place = f"gpu:{device}" if isinstance(device, int) else device.replace("cuda", "gpu")
        name = array.dtype.name
        if name == "bfloat16" or name.startswith("float8"):
            if not array.size:
                return self.target_module.empty(array.shape, dtype=name)
            same_size = "int16" if name == "bfloat16" else "uint8"
            whole = self.target_module.to_tensor(array.reshape(-1).view(same_size), place=place)
            return whole.view(name).reshape(array.shape)
        return self.target_module.to_tensor(array, place=place)


FRAMEWORKS = {"pt": Torch, "torch": Torch, "pytorch": Torch, "np": Numpy, "numpy": Numpy,
              "flax": Flax, "jax": Flax, "tf": Tensorflow, "tensorflow": Tensorflow, "mlx": Mlx,
              "paddle": Paddle, "paddlepaddle": Paddle}
_instances: dict[type, Any] = {}


def framework(name):
    """Returns the framework with this name, one of safetensors' names for it. Raises the errors of
    safetensors, and ImportError if the framework is not installed."""
    if not isinstance(name, str):
        raise not_a_string("framework", name)
    kind = FRAMEWORKS.get(name)
    if kind is None:
        raise SafetensorError(f"framework {name} is invalid")
    if kind not in _instances:
        _instances[kind] = kind()
    return _instances[kind]


ACCELERATORS = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu", "mps")


def device(name):
    """Returns the device in a form that torch accepts. Raises the errors of safetensors, also for a
    bool, which safetensors takes for an index."""
    if name is None:
        return "cpu"
    if isinstance(name, int) and not isinstance(name, bool) and name >= 0:
        return name
    if name == "cpu" or name == "mps":
        return name
    if isinstance(name, str) and name in ACCELERATORS:
        return f"{name}:0"
    if isinstance(name, str) and name.split(":")[0] in ACCELERATORS and name.count(":") == 1:
        kind, index = name.split(":")
        if not index:
            raise ValueError("cannot parse integer from empty string")
        if not index.isdecimal():
            raise ValueError("invalid digit found in string")
        if kind == "mps":
            if int(index):
                raise SafetensorError(f"device {name} is invalid: only mps or mps:0 is supported")
            return kind
        return f"{kind}:{int(index)}"
    raise SafetensorError(f"device {name if isinstance(name, str) else repr(name)} is invalid")


def memory_device(framework, target):
    """Returns the device to whose memory the tensors for `target`, a result of device(), are read
    or copied with .to(). It is named, not an index, if the framework is torch."""
    if framework.name == "paddle":
        return "cpu"  # paddle copies from host memory
    if framework.name == "pytorch" and isinstance(target, int):
        return str(framework.module.device(target))  # "cuda:N", or the accelerator of the machine
    return target
