#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures cold loads by llama.cpp, mergekit and ComfyUI's loader, for docs/loaders.md.

    tests/bench/programs.py [--build DIR] [--program PROGRAM ...] [--storage STORAGE ...]
                            [--processes N,...] [--rounds N] [--size MIB]

In each round, the processes load the bare files and then the mounted ones, in the reverse order in
every second round. Importing the program is not measured. Prints the seconds from the start to the
end of the slowest process, and the ratio of the medians. The storages are those of bench-io.

Needs root, and a Python with torch, safetensors, transformers, gguf, llama-cpp-python and mergekit;
a program whose packages are missing is skipped.

llama.cpp: a GGUF model from merged/, and one token. mergekit: a copy of a model from shards/, by the
merge method passthrough, into memory. ComfyUI: the calls of comfy.utils.load_torch_file on a file of
merged/, since ComfyUI is no package.
"""

import argparse
import importlib
import importlib.util
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [os.fspath(HERE), os.fspath(HERE.parent)]

from harness import Daemon, Processes, evict, interleaved, spread  # noqa: E402
from machine import Machine, mib  # noqa: E402
from storage import STORAGES  # noqa: E402


class LlamaCpp:
    packages, view, file = ("llama_cpp", "gguf"), "merged", "model.gguf"

    @staticmethod
    def write(path, size):
        from corpus.llama_gguf import write_llama

        width, hidden = 2048, 8192
        layer = (4 * width * width + 3 * width * hidden) * 34 // 32  # Q8_0
        write_llama(path, width, hidden, size // layer + 1)

    @staticmethod
    def load(path):
        import llama_cpp

        model = llama_cpp.Llama(path, n_ctx=32, n_threads=2, verbose=False, use_mmap=True)
        model.create_completion("a", max_tokens=1)


class Mergekit:
    packages, view, file = ("mergekit", "transformers"), "shards", "model"

    @staticmethod
    def write(path, size):
        from models import llama, save

        save(llama, path, size)

    @staticmethod
    def load(path):
        from mergekit.config import MergeConfiguration
        from mergekit.merge import MergeOptions, run_merge

        config = MergeConfiguration.model_validate({
            "merge_method": "passthrough", "dtype": "bfloat16", "models": [{"model": path}]})
        with tempfile.TemporaryDirectory(dir="/dev/shm") as output:
            run_merge(config, output, MergeOptions(copy_tokenizer=False, quiet=True,
                                                   write_model_card=False))


class ComfyUI:
    packages, view, file = ("torch", "safetensors"), "merged", "model.safetensors"

    @staticmethod
    def write(path, size):
        from models import llama, save

        save(llama, path.with_suffix(""), size, shards=1)
        path.with_suffix("").joinpath(path.name).rename(path)

    @staticmethod
    def load(path):
        import safetensors

        with safetensors.safe_open(path, framework="pt", device="cpu") as f:
            tensors = {name: f.get_tensor(name) for name in f.keys()}
        for tensor in tensors.values():
            tensor.view(-1).sum()  # safe_open maps the file: this reads it


PROGRAMS = {"llama.cpp": LlamaCpp, "mergekit": Mergekit, "ComfyUI": ComfyUI}


def be_process(program):
    """Loads the path of each line of its input, each in a child process: files that stay mapped could
    not be evicted before the next load."""
    for package in program.packages:
        importlib.import_module(package)
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            program.load(line.strip())
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("the load failed")
        print("loaded", flush=True)


class Model:
    """The model of a program. A storage calls write() to create it."""

    def __init__(self, program, size):
        self.program, self.size = program, size

    def write(self, directory):
        self.program.write(Path(directory, self.program.file), self.size)


def measure(args, storage, program, processes):
    """Seconds by place."""
    seconds = {"bare": [], "mounted": []}
    files = [path for path in Path(storage.source).rglob("*") if path.is_file()]
    for place in interleaved(seconds, args.rounds):
        mount = Daemon({}, storage.mountpoint, args.build / "fstfs", "-f", storage.source)
        with mount if place == "mounted" else nullcontext():
            source = Path(storage.mountpoint, program.view) if place == "mounted" else storage.source
            evict(args.build, files)
            seconds[place].append(processes.run(Path(source, program.file), "loaded"))
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--be", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--build", default=ROOT / "build", type=Path)
    parser.add_argument("--place", default="/var/tmp")
    parser.add_argument("--program", action="append", choices=PROGRAMS)
    parser.add_argument("--storage", action="append", choices=["disk", "loop", "slow"])
    parser.add_argument("--processes", default=[1, 2, 4],
                        type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--size", default=512, type=int, help="of the model, in MiB")
    args = parser.parse_args()
    if args.be:
        be_process(PROGRAMS[args.be])
        return
    print("| storage, program, processes | bare | mounted | bare / mounted |\n|---|---|---|---|")
    for name in args.storage or ["slow", "disk"]:
        for title in args.program or PROGRAMS:
            program = PROGRAMS[title]
            missing = [p for p in program.packages if not importlib.util.find_spec(p)]
            if missing:
                print(f"{name}, {title}: skipped: not installed: {', '.join(missing)}")
                continue
            with ExitStack() as stack:
                machine = stack.enter_context(Machine(args.build, args.place, None))
                storage = stack.enter_context(
                    STORAGES[name](machine, Model(program, mib(args.size)), []))
                for count in args.processes:
                    with Processes([sys.executable, __file__, "--be", title], count) as processes:
                        found = measure(args, storage, program, processes)
                    ratio = statistics.median(found["bare"]) / statistics.median(found["mounted"])
                    print(f"| {name}, {title}, {count} | {spread(found['bare'])} | "
                          f"{spread(found['mounted'])} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
