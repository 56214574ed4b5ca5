#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast real loaders load, bare and mounted: fstfs-bench --loaders on each storage.

Run by tools/bench-loaders, which builds what this needs; see there for the options.

The storages are those of bench-io, each with a model for the loaders of files, one for
transformers and one for diffusers. What fstfs-bench measured becomes one table, and is
held against what the loaders are promised: ratios of mounted to bare, round by round.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack

import models
from bench import Report, Result
from machine import Failed, Machine, mib
from storage import STORAGES, Unavailable

# Which model each way of fstfs-bench reads. `direct` is the storage's best, and goes along.
WAYS = {
    "read": "weights", "mmap": "weights", "names": "weights", "load_file": "weights",
    "safe_open": "weights", "fastsafetensors": "weights", "runai": "weights",
    "transformers": "llama", "diffusers": "diffuser",
}
DEEP = ("fastsafetensors", "runai")  # which have many reads under way by themselves
READERS = ("direct", "read", "mmap", "names")  # which are no loaders
PACKAGES = ("safetensors", "torch", "transformers", "diffusers", "fastsafetensors",
            "runai-model-streamer")


def bound(storage, way, state):
    """What mounted over bare is to be; None where nothing is promised."""
    if way in READERS:
        return None
    if state == "warm" or way in DEEP:
        return 0.95
    return 10 if storage == "slow" else 1


class Measured:
    """A way on a storage: its rows of fstfs-bench by (place, state)."""

    def __init__(self, storage, way, model):
        self.storage, self.way, self.size = storage, way, model["bytes"]
        self.rows = {(row["place"], row["state"]): row for row in model["rows"]
                     if row["way"] == way}
        self.why = sorted({f"{row['place']}, {row['state']}: {row['why']}"
                           for row in model["skipped"] + model["failed"] if row["way"] == way
                           and (way, row["state"]) != ("direct", "warm")})
        self.failed = any(row["way"] == way for row in model["failed"])

    def rates(self, place, state):
        row = self.rows.get((place, state))
        return [row["bytes"] / seconds / 1e9 for seconds in row["seconds"]] if row else []

    def ratios(self, state):
        return [mounted / bare for mounted, bare in
                zip(self.rates("mounted", state), self.rates("bare", state))]

    def own_work(self):
        """The share of a cold load of the bare files that the loader takes for itself: the time
        of a warm one, in which nothing is read."""
        cold, warm = (self.rates("bare", state) for state in ("cold", "warm"))
        if self.way in DEEP or not (cold and warm):  # the first read past the page cache
            return None
        return statistics.median(cold) / statistics.median(warm)

    def results(self):
        for state in "cold", "warm":
            if self.ratios(state):
                yield Result(self.storage, state, f"{self.way}: mounted / bare",
                             self.ratios(state), bound(self.storage, self.way, state), "more")
        if self.own_work() is not None and self.way not in READERS:
            yield Result(self.storage, "own work", f"{self.way}: of a cold load, bare",
                         [self.own_work()], None, "less")

    def cells(self):
        """Of its line in the table."""
        yield f"{self.storage}, {self.way}"
        for state in "cold", "warm":
            bare, mounted = (self.rates(place, state) for place in ("bare", "mounted"))
            yield ", ".join(f"{statistics.median(r):.2f}" if r else "-" for r in (bare, mounted))
            yield with_range(self.ratios(state))
        yield "-" if self.own_work() is None else f"{self.own_work():.2f}"
        yield ", ".join(self.share(state, "storage_read_bytes") for state in ("cold", "warm"))
        yield ", ".join(self.share("cold", key) for key in ("reader_memory_bytes",
                                                            "daemon_memory_bytes"))
        yield str(max((len(row["seconds"]) for row in self.rows.values()), default=0))

    def share(self, state, key):
        """Of the model's size, mounted."""
        row = self.rows.get(("mounted", state))
        return f"{row[key] / self.size:.2f}" if row else "-"


HEAD = ("storage, way", "cold: bare, mounted", "mounted / bare", "warm: bare, mounted",
        "mounted / bare", "own work", "source", "memory", "rounds")


def with_range(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})"


def table(rows):
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_bench(args, path, ways):
    """What fstfs-bench says of a model; its progress bar is seen."""
    with subprocess.Popen(
            [f"{args.build}/fstfs-bench", "--json", "--loaders", f"--rounds={args.rounds}",
             f"--ways={','.join(ways)}", path], stdout=subprocess.PIPE) as bench:
        try:
            said, _ = bench.communicate()
        except KeyboardInterrupt:
            bench.terminate()  # and it unmounts
            bench.communicate()
            raise
    found = json.loads(said)["models"] if said else []
    if not found or found[0]["interrupted"]:
        raise Failed(f"fstfs-bench: exit status {bench.returncode}")
    return found[0]


def measure_storage(report, name, args, measured):
    """Adds what was measured, also where it ends early."""
    needed = list(dict.fromkeys(WAYS[way] for way in args.way))
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(args.build, args.place, None))
        try:
            storage = stack.enter_context(
                STORAGES[name](machine, models.Models(needed, mib(args.size)), []))
        except Unavailable as e:
            report.skip(name, e)
            return
        for model in needed:
            ways = ["direct"] + [way for way in args.way if WAYS[way] == model]
            report.say(f"{name}: {model}: {', '.join(ways)}")
            found = run_bench(args, os.path.join(storage.source, model), ways)
            # Of the storage's best, one model's is enough.
            for way in ways if model == needed[0] else ways[1:]:
                one = Measured(name, way, found)
                measured.append(one)
                for why in one.why:
                    (report.fail if one.failed else report.skip)(f"{name} {way}", why)
                for result in one.results():
                    report.result(*vars(result).values())


def arguments():
    parser = argparse.ArgumentParser(prog="bench-loaders", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--storage", action="append", choices=["disk", "loop", "slow"],
                        help="only this storage (repeatable)")
    parser.add_argument("--way", action="append", choices=WAYS,
                        help="only this way of fstfs-bench (repeatable)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB",
                        help="of each model, in MiB (1024; at least 256)")
    parser.add_argument("--place", default="/var/tmp", help="folder on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print JSON; progress goes to stderr")
    args = parser.parse_args()
    if args.size < 256:
        parser.error("--size: of less than 256 MiB there is no llama")
    args.storage = args.storage or ["disk", "loop", "slow"]
    args.way = args.way or list(WAYS)
    return args


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def main():
    args = arguments()
    report, measured = Report(args.json), []

    def stop(signum, frame):
        raise KeyboardInterrupt

    for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(signum, stop)
    head = {"kernel": platform.release(), "cpus": os.cpu_count(),
            "user": "root" if os.geteuid() == 0 else "self", "size_mib": args.size,
            "rounds": args.rounds} | {package: version(package) for package in PACKAGES}
    try:
        for name in args.storage:
            try:
                measure_storage(report, name, args, measured)
            except Failed as e:
                report.fail(name, e)
    except KeyboardInterrupt:
        report.fail("the rest", "interrupted")
    if args.json:
        head["rows"] = [{"storage": m.storage, "way": m.way} | row
                        for m in measured for row in m.rows.values()]
    report.end(head)
    if not args.json:
        print(f"\n{table(list(m.cells()) for m in measured)}")
    return bool(report.failures) or any(r.verdict() == "MISS" for r in report.results)


if __name__ == "__main__":
    sys.exit(main())
