# SPDX-License-Identifier: Apache-2.0
"""ctypes bindings of libfstfs: the library, the one handle of the process, open checkpoints, reads.

include/fstfs.h is the reference. Calls release the GIL. Any thread may call any function.
"""

import ctypes
import errno
import functools
import itertools
import os
import struct
import weakref
from ctypes import string_at
from typing import Any

_safe_open: Any = None  # that of safetensors, if it is installed
try:
    from safetensors import SafetensorError as SafetensorError  # type: ignore[import-not-found]
    from safetensors import safe_open as _safe_open  # type: ignore[no-redef]
except ImportError:

    class SafetensorError(Exception):  # type: ignore[no-redef]
        """An invalid file or an invalid request, as in safetensors."""


WAIT_MS = 100  # milliseconds between checks for signals during a long read
SHORT_READ_BYTES = 64 << 20  # smaller reads are too short to need a check for signals

TENSOR = struct.Struct("@PNPIIPQPQ")  # struct fstfs_tensor
METADATA = struct.Struct("@PNPN")  # struct fstfs_metadata
OTHER_SUFFIXES = (".gguf", ".bin", ".pt", ".pth", ".ckpt")  # formats that safetensors cannot read


class Slice(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("stop", ctypes.c_uint64), ("step", ctypes.c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("allocate", ctypes.c_void_p), ("progress", ctypes.c_void_p),
                ("arg", ctypes.c_void_p), ("device", ctypes.c_void_p),
                ("reserved", ctypes.c_uint64 * 8)]


class Request(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_void_p), ("slices", ctypes.POINTER(Slice)),
                ("to", ctypes.c_void_p), ("reserved", ctypes.c_uint64 * 3)]


FUNCTIONS = {
    "fstfs_version": (ctypes.c_char_p,),
    "fstfs_error": (ctypes.c_char_p,),
    "fstfs_new": (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "fstfs_free": (None, ctypes.c_void_p),
    "fstfs_status": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    "fstfs_open": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                   ctypes.POINTER(ctypes.c_void_p)),
    "fstfs_close": (None, ctypes.c_void_p),
    "fstfs_count": (ctypes.c_size_t, ctypes.c_void_p),
    "fstfs_version_hash": (ctypes.c_uint64, ctypes.c_void_p),
    "fstfs_tensor": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "fstfs_find": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    "fstfs_metadata": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "fstfs_read": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                   ctypes.c_void_p),
    "fstfs_start": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "fstfs_wait": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    "fstfs_cancel": (None, ctypes.c_void_p),
    "fstfs_read_free": (None, ctypes.c_void_p),
    "fstfs_device": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                     ctypes.POINTER(ctypes.c_void_p)),
}


def _library_path():
    """Returns the path of the library: $FSTFS_LIBRARY, beside this file, in the build folder of the
    checkout, or a bare name for the search path of the dynamic linker."""
    named = os.environ.get("FSTFS_LIBRARY")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.join(here, "..", "..", "..")
    paths = (os.path.join(here, "libfstfs.so.0"),
             os.path.join(checkout, "build", "src", "client", "libfstfs.so.0"))
    return next(filter(os.path.exists, paths), "libfstfs.so.0")


def _load():
    try:
        library = ctypes.CDLL(_library_path())
    except OSError as error:
        raise ImportError(f"libfstfs cannot be loaded: {error}; if it is elsewhere, set "
                          "FSTFS_LIBRARY to its path") from None
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def fail(error, prefix=""):
    """Raises the exception for `error`, a negative errno that this thread's last call returned:
    SafetensorError for an invalid file or request, MemoryError, or OSError. `prefix` precedes the
    message of a SafetensorError."""
    text = lib.fstfs_error().decode("utf-8", "backslashreplace")
    if error in (-errno.EBADMSG, -errno.EINVAL, -errno.ENOTSUP, -errno.ENOTUNIQ):
        raise SafetensorError(prefix + text)
    if error == -errno.ENOMEM:
        raise MemoryError(text)
    raise OSError(-error, text)


class Pointer(ctypes.c_void_p):
    """A pointer to an object of the library. `used` keeps alive what the object uses."""

    used: tuple[Any, ...] = ()


class _Finalizer(weakref.ref):
    """A weak reference whose callback is a function of the library. The interpreter passes the
    reference to the callback; it is converted to an additional argument, NULL, which the function
    ignores."""

    __slots__ = ()
    _as_parameter_ = None


