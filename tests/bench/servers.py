#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures cold loads by the loader classes of vLLM and SGLang, for docs/loaders.md.

    tests/bench/servers.py [--build DIR] [--server SERVER ...] [--storage STORAGE ...]
                           [--ranks N,...] [--rounds N] [--size MIB]

Each rank is a process that loads all tensors into its own memory. In each round, the ranks load the
bare files by the server's own loader, then by `--load-format fstfs`, then `shards/` of a mount by the
server's own loader, in the reverse order in every second round. Prints the median rates in GB/s of one
rank, from the start to the end of the slowest one. The storages are those of bench-io. Ranks have
LOCAL_WORLD_SIZE, as from torchrun. Needs root, and what `tools/test --servers` installs.
"""

import argparse
import os
import random
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fstfs"
sys.path[:0] = [os.fspath(HERE), os.fspath(HERE.parent / "servers")]

from checkpoint import Checkpoint  # noqa: E402
from harness import Processes, interleaved, spread  # noqa: E402
from install import RELEASES, environment  # noqa: E402
from machine import Machine, mib  # noqa: E402
from storage import STORAGES  # noqa: E402

LOADS = {"own, bare": ("auto", False), "fstfs, bare": ("fstfs", False), "own, mount": ("auto", True)}
SERVERS = {release.split("-")[0]: release for release in reversed(RELEASES)}  # the newest ones


def start_ranks(server, count, machine):
    """Processes that have imported a server."""
    folder = CACHE / "servers"
    return Processes(
        [CACHE / "venv-servers/bin/python", HERE.parent / "servers/rank.py", server], count,
        env={**environment(Path(machine.folder), folder, machine.build, folder / SERVERS[server]),
             "LOCAL_WORLD_SIZE": str(count)})


def measure(storage, ranks, rounds):
    """Rates by kind of load."""
    rates, size = {name: [] for name in LOADS}, storage.checkpoint.size
    for name in interleaved(LOADS, rounds):
        load_format, is_mounted = LOADS[name]
        storage.drop()
        with storage.mount() if is_mounted else nullcontext() as mount:
            path = os.path.join(mount.path, "shards") if mount else storage.source
            seconds = ranks.run(f"{load_format} {path}", f"loaded {size}\n")
            rates[name].append(size / seconds / 1e9)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build", type=Path)
    parser.add_argument("--place", default=tempfile.gettempdir())
    parser.add_argument("--server", action="append", choices=SERVERS)
    parser.add_argument("--storage", action="append", choices=["disk", "loop", "slow"])
    parser.add_argument("--ranks", default=[1, 2, 4],
                        type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--size", default=768, type=int, help="of the model, in MiB")
    args = parser.parse_args()
    print(f"| storage, server, ranks | {' | '.join(LOADS)} |\n|{'---|' * (len(LOADS) + 1)}")
    for name in args.storage or ["disk", "slow"]:
        with ExitStack() as stack:
            machine = stack.enter_context(Machine(args.build, args.place, None))
            storage = stack.enter_context(STORAGES[name](
                machine, Checkpoint(mib(args.size), random.Random(1)), [[f"{args.build}/fstfs"]]))
            for server in args.server or SERVERS:
                for count in args.ranks:
                    with start_ranks(server, count, machine) as ranks:
                        rates = measure(storage, ranks, args.rounds)
                    print(f"| {name}, {SERVERS[server]}, {count} | " +
                          " | ".join(spread(found) for found in rates.values()) + " |", flush=True)



if __name__ == "__main__":
    main()
