#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures names and attributes, for docs/performance.md: listings, memory, latency.

    tests/bench/metadata.py [--build DIR] [--place DIR] [--rounds N] [--only PART ...]

Creates its sources below --place (sparse, about 700 MiB on disk with 100,000 files). Comparisons
with the bare directory are interleaved. The output has medians and ranges.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from corpus import torchfiles, trees  # noqa: E402
from harness import Daemon, interleaved, spread  # noqa: E402

DESCRIPTION = ROOT.parent / "shared/data/qwen3.5-25b-a3b.json"


@contextmanager
def mounted(binary, source, *options):
    """A mount of fstfs."""
    with tempfile.TemporaryDirectory(prefix="fstfs-bench-") as path, \
            Daemon({}, path, binary, "-f", *options, source) as daemon:
        yield daemon


def list_with_stat(path):
    count = 0
    with os.scandir(path) as entries:
        for e in entries:
            e.stat(follow_symlinks=False)
            count += 1
    return count


def first_listing(binary, source, directory, count, rounds, label, target):
    """Mount, first listing of all tensors and stat of each, with cached headers."""
    times, mounts = [], []
    per_tensor = []
    for _ in range(rounds):
        started = time.monotonic()
        with mounted(binary, source) as m:
            at_rest = m.memory()
            found = list_with_stat(f"{m.path}/tensors/{directory}/model")
            times.append(time.monotonic() - started)
            mounts.append(m.seconds_to_mount)
            assert found == count, found
            time.sleep(0.3)
            per_tensor.append((m.memory() - at_rest) / count)
    print(f"{label}: mount and first full listing with stat "
          f"{spread(times, digits=3)} s (mount: {spread(mounts, digits=3)} s); target {target} s")
    print(f"{label}: daemon memory per tensor after it {spread(per_tensor, 1, 0)} bytes "
          f"(anonymous, minus that of the idle mount); target 200")


def write_pickled(place):
    """Six shards of the published checkpoint as files of torch.save(), without weights; returns the number of tensors."""
    shards = list(json.loads(DESCRIPTION.read_text())["shards"].values())[:6]
    place.mkdir(parents=True)
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        name = f"pytorch_model-{i:05}-of-{len(shards):05}.bin"
        torchfiles.write_sparse(place / name, shard["tensors"])
        weight_map |= dict.fromkeys((tensor[0] for tensor in shard["tensors"]), name)
    (place / "pytorch_model.bin.index.json").write_bytes(trees.index_bytes(weight_map))
    return len(weight_map)


def bytes_before_a_tensor(binary, source):
    """What the daemon reads for a full listing with stat: of the files, and requests."""
    with mounted(binary, source) as m:
        list_with_stat(f"{m.path}/tensors/m/model")
        with open(f"/proc/{m.process.pid}/io") as f:
            read = next(int(line.split()[1]) for line in f if line.startswith("rchar"))
    size = sum(path.stat().st_size for path in Path(source, "m").iterdir())
    print(f"bytes that the daemon reads before a tensor is: {read / 1e6:.1f} MB of {size / 1e9:.1f} GB")


def find(path):
    started = time.monotonic()
    found = subprocess.run(["find", path, "-type", "f", "-size", "-2G"], check=True,
                           stdout=subprocess.PIPE).stdout.count(b"\n")
    return time.monotonic() - started, found


def many_files(binary, place, rounds):
    count = 100_000
    source = trees.many_small(place / "latents", count)
    bare = []
    views = {v: ([], []) for v in ("tensors", "merged", "shards", "npy")}
    for _ in range(rounds):
        bare.append(find(source.root)[0])
        with mounted(binary, source.root) as m:
            for view, (first, second) in views.items():
                seconds, found = find(f"{m.path}/{view}")
                assert found == (2 * count if view == "tensors" else count), (view, found)
                first.append(seconds)
                second.append(find(f"{m.path}/{view}")[0])
            memory = m.memory()
    print(f"find -type f -size -2G over {count} one-file checkpoints: "
          f"the bare directory {spread(bare, digits=3)} s")
    for view, (first, second) in views.items():
        print(f"  {view}/: first {spread(first, digits=3)} s, second {spread(second, digits=3)} s")
    print(f"  daemon memory after all of it {memory / 1e6:.0f} MB")


