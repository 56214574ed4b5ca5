# SPDX-License-Identifier: Apache-2.0
"""KeyboardInterrupt between any two bytecodes of the module, and the garbage collector: the library
uses no memory that Python has freed, and nothing remains."""

import ctypes
import dis
import functools
import gc
import importlib
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import ROOT, child

from . import files
from .module import fstfs

FOLDER = os.path.dirname(fstfs.__file__) + os.sep


class Positions:
    """The bytecodes of the module that a function executes in this thread, except `skipped`. Those
    in a loop count once. Python 3.13 finds those of code that run() has run before, if it
    has not run in another thread since."""

    def __init__(self, *skipped):
        # Python never runs signal handlers where it begins or ends handling an exception, and
        # raising there leaks the exception.
        self.skipped = [dis.opmap.get(name)
                        for name in ("PUSH_EXC_INFO", "COPY", "POP_EXCEPT", *skipped)]
        self.found = set()
        self.wanted = None  # raise at the first execution of the bytecode with this number

    def trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] not in self.skipped:
            position = frame.f_code, frame.f_lasti
            if position not in self.found:
                self.found.add(position)
                if len(self.found) == self.wanted:
                    raise KeyboardInterrupt
        return self.trace

    def run(self, function, wanted=None):
        """Returns the result, or the exception that was raised."""
        self.found.clear()
        self.wanted = wanted
        sys.settrace(self.trace)
        try:
            return function()
        except BaseException as error:
            return error
        finally:
            sys.settrace(None)


class Library:
    """Records which objects of the library exist, and which memory its reads use."""

    def __init__(self):
        self.library = importlib.import_module("fstfs._library").lib
        self.checkpoints, self.reads, self.errors = set(), {}, []
        for name in ("open", "close", "start", "cancel", "read_free"):
            real = getattr(self.library, f"fstfs_{name}")
            setattr(self.library, f"fstfs_{name}", functools.partial(getattr(self, name), real))

    def open(self, real, handle, path, pointer):
        error = real(handle, path, pointer)
        self.checkpoints.add(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0])
        return error

    def close(self, real, pointer, *ignored):
        if any(checkpoint == pointer.value for checkpoint, _ in self.reads.values()):
            self.errors.append("closed a checkpoint that is read")
        self.remove(self.checkpoints.remove, pointer)
        real(pointer)

    def start(self, real, checkpoint, requests, count, options, pointer):
        error = real(checkpoint, requests, count, options, pointer)
        self.reads[ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0]] = \
            checkpoint.value, {requests[i].to for i in range(count)}
        return error

    def cancel(self, real, pointer):
        if pointer.value in self.reads:
            real(pointer)
        else:
            self.errors.append("cancelled a read that was freed")

    def read_free(self, real, pointer, *ignored):
        self.remove(self.reads.pop, pointer)
        real(pointer)

    def remove(self, function, pointer):
        if pointer.value is not None:
            try:
                function(pointer.value)
            except KeyError:
                self.errors.append("freed twice")

    def watch(self, array):
        """Memory of a read must not be freed."""
        address = array.ctypes.data

        def freed():
            if any(address in used for _, used in self.reads.values()):
                self.errors.append("freed memory that is being written to")

        weakref.finalize(array, freed)
        return array


def interrupt_everywhere(work, want, again):
    """Runs work() once for each bytecode, with an interruption there; `again`: with a first
    interruption while it waits for a read. Returns the number of bytecodes."""
    gc.freeze()  # makes gc.collect() fast
    library, positions = Library(), Positions()
    framework = importlib.import_module("fstfs._frameworks").framework("np")
    empty = framework.empty
    framework.empty = lambda *args: library.watch(empty(*args))
    sys.unraisablehook = lambda _: None  # an exception in __del__()
    wait = library.library.fstfs_wait

    def interrupt(pointer, milliseconds):
        raise KeyboardInterrupt

    def check():
        gc.collect()
        assert not library.errors and not library.reads and not library.checkpoints, \
            (positions.wanted, library.errors, library.reads, library.checkpoints)

    assert work() == want
    wanted = count = 0
    while wanted <= count:
        wanted += 1
        if again:
            library.library.fstfs_wait = interrupt
        result = positions.run(work, wanted)
        library.library.fstfs_wait = wait
        count = len(positions.found)
        # An exception in __del__() is not propagated.
        assert isinstance(result, KeyboardInterrupt) or result == want, (wanted, result)
        del result
        check()
    assert work() == want
    check()
    return count


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("how", ["load_file", "iter_tensors", "dropped"])
def test_load(place, monkeypatch, how, again):
    path = place / "file"
    tensors = files.tensors_of(["U8"], [(40 + i, 1024) for i in range(4)])
    files.write(path, tensors)
    want = {name: data for name, (_, _, data) in tensors.items()}
    # Every read can be interrupted, and several are in flight.
    monkeypatch.setattr("fstfs._library.SHORT_READ_BYTES", 1)
    monkeypatch.setattr("fstfs._stream.GROUP_BYTES_MAX", 1)

    def load():
        if how == "dropped":
            next(iterator := fstfs.iter_tensors(path, framework="np"))
            del iterator
            return None
        found = fstfs.load_file(path, framework="np") if how == "load_file" else \
            dict(fstfs.iter_tensors(path, framework="np"))
        return {name: array.tobytes() for name, array in found.items()}

    count = child(interrupt_everywhere, load, None if how == "dropped" else want, again, seconds=60)
    assert count > 50


