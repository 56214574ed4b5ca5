# SPDX-License-Identifier: Apache-2.0
"""Runs tests/bench/soak.py for a few thousand reads."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, SLOW


@pytest.mark.limit(90)
def test_soak(fstfs, place):
    command = [sys.executable, ROOT / "tests/bench/soak.py", "--build", BUILD, "--place", place,
               "--ranges=6000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80 * SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ranges read" in done.stdout
    assert os.listdir(place) == []
