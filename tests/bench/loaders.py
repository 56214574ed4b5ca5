#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fstfs's Python module beside safetensors, fastsafetensors and the Run:ai streamer, on the CPU.

    loaders.py [--size=GB] [--rounds=N] [--ways=NAME,...] [--json] DIRECTORY

Makes a checkpoint in a folder of its own in DIRECTORY and loads it, and its largest tensor alone,
in each way, cold and warm, in turn. A load ends when one byte of each page of each tensor has been
read, for some ways map the file and have read nothing before; when the call itself returned is
said behind. Each way is a process of its own, which has loaded once before it is measured.
FSTFS_LIBRARY says which libfstfs; the loaders are those that this Python finds.
"""

import argparse
import glob
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "io"), os.path.join(HERE, "..", "..", "src", "python")]
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402
from checkpoint import Checkpoint  # noqa: E402


def shards(directory):
    return sorted(glob.glob(f"{directory}/*.safetensors"))


def holder(directory, name):
    with open(f"{directory}/model.safetensors.index.json", encoding="utf-8") as file:
        return os.path.join(directory, json.load(file)["weight_map"][name])


class Fstfs:
    def __init__(self):
        import fstfs

        self.module = fstfs

    def all(self, directory):
        return self.module.load_checkpoint(directory)

    def one(self, directory, name):
        with self.module.safe_open(holder(directory, name), "pt") as file:
            return {name: file.get_tensor(name)}


class FstfsFiles(Fstfs):
    """load_file, shard by shard."""

    def all(self, directory):
        return {name: tensor for path in shards(directory)
                for name, tensor in self.module.load_file(path).items()}


class Safetensors:
    def __init__(self):
        import safetensors.torch

        self.module = safetensors

    def all(self, directory):
        return {name: tensor for path in shards(directory)
                for name, tensor in self.module.torch.load_file(path).items()}

    def one(self, directory, name):
        with self.module.safe_open(holder(directory, name), "pt") as file:
            return {name: file.get_tensor(name)}


class Fastsafetensors:
    def __init__(self):
        import fastsafetensors

        self.module = fastsafetensors

    def _open(self, paths):
        self.kept = self.module.fastsafe_open(paths, nogds=True, device="cpu").__enter__()
        return self.kept

    def all(self, directory):
        file = self._open(shards(directory))
        return {name: file.get_tensor(name) for name in file.keys()}

    def one(self, directory, name):
        return {name: self._open([holder(directory, name)]).get_tensor(name)}


class Runai:
    """It may take memory for all, so that its tensors stay; of a file it streams all tensors."""

    def __init__(self):
        os.environ.setdefault("RUNAI_STREAMER_MEMORY_LIMIT", "-1")
        import runai_model_streamer

        self.module = runai_model_streamer

    def _load(self, paths):
        with self.module.SafetensorsStreamer() as streamer:
            streamer.stream_files(paths)
            return dict(streamer.get_tensors())

    def all(self, directory):
        return self._load(shards(directory))

    def one(self, directory, name):
        return self._load([holder(directory, name)])


WAYS = {"fstfs": Fstfs, "fstfs_files": FstfsFiles, "safetensors": Safetensors,
        "fastsafetensors": Fastsafetensors, "runai": Runai}


def touch(tensors):
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8)[::4096].sum()


class Process:
    """One way in a process of its own, forked when all is imported: it may keep what it likes from
    load to load, but the tensors."""

    def __init__(self, way, directory, largest):
        self.connection, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.connection.close()
                self._serve(theirs, way, directory, largest)
            finally:
                os._exit(1)
        theirs.close()

    def _serve(self, connection, way, directory, largest):
        while True:
            what = connection.recv()
            started = time.perf_counter()
            tensors = way.all(directory) if what == "all" else way.one(directory, largest)
            loaded = time.perf_counter()
            touch(tensors)
            connection.send((loaded - started, time.perf_counter() - started))
            tensors = None
            way.kept = None

    def load(self, what):
        """(seconds until the load returned, and until all had been used)"""
        self.connection.send(what)
        return self.connection.recv()

    def end(self):
        self.connection.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def drop(directory):
    for path in shards(directory):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(directory):
    for path in shards(directory):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def rounds(directory, processes, count):
    """{(what, temperature, way): [(seconds until it returned, and until all had been used)]}"""
    seconds = {}
    for i in range(count + 1):
        for what in ("all", "one"):
            for temperature, before in (("cold", drop), ("warm", warm)):
                for name, process in processes.items():
                    before(directory)
                    taken = process.load(what)
                    if i > 0:  # the first starts what the way keeps
                        seconds.setdefault((what, temperature, name), []).append(taken)
    return seconds


def show(seconds, ways):
    print("| what | " + " | ".join(ways) + " |")
    print("|---" * (len(ways) + 1) + "|")
    for what in ("all", "one"):
        for temperature in ("cold", "warm"):
            cells = []
            for name in ways:
                taken = [1000 * used for _, used in seconds[what, temperature, name]]
                returned = [1000 * loaded for loaded, _ in seconds[what, temperature, name]]
                cells.append(f"{statistics.median(taken):.1f} ({min(taken):.1f} - "
                             f"{max(taken):.1f}), {statistics.median(returned):.2f}")
            print(f"| {what}, {temperature} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=float, default=0.75)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("directory")
    options = parser.parse_args()
    ways = {name: WAYS[name]() for name in options.ways.split(",")}
    place = tempfile.mkdtemp(prefix="fstfs-loaders-", dir=options.directory)
    try:
        made = Checkpoint(int(options.size * 1e9), random.Random(1))
        made.write(place)
        largest = max(made.tensors, key=made.tensors.get)
        processes = {name: Process(way, place, largest) for name, way in ways.items()}
        seconds = rounds(place, processes, options.rounds)
        for process in processes.values():
            process.end()
        print(f"{made.size / 1e9:.3f} GB in {len(made.tensors)} tensors, one: "
              f"{made.tensors[largest] / 1e6:.0f} MB; milliseconds until all was used (range), and "
              f"until the call returned: medians of {options.rounds}", file=sys.stderr)
        if options.json:
            print(json.dumps([[*key, taken] for key, taken in seconds.items()]))
        else:
            show(seconds, ways)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
