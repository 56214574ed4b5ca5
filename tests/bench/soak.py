#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a mount for a given time and checks that the daemon does not grow.

    tests/bench/soak.py [--build DIR] [--place DIR] [--readers N] [--interval SECONDS] [MINUTES]
    tests/bench/soak.py [--build DIR] [--place DIR] [--readers N] --ranges N

Random readers use all views and system calls on a mount whose source is replaced from time to time.
Every byte is checked. Prints the daemon's memory, descriptors and metrics at each interval. Fails
if a byte is wrong, a reader ends, the daemon uses more memory than --memory plus 64 MiB, or memory
or descriptors grow from the middle third of the run to the last. With --ranges, the run ends after
that many reads, at any speed. The memory of a sanitized daemon is not checked, because the sanitizer
uses memory itself and reports leaks. Needs the virtual environment that tools/test creates.
"""

import argparse
import errno
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [os.fspath(HERE.parent), os.fspath(HERE.parent / "mount")]

import oracle  # noqa: E402
import readers  # noqa: E402
from conftest import SLOW, Mount, is_sanitized  # noqa: E402
from corpus import trees  # noqa: E402

REPLACE_EVERY = 3  # seconds
CHANGES = {errno.ESTALE, errno.EIO, errno.ENOENT}  # allowed while the source changes
# Memory variation that is not growth: heap fragmentation, positions of readers.
MEMORY_MARGIN = 8 << 20
# Each reader may have another version open: two shards with two descriptors each.
DESCRIPTORS_OF_A_READER = 4
BUDGET = 32 << 20
SAMPLES, REPLACED = 30, 5  # of a run with --ranges
SHOWN = ["reads_total", "read_bytes_total", "storage_read_bytes_total", "stale_reads_total",
         "read_errors_total", "buffer_bytes", "open_descriptors", "nodes", "table_bytes"]


class Sample:
    """Memory, descriptors and metrics of the daemon at one time."""

    def __init__(self, m):
        self.descriptors = len(os.listdir(f"/proc/{m.pid}/fd"))
        with open(f"/proc/{m.pid}/smaps_rollup") as f:
            self.memory = next(int(line.split()[1]) << 10 for line in f
                               if line.startswith("Anonymous:"))
        lines = m.read(".fstfs/metrics").decode().splitlines()
        metrics = dict(line.split() for line in lines if line[0] != "#" and "{" not in line)
        self.metrics = {name: int(metrics[f"fstfs_{name}"]) for name in SHOWN}


def show(position, unit, sample):
    metrics = " ".join(f"{name}={value}" for name, value in sample.metrics.items())
    memory = f"{sample.memory / 2**20:.1f} MiB"
    print(f"{position:6.0f} {unit}: {memory}, {sample.descriptors} descriptors, {metrics}", flush=True)


def replace(root, version):
    """Replaces all shards by those of another version."""
    for name, _ in version.checkpoints[0].shards:
        shutil.copyfile(version.path("m", name), root / "m/new.tmp")
        os.rename(root / "m/new.tmp", root / "m" / name)


def growth(samples, readers, sanitized):
    """Describes what has grown from the middle third of the run to the last."""
    third = max(1, len(samples) // 3)
    middle, last = samples[-2 * third:-third] or samples, samples[-third:]
    found = []
    margins = {"descriptors": DESCRIPTORS_OF_A_READER * readers}
    if not sanitized:
        margins["memory"] = MEMORY_MARGIN
    for what, margin in margins.items():
        before, after = (statistics.median(getattr(sample, what) for sample in part)
                         for part in (middle, last))
        if what == "memory":  # buffers vary by that much with what is being read
            before = max(before, BUDGET)
        if after > before + margin:
            found.append(f"{what} went from {before:.0f} to {after:.0f}")
    if (most := max(sample.memory for sample in samples)) > BUDGET + (64 << 20) and not sanitized:
        found.append(f"memory reached {most}")
    return found


def soak(m, root, versions, args):
    """Runs the test and describes what went wrong."""
    if args.ranges:
        unit, end, interval, replace_every = \
            "ranges", args.ranges, args.ranges / SAMPLES, args.ranges / REPLACED
    else:
        unit, end, interval, replace_every = "s", args.minutes * 60, args.interval, REPLACE_EVERY
    lists = [oracle.plain_files(m.path, mixed) for mixed in readers.mixtures(versions)]
    files = [(together[0][0], *[want for _, want in together]) for together in zip(*lists)]
    group = readers.ReaderGroup(files, args.readers, passed=CHANGES)
    samples, faults = [], []
    start = time.monotonic()
    replaced = 0
    try:
        while not faults and \
                (now := group.count if args.ranges else time.monotonic() - start) < end:
            if now >= len(samples) * interval:
                samples.append(Sample(m))
                show(now, unit, samples[-1])
            if now >= (replaced + 1) * replace_every:
                replaced += 1
                replace(root, versions[replaced % len(versions)])
            group.revive()
            faults = group.faults({0})
            time.sleep(0.05)
        group.stop()
        group.finish(30)
    finally:
        group.kill()
    print(f"{group.count} ranges read, {group.compared} bytes compared, "
          f"{replaced} times replaced")
    return group.faults({0}) or growth(samples, args.readers, is_sanitized(args.build / "fstfs"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--place", type=Path, help="directory for the source")
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--interval", type=float, default=10, help="seconds")
    parser.add_argument("--ranges", type=int, metavar="N", help="number of reads, instead of MINUTES")
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="fstfs-soak-", dir=args.place))
    try:
        versions = trees.versions(place, 3)
        shutil.copytree(versions[0].root, place / "s")
        m = Mount(place, place / "s", f"--memory={BUDGET}", limit=(args.minutes * 60 + 120) * SLOW,
                  binary=args.build / "fstfs")
        try:
            faults = soak(m, place / "s", versions, args)
        finally:
            leftovers = m.finish()
            log = m.log_text()
    finally:
        shutil.rmtree(place)
    for fault in faults + leftovers:
        print(f"soak: {fault}")
    if faults or leftovers:
        print(log, end="")
    return 1 if faults or leftovers else 0


if __name__ == "__main__":
    sys.exit(main())
