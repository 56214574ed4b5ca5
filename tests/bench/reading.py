#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures reading a checkpoint through the mount against other ways to read it.

Run by tools/bench-io, which builds what this needs; see there for the options.

A *storage* holds a checkpoint. An *arm* is one cold read of it: a target (the mount, the bare
shards, a plain FUSE file system, fio) and a reader. A *row* is a few arms, interleaved for --rounds
rounds, and ratios of their rates, some with a bound. A ratio is the median of the ratios of the
rounds, so that a slow phase of the machine affects both sides.
"""

import argparse
import json
import os
import platform
import random
import shlex
import signal
import statistics
import sys
from contextlib import ExitStack

from checkpoint import Checkpoint
from harness import Failed, interleaved
from machine import Machine, mib
from rows import ROWS
from storage import DEFAULT, STORAGES, Network, Unavailable


class Result:
    """A ratio over the rounds, and its bound."""

    def __init__(self, storage, row, name, values, bound, better):
        self.storage, self.row, self.name = storage, row, name
        self.values, self.bound, self.better = values, bound, better

    def median(self):
        return statistics.median(self.values)

    def verdict(self):
        """near: the median misses the bound, but a quartile meets it."""
        if self.bound is None:
            return ""
        met = (lambda v: v >= self.bound) if self.better == "more" else (lambda v: v <= self.bound)
        if met(self.median()):
            return "pass"
        return "near" if any(met(v) for v in quartiles(self.values)) else "MISS"

    def text(self):
        sign = {"more": ">=", "less": "<="}[self.better]
        bound = "" if self.bound is None else f"{sign} {self.bound:g}"
        spread = f"{min(self.values):.3f}..{max(self.values):.3f}"
        return (
            f"{self.storage:5} {self.row:9} {self.name:60} {self.median():7.3f} {spread:16}"
            f" {bound:8} {self.verdict()}"
        )

    def json(self):
        return {
            "storage": self.storage,
            "row": self.row,
            "name": self.name,
            "median": self.median(),
            "values": self.values,
            "bound": self.bound,
            "better": self.better,
            "verdict": self.verdict(),
        }


def quartiles(values):
    if len(values) < 2:
        return values
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


class Report:
    def __init__(self, as_json):
        self.as_json = as_json
        self.results, self.arms, self.skipped, self.failures = [], [], [], []

    def show(self, text):
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def skip(self, what, why):
        self.skipped.append({"what": what, "why": str(why)})
        self.show(f"{what}: skipped: {why}")

    def fail(self, what, why):
        self.failures.append({"what": what, "why": str(why)})
        self.show(f"{what}: FAILED: {why}")

    def arm(self, storage, row, name, rates, details):
        self.arms.append(
            {"storage": storage, "row": row, "arm": name, "bytes_per_second": rates} | details
        )
        rate = statistics.median(rates) / 1e6
        extra = "".join(f"  {k} {v:.2f}" for k, v in details.items())
        self.show(
            f"{storage:5} {row:9} {name:60} {rate:7.0f} MB/s"
            f"  {min(rates) / 1e6:.0f}..{max(rates) / 1e6:.0f}{extra}"
        )

    def result(self, *args):
        result = Result(*args)
        self.results.append(result)
        self.show(result.text())

    def end(self, head):
        if self.as_json:
            print(json.dumps(head | {
                "results": [r.json() for r in self.results],
                "arms": self.arms,
                "skipped": self.skipped,
                "failures": self.failures,
            }, indent=1))
            return
        print()
        print(" ".join(f"{k}={v}" for k, v in head.items()))
        print(f"{'':5} {'row':9} {'what':60} {'median':>7} {'spread':16} bound")
        for result in self.results:
            print(result.text())
        verdicts = [r.verdict() for r in self.results if r.bound is not None]
        print(
            f"{verdicts.count('pass')} pass, {verdicts.count('near')} near, "
            f"{verdicts.count('MISS')} miss, {len(self.failures)} failed"
        )


def run_row(report, storage, name, row, rounds):
    """Runs the arms of a row, interleaved."""
    plan = row(storage)
    runs = {arm.name: [] for arm in plan.arms}
    for arm in interleaved(plan.arms, rounds):
        runs[arm.name].append(arm.run())
    if plan.same_bytes and len({r.checksum for mine in runs.values() for r in mine}) > 1:
        raise Failed("the arms did not read the same bytes")
    for arm in plan.arms:
        mine = runs[arm.name]
        cpu = [r.cpu for r in mine if r.cpu is not None]
        details = {"daemon_cpu_s": statistics.median(cpu)} if cpu else {}
        report.arm(storage.name, name, arm.name, [r.bytes / r.seconds for r in mine], details)
    for ratio in plan.ratios:
        values = [ratio.of({k: v[i] for k, v in runs.items()}) for i in range(rounds)]
        report.result(storage.name, name, ratio.name, values, ratio.bound, ratio.better)


def arguments():
    parser = argparse.ArgumentParser(prog="bench-io", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--fstfs", action="append", metavar="COMMAND",
                        help="the program, with options; given twice, the second is measured "
                             "against the first")
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row (repeatable)")
    parser.add_argument("--storage", action="append", choices=STORAGES, help="only this storage")
    parser.add_argument("--rounds", "--pairs", type=int, default=5, metavar="N",
                        help="rounds of each row (5)")
    parser.add_argument("--size", type=int, default=1024, metavar="MIB",
                        help="size of the checkpoint (1024)")
    parser.add_argument("--stretch", type=int, default=1, metavar="N",
                        help="make the networks N times slower, for a busy machine (1)")
    parser.add_argument("--user", metavar="NAME", help="mount and read as this user")
    parser.add_argument("--place", default="/var/tmp", help="directory on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print JSON, and progress to stderr")
    return parser.parse_args()


def main():
    args = arguments()
    report = Report(args.json)

    def stop(signum, frame):
        raise KeyboardInterrupt

    for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(signum, stop)
    head = {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "user": args.user or ("root" if os.geteuid() == 0 else "self"),
        "size_mib": args.size,
        "rounds": args.rounds,
        "stretch": args.stretch,
        "fstfs": " | ".join(args.fstfs or ["build"]),
    }
    Network.stretch = args.stretch
    commands = [shlex.split(c) for c in args.fstfs or [f"{args.build}/fstfs"]]
    try:
        for name in args.storage or [storage.name for storage in DEFAULT]:
            run_storage(report, name, args, commands)
    except KeyboardInterrupt:
        report.fail("the rest", "interrupted")
    report.end(head)
    return bool(report.failures) or any(r.verdict() == "MISS" for r in report.results)


def run_storage(report, name, args, commands):
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(args.build, args.place, args.user))
        # Half of it on slow storage, where the bare reader takes seconds for 100 MiB.
        checkpoint = Checkpoint(mib(args.size) >> STORAGES[name].distant, random.Random(1))
        try:
            storage = stack.enter_context(STORAGES[name](machine, checkpoint, commands))
        except Unavailable as e:
            report.skip(name, e)
            return
        for row in args.row or storage.rows or ROWS:
            try:
                run_row(report, storage, row, ROWS[row], args.rounds)
            except Unavailable as e:
                report.skip(f"{name} {row}", e)
            except Failed as e:
                report.fail(f"{name} {row}", e)


if __name__ == "__main__":
    sys.exit(main())
