# SPDX-License-Identifier: Apache-2.0
"""Signals to tools that wait for storage."""

import os
import signal
import subprocess

import pytest
from conftest import BUILD, eventually, waits_for_fuse
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
HANGING = ["a request", "the server"]


@pytest.fixture(params=HANGING)
def models(request, mount, place):
    """Files of a mount, of which lookups hang, or whose daemon is stopped and does not even answer FUSE_INTERRUPT."""
    if request.param == "a request" and not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "models")
    for i in range(5):  # a lookup waits for another one of the same name, and cannot be killed
        source.add(f"d{i}", "model", trees.small_tensors())
    rules = place / "faults"
    root = source.root
    if request.param == "a request":
        rules.write_text("lookup d*/* hang\n")
        root = mount(root, "-o", f"faults={rules}", binary=SLOWFS).path
    m = mount(root)
    if request.param == "the server":
        for i in range(5):
            os.stat(m / f"merged/d{i}")
        os.kill(m.pid, signal.SIGSTOP)
    running = []
    yield [m / f"merged/d{i}/model.safetensors" for i in range(5)], running
    for process in running:
        process.kill()
    if request.param == "the server":
        os.kill(m.pid, signal.SIGCONT)
    else:
        rules.unlink()
    for process in running:  # Linux may end none before the storage answers
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_storage_that_hangs(models, place, number):
    """A tool ends although its calls wait for storage: at the latest by SIGALRM."""
    models, running = models
    tools = [("fstfs-check", os.path.dirname(models[0])), ("fstfs-check", models[1]), ("fstfs-cache", models[2]),
             ("fstfs-pack", models[3], place / "out.safetensors"), ("fstfs-bench", models[4])]
    for tool, *args in tools:
        running.append(subprocess.Popen([BUILD / tool, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for process in running:
        assert eventually(lambda: waits_for_fuse(process.pid)), process.args
    for process in running:
        process.send_signal(number)
    statuses = {process.wait(60) for process in running}
    assert -signal.SIGALRM in statuses and statuses <= {128 + number, -signal.SIGALRM}


@pytest.mark.parametrize("ignored", [True, False])
def test_ignored_signals_stay_ignored(mount, place, ignored):
    (place / "empty").mkdir()
    m = mount(place / "empty")
    action = signal.SIG_IGN if ignored else signal.SIG_DFL
    process = subprocess.Popen([BUILD / "fstfs-top", "--json", "--interval=0.1", m.path], stdout=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, action))
    assert process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    if ignored:
        assert all(process.stdout.readline() for _ in range(5))
        process.terminate()
    assert process.wait(20) == 128 + (signal.SIGTERM if ignored else signal.SIGHUP)
