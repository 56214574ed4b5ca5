# SPDX-License-Identifier: Apache-2.0
"""Signals to tools that wait for storage."""

import signal
import subprocess

import pytest
from conftest import BUILD, eventually, waits_for_fuse
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_storage_that_hangs(mount, place, number):
    """A tool ends although its calls wait for storage: at the latest by SIGALRM."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "models")
    for i in range(5):  # a lookup waits for another one of the same name, and cannot be killed
        source.add(f"d{i}", "model", trees.small_tensors())
    rules = place / "faults"
    rules.write_text("lookup d*/* hang\n")
    m = mount(mount(source.root, "-o", f"faults={rules}", binary=SLOWFS).path)
    models = [m / f"merged/d{i}/model.safetensors" for i in range(5)]
    tools = [("fstfs-check", m / "merged/d0"), ("fstfs-check", models[1]), ("fstfs-cache", models[2]),
             ("fstfs-pack", models[3], place / "out.safetensors"), ("fstfs-bench", models[4])]
    running = [subprocess.Popen([BUILD / tool, *args], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL) for tool, *args in tools]
    try:
        for process in running:
            assert eventually(lambda: waits_for_fuse(process.pid)), process.args
        for process in running:
            process.send_signal(number)
        statuses = {process.wait(60) for process in running}
        assert -signal.SIGALRM in statuses and statuses <= {128 + number, -signal.SIGALRM}
    finally:
        for process in running:
            process.kill()
        rules.unlink()
        for process in running:
            process.wait()
