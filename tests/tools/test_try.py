# SPDX-License-Identifier: Apache-2.0
"""tools/try in a checkout whose build/ contains the programs under test."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BINARY, ROOT, SLOW, eventually, mounted_at

# Commands that would build or install; the tests see whether they are called.
STUBS = {"meson": "exit 0", "apt-get": "echo apt-get was called >&2; exit 1"}


@pytest.fixture
def run_try(fstfs, place):
    """run_try(ARGUMENT...) runs tools/try; run_try.mount is its default mount point."""
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


def test_shows_the_tree_and_remains_mounted(run_try):
    for _ in range(2):
        done = run_try()
        assert done.returncode == 0, done.stderr
        assert "\nA tensor, tensors/tiny/model/" in done.stdout
        assert f"It remains mounted. To unmount: fusermount3 -u {run_try.mount}\n" in done.stdout
        assert len(mounted_at(run_try.mount)) == 1


def invalid_arguments(place):
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
                                      "is inside the source"),
        "source in the mount": ([place / "checkout/build/try/mount/merged"],
                                "is inside the mount point"),
    }


def test_invalid_arguments_keep_the_mount(run_try, place):
    assert run_try().returncode == 0
    before = mounted_at(run_try.mount)
    for name, (arguments, message) in invalid_arguments(place).items():
        done = run_try(*arguments)
        assert done.returncode != 0 and message in done.stderr, (name, done.stdout, done.stderr)
        assert "apt-get" not in done.stderr, name
        assert mounted_at(run_try.mount) == before, name
    assert (run_try.mount / "merged/tiny/config.json").exists()


def test_source_without_tensors(run_try, place):
    source = place / "models"
    source.mkdir()
    done = run_try(source)
    assert done.returncode == 0, done.stderr
    assert f"{run_try.mount} contains no tensors: {source} is empty.\n" in done.stdout
    (source / "pytorch_model.bin").write_bytes(b"x")
    assert f"no *.safetensors file in {source} or its subdirectories" in run_try(source).stdout
    (source / "model.safetensors").write_bytes(b"x" * 9)
    done = run_try(source)
    assert f"fstfs refused the files in {source}.\n" in done.stdout
    assert "model.safetensors: " in done.stdout.partition("(.fstfs/problems):\n")[2]


def processes_with(argument):
    """Returns the processes with this last argument."""
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
        with contextlib.suppress(ProcessLookupError):  # it ended with another one
            os.kill(process, signal.SIGKILL)
    assert eventually(lambda: not os.path.isdir(run_try.mount))
    done = run_try()
    assert done.returncode == 0, done.stderr
    assert len(mounted_at(run_try.mount)) == 1
