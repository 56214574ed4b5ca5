# SPDX-License-Identifier: Apache-2.0
"""The table of mounts. Detaches the mount of one daemon, but never another mount that has replaced
it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import select
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

MNT_DETACH = 2
SYS_PIDFD_OPEN = 434  # os.pidfd_open() is missing in a Python that was built with old headers

_libc = ctypes.CDLL(None, use_errno=True)


class _Identity(NamedTuple):
    """Identifies a mount, even if it is moved. After an unmount, the kernel may assign its mount ID
    and its device number to another mount."""

    mount_id: int
    device: bytes
    root: bytes
    kind: bytes
    source: bytes


class _MountInfo(NamedTuple):
    """A line of /proc/self/mountinfo."""

    identity: _Identity
    parent_id: int
    mountpoint: bytes


def read_mountinfo() -> list[_MountInfo]:
    """Returns the mounts of this process's mount namespace. Raises OSError."""
    mounts = []
    with open("/proc/self/mountinfo", "rb") as file:
        for text in file:
            mount_id, parent, device, root, mountpoint, *rest = text.rstrip(b"\n").split(b" ")
            kind, source = rest[rest.index(b"-") + 1:][:2]
            mountpoint = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), mountpoint)
            mounts.append(_MountInfo(_Identity(int(mount_id), device, root, kind, source),
                                     int(parent), mountpoint))
    return mounts


@contextlib.contextmanager
def _opened(path: str | bytes) -> Iterator[int]:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _mount_id(fd: int) -> int:
    """Returns the ID of the mount that contains the open file."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))


class OwnMount:
    """The mount of fstfs at a path. The constructor raises OSError, also if there is none."""

    def __init__(self, path: str) -> None:
        self._daemon = -1  # pidfd; negative: unknown
        with _opened(path) as fd:
            mount_id = _mount_id(fd)
            opened = os.readlink(b"/proc/self/fd/%d" % fd)
        mount = next((mount for mount in read_mountinfo()
                      if mount.identity.mount_id == mount_id), None)
        # If the mount is gone, the path is in the file system beneath.
        if mount is None or mount.identity.kind != b"fuse.fstfs" or mount.mountpoint != opened:
            raise OSError(f"fstfs: {path}: no longer mounted")
        self._identity = mount.identity

    def watch(self, pid: int) -> None:
        """Lets detach() identify the mount even if its mount ID and device number are reused after
        an unmount. `pid` is the process ID of its daemon. Raises OSError."""
        self._daemon = _libc.syscall(SYS_PIDFD_OPEN, pid, 0)
        if self._daemon < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), f"process {pid}")

    def detach(self) -> None:
        """Unmounts lazily, even if the mount was moved. Does nothing if it is gone. Raises OSError
        if another file system is mounted on it or inside it, or if unmounting fails."""
        mounts = read_mountinfo()
        own = next((mount for mount in mounts if mount.identity == self._identity), None)
        if own is None:
            return
        with _opened(own.mountpoint) as fd:
            if _mount_id(fd) != own.identity.mount_id or \
                    any(mount.parent_id == own.identity.mount_id for mount in mounts):
                raise OSError(errno.EBUSY, "Another file system is mounted on it or inside it",
                              os.fsdecode(own.mountpoint))
            if not self._daemon_has_ended() or _is_dead(fd):
                _detach(fd, own.mountpoint)

    def close(self) -> None:
        daemon, self._daemon = self._daemon, -1
        if daemon >= 0:
            os.close(daemon)

    def _daemon_has_ended(self) -> bool:
        """Returns whether the daemon has exited. While it runs, the device number of its mount is
        not reused, so the identity is certain. False if the daemon is unknown."""
        if self._daemon < 0:
            return False
        poll = select.poll()
        poll.register(self._daemon, select.POLLIN)
        return bool(poll.poll(0))


def _is_dead(fd: int) -> bool:
    """Returns whether the daemon of a mount has exited. Uses statfs(2), because stat(2) may return
    cached attributes."""
    try:
        os.statvfs(fd)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _detach(fd: int, path: bytes) -> None:
    """Unmounts `path`, whose root is open as `fd`. Without privileges, runs fusermount3, which
    unmounts only the caller's own mounts."""
    if _libc.umount2(b"/proc/self/fd/%d" % fd, MNT_DETACH) == 0:
        return
    error = ctypes.get_errno()
    if error != errno.EPERM:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    try:
        result = subprocess.run(["fusermount3", "-u", "-z", "--", path], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise FileNotFoundError("fusermount3 was not found in PATH; install the package "
                                "fuse3") from None
    if result.returncode:
        raise OSError(os.fsdecode(result.stderr).strip())
