# SPDX-License-Identifier: Apache-2.0
"""tools/try, in a checkout whose build/ is built: the programs are those that are tested."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BINARY, ROOT, SLOW, eventually, mounted_at

# What would build or install: neither is wanted here, and whether it is asked for can be seen.
STUBS = {"meson": "exit 0", "apt-get": "echo apt-get was asked for >&2; exit 1"}


@pytest.fixture
def run_try(fstfs, place):
    """run_try(ARGUMENT...): the finished tools/try; run_try.mount is where it mounts by itself."""
    if not shutil.which("getfattr"):
        pytest.skip("getfattr is not installed")
    checkout = place / "checkout"
    (checkout / "build").mkdir(parents=True)
    (checkout / "build/build.ninja").touch()
    (checkout / "build/fstfs").symlink_to(BINARY)
    (checkout / "tools").symlink_to(ROOT / "tools")
    (place / "stubs").mkdir()
    for name, line in STUBS.items():
        (place / "stubs" / name).write_text(f"#!/bin/sh\n{line}\n")
        (place / "stubs" / name).chmod(0o755)

    def run(*arguments):
        return subprocess.run(
            [checkout / "tools/try", *arguments], cwd=place, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60 * SLOW,
            env={**os.environ, "PATH": f"{place / 'stubs'}:{os.environ['PATH']}"})

    run.mount = checkout / "build/try/mount"
    yield run
    for line in mounted_at(place):
        subprocess.run(["fusermount3", "-u", line.split()[4]], check=True)
    assert eventually(lambda: not mounted_at(place))


def test_shows_the_tree_and_a_tensor_and_stays_mounted(run_try):
    for _ in range(2):
        done = run_try()
        assert done.returncode == 0, done.stderr
        assert "\nA tensor, tensors/tiny/model/" in done.stdout
        assert f"It stays mounted. To unmount: fusermount3 -u {run_try.mount}\n" in done.stdout
        assert len(mounted_at(run_try.mount)) == 1


def make_wrong(place):
    (place / "file").touch()
    (place / "models/inside").mkdir(parents=True)
    return {
        "missing": ([place / "nothing"], "no such directory"),
        "a file": ([place / "file"], "not a directory"),
        "three": ([place / "models", place / "mount", "more"], "usage: "),
        "an option": (["--deep", place / "models"], "usage: "),
        "an option last": ([place / "models", "--deep"], "usage: "),
        "mount point is a file": ([place / "models", place / "file"], "not a directory"),
        "mount point in the source": ([place / "models", place / "models/inside"],
                                      "lies in the source"),
        "source in the mount": ([place / "checkout/build/try/mount/merged"],
                                "lies in the mount point"),
    }


def test_wrong_arguments_leave_the_mount(run_try, place):
    assert run_try().returncode == 0
    before = mounted_at(run_try.mount)
    for name, (arguments, message) in make_wrong(place).items():
        done = run_try(*arguments)
        assert done.returncode != 0 and message in done.stderr, (name, done.stdout, done.stderr)
        assert "apt-get" not in done.stderr, name
        assert mounted_at(run_try.mount) == before, name
    assert (run_try.mount / "merged/tiny/config.json").exists()


def test_a_source_without_tensors_is_named(run_try, place):
    source = place / "models"
    source.mkdir()
    done = run_try(source)
    assert done.returncode == 0, done.stderr
    assert f"There is no tensor in {run_try.mount}: {source} is empty.\n" in done.stdout
    (source / "pytorch_model.bin").write_bytes(b"x")
    assert f"no *.safetensors file in {source} or below" in run_try(source).stdout
    (source / "model.safetensors").write_bytes(b"x" * 9)
    done = run_try(source)
    assert f"fstfs refused what is in {source}.\n" in done.stdout
    assert "model.safetensors: " in done.stdout.partition("(.fstfs/problems):\n")[2]


def processes_with(argument):
    """Those that have it as their last argument."""
    found = []
    for process in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if process.isdigit() and Path(f"/proc/{process}/cmdline").read_bytes().endswith(
                    f"\0{argument}\0".encode()):
                found.append(int(process))
    return found


def test_replaces_a_mount_whose_daemon_was_killed(run_try):
    assert run_try().returncode == 0
    for process in processes_with(run_try.mount):
        with contextlib.suppress(ProcessLookupError):  # it ended with one before it
            os.kill(process, signal.SIGKILL)
    assert eventually(lambda: not os.path.isdir(run_try.mount))
    done = run_try()
    assert done.returncode == 0, done.stderr
    assert len(mounted_at(run_try.mount)) == 1