_finalizers: dict[int, Any] = {}  # by the ID of the owner; replaced when the ID is reused
_handles: dict[int, Any] = {}  # by the generation of the process
for _kept in (_finalizers, _handles):  # also while the interpreter destroys its modules
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def own(owner, free, *used):
    """Returns a Pointer into which a function of the library stores its result. When the last
    reference to `owner` is dropped, `free` is called with the pointer, once, and only then are the
    references to `used` dropped.

    KeyboardInterrupt can be raised between any two bytecodes, also in `finally` and __del__().
    So no bytecode runs when ownership begins or ends: the library stores the pointer, and the
    weak reference calls `free`, a function of the library."""
    pointer = Pointer()
    pointer.used = used
    _finalizers[id(owner)] = _Finalizer(owner, functools.partial(free, pointer))
    return pointer


def is_freed(owner):
    """Returns whether `free` was called for an owner that still exists. The garbage collector calls
    the callbacks of weak references to a reference cycle before it finalizes the objects in it."""
    finalizer = _finalizers.get(id(owner))
    return finalizer is None or finalizer() is None


class _Owner:
    """Owns an object of the library. The arguments are those of own()."""

    __slots__ = ("pointer", "__weakref__")

    def __init__(self, free, *used):
        self.pointer = own(self, free, *used)


class _Process:
    """The process's handle of the library (struct fstfs), created on first use and never freed. A
    child process must use neither its parent's handle nor checkpoints that the parent opened. It
    recognizes them by `generation`, which fork() increments in the child."""

    def __init__(self):
        self.generation = 0
        os.register_at_fork(after_in_child=self._increment)

    def _increment(self):
        self.generation += 1

    def handle(self):
        owner = _handles.get(self.generation)
        if owner is None:
            owner = _Owner(lib.fstfs_free)
            error = lib.fstfs_new(None, ctypes.byref(owner.pointer))
            if error:
                fail(error)
            # If another thread was faster, its handle is used and this one is freed. A lock could
            # remain locked after a KeyboardInterrupt.
            owner = _handles.setdefault(self.generation, owner)
        return owner.pointer


process = _Process()


def not_a_string(argument, value):
    """Returns the error of safetensors for an argument that must be a str and is not."""
    shown = "'None'" if value is None else f"'{type(value).__name__}' object"
    return TypeError(f"argument '{argument}': {shown} is not an instance of 'str'")


def identity(path):
    """Returns the identity of the file at a path or of a descriptor: its device, inode, size and
    time stamps, so it differs if the file has been changed or replaced."""
    st = os.stat(path)
    return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns


def find_device(name):
    """Returns the library's device named "cuda:N"; None if the library cannot open it."""
    device = ctypes.c_void_p()
    if lib.fstfs_device(process.handle(), name.encode(), ctypes.byref(device)) < 0:
        return None
    return device


def status() -> str:
    """Returns the state and counters of the library as the text of a JSON object. fstfs_status() in
    fstfs.h describes its members. Sizes are in bytes."""
    handle = process.handle()
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        length = lib.fstfs_status(handle, text, size)
        if length < 0:
            fail(length)
        if length < size:
            return text.value.decode()
        size = length + 1


class Info:
    """A tensor of an Opened: `shape` in elements, `size` and `offset` in bytes, `bits` per element,
    `file` a path as bytes. `pointer` (struct fstfs_tensor) is valid until the Opened is closed."""

    __slots__ = ("pointer", "name", "dtype", "bits", "shape", "size", "file", "offset")

    def __init__(self, pointer, strings):
        """`strings` caches the strings that many tensors share, by their addresses."""
        self.pointer = pointer
        name, length, dtype, self.bits, rank, shape, self.size, file, self.offset = \
            TENSOR.unpack(string_at(pointer, TENSOR.size))
        self.name = string_at(name, length).decode()
        if dtype not in strings:
            strings[dtype] = string_at(dtype).decode("utf-8", "backslashreplace")
        self.dtype = strings[dtype]
        if file not in strings:
            strings[file] = string_at(file)
        self.file = strings[file]
        self.shape = list(struct.unpack(f"={rank}Q", string_at(shape, 8 * rank)))


def _as_safetensors(path, error):
    """Returns the error of safetensors for the file, with `error`, which is more detailed, as its
    cause; or `error` itself if safetensors is not installed or accepts the file, or the file has
    another format."""
    is_other = os.fsdecode(path).lower().endswith(OTHER_SUFFIXES)
    if _safe_open is not None and os.path.isfile(path) and not is_other:
        try:
            _safe_open(path, "np")
        except SafetensorError as theirs:
            raised = SafetensorError(*theirs.args)
            raised.__cause__ = error
            return raised
        except Exception:  # an error of NumPy, or of reading
            pass
    return error