def containers(binary, place, rounds):
    """1,000 files of one tensor each: the first listing of each view, and reading the start of each file in merged/."""
    count = 1000
    sources = {"safetensors": place / "of-safetensors", "pt": place / "of-pt"}
    for i in range(count):
        tensors = torchfiles.weights(i, {"w": (64, 64)})
        torchfiles.save(sources["pt"] / f"x{i:04}.pt", tensors)
        sources["safetensors"].mkdir(exist_ok=True)
        (sources["safetensors"] / f"x{i:04}.safetensors").write_bytes(
            trees.file_bytes([trees.tensor("w", "F32", (64, 64), seed=i)], {"format": "pt"}))
    steps = ("merged", "tensors", "shards", "opening")
    times = {name: {step: [] for step in steps} for name in sources}
    for name in interleaved(sources, rounds):
        for step in steps:  # each on a mount of its own: headers are read once
            with mounted(binary, sources[name]) as m:
                paths = [f"{m.path}/merged/x{i:04}.safetensors" for i in range(count)]
                started = time.perf_counter()
                if step == "opening":
                    each(paths, open_read_close)
                else:
                    found = list_with_stat(f"{m.path}/{step}")
                    assert found == (2 * count if step == "tensors" else count), found
                times[name][step].append(time.perf_counter() - started)
    for step in steps:
        of, base = times["pt"][step], times["safetensors"][step]
        ratio = [a / b for a, b in zip(of, base)]
        print(f"{count} .pt files, {step}: {spread(of, digits=3)} s, {spread(ratio)} times safetensors; target 2")


def each(paths, work):
    """Mean seconds of work(path) over the paths."""
    started = time.perf_counter()
    for path in paths:
        work(path)
    return (time.perf_counter() - started) / len(paths)


def open_read_close(path):
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 4096, 0)
    os.close(fd)


def read_all(path):
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as f:
        while f.readinto(buffer):
            pass


def latency(binary, place, rounds):
    """stat and open+read+close of 1,000 tensors of 4 KiB, against 1,000 bare files of 4 KiB."""
    bare = place / "bare"
    bare.mkdir()
    tensors = [trees.tensor(f"t{i:04}", "U8", (4096,), seed=i) for i in range(1000)]
    for t in tensors:
        (bare / t.name).write_bytes(t.data)
    source = trees.Source(place / "latency")
    source.add("", "model", tensors)
    names = [t.name for t in tensors]
    with mounted(binary, source.root) as m:
        here = [f"{bare}/{n}" for n in names]
        there = [f"{m.path}/tensors/model/{n}" for n in names]
        cold = each(there, os.stat), each(there, open_read_close)
        print(f"first stat of a tensor {cold[0] * 1e6:.1f} us, "
              f"first open+read+close {cold[1] * 1e6:.1f} us")
        for label, work in (("stat", os.stat), ("open+read 4 KiB+close", open_read_close)):
            a, b = [], []
            for _ in range(max(5, rounds)):
                a.append(each(here, work))
                b.append(each(there, work))
            ratio = statistics.median(y / x for x, y in zip(a, b))
            print(f"{label}, warm: bare {spread(a, 1e6, 2)} us, mount {spread(b, 1e6, 2)} us, "
                  f"ratio {ratio:.1f}")


def sandbox(binary, place, rounds):
    """--sandbox=auto against off: opens of tensors, first opens of files and of links that lead out
    of the source (opened by another process then), and reading."""
    source, far = trees.Source(place / "sandbox"), trees.Source(place / "far")
    source.add("", "model", [trees.tensor(f"t{i:04}", "U8", (4096,), seed=i) for i in range(1000)])
    for i in range(500):
        source.add("files", f"f{i}", [trees.tensor("t", "U8", (4096,), seed=i)])
        far.add("", f"f{i}", [trees.tensor("t", "U8", (4096,), seed=i)])
    source.add("large", "model", [trees.Tensor(f"t{i}", "U8", [64 << 20], os.urandom(1 << 20) * 64)
                                  for i in range(4)], shards=2)
    (place / "sandbox/links").symlink_to(place / "far")
    found = {}
    for switch in interleaved(("off", "auto"), max(9, rounds)):
        with mounted(binary, source.root, f"--sandbox={switch}") as m:
            tensors = [f"{m.path}/tensors/model/t{i:04}" for i in range(1000)]
            os.listdir(f"{m.path}/shards/files"), os.listdir(f"{m.path}/shards/links")
            timed = [("mount", m.seconds_to_mount),
                     ("first open+read+close", each(tensors, open_read_close)),
                     ("again, warm", each(tensors, open_read_close))]
            for kind in ("files", "links"):
                paths = [f"{m.path}/tensors/{kind}/f{i}/t" for i in range(500)]
                timed.append((f"first of a shard in {kind}/", each(paths, open_read_close)))
            timed.append(("read() of 268 MB", each([f"{m.path}/merged/large/model.safetensors"],
                                                   read_all)))
        for label, seconds in timed:
            found.setdefault((label, switch), []).append(seconds)
    for label in dict.fromkeys(label for label, _ in found):
        on, off = found[label, "auto"], found[label, "off"]
        ratio = statistics.median(x / y for x, y in zip(on, off))
        print(f"{label}: sandbox {spread(on, 1e6, 2)} us, off {spread(off, 1e6, 2)} us, "
              f"ratio {ratio:.2f}")


