# SPDX-License-Identifier: Apache-2.0
"""fstfs-bench: the table, the chart, the progress bar, and loaders without torch."""

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
from benching import (LOADERS, MIB, alone, bench, can_be_cold, expected, model, program, row_names,
                      write_shard)
from conftest import ROOT, SLOW

__all__ = ["alone", "bench", "model"]  # fixtures


def skipped(out):
    return [line for line in out.splitlines() if line.startswith("  skipped")]


# ---- skipped rows ----

def listed(missing):
    return json.dumps({"loaders": [{"name": name, "text": name, "missing": why}
                                   for name, why in missing.items()]})


def fake_python(bench, place, missing):
    program(place / "python3", f"cat >/dev/null; echo '{listed(missing)}'")
    bench.environment["PATH"] = f"{place}:{os.environ['PATH']}"


def test_methods_skipped_for_one_reason_share_a_line(bench, fstfs, model, place):
    fake_python(bench, place, {name: "there is no torch" for name in LOADERS})
    out, err = bench.run("--loaders", "--rounds=1", model)
    assert err == ""
    assert f"  skipped: {', '.join(LOADERS)}: there is no torch" in skipped(out)
    assert len(skipped(out)) <= 2  # the other one: tmpfs


@pytest.fixture
def in_memory(place):
    """A model on tmpfs, which cannot be read cold."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    path = f"/dev/shm/{place.name}.safetensors"
    try:
        write_shard(path, {"t": 100 * MIB}, 3)
        yield path
    finally:
        os.remove(path)


def test_line_names_the_state_that_skipped_rows_share(bench, fstfs, in_memory):
    """The O_DIRECT reader has only cold rows."""
    out, _ = bench.run("--rounds=1", in_memory)
    line, = skipped(out)
    assert line.startswith("  skipped: direct, read, mmap, names (cold): cannot be read cold: ")


def test_line_names_the_place_that_skipped_rows_share(alone, model):
    out, _ = alone.run("--rounds=1", "--methods=direct,read", model)
    line = skipped(out)[-1]
    assert line.startswith("  skipped: direct, read (mounted): fstfs was found neither")


@pytest.mark.parametrize("reasons", [5, 6, 7])
def test_at_most_six_lines(bench, fstfs, in_memory, place, reasons):
    """One of them is that of the readers."""
    missing = {name: f"there is no {name}" for name in LOADERS[:reasons]}
    fake_python(bench, place, missing)
    out, _ = bench.run("--loaders", "--rounds=1", in_memory)
    lines = [f"  skipped: {name}: {why}" for name, why in missing.items()]
    if reasons == 5:
        assert skipped(out)[1:] == lines
    else:
        assert skipped(out)[1:] == [
            *lines[:4], f"  skipped for {reasons - 4} other reasons; see --json"]


# ---- the chart ----

def test_chart_names_model_processor_and_storage(bench, fstfs, model, place):
    svg = place / "chart.svg"
    out, _ = bench.run("--rounds=1", "--methods=read", f"--svg={svg}", model)
    texts = [t.text for t in xml.etree.ElementTree.parse(svg).iter(
        "{http://www.w3.org/2000/svg}text")]
    machine, _, about = out.splitlines()[:3]
    assert machine in texts
    with open("/proc/cpuinfo") as f:
        processor = re.search(r"^model name\s*: (.*)$", f.read(), re.MULTILINE)
    assert not processor or processor[1][:60] in machine
    assert str(model) in texts
    description = about.removeprefix(f"{model}: ")
    assert description in texts and " 6 tensors, 2 files, " in f" {description}"
    storage = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", model], capture_output=True,
                             text=True).stdout.strip()
    assert storage and f", {storage} on " in description


# ---- the progress bar ----

def screen(bench, columns, *args):
    """The lines drawn on a terminal of that width."""
    ours, theirs = pty.openpty()
    output = b""
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = bench.start("--json", *args, stderr=theirs, stdout=subprocess.DEVNULL)
        os.close(theirs)
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                output += piece
        assert process.wait(60 * SLOW) == 0
    finally:
        os.close(ours)
    return [line for line in re.split(r"\r|\x1b\[K|\n", output.decode()) if line]


@pytest.mark.parametrize("columns", [80, 40, 132])
def test_progress_fits_the_terminal(bench, fstfs, model, columns):
    drawn = screen(bench, columns, "--rounds=2", "--methods=read,names", model)
    assert drawn and max(map(len, drawn)) < columns
    for line in drawn:
        assert re.match(r"\[[#-]{8,24}\] [ \d]{3}% round [12]", line), line
        assert columns < 80 or re.search(r"(mounted|bare), (cold|warm)(  \d+ (s|min) left)?$",
                                         line), line
    assert any(line.endswith((" s left", " min left")) for line in drawn)


# ---- loaders without torch ----

def write_typed(path):
    """With dtypes that NumPy has, an empty tensor and a scalar."""
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
def test_loaders_use_numpy_without_torch(bench, fstfs, place):
    """The loaders have the readers' checksum, otherwise they would have failed."""
    if find_spec("torch"):
        pytest.skip(f"{sys.executable} has torch")
    bench.environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    (place / "m").mkdir()
    write_typed(place / "m/model.safetensors")
    found = bench.json("--loaders", "--rounds=1", "--methods=names,load_file,safe_open", place / "m")
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["names", "load_file", "safe_open"])
    assert {row["text"].partition(",")[0] for row in found["rows"] if row["method"] != "names"} == {
        "load_file (NumPy)", "safe_open (NumPy)"}
    assert can_be_cold(found) or {row["state"] for row in found["rows"]} == {"warm"}


def test_loader_names_match_the_script():
    """The command line is checked before python3 runs."""
    text = (ROOT / "tools/bench/loaders.py").read_text()
    names = re.findall(r'^    "(\w+)": \(', text[text.index("LOADERS = {"):], re.MULTILINE)
    assert names == LOADERS
