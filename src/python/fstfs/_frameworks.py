# SPDX-License-Identifier: Apache-2.0
"""The frameworks: how each allocates memory for a tensor and makes a tensor of it.

A framework has these methods:
    prepare(info)                 returns (dtype, shape), or raises SafetensorError: no such dtype
    empty(dtype, shape, offset)   allocates memory to read into; `offset`: of the bytes in the file
    address(memory)               returns its address
    finish(memory, device)        converts it to the tensor that the caller gets
Torch can also map a file: map(), mapped().
"""

import ctypes
import importlib
import math
import mmap
import os

from ._library import SafetensorError, not_a_text

# Bytes from which memory gets huge pages: with small pages, loading takes a quarter longer.
HUGE = 1 << 20
# Bytes from which memory has the same alignment to BLOCK as the offset in the file, so that the
# library reads into it without a copy. Memory of smaller tensors is mostly in small pages, which
# split a read into many: on a disk that cost a third more time than the copy.
PLACED = 32 << 20
BLOCK = 4096
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
         "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
         "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
         "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
         "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def _not_understood(info):
    return SafetensorError(f"Dtype not understood: {info.dtype}")


def _place(offset, address, size, dtype):
    """The offset in the memory at `address` that has the alignment of `offset` in the file, modulo
    BLOCK. The memory has BLOCK bytes more than `size`."""
    if size < PLACED or offset % dtype.itemsize:
        return 0
    return (offset - address) % BLOCK


def packed_shape(info):
    """The shape of the array: two elements of F4 are one byte, so the last dimension is halved."""
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
        name = NAMES.get(info.dtype)
        if name is None:
            raise _not_understood(info)
        return getattr(self.module, name), packed_shape(info)

    def empty(self, dtype, shape, offset):
        size = math.prod(shape) * dtype.itemsize
        if size < HUGE:
            return self.module.empty(shape, dtype=dtype, device="cpu")  # not torch's default device
        memory = self.module.empty(size + BLOCK, dtype=self.module.uint8, device="cpu")
        start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (memory.data_ptr() + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise(start, end - start, mmap.MADV_HUGEPAGE)  # may fail: it is a hint
        first = _place(offset, memory.data_ptr(), size, dtype)
        return self._tensor(memory.untyped_storage(), first, size, dtype, shape)

    def _tensor(self, storage, start, size, dtype, shape):
        """A tensor of `size` bytes at `start` of `storage`, with a storage object of its own, which
        references the original. torch saves and shares whole storages, so a tensor with a larger
        storage would be saved with all its bytes."""
        tensor = self.module.empty(0, dtype=dtype, device="cpu")
        return tensor.set_(storage[start:start + size], 0, shape)

    def address(self, tensor):
        return tensor.data_ptr()

    def finish(self, tensor, device):
        return tensor

    def map(self, file):
        """A storage that maps the file copy-on-write, as in safetensors. None if that fails."""
        try:
            path = os.fsdecode(file)
            path.encode()
            return self.module.UntypedStorage.from_file(path, False, os.path.getsize(path))
        except (OSError, RuntimeError, UnicodeEncodeError):
            return None  # out of address space, or a path that torch does not accept

    def mapped(self, storage, info, dtype, shape):
        """A tensor in a mapped file. None if its offset is not aligned to its elements, or the file
        is too short."""
        if info.offset % dtype.itemsize or info.offset + info.size > storage.nbytes():
            return None
        return self._tensor(storage, info.offset, info.size, dtype, shape)


class Numpy:
    name = "numpy"

    def __init__(self):
        self.module = importlib.import_module("numpy")
        try:
            self.more = importlib.import_module("ml_dtypes")
        except ImportError:
            self.more = None

    def prepare(self, info):
        if info.dtype == "F4":
            return self.module.dtype("uint8"), packed_shape(info)
        name = NAMES.get(info.dtype)
        if name is None:
            raise _not_understood(info)
        if name != "bfloat16" and not name.startswith("float8"):
            return self.module.dtype(name), info.shape
        # the dtype that numpy.save writes for those of ml_dtypes, also in the mount's .npy files
        dtype = getattr(self.more, name, f"V{info.bits // 8}")
        return self.module.dtype(dtype), info.shape

    def empty(self, dtype, shape, offset):
        size = math.prod(shape) * dtype.itemsize
        if size < PLACED:
            return self.module.empty(shape, dtype=dtype)  # NumPy itself requests huge pages
        memory = self.module.empty(size + BLOCK, dtype=self.module.uint8)
        first = _place(offset, memory.ctypes.data, size, dtype)
        return memory[first:first + size].view(dtype).reshape(shape)

    def address(self, array):
        return array.ctypes.data

    def finish(self, array, device):
        return array


class OverNumpy(Numpy):
    """A framework whose tensors are made from NumPy arrays, as in safetensors: all but torch."""

    lacks = ()  # dtypes that it rejects, or converts to others

    def __init__(self, name, module):
        super().__init__()
        self.name = name
        try:
            self.other = importlib.import_module(module)
        except ImportError as error:
            text = f'{error}; framework="np" needs only NumPy'
            raise type(error)(text, name=error.name) from None

    def prepare(self, info):
        if info.dtype in self.lacks:
            raise SafetensorError(f'{info.name}: {self.name} has no dtype for {info.dtype}; '
                                  'framework="np" reads it')
        return super().prepare(info)


class Flax(OverNumpy):
    def __init__(self):
        super().__init__("flax", "jax.numpy")

    def finish(self, array, device):
        return self.other.array(array)


class Tensorflow(OverNumpy):
    lacks = ("F8_E8M0",)

    def __init__(self):
        super().__init__("tensorflow", "tensorflow")

    def finish(self, array, device):
        return self.other.convert_to_tensor(array)


class Mlx(OverNumpy):
    lacks = ("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0")

    def __init__(self):
        super().__init__("mlx", "mlx.core")

    def finish(self, array, device):
        if array.dtype.name == "bfloat16":  # mlx does not know the dtypes of ml_dtypes
            return self.other.array(array.view("uint16")).view(self.other.bfloat16)
        return self.other.array(array)


class Paddle(OverNumpy):
    lacks = ("U16", "U32", "U64", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")

    def __init__(self):
        super().__init__("paddle", "paddle")

    def finish(self, array, device):
        place = device.replace("cuda", "gpu")
        name = array.dtype.name
        if name == "bfloat16" or name.startswith("float8"):
            if not array.size:
                return self.other.empty(array.shape, dtype=name)
            same_size = "int16" if name == "bfloat16" else "uint8"
            whole = self.other.to_tensor(array.reshape(-1).view(same_size), place=place)
            return whole.view(name).reshape(array.shape)
        return self.other.to_tensor(array, place=place)


FRAMEWORKS = {"pt": Torch, "torch": Torch, "pytorch": Torch, "np": Numpy, "numpy": Numpy,
              "flax": Flax, "jax": Flax, "tf": Tensorflow, "tensorflow": Tensorflow, "mlx": Mlx,
              "paddle": Paddle, "paddlepaddle": Paddle}
_made = {}


def framework(name):
    if not isinstance(name, str):
        raise not_a_text("framework", name)
    kind = FRAMEWORKS.get(name)
    if kind is None:
        raise SafetensorError(f"framework {name} is invalid")
    if kind not in _made:
        _made[kind] = kind()
    return _made[kind]


ACCELERATORS = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu", "mps")


def device(name):
    """The device in the form that torch accepts. Raises the errors of safetensors."""
    if name is None:
        return "cpu"
    if isinstance(name, int) and name >= 0:
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
