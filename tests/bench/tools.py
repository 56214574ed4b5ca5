#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures fstfs-check and fstfs-pack against cp and Python, for docs/performance.md.

    tests/bench/tools.py [--build DIR] [--place DIR] [--size MIB] [--rounds N] [--only PART ...]

Creates a checkpoint of four shards below --place and, for reflinks, an XFS in a file (needs root and
mkfs.xfs). The arms of a part are interleaved. Each starts with its input dropped from the page
cache, and ends when its output is on storage. Ratios are taken within a round. The outputs of the
arms of a part are compared.

The Python arms are what a user would write: load_file and save_file of safetensors, and hashlib.
They hold the whole model in memory.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy
from harness import evict, interleaved, spread

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHARDS = 4

MERGE = """
import os, sys
from safetensors.numpy import load_file, save_file
*shards, out = sys.argv[1:]
tensors = {}
for shard in shards:
    tensors |= load_file(shard)
save_file(tensors, out)
os.fsync(os.open(out, os.O_RDWR))
"""
HASH = """
import hashlib, sys
from safetensors.numpy import load_file
for shard in sys.argv[1:]:
    for name, tensor in load_file(shard).items():
        hashlib.sha256(tensor).hexdigest()
"""
BY_KERNEL = """
import os, sys
*shards, folder = sys.argv[1:]
for shard in shards:
    source, to = open(shard, "rb"), open(f"{folder}/{os.path.basename(shard)}", "wb")
    while os.copy_file_range(source.fileno(), to.fileno(), 1 << 30):
        pass
    os.fsync(to.fileno())
"""
READ = """
import sys
from safetensors.numpy import load_file
for shard in sys.argv[1:]:
    for tensor in load_file(shard).values():
        tensor.view("u1").max(initial=0)
"""


def make_model(folder, size):
    """`size` MiB of random bytes in four shards, of tensors of 8 MiB and a small one each."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for shard in range(SHARDS):
        tensors = {f"layers.{shard}.{i}": random.bytes(8 << 20)
                   for i in range(size // SHARDS // 8)} | {f"norm.{shard}": random.bytes(4000)}
        safetensors.numpy.save_file(
            {name: np.frombuffer(data, "u1").view("<f2") for name, data in tensors.items()},
            folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors")
    return sorted(folder.iterdir())


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(title, build, arms, files, out, rounds, size, same=None):
    """Runs the arms and prints a row of each; ratios are to the first."""
    print(f"\n{title}\n| method | GB/s | ratio to the first |\n|---|---|---|")
    seconds = {name: [] for name in arms}
    made = {}
    for name in interleaved(arms, rounds):
        if out:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
        evict(build, files)
        started = time.monotonic()
        arms[name]()
        seconds[name].append(time.monotonic() - started)
        if same:
            made[name] = same()
    first = next(iter(arms))
    for name, times in seconds.items():
        rates = [size / t for t in times]
        ratios = [a / b for a, b in zip(seconds[first], times)]
        print(f"| {name} | {spread(rates, 1e-9)} | {spread(ratios)} |", flush=True)
    if same and len(set(made.values())) != 1:
        sys.exit(f"the outputs differ: {made}")


def hash_of(folder):
    """A hash of the names and bytes of all tensors in a directory."""
    sums = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in safetensors.numpy.load_file(file).items():
            sums[name] = hashlib.sha256(tensor).hexdigest()
    return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()


class Parts:
    def __init__(self, build, place, size, rounds):
        self.build, self.place, self.rounds = build, place, rounds
        self.out = place / "out"
        self.model = place / "model"
        self.shards = make_model(self.model, size)
        self.size = sum(file.stat().st_size for file in self.shards)

    def python(self, script, *args):
        run(sys.executable, "-c", script, *args)

    def pack(self, *args):
        run(self.build / "fstfs-pack", *args)

    def cp(self, *args):
        run("cp", "--reflink=never", *args)
        run("sync", *self.out.iterdir(), self.out)

    def check(self):
        """Reads and hashes a whole checkpoint."""
        null = "exec cat \"$@\" >/dev/null"
        measure("fstfs-check: every byte read", self.build, {
            "cat >/dev/null": lambda: run("sh", "-c", null, "sh", *self.shards),
            "fstfs-check --deep": lambda: run(self.build / "fstfs-check", "--deep", self.model),
            "Python: load_file, every byte read": lambda: self.python(READ, *self.shards),
        }, self.shards, None, self.rounds, self.size)
        measure("fstfs-check: the SHA-256 of every tensor", self.build, {
            "Python: load_file and hashlib": lambda: self.python(HASH, *self.shards),
            "fstfs-check --hashes": lambda: run(
                self.build / "fstfs-check", f"--hashes={self.out / 'hashes'}", self.model),
        }, self.shards, self.out, self.rounds, self.size)

    def merge(self):
        """Merges four shards into one file, against copying the four."""
        target = self.out / "one.safetensors"
        measure("fstfs-pack: one file", self.build, {
            "cp of the shards": lambda: self.cp(*self.shards, self.out),
            "fstfs-pack": lambda: self.pack(self.model, target),
            "copy_file_range of the shards": lambda: self.python(BY_KERNEL, *self.shards, self.out),
            "Python: load_file, save_file": lambda: self.python(MERGE, *self.shards, target),
        }, self.shards, self.out, self.rounds, self.size, lambda: hash_of(self.out))

    def split(self):
        """Cuts one file into four shards."""
        one = self.place / "one.safetensors"
        self.pack("--force", self.model, one)
        measure("fstfs-pack: one file cut into four shards", self.build, {
            "cp of the file": lambda: self.cp(one, self.out),
            "fstfs-pack --shards=4": lambda: self.pack("--force", "--shards=4", one, self.out),
        }, [one], self.out, self.rounds, self.size, lambda: hash_of(self.out))

    def reflink(self):
        """The same on a file system that can share blocks."""
        with xfs(self.place, 3 * self.size + (1 << 29)) as point:
            out, one = point / "out", point / "one.safetensors"
            self.pack(self.model, one)
            measure("fstfs-pack where blocks can be shared (XFS)", self.build, {
                "cp": lambda: self.reflinked("never", one, out),
                "cp --reflink=always": lambda: self.reflinked("always", one, out),
                "fstfs-pack to one file": lambda: self.pack(one, out / "copy.safetensors"),
                "fstfs-pack --shards=4": lambda: self.pack("--force", "--shards=4", one, out),
            }, [one], out, self.rounds, self.size, lambda: hash_of(out))

    @staticmethod
    def reflinked(how, one, out):
        run("cp", f"--reflink={how}", one, out)
        run("sync", out / one.name, out)


@contextmanager
def xfs(place, size):
    image, point = place / "image", place / "xfs"
    point.mkdir()
    with open(image, "wb") as f:
        f.truncate(size)
    run("mkfs.xfs", "-q", "-m", "reflink=1", image)
    run("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        run("umount", point)
        image.unlink()
        point.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--size", type=int, default=1024, help="MiB of the checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=["check", "merge", "split", "reflink"])
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="fstfs-bench-", dir=options.place))
    try:
        parts = Parts(options.build.resolve(), place, options.size, options.rounds)
        print(f"{parts.size / 1e9:.2f} GB in {SHARDS} shards below {options.place}, "
              f"{options.rounds} rounds, {os.cpu_count()} processors, Linux {os.uname().release}")
        for part in options.only or ["check", "merge", "split", "reflink"]:
            getattr(parts, part)()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
