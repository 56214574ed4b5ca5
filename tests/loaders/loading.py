# SPDX-License-Identifier: Apache-2.0
"""Runs a loader in a child process, so that its results and output can be compared.

A loader is a function from a path to {name: tensor}. Tensors are compared by dtype, shape and a
hash of their bytes; output is compared without paths and numbers (times, rates).
"""

import functools
import hashlib
import logging
import os
import re
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from conftest import child


TRIES = 3
# Options of the mount, and the path in it for a loader.
VIEWS = {"merged": ("merged", ()), "shards": ("shards", ()),
         "recut": ("shards", ("--shards=3",)), "recut-by-size": ("shards", ("--shard-size=200KB",))}


@dataclass
class Loaded:
    tensors: dict  # name: (dtype, shape, hash of the bytes)
    output: list  # the lines of stdout and stderr, sorted because threads print in any order


def fingerprint(tensor):
    """(dtype, shape, hash) of a NumPy array or a torch tensor, which are equivalent."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if not isinstance(tensor, np.ndarray):
        import torch

        tensor = tensor.detach().contiguous().flatten().view(torch.uint8).numpy() \
            if tensor.numel() else np.empty(0, "u1")
    return dtype, shape, hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()


def fingerprints(tensors):
    return {name: fingerprint(tensor) for name, tensor in tensors.items()}


def state(model):
    """Every tensor of a model; a tied tensor under each of its names."""
    return dict(model.named_parameters(remove_duplicate=False)) | \
        dict(model.named_buffers(remove_duplicate=False))


def output_lines(text, path):
    """The sorted lines of an output, without the path and numbers."""
    text = text.replace(os.fspath(path), "PATH")
    return sorted(re.sub(r"\d+(\.\d+)?", "N", line) for line in text.splitlines() if line.strip())


def redirect(file):
    """Redirects all output of this process to the file, including every warning."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
    logging.root.handlers = []  # pytest's
    for logger in logging.root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", []):
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr)
    warnings.resetwarnings()
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")


def run_captured(work, *args, seconds=60):
    """Runs work(*args) in a child process; returns its result and its output."""
    def redirected(file):
        redirect(file)
        return work(*args)

    with tempfile.TemporaryFile("w+") as file:
        answer = child(redirected, file, seconds=seconds)
        file.seek(0)
        return answer, file.read()


def run_silently(work, *args):
    """Runs work(*args), which must print nothing; returns its result."""
    answer, output = run_captured(work, *args)
    assert not output
    return answer


def load(loader, path, seconds=60):
    """The result and the output of loader(path)."""
    def work():
        return fingerprints(loader(os.fspath(path)))

    tensors, output = run_captured(work, seconds=seconds)
    return Loaded(tensors, output_lines(output, path))


# cached results for the source, with which many views are compared
load_bare = functools.cache(load)


def evict(root):
    """Evicts the files from the page cache, if the file system permits it, so that a mount reads
    from storage."""
    for path in files_below(root):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def files_below(root):
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return [path for path in paths if not os.path.islink(path)]


def tensor_bytes(paths):
    """The data bytes of safetensors files."""
    total = 0
    for path in paths:
        with open(path, "rb") as f:
            total += os.fstat(f.fileno()).st_size - 8 - int.from_bytes(f.read(8), "little")
    return total


class ReadAgain(AssertionError):
    """More was read than a loader needs."""


def at_best(once):
    """Tries once() several times until it does not raise ReadAgain. The kernel may evict pages at
    any time, which are then read again; a loader that makes the mount read twice does so each
    time."""
    for _ in range(TRIES - 1):
        with suppress(ReadAgain):
            return once()
    return once()


def check_read(mount, view, which=lambda name: name.endswith(".safetensors"), whole=True):
    """Asserts that a load of a view read everything once; raises ReadAgain otherwise.

    which(name) selects the safetensors files that are loaded, completely or in part. Lower bound of
    the bytes read from storage: their tensors, if loaded completely. Upper bound: these files, all
    side files, and two blocks at the ends of each. Copies from the source's page cache do not
    count, nor does expired data, which a load of over five seconds may read again. The kernel,
    which caches pages, requested no more than the files of the view, plus direct reads of loaders
    that read the header through the page cache.
    """
    def split(root):
        paths = files_below(root)
        shards = [path for path in paths if which(os.path.basename(path))]
        assert shards
        return shards, [path for path in paths if not path.endswith(".safetensors")]

    metrics = mount.metrics()
    read, copied, expired, given = (
        metrics[f"fstfs_{what}_bytes_total"]
        for what in ("storage_read", "page_cache_read", "expired", "read"))
    shards, others = split(mount.source)
    least = tensor_bytes(shards) if whole else 0
    most = sum(os.path.getsize(path) + 2 * 4096 for path in {*shards, *others})
    assert read >= least, f"{read} bytes read; {least} must be"
    if read - copied - expired > most:
        raise ReadAgain(f"{read - copied} bytes read from the storage, {expired} of them expired; "
                        f"{most} may be")
    shards, others = split(mount / view)
    most = sum(os.path.getsize(path) + 32768 for path in {*shards, *others})
    if given > most:
        raise ReadAgain(f"{given} bytes given to the kernel; {most} may be")


def compare(mount, loader, source, view, options=(), **what_it_reads):
    """Asserts that the loader gets from the mount what it gets from the directory, prints nothing
    else, and reads what it loads from storage once (see check_read)."""
    want = load_bare(loader, source)
    assert want.tensors

    def once():
        evict(source)
        m = mount(source, *options)
        assert load(loader, m / view) == want
        check_read(m, view, **what_it_reads)
        m.unmount()

    at_best(once)
