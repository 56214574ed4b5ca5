# SPDX-License-Identifier: Apache-2.0
"""tests/bench/soak.py for a quarter of a minute: that it works, and finds nothing."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, SLOW


@pytest.mark.limit(90)
def test_soak(fstfs, place):
    command = [sys.executable, ROOT / "tests/bench/soak.py", "--build", BUILD, "--place", place,
               "--interval=0.5", "0.25"]
    # with a sanitizer: what it keeps of freed memory would look like growth
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
    done = subprocess.run(command, capture_output=True, text=True, timeout=80 * SLOW,
                          env={**os.environ, "ASAN_OPTIONS": sanitizer})
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ranges read" in done.stdout
    assert os.listdir(place) == []