def test_a_reference_cycle(place, monkeypatch):
    """The garbage collector frees the reads of an iterator before it closes the iterator."""
    path = place / "file"
    files.write(path, files.tensors_of(["U8"], [(40 + i, 1024) for i in range(4)]))
    monkeypatch.setattr("fstfs._stream.GROUP_BYTES_MAX", 1)

    def work():
        library = Library()
        iterator = fstfs.iter_tensors(path, framework="np")
        next(iterator)
        assert len(library.reads) == 3
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        gc.collect()
        return library.errors, library.reads, library.checkpoints

    assert child(work) == ([], {}, set())


def test_use_in_del(place):
    """The garbage collector closes a checkpoint before a __del__() in the same cycle uses it."""
    path = place / "file"
    files.write(path, files.tensors_of(["U8"], [(40, 1024)]))

    def work():
        errors = []

        class Model:
            def __init__(self):
                self.file, self.itself = fstfs.safe_open(path, framework="np"), self
                self.name = self.file.keys()[0]
                self.slice = self.file.get_slice(self.name)

            def __del__(self):
                for use in (lambda: self.file.get_tensor(self.name), lambda: self.slice[:],
                            self.file.keys, self.file.metadata):
                    try:
                        use()
                    except ValueError as error:
                        errors.append(str(error))

        Model()
        gc.collect()
        return errors

    errors = child(work)
    assert errors and all("closed" in error for error in errors), errors


def test_handle():
    """The first use of the library in a process: an interruption does not lock it."""
    library = importlib.import_module("fstfs._library")

    def work():
        positions, wanted, made, freed = Positions(), 0, [], []
        new, free = library.lib.fstfs_new, library.lib.fstfs_free

        def count_new(options, pointer):
            error = new(options, pointer)
            made.append(error)
            return error

        library.lib.fstfs_new = count_new
        library.lib.fstfs_free = lambda pointer, *_: (freed.extend([0] * bool(pointer)), free(pointer))
        library._handles.clear()
        while wanted <= len(positions.found):
            wanted += 1
            positions.run(library.process.handle)  # the thread below was the last to run it
            library._handles.clear()
            positions.run(library.process.handle, wanted)
            gc.collect()
            thread = threading.Thread(target=library.process.handle, daemon=True)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
            library._handles.clear()
        assert made == freed
        return wanted

    assert child(work) > 20


def test_fork_during_a_read(place):
    """A child process frees neither reads nor checkpoints of its parent, and does not wait for
    their end."""
    library = importlib.import_module("fstfs._library")
    path = place / "file"
    files.write(path, {"a": ("U8", (1 << 20,), bytes(range(256)) * 4096)})
    opened = library.Opened(path)
    array = np.empty(1 << 20, "u1")
    kept = [library.Read(opened, [(opened.find("a"), None, array.ctypes.data)], [array]), opened]

    def drop():
        kept[0].cancel()
        kept[0].free()
        kept.clear()
        return len(fstfs.load_file(path, framework="np"))

    assert child(drop) == 1
    kept[0].wait()
    kept[0].free()
    assert array.tobytes() == bytes(range(256)) * 4096


def mounts_below(folder):
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [line for line in file if f" {folder}/" in line]


@pytest.fixture
def source(place):
    """A directory to mount, and the folder of temporary mount points."""
    (place / "source").mkdir()
    files.write(place / "source/a.safetensors", files.tensors_of(["U8"], [(3,)]))
    (place / "temporary").mkdir()
    return place / "source", place / "temporary"


@pytest.mark.usefixtures("fstfs")
def test_mount(source, monkeypatch):
    """mount() that raises leaves neither a mount nor a directory, and raises KeyboardInterrupt."""
    source, folder = source
    monkeypatch.setattr("tempfile.tempdir", os.fspath(folder))

    def mount():
        mount = fstfs.mount(source)
        sys.settrace(None)
        assert os.listdir(mount.checkpoint())
        return mount

    def work():
        # At the return of mount() the caller's code is responsible; else the exit handler.
        positions, wanted, mounted = Positions("RETURN_VALUE"), 0, None
        positions.run(mount).unmount()
        while mounted is None:
            wanted += 1
            result = positions.run(mount, wanted)
            if isinstance(result, KeyboardInterrupt):
                assert not mounts_below(folder) and not os.listdir(folder), wanted
            else:
                mounted = result
        mounted.unmount()
        assert not mounts_below(folder) and not os.listdir(folder)
        return wanted

    assert child(work, seconds=60) > 50


@pytest.mark.usefixtures("fstfs")
def test_mount_and_its_cleanup(source):
    """What an interrupted cleanup leaves is removed when the process exits."""
    source, folder = source
    done = subprocess.run([sys.executable, "-c", f"""
import os, sys, tempfile
sys.path.insert(0, {os.fspath(ROOT / "src/python")!r})
import fstfs._mount
tempfile.tempdir = {os.fspath(folder)!r}
calls, real = [], fstfs._mount._run_to_the_end
def interrupt(function):
    calls.append(function)
    if len(calls) == 1:
        real(function)
    raise KeyboardInterrupt
fstfs._mount._run_to_the_end = interrupt
try:
    fstfs.mount({os.fspath(source)!r})
except KeyboardInterrupt:
    print(len(calls), len(os.listdir(tempfile.tempdir)))
"""], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("2 1\n", "")
    assert not mounts_below(folder) and not os.listdir(folder)
