# SPDX-License-Identifier: Apache-2.0
"""ctypes bindings of libfstfs: the library, the process's one handle, and opened checkpoints.

include/fstfs.h is the reference. Calls release the GIL. Any thread may call.
"""

import ctypes
import errno
import itertools
import os
import struct
import threading
from ctypes import string_at

try:
    from safetensors import SafetensorError
except ImportError:

    class SafetensorError(Exception):
        """An invalid file or an invalid request, as in safetensors."""


WAIT_MS = 100  # milliseconds between checks for signals during a long read
SHORT = 64 << 20  # bytes; smaller reads are too short to need a check for signals

TENSOR = struct.Struct("@PNPIIPQPQ")  # struct fstfs_tensor
METADATA = struct.Struct("@PNPN")  # struct fstfs_metadata


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
    "fstfs_status": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    "fstfs_open": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                   ctypes.POINTER(ctypes.c_void_p)),
    "fstfs_close": (None, ctypes.c_void_p),
    "fstfs_count": (ctypes.c_size_t, ctypes.c_void_p),
    "fstfs_tensor": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "fstfs_find": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    "fstfs_metadata": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "fstfs_read": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                   ctypes.c_void_p),
    "fstfs_start": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "fstfs_wait": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    "fstfs_read_free": (None, ctypes.c_void_p),
    "fstfs_device": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                     ctypes.POINTER(ctypes.c_void_p)),
}


def _places():
    """Paths of the library to try, in order of preference."""
    named = os.environ.get("FSTFS_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.join(here, "..", "..", "..")
    return [path for path in (os.path.join(here, "libfstfs.so.0"),
                              os.path.join(checkout, "build", "src", "client", "libfstfs.so.0"))
            if os.path.exists(path)] + ["libfstfs.so.0"]


def _load():
    place = _places()[0]
    try:
        library = ctypes.CDLL(place)
    except OSError as error:
        raise ImportError(f"libfstfs cannot be loaded: {error}. FSTFS_LIBRARY may say where it "
                          "is.") from None
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def fail(error, doing=""):
    """Raises the exception for `error`, a negative errno that this thread's last call returned.
    `doing` is put in front of the message of a SafetensorError."""
    text = lib.fstfs_error().decode("utf-8", "backslashreplace")
    if error in (-errno.EBADMSG, -errno.EINVAL, -errno.ENOTSUP, -errno.ENOTUNIQ):
        raise SafetensorError(doing + text)
    if error == -errno.ENOMEM:
        raise MemoryError(text)
    raise OSError(-error, text)


class _Process:
    """The process's handle of the library, made on first use and never freed. A child process must
    use neither the handle of its parent nor checkpoints that were opened with it; `generation`,
    which changes at fork(), tells them apart."""

    def __init__(self):
        self.generation = 0
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self):
        self.lock = threading.Lock()
        self.generation += 1
        self.pointer = None

    def handle(self):
        with self.lock:
            if self.pointer is None:
                pointer = ctypes.c_void_p()
                error = lib.fstfs_new(None, ctypes.byref(pointer))
                if error:
                    fail(error)
                self.pointer = pointer
            return self.pointer


process = _Process()


def not_a_text(argument, value):
    """The error of safetensors for an argument that must be a str and is not."""
    shown = "'None'" if value is None else f"'{type(value).__name__}' object"
    return TypeError(f"argument '{argument}': {shown} is not an instance of 'str'")


def identity(path):
    """The identity of the file at a path or of a descriptor. It changes when the file is changed
    or replaced."""
    st = os.stat(path)
    return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns


def find_device(name):
    """The library's device with this name, such as "cuda:0"; None if the library cannot open it."""
    device = ctypes.c_void_p()
    if lib.fstfs_device(process.handle(), name.encode(), ctypes.byref(device)) < 0:
        return None
    return device


