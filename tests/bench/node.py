#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what many ranks on one node read from storage, for docs/performance.md.

    tests/bench/node.py [--build DIR] [--processes N,...] [--skew SECONDS,...] [--view VIEW ...]
                        [--order ORDER ...] [--iops N] [--memory MIB] [-- OPTION OF fstfs ...]

Processes load one checkpoint from a mount whose source is ext4 on a loop device over tmpfs, cold.
They start evenly spread over --skew seconds. Prints bytes read from storage over bytes of the model:
as the loop device counts them, and as the daemon does; and the time of the slowest rank.

`mixed`: every second rank reads merged/, the others shards/. `halves`: every second rank reads the
first half of the tensors, the others the second. `libfstfs` loads by the Python module, and
`libfstfs-ranks` also sets LOCAL_WORLD_SIZE, as torchrun does. --iops limits the device; --memory limits
the ranks, the daemon and their page cache by a cgroup; libfstfs loads all tensors into memory of
its process in file order, one after another in other orders. Needs root.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [os.fspath(HERE), os.fspath(HERE.parent / "mount")]

from checkpoint import Checkpoint  # noqa: E402
from machine import Machine, mib  # noqa: E402
from rank import ORDERS, Rank  # noqa: E402
from storage import Loop, limited, limited_memory  # noqa: E402

VIEWS = {"merged": ["merged"], "shards": ["shards"], "tensors": ["tensors"],
         "mixed": ["merged", "shards"], "halves": ["merged"], "libfstfs": ["libfstfs"],
         "libfstfs-ranks": ["libfstfs"], "libfstfs+merged": ["libfstfs", "merged"]}


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",")]


class Device:
    """The loop device of a directory."""

    def __init__(self, directory):
        device = os.stat(directory).st_dev
        self.number = os.major(device), os.minor(device)
        self.stat = f"/sys/dev/block/{self.number[0]}:{self.number[1]}/stat"

    def bytes_read(self):
        with open(self.stat) as f:
            return int(f.read().split()[2]) * 512


def run_rank(rank, start, delay):
    rank.prepare()
    start.wait()
    time.sleep(delay)
    rank.load()


def ranks(mountpoint, view, order, count):
    for i in range(count):
        views = VIEWS[view]
        yield Rank(i, mountpoint, views[i % len(views)], order,
                   half=i % 2 if view == "halves" else None,
                   environment={"LOCAL_WORLD_SIZE": str(count)} if view == "libfstfs-ranks" else {})


def measure(storage, device, view, order, count, skew):
    """Ratios of the device and of the daemon, and seconds."""
    with storage.mount() as mount:
        before, metrics = device.bytes_read(), mount.metrics()
        start = multiprocessing.Event()
        processes = [
            multiprocessing.Process(target=run_rank,
                                    args=(rank, start, skew * rank.number / (count - 1)))
            for rank in ranks(mount.path, view, order, count)]
        for process in processes:
            process.start()
        started = time.monotonic()
        start.set()
        try:
            for process in processes:
                process.join()
                if process.exitcode:
                    raise SystemExit(f"a rank exited with {process.exitcode}")
        finally:  # ranks that still run would keep the mount and the cgroup busy
            for process in processes:
                process.kill()
                process.join()
        seconds = time.monotonic() - started
        after = mount.metrics()
        read = sum(sign * (m["fstfs_storage_read_bytes_total"] -
                           m["fstfs_page_cache_read_bytes_total"])
                   for sign, m in ((1, after), (-1, metrics)))
        kept = storage.cached()
        storage.drop()
        size = storage.checkpoint.size
        return (device.bytes_read() - before) / size, read / size, kept / size, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build", type=Path)
    parser.add_argument("--place", default=tempfile.gettempdir())
    parser.add_argument("--size", default=400, type=int, help="of the model, in MiB")
    parser.add_argument("--processes", default=[2, 4, 8], type=numbers(int))
    parser.add_argument("--skew", default=[0, 0.5, 5], type=numbers(float))
    parser.add_argument("--view", action="append", choices=VIEWS)
    parser.add_argument("--order", action="append", choices=ORDERS)
    parser.add_argument("--iops", type=int, help="requests per second of the device")
    parser.add_argument("--memory", type=int, help="MiB of the cgroup")
    parser.add_argument("options", nargs="*", help="of fstfs")
    args = parser.parse_args()
    os.environ["FSTFS_LIBRARY"] = f"{args.build}/src/client/libfstfs.so.0"
    checkpoint = Checkpoint(mib(args.size), random.Random(1))
    command = [f"{args.build}/fstfs", *args.options]
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(args.build, args.place, None))
        storage = stack.enter_context(Loop(machine, checkpoint, [command]))
        device = Device(storage.source)
        if args.iops:
            stack.enter_context(limited(*device.number, args.iops))
        if args.memory:
            stack.enter_context(limited_memory(mib(args.memory)))
        print("view             order    skew  ranks  device  daemon  left in source  seconds")
        for view, order, skew, count in itertools.product(
                args.view or VIEWS, args.order or ORDERS, args.skew, args.processes):
            found = measure(storage, device, view, order, count, skew)
            print(f"{view:16} {order:7} {skew:5} {count:6} {found[0]:7.2f} {found[1]:7.2f} "
                  f"{found[2]:15.2f} {found[3]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
