# SPDX-License-Identifier: Apache-2.0
"""fstfs-bench: what its table, chart and progress say, and loaders that have no torch."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree
from contextlib import suppress
from importlib.util import find_spec

import pytest
from benching import (LOADERS, MIB, bench, can_be_cold, expected, model, named, program,
                      write_shard)
from conftest import ROOT, SLOW

__all__ = ["bench", "model"]  # fixtures


def skipped(out):
    return [line for line in out.splitlines() if line.startswith("  skipped")]


# ---- what was skipped ----

def listed(missing):
    return json.dumps({"loaders": [{"name": name, "package": name, "version": "1", "missing": why}
                                   for name, why in missing.items()]})


def fake_python(bench, place, missing):
    program(place / "python3", f"cat >/dev/null; echo '{listed(missing)}'")
    bench.environment["PATH"] = f"{place}:{os.environ['PATH']}"


def test_ways_that_miss_the_same_share_a_line(bench, fstfs, model, place):
    fake_python(bench, place, {name: "there is no torch" for name in LOADERS})
    out, err = bench.run("--loaders", "--rounds=1", model)
    assert err == ""
    assert f"  skipped: {', '.join(LOADERS)}: there is no torch" in skipped(out)
    assert len(skipped(out)) <= 2  # the other: on tmpfs nothing is cold


@pytest.fixture
def in_memory(place):
    """A model on tmpfs, of which nothing is ever cold."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    path = f"/dev/shm/{place.name}.safetensors"
    try:
        write_shard(path, {"t": 100 * MIB}, 3)
        yield path
    finally:
        os.remove(path)


def test_some_rows_of_a_way(bench, fstfs, in_memory):
    """The O_DIRECT reader has none but cold ones."""
    out, _ = bench.run("--rounds=1", in_memory)
    ways = [line.partition(": ")[2].partition(": ")[0] for line in skipped(out)]
    assert sorted(ways) == ["direct", "read, mmap, names (cold)"]


@pytest.mark.parametrize("reasons", [4, 5, 6])
def test_never_more_than_six_lines(bench, fstfs, in_memory, place, reasons):
    """Beside those of the readers, which are two."""
    missing = {name: f"there is no {name}" for name in LOADERS[:reasons]}
    fake_python(bench, place, missing)
    out, _ = bench.run("--loaders", "--rounds=1", in_memory)
    there = [f"  skipped: {name}: {why}" for name, why in missing.items()]
    if reasons == 4:
        assert skipped(out)[2:] == there
    else:
        assert skipped(out)[2:] == [
            *there[:3], f"  skipped for {reasons - 3} other reasons, which --json has"]


# ---- the chart ----

def test_the_chart_names_model_processor_and_storage(bench, fstfs, model, place):
    svg = place / "chart.svg"
    out, _ = bench.run("--rounds=1", "--ways=read", f"--svg={svg}", model)
    texts = [t.text for t in xml.etree.ElementTree.parse(svg).iter(
        "{http://www.w3.org/2000/svg}text")]
    machine, _, about = out.splitlines()[:3]
    assert machine in texts
    with open("/proc/cpuinfo") as f:
        processor = re.search(r"^model name\s*: (.*)$", f.read(), re.MULTILINE)
    assert not processor or processor[1][:60] in machine
    assert str(model) in texts
    said = about.removeprefix(f"{model}: ")
    assert said in texts and " 6 tensors, 2 files, " in f" {said}"
    storage = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", model], capture_output=True,
                             text=True).stdout.strip()
    assert storage and f", {storage} on " in said


# ---- the progress bar ----

def screen(bench, columns, *args):
    """All that was drawn on a terminal so wide, line by line."""
    ours, theirs = pty.openpty()
    said = b""
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = bench.start("--json", *args, stderr=theirs, stdout=subprocess.DEVNULL)
        os.close(theirs)
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                said += piece
        assert process.wait(60 * SLOW) == 0
    finally:
        os.close(ours)
    return [line for line in re.split(r"\r|\x1b\[K|\n", said.decode()) if line]


@pytest.mark.parametrize("columns", [80, 40, 132])
def test_progress_fits_the_terminal(bench, fstfs, model, columns):
    drawn = screen(bench, columns, "--rounds=2", "--ways=read,names", model)
    assert drawn and max(map(len, drawn)) < columns
    for line in drawn:
        assert re.match(r"\[[#-]{8,24}\] [ \d]{3}% round [12] of", line), line
        assert columns < 80 or re.search(r"(mounted|bare), (cold|warm)(  \d+ (s|min) left)?$",
                                         line), line
    assert any(line.endswith((" s left", " min left")) for line in drawn)


# ---- loaders without torch ----

def write_typed(path):
    """Of the dtypes that NumPy has, an empty tensor and a scalar among them."""
    entries, at = {}, 0
    for name, dtype, shape, size in [("b", "F32", [16 * MIB], 64 * MIB), ("e", "F32", [0, 3], 0),
                                     ("a", "F16", [2, 13 * MIB], 52 * MIB), ("s", "F64", [], 8),
                                     ("i", "I8", [4097], 4097)]:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.write(bytes(range(251)) * (at // 251))
        f.write(bytes(at % 251))
        f.flush()
        os.fsync(f.fileno())


@pytest.mark.limit(120)
def test_loaders_use_numpy_where_there_is_no_torch(bench, fstfs, place):
    """With the bytes that the readers have read: else they would have failed."""
    if find_spec("torch"):
        pytest.skip(f"{sys.executable} has torch")
    bench.environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    (place / "m").mkdir()
    write_typed(place / "m/model.safetensors")
    found = bench.json("--loaders", "--rounds=1", "--ways=names,load_file,safe_open", place / "m")
    assert found["failed"] == []
    assert named(found["rows"]) == expected(found, ways=["names", "load_file", "safe_open"])
    assert {row["text"].partition(",")[0] for row in found["rows"] if row["way"] != "names"} == {
        "load_file (NumPy)", "safe_open (NumPy)"}
    assert can_be_cold(found) or {row["state"] for row in found["rows"]} == {"warm"}


def test_the_loaders_are_those_of_the_script():
    """The command line knows them before python3 runs."""
    text = (ROOT / "tools/bench/loaders.py").read_text()
    names = re.findall(r'^    "(\w+)": \(', text[text.index("LOADERS = {"):], re.MULTILINE)
    assert names == LOADERS