def status():
    """The state and counters of the library as a JSON object: fstfs_status() in fstfs.h."""
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
    """A tensor of an Opened: shape in elements, size and offset in bytes, file a path (bytes).
    `pointer` must not be used after the Opened is closed."""

    __slots__ = ("pointer", "name", "dtype", "bits", "shape", "size", "file", "offset")

    def __init__(self, pointer, texts):
        """`texts` caches the strings that many tensors share, by their addresses."""
        self.pointer = pointer
        name, length, dtype, self.bits, rank, shape, self.size, file, self.offset = \
            TENSOR.unpack(string_at(pointer, TENSOR.size))
        self.name = string_at(name, length).decode()
        if dtype not in texts:
            texts[dtype] = string_at(dtype).decode("utf-8", "backslashreplace")
        self.dtype = texts[dtype]
        if file not in texts:
            texts[file] = string_at(file)
        self.file = texts[file]
        self.shape = list(struct.unpack(f"={rank}Q", string_at(shape, 8 * rank)))


class Opened:
    """A checkpoint opened by fstfs_open(). Any thread may drop the last reference,
    which closes it.

    Raises FileNotFoundError, and the errors of fstfs_open() as fail() maps them."""

    def __init__(self, path):
        self.generation = process.generation
        self.pointer = None
        pointer = ctypes.c_void_p()
        try:
            # Taken first: if it is unchanged later, this is the version that was opened.
            self.identity = identity(path)
        except (FileNotFoundError, ValueError):  # ValueError: the path contains NUL
            raise FileNotFoundError(f"No such file or directory: {path}") from None
        error = lib.fstfs_open(process.handle(), os.fsencode(path), ctypes.byref(pointer))
        if error:
            fail(error, "Error while deserializing header: ")
        self.pointer = pointer

    def __del__(self, close=lib.fstfs_close, process=process):
        # A child process must not close what its parent opened.
        if self.pointer is not None and self.generation == process.generation:
            close(self.pointer)

    def infos(self):
        """A list of all tensors, sorted by the UTF-8 bytes of their names."""
        texts = {}
        return [Info(lib.fstfs_tensor(self.pointer, i), texts)
                for i in range(lib.fstfs_count(self.pointer))]

    def find(self, name):
        """The tensor with this name, or None."""
        encoded = name.encode()
        if b"\0" in encoded:
            return next((info for info in self.infos() if info.name == name), None)
        found = lib.fstfs_find(self.pointer, encoded)
        return Info(found, {}) if found else None

    def metadata(self):
        """{key: value} of the metadata, without keys whose values differ between shards."""
        pairs = {}
        for place in itertools.count():
            pair = lib.fstfs_metadata(self.pointer, place)
            if not pair:
                return pairs
            key, key_length, value, value_length = \
                METADATA.unpack(string_at(pair, METADATA.size))
            pairs[string_at(key, key_length).decode()] = string_at(value, value_length).decode()

    def read(self, wanted, device=None):
        """Reads `wanted`, a list of (info, slices, address), and waits for the end.

        slices: (start, stop, step) in elements for each dimension, or None for the whole tensor.
        address: of memory that has room for the bytes, on `device` if that is not None; the caller
        keeps it allocated until this method returns or raises. Raises as fail() does; a signal
        handler that raises cancels a read of SHORT bytes or more."""
        options = ctypes.byref(Options(device=device)) if device is not None else None
        requests = (Request * len(wanted))()
        total = 0
        for request, (info, slices, address) in zip(requests, wanted):
            request.tensor = info.pointer
            request.to = address
            total += info.size
            if slices is not None:
                request.slices = (Slice * len(slices))(*slices)
        if total < SHORT:
            error = lib.fstfs_read(self.pointer, requests, len(wanted), options)
            if error:
                fail(error)
            return
        read = ctypes.c_void_p()
        error = lib.fstfs_start(self.pointer, requests, len(wanted), options, ctypes.byref(read))
        if error:
            fail(error)
        try:
            error = -errno.EINPROGRESS
            while error == -errno.EINPROGRESS:
                error = lib.fstfs_wait(read, WAIT_MS)
            if error:
                fail(error)
        finally:
            lib.fstfs_read_free(read)
