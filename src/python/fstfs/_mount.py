# SPDX-License-Identifier: Apache-2.0
"""mount(): runs the program fstfs, and unmounts at the end of a `with` block or of the process."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import secrets
import subprocess
import tempfile
import threading
import warnings
from types import TracebackType
from typing import Any, Callable, Optional

from ._mount_table import OwnMount
from ._programs import find_program

VIEWS = ("tensors", "merged", "shards", "npy")
WAIT_SECONDS = 0.1


def _run_to_the_end(function: Callable[[], None]) -> None:
    """Calls the function in another thread, where no signal handler runs, and waits for its return.
    If KeyboardInterrupt is raised meanwhile, the function still runs to its end; the interpreter
    does not exit before that. Raises what the function raises."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    results: list[Optional[BaseException]] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            function()
            results.append(None)
        except BaseException as error:
            results.append(error)
        done.release()

    try:
        threading.Thread(target=run, name="fstfs-mount").start()
    except RuntimeError:  # no thread can be started, for example because the interpreter exits
        return function()
    while not results:
        done.acquire(timeout=WAIT_SECONDS)
    if results[0] is not None:
        raise results[0]


class Mount:
    """A mounted directory of checkpoints, returned by mount(). A context manager that unmounts.

    path: the mount point, absolute.
    view: the view that is the root of the mount; None if each view is a directory in it.
    """

    path: str
    view: str | None

    def __init__(self, source: str | os.PathLike[str], mountpoint: str | os.PathLike[str] | None,
                 view: str | None, options: dict[str, int | str | None]) -> None:
        for name, path in (("source", source), ("mountpoint", mountpoint)):
            # An empty path would become the working directory.
            if path is not None and not os.fspath(path):
                raise ValueError(f"fstfs: {name}: expected a directory, found an empty path")
        self.view = view
        self._process = os.getpid()
        self._is_temporary = mountpoint is None
        # Chosen before the directory exists, so that _end() can remove the directory at any time.
        self.path = os.path.realpath(mountpoint) if mountpoint is not None else \
            os.path.join(tempfile.gettempdir(), f"fstfs-{secrets.token_hex(8)}")
        self._lock = threading.Lock()  # guards all below; not taken where it can be interrupted
        self._has_ended = False
        self._has_directory = False
        self._mount: OwnMount | None = None
        self._warnings: list[str] = []
        # --pid ends the daemon if this process is killed.
        self._arguments = [f"--pid={self._process}", *_arguments({"view": view, **options}), "--",
                     os.path.realpath(source), self.path]
        atexit.register(self._end)

    def _start(self) -> None:
        with self._lock:
            if self._has_ended:
                return
            if self._is_temporary:
                os.mkdir(self.path, 0o700)
                self._has_directory = True
            self._run()
            self._mount = OwnMount(self.path)
            self._mount.watch(self.status()["pid"])

    def _run(self) -> None:
        # In a session of its own, so that Ctrl-C in a terminal does not kill it halfway.
        result = subprocess.run([find_program("fstfs"), *self._arguments], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                start_new_session=True)
        text = os.fsdecode(result.stderr).strip()
        if result.returncode == 2:
            raise ValueError(text)
        if result.returncode:
            raise OSError(text or f"fstfs: exit status {result.returncode}")
        self._warnings = text.splitlines()

    def _end(self) -> None:
        """Unmounts and removes the directory. May be called again if it has failed."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._mount is not None:
                self._mount.detach()
                self._mount.close()
                self._mount = None
            self._has_ended = True
            if self._has_directory:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(self.path)
                self._has_directory = False
        atexit.unregister(self._end)

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.unmount()

    def __repr__(self) -> str:
        return f"<fstfs.Mount {self.path}{', unmounted' if self._has_ended else ''}>"

    def checkpoint(self, name: str = "", view: str | None = None) -> str:
        """Returns the absolute path of a checkpoint's directory in the mount, to pass to a loader.

        name: the directory of the checkpoint relative to the source; "" is the source itself.
        view: "tensors", "merged", "shards" or "npy". The default is the view of the mount, or
        "shards" if it has all views.

        Raises FileNotFoundError if there is no such directory, and ValueError if the mount does not
        have the view.
        """
        if view is not None and (view not in VIEWS or self.view not in (None, view)):
            raise ValueError(f"view {view!r} is not in the mount (expected "
                             f"{self.view or ', '.join(VIEWS)})")
        top = self.path if self.view else os.path.join(self.path, view or "shards")
        path = os.path.normpath(os.path.join(top, name))
        if os.path.commonpath((top, path)) != top or not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, "No such checkpoint in the mount", path)
        return path

    def status(self) -> dict[str, Any]:
        """Returns .fstfs/status as a dict: the state of the mount, the I/O methods and parts of the
        sandbox in use, and counters. Sizes are in bytes. docs/metrics.md describes the fields.
        Raises OSError if the mount is gone."""
        with open(os.path.join(self.path, ".fstfs", "status"), encoding="utf-8") as file:
            status: dict[str, Any] = json.load(file)
        return status

    def unmount(self) -> None:
        """Removes the mount, and the mount point if mount() created it.

        Files that are open or mapped remain readable: the daemon exits when the last of them is
        closed, or when this process ends. Does nothing if the mount is gone, even if another one is
        mounted in its place, or in a child process of the one that mounted. Raises OSError if the
        mount cannot be removed, for example because another file system is mounted on it or inside
        it.
        """
        if os.getpid() == self._process:
            _run_to_the_end(self._end)


def _arguments(options: dict[str, int | str | None]) -> list[str]:
    """Returns the command line options for `options`, without those that are None."""
    words = []
    for name, value in options.items():
        if name == "options":
            words += ["-o", str(value)] if value else []
        elif value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


def mount(source: str | os.PathLike[str], mountpoint: str | os.PathLike[str] | None = None,
          view: str | None = None, memory: int | str | None = None, *,
          shards: int | None = None, shard_size: int | str | None = None, io: str | None = None,
          direct: str | None = None, prefetch: str | None = None, queue_depth: int | None = None,
          threads: int | None = None, readahead: int | str | None = None,
          passthrough: str | None = None, sandbox: str | None = None,
          options: str | None = None) -> Mount:
    """Mounts a directory of checkpoints until unmount(), the end of a `with` block, or the end of
    this process, even if it is killed.

        with fstfs.mount("/models") as mount:
            model = AutoModel.from_pretrained(mount.checkpoint("llama"))

    source: the directory of the checkpoints.
    mountpoint: an empty directory; by default a temporary one, which is removed with the mount, but
    remains if this process is killed.
    view: the view to show as the root of the mount; None shows all.
    options: mount options (-o), such as "allow_other".
    The other arguments are the options of fstfs(1) with the same names and values. Sizes are
    numbers of bytes or strings such as "1G"; None is the default of the program.

    Returns when the mount is usable. Raises ValueError for an invalid value and OSError if mounting
    fails, both with the message of fstfs, and FileNotFoundError if the program is not found. Its
    warnings are issued as RuntimeWarning.
    """
    made = Mount(source, mountpoint, view, {
        "memory": memory, "shards": shards, "shard_size": shard_size, "io": io, "direct": direct,
        "prefetch": prefetch, "queue_depth": queue_depth, "threads": threads,
        "readahead": readahead, "passthrough": passthrough, "sandbox": sandbox,
        "options": options})
    try:
        _run_to_the_end(made._start)
        for line in made._warnings:
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        return made
    except BaseException:
        with contextlib.suppress(Exception):  # tried again at exit
            made.unmount()
        raise
