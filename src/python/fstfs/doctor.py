# SPDX-License-Identifier: Apache-2.0
"""python -m fstfs.doctor [SOURCE]: reports what this machine allows and how to fix each "no".

Mounts SOURCE for a moment; by default a small sample in a temporary directory. The exit status is
0 if mounting works.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import re
import shutil
import struct
import sys
import tempfile
import warnings
from typing import Any

import fstfs

from ._library import Opened, find_device, lib

SAMPLE_BYTES = 1 << 20
TENSOR_BYTES_MAX = 16 << 20  # of the tensor that is read into a GPU
CONTAINER = "in a container: run it with --device /dev/fuse --cap-add SYS_ADMIN"
# The characters that quote_hides() in src/base/quote.h escapes, and bytes that are not UTF-8.
ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
                    r"\udc80-\udcff]")


def quote(path: str | bytes) -> str:
    """Returns a path for display on one line, escaped as in the messages of the programs."""
    text = path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
    return ESCAPED.sub(lambda match: "".join(f"\\x{byte:02x}" for byte in
                                            match[0].encode("utf-8", "surrogateescape")),
                      text.replace("\\", "\\\\"))


def report(what: str, why_not: str | None, advice: str, detail: str = "") -> None:
    """Prints "yes" and `detail`, or "no", the reason `why_not` and `advice`."""
    print(f"{'no ' if why_not else 'yes'}  {what:<12}  {why_not or detail}".rstrip())
    if why_not:
        print(f"       -> {advice}")


def report_device() -> None:
    why_not, advice = None, "modprobe fuse"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        why_not = f"/dev/fuse: {error.strerror}"
        if error.errno == errno.EACCES:
            advice = "chmod 0666 /dev/fuse"
    report("/dev/fuse", why_not, f"as root: {advice}; {CONTAINER}")


def why_no_direct(path: bytes) -> str | None:
    """Returns why the file cannot be read with O_DIRECT, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            os.preadv(fd, [mmap.mmap(-1, mmap.PAGESIZE)], 0)
        finally:
            os.close(fd)
    except OSError as error:
        return f"{quote(path)}: {error.strerror}"
    return None


def write_sample(directory: str) -> None:
    header = json.dumps({"weight": {"dtype": "U8", "shape": [SAMPLE_BYTES],
                                    "data_offsets": [0, SAMPLE_BYTES]}}).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(SAMPLE_BYTES))


def find_tensor(mount: fstfs.Mount) -> str | None:
    """Returns a tensor file of the mount of 1 to TENSOR_BYTES_MAX bytes, or None."""
    for directory, _, names in os.walk(os.path.join(mount.path, "tensors")):
        for name in names:
            path = os.path.join(directory, name)
            try:
                os.getxattr(path, "user.safetensors.dtype")
                if 0 < os.path.getsize(path) <= TENSOR_BYTES_MAX:
                    return path
            except OSError:
                continue
    return None


def source_of(path: str) -> bytes:
    """Returns the source file that contains a tensor file of the mount."""
    extent = json.loads(os.getxattr(path, "user.fstfs.extents"))[0]
    return bytes.fromhex(extent["path_hex"]) if "path_hex" in extent else extent["path"].encode()


def read_into_device(path: str, device: Any) -> None:
    """Reads a tensor into memory of cuda:0. Raises OSError, SafetensorError and MemoryError."""
    opened = Opened(path)
    info, = opened.infos()
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    # fstfs_device() has initialized the driver.
    for failed in (cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                   cuda.cuCtxPushCurrent_v2(context),
                   cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(info.size))):
        if failed:
            raise OSError(errno.EIO, f"error {failed} of the CUDA driver")
    opened.read([(info, None, memory.value)], [memory], device)
    cuda.cuMemFree_v2(memory)


def report_gpu(path: str) -> None:
    """Reports which backend reads a file into cuda:0, and why faster ones are not used."""
    device = find_device("cuda:0")
    if device is None:
        report("cuda:0", lib.fstfs_error().decode("utf-8", "backslashreplace"),
               "without a GPU, ignore this; else install the driver (CUDA 12.4 or later)")
        return
    try:
        read_into_device(path, device)
    except (OSError, fstfs.SafetensorError, MemoryError) as error:
        report("cuda:0", str(error) or "out of memory", "nvidia-smi shows the state of the device")
        return
    storage = json.loads(fstfs.status())["devices"][0]["storage"][0]
    report("cuda:0", None, "", f"read by the backend {storage['backend']}")
    for backend in ("unified", "cufile", "ring"):
        if backend in storage:
            report(f"  {backend}", storage[backend],
                   "a faster backend; docs/libfstfs.md has its conditions")


def report_mount(mount: fstfs.Mount) -> None:
    path = find_tensor(mount)
    status = mount.status()
    report("io_uring", status["io"]["io_uring"].get("why"),
           "fstfs reads with threads. To allow io_uring: sysctl kernel.io_uring_disabled=0; in a "
           "container: --security-opt seccomp=unconfined")
    if path is None:
        report("O_DIRECT", "not tested: SOURCE has no tensor of up to 16 MiB",
               "run: python -m fstfs.doctor MODELS")
    else:
        file = source_of(path)
        report("O_DIRECT", why_no_direct(file),
               "fstfs reads through the page cache; ext4, XFS, btrfs and NFS have O_DIRECT",
               quote(file))
    report("passthrough", status["kernel"]["passthrough"].get("why"),
           "optional, for warm reads: as root, with Linux 6.9 and an fstfs built with libfuse "
           "3.17, mount with --passthrough=on")
    if path is not None:
        report_gpu(path)


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print("usage: python -m fstfs.doctor [SOURCE]")
        return 0 if len(arguments) == 1 else 2
    print(f"fstfs {fstfs.__version__}, Linux {platform.release()}, "
          f"Python {platform.python_version()}, {'root' if os.geteuid() == 0 else 'not root'}")
    report_device()
    program = shutil.which("fusermount3")
    report("fusermount3", None if program or os.geteuid() == 0 else "not found in PATH",
           "install the package fuse3", program or "not found, and not needed by root")
    with tempfile.TemporaryDirectory(prefix="fstfs-doctor-") as sample, \
            warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_sample(sample)
        try:
            with fstfs.mount(*(arguments or [sample]), passthrough="on") as mount:
                report("mount", None, "", quote(mount.status()["source"]))
                report_mount(mount)
        except (OSError, ValueError) as error:  # ValueError: SOURCE is an empty string
            report("mount", str(error), "see the message; mounting is needed for all but libfstfs")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
