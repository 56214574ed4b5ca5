#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures real loaders, bare and mounted: fstfs-bench --loaders on each storage.

Run by tools/bench-loaders, which builds what this needs; see there for the options.

The storages are those of bench-io. Each has a model for loaders of files, one for transformers and
one for diffusers. The results of fstfs-bench become one table. Ratios of mounted to bare rates
within a round are compared with their bounds.
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
from harness import Failed, spread
from machine import Machine, mib
from reading import Report, Result
from storage import STORAGES, Unavailable

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))

# The model for each method of fstfs-bench. `direct` is always measured too.
METHODS = {
    "read": "weights", "mmap": "weights", "names": "weights", "load_file": "weights",
    "safe_open": "weights", "fastsafetensors": "weights", "runai": "weights",
    "transformers": "llama", "diffusers": "diffuser", "fstfs": "weights",
}
DEEP = ("fastsafetensors", "runai", "fstfs")  # keep many reads in flight
READERS = ("direct", "read", "mmap", "names")  # not loaders
PACKAGES = ("safetensors", "torch", "transformers", "diffusers", "fastsafetensors",
            "runai-model-streamer")


def bound(storage, method, state):
    """The bound of mounted / bare; None: no bound."""
    if method in READERS:
        return None
    if state == "warm" or method in DEEP:
        return 0.95
    return 10 if storage == "slow" else 1


class Measured:
    """A method on a storage: its rows of fstfs-bench by (place, state)."""

    def __init__(self, storage, method, model):
        self.storage, self.method, self.size = storage, method, model["bytes"]
        self.rows = {(row["place"], row["state"]): row for row in model["rows"]
                     if row["method"] == method}
        self.why = sorted({f"{row['place']}, {row['state']}: {row['why']}"
                           for row in model["skipped"] + model["failed"] if row["method"] == method
                           and (method, row["state"]) != ("direct", "warm")})
        self.failed = any(row["method"] == method for row in model["failed"])

    def rates(self, place, state):
        row = self.rows.get((place, state))
        return [row["bytes"] / seconds / 1e9 for seconds in row["seconds"]] if row else []

    def ratios(self, state):
        return [mounted / bare for mounted, bare in
                zip(self.rates("mounted", state), self.rates("bare", state))]

    def own_work(self):
        """The share of a cold load of the bare files that is not reading: the time of a warm
        load."""
        cold, warm = (self.rates("bare", state) for state in ("cold", "warm"))
        if self.method in DEEP or not (cold and warm):  # DEEP ones bypass the page cache
            return None
        return statistics.median(cold) / statistics.median(warm)

    def results(self):
        for state in "cold", "warm":
            if self.ratios(state):
                yield Result(self.storage, state, f"{self.method}: mounted / bare",
                             self.ratios(state), bound(self.storage, self.method, state), "more")
        if self.own_work() is not None and self.method not in READERS:
            yield Result(self.storage, "own work", f"{self.method}: of a cold load, bare",
                         [self.own_work()], None, "less")

    def cells(self):
        """The cells of its line in the table."""
        yield f"{self.storage}, {self.method}"
        for state in "cold", "warm":
            bare, mounted = (self.rates(place, state) for place in ("bare", "mounted"))
            yield ", ".join(f"{statistics.median(r):.2f}" if r else "-" for r in (bare, mounted))
            yield spread(self.ratios(state)) if self.ratios(state) else "-"
        yield "-" if self.own_work() is None else f"{self.own_work():.2f}"
        yield ", ".join(self.share(state, "storage_read_bytes") for state in ("cold", "warm"))
        yield ", ".join(self.share("cold", key) for key in ("reader_memory_bytes",
                                                            "daemon_memory_bytes"))
        yield str(max((len(row["seconds"]) for row in self.rows.values()), default=0))

    def share(self, state, key):
        """As a share of the model's size, mounted."""
        row = self.rows.get(("mounted", state))
        return f"{row[key] / self.size:.2f}" if row else "-"


HEAD = ("storage, method", "cold: bare, mounted", "mounted / bare", "warm: bare, mounted",
        "mounted / bare", "own work", "source", "memory", "rounds")


def table(rows):
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_bench(args, path, methods):
    """The results of fstfs-bench for a model. Its progress bar is visible."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src/python",
                   "FSTFS_LIBRARY": f"{args.build}/src/client/libfstfs.so"}
    with subprocess.Popen(
            [f"{args.build}/fstfs-bench", "--json", "--loaders", f"--rounds={args.rounds}",
             f"--methods={','.join(methods)}", path], stdout=subprocess.PIPE, env=environment) as bench:
        try:
            output, _ = bench.communicate()
        except KeyboardInterrupt:
            bench.terminate()  # it unmounts
            bench.communicate()
            raise
    found = json.loads(output)["models"] if output else []
    if not found or found[0]["interrupted"]:
        raise Failed(f"fstfs-bench: exit status {bench.returncode}")
    return found[0]


def measure_storage(report, name, args, measured):
    """Appends to `measured`, also if it is interrupted."""
    needed = list(dict.fromkeys(METHODS[method] for method in args.method))
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(args.build, args.place, None))
        try:
            storage = stack.enter_context(
                STORAGES[name](machine, models.Models(needed, mib(args.size)), []))
        except Unavailable as e:
            report.skip(name, e)
            return
        for model in needed:
            methods = ["direct"] + [method for method in args.method if METHODS[method] == model]
            report.show(f"{name}: {model}: {', '.join(methods)}")
            found = run_bench(args, os.path.join(storage.source, model), methods)
            # `direct` is listed once.
            for method in methods if model == needed[0] else methods[1:]:
                one = Measured(name, method, found)
                measured.append(one)
                for why in one.why:
                    (report.fail if one.failed else report.skip)(f"{name} {method}", why)
                for result in one.results():
                    report.result(*vars(result).values())


def arguments():
    parser = argparse.ArgumentParser(prog="bench-loaders", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--storage", action="append", choices=["disk", "loop", "slow"],
                        help="only this storage (repeatable)")
    parser.add_argument("--method", action="append", choices=METHODS,
                        help="only this method of fstfs-bench (repeatable)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB",
                        help="size of each model (1024; at least 256)")
    parser.add_argument("--place", default="/var/tmp", help="directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print JSON, and progress to stderr")
    args = parser.parse_args()
    if args.size < 256:
        parser.error("--size: at least 256 MiB")
    args.storage = args.storage or ["disk", "loop", "slow"]
    args.method = args.method or list(METHODS)
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
        head["rows"] = [{"storage": m.storage, "method": m.method} | row
                        for m in measured for row in m.rows.values()]
    report.end(head)
    if not args.json:
        print(f"\n{table(list(m.cells()) for m in measured)}")
    return bool(report.failures) or any(r.verdict() == "MISS" for r in report.results)


if __name__ == "__main__":
    sys.exit(main())