def median_seconds(work, times=100):
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def as_uid(uid, work):
    """The result of work() in a process of that user."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.write(into, json.dumps(work()).encode())
        os._exit(0)
    os.close(into)
    with open(out, "rb") as f:
        answer = f.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


def permissions(binary, place, rounds):
    """The cost of permission checks: a private mount against one with allow_other. The smallest of
    the medians of the rounds, because other programs may use the machine. Needs root."""
    source = trees.Source(place / "permissions")
    source.add("one", "model", [trees.tensor(f"t{i:03}", "U8", (4096,), seed=i)
                                for i in range(100)])
    source.add("many", "model", [trees.tensor(f"t{i:03}", "U8", (4096,), seed=i)
                                 for i in range(163)], shards=163)
    os.chmod(place, 0o755)

    def measure(root):
        one, many = (f"{root}/merged/{name}/model.safetensors" for name in ("one", "many"))
        tensor = f"{root}/tensors/one/model/t050"
        calls = {"stat of a tensor": lambda: os.stat(tensor),
                 "open+read+close of a tensor": lambda: open_read_close(tensor),
                 "the same of a merged file of 1 shard": lambda: open_read_close(one),
                 "the same of a merged file of 163 shards": lambda: open_read_close(many),
                 "listing with stat of 100 tensors":
                 lambda: list_with_stat(f"{root}/tensors/one/model")}
        return {label: median_seconds(call) for label, call in calls.items()}

    found = {}
    for _ in range(max(5, rounds)):
        for label, options, uid in (("private mount, root", (), 0),
                                    ("allow_other, root", ("-o", "allow_other"), 0),
                                    ("allow_other, user 1000", ("-o", "allow_other"), 1000)):
            with mounted(binary, source.root, *options) as m:
                for call, seconds in as_uid(uid, lambda path=m.path: measure(path)).items():
                    found.setdefault(call, {}).setdefault(label, []).append(seconds)
    for call, by_mount in found.items():
        print(f"{call}: " + ", ".join(f"{label} {min(seconds) * 1e6:.0f} us"
                                      for label, seconds in by_mount.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("FSTFS_BUILD", ROOT / "build"))
    parser.add_argument("--place", help="directory for the sources (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*",
                        default=["published", "experts", "files", "containers", "latency",
                                 "sandbox", "permissions"])
    arguments = parser.parse_args()
    binary = Path(arguments.build).resolve() / "fstfs"
    if not binary.exists():
        raise SystemExit(f"{binary} does not exist: build first")
    place = Path(tempfile.mkdtemp(prefix="fstfs-bench-", dir=arguments.place))
    try:
        if "published" in arguments.only:
            if DESCRIPTION.exists():
                table = trees.published(DESCRIPTION, place / "published/m")
                first_listing(binary, place / "published", "m", len(table), arguments.rounds,
                              "22,213 tensors, 10 shards", "0.15")
                count = write_pickled(place / "pickled/m")
                first_listing(binary, place / "pickled", "m", count, arguments.rounds,
                              f"{count:,} tensors, 6 PyTorch files", "0.2")
                bytes_before_a_tensor(binary, place / "pickled")
            else:
                print("../shared/data/qwen3.5-25b-a3b.json does not exist: skipped")
        if "experts" in arguments.only:
            table = trees.experts(place / "experts/m")
            first_listing(binary, place / "experts", "m", len(table), arguments.rounds,
                          "230,000 tensors, 160 shards", "1.5")
        if "latency" in arguments.only:
            latency(binary, place, arguments.rounds)
        if "sandbox" in arguments.only:
            sandbox(binary, place, arguments.rounds)
        if "permissions" in arguments.only:
            permissions(binary, place, arguments.rounds)
        if "containers" in arguments.only:
            containers(binary, place, arguments.rounds)
        if "files" in arguments.only:
            many_files(binary, place, min(3, arguments.rounds))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