class Opened:
    """A checkpoint opened with fstfs_open(). It is closed when its last reference is dropped, by
    any thread.

    The constructor raises FileNotFoundError, and the errors of fstfs_open() as fail() maps them."""

    def __init__(self, path):
        self.generation = process.generation
        self._pointer = own(self, lib.fstfs_close)
        try:
            # Taken before opening: if it is still the same later, it is that of the opened version.
            self.identity = identity(path)
        except (FileNotFoundError, ValueError):  # ValueError: the path contains NUL
            raise FileNotFoundError(f"No such file or directory: {path}") from None
        error = lib.fstfs_open(process.handle(), os.fsencode(path), ctypes.byref(self._pointer))
        if error:
            try:
                fail(error, "Error while deserializing header: ")
            except SafetensorError as ours:
                raise _as_safetensors(path, ours)

    @property
    def pointer(self):
        """The struct fstfs_checkpoint. Raises ValueError once the garbage collector has closed the
        checkpoint: a __del__() in the same reference cycle may run after that."""
        if is_freed(self):
            raise ValueError("the checkpoint is closed: the garbage collector is freeing it")
        return self._pointer

    def version(self):
        """Returns a hash of the versions of all files, which differs if one of them was changed or
        replaced when the path was opened again."""
        return lib.fstfs_version_hash(self.pointer)

    def infos(self):
        """Returns a list of all tensors, sorted by the UTF-8 bytes of their names."""
        strings = {}
        return [Info(lib.fstfs_tensor(self.pointer, i), strings)
                for i in range(lib.fstfs_count(self.pointer))]

    def find(self, name):
        """Returns the tensor with this name, or None."""
        encoded = name.encode()
        if b"\0" in encoded:
            return next((info for info in self.infos() if info.name == name), None)
        found = lib.fstfs_find(self.pointer, encoded)
        return Info(found, {}) if found else None

    def metadata(self):
        """Returns the metadata as a dict, without keys whose values differ between shards."""
        pairs = {}
        for index in itertools.count():
            pair = lib.fstfs_metadata(self.pointer, index)
            if not pair:
                return pairs
            key, key_length, value, value_length = \
                METADATA.unpack(string_at(pair, METADATA.size))
            pairs[string_at(key, key_length).decode()] = string_at(value, value_length).decode()

    def read(self, wanted, memory, device=None):
        """Reads `wanted`, a list of (info, slices, address), and returns when all bytes are read.

        slices: (start, stop, step) in elements for each dimension, or None for the whole tensor.
        address: memory for the packed bytes, on `device` if that is not None, else on the host.
        `memory` is a list of the objects that own it. They stay alive while the library uses it.

        Raises as fail() does. If the tensors have SHORT_READ_BYTES or more, signal handlers run
        during the read, and an exception in one of them cancels it."""
        if sum(info.size for info, *_ in wanted) < SHORT_READ_BYTES:
            requests, options = _requests(wanted, device)
            error = lib.fstfs_read(self.pointer, requests, len(wanted), options)
            if error:
                fail(error)
            return
        read = Read(self, wanted, memory, device)
        try:
            read.wait()
        finally:
            read.free()


def _requests(wanted, device):
    """Returns the arguments of fstfs_read() for `wanted`, which is as in Opened.read()."""
    options = ctypes.byref(Options(device=device)) if device is not None else None
    requests = (Request * len(wanted))()
    for request, (info, slices, address) in zip(requests, wanted):
        request.tensor = info.pointer
        request.to = address
        if slices is not None:
            request.slices = (Slice * len(slices))(*slices)
    return requests, options


class Read:
    """A read in flight of `wanted` into `memory`, which are as in Opened.read(). It is freed by
    free(), or when its last reference is dropped. The checkpoint and the memory stay alive until
    then. Not thread-safe."""

    def __init__(self, opened, wanted, memory, device=None):
        self._owner = None
        requests, options = _requests(wanted, device)
        self._owner = _Owner(lib.fstfs_read_free, opened, memory)
        try:
            error = lib.fstfs_start(opened.pointer, requests, len(wanted), options,
                                    ctypes.byref(self._owner.pointer))
        except BaseException:  # KeyboardInterrupt, which may follow the call
            self.free()
            raise
        if error:
            fail(error)

    def wait(self):
        """Returns when all bytes have been read; raises as fail() does. Signal handlers run."""
        error = -errno.EINPROGRESS
        while error == -errno.EINPROGRESS:
            error = lib.fstfs_wait(self._owner.pointer, WAIT_MS)
        if error:
            fail(error)

    def cancel(self):
        """Requests cancellation and returns at once; free() waits for the end of the read."""
        if self._owner and self._owner.pointer and not is_freed(self._owner):
            lib.fstfs_cancel(self._owner.pointer)

    def free(self):
        """Cancels the read if it has not ended, waits for its end, and frees it. Idempotent."""
        if self._owner and is_freed(self._owner):
            # The garbage collector leaves the callback, which references the memory, in place.
            _finalizers.pop(id(self._owner), None)
        self._owner = None
