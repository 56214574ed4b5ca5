# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements of tests/gpu/run on the test doubles: they must compare the bytes and report
what is missing."""

import os
import subprocess

import pytest
from conftest import BUILD, SLOW
from corpus import trees

PLACE = BUILD / "tests/gpu"


def measure(*arguments):
    return subprocess.run([PLACE / "measure", *arguments], capture_output=True, text=True,
                          timeout=60 * SLOW, env=os.environ | {"LD_LIBRARY_PATH": str(PLACE)})


@pytest.mark.parametrize("slots", [(), ("-s", "16", "-m", "1024")])
def test_measure(place, slots):
    tensors = [trees.tensor(f"t{i}", "U8", (i + 1, 4099)) for i in range(30)]
    trees.Source(place / "m").add("", "model", tensors, shards=2)
    done = measure(*slots, place / "m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bytes: 330 reads compared" in done.stdout and " 0 differ" in done.stdout
    assert "all tensors, cold: " in done.stdout and '"device":"cuda:0"' in done.stdout


def test_no_device(place):
    trees.Source(place / "m").add("", "model", [trees.tensor("t", "U8", (3,))])
    done = measure("-d", "cuda:7", place / "m")
    assert done.returncode == 2 and "the driver has 2 devices" in done.stderr


def test_ring(place):
    trees.Source(place / "m").add("", "model", [trees.tensor("t", "U8", (99, 4099))])
    # Slots of 1, of 4, and of 16 MiB.
    for options, ring in (("-m", "32"), "9.6"), (("-m", "64"), "20.3"), \
            (("-s", "16", "-m", "1024"), "273.1"):
        done = measure("-r", *options, place / "m")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "all tensors, warm: " in done.stdout and "bytes: " not in done.stdout
        assert f"ring: {ring} MiB\n" in done.stdout


def test_through_a_mount(place, mount):
    (place / "source").mkdir()
    trees.Source(place / "source/m").add("", "model", [trees.tensor("t", "U8", (99, 4099))])
    mounted = mount(place / "source")
    for options, path in ([], place / "source/m"), (["-t"], mounted / "merged/m"):
        done = measure(*options, mounted / "merged/m")
        assert done.returncode == 0, done.stdout + done.stderr
        assert " 0 differ" in done.stdout and f'"path":"{path}/' in done.stdout
