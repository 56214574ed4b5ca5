# SPDX-License-Identifier: Apache-2.0
"""What the tests of sources share: a model is copied to a file system and compared on the mount."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import oracle
import pytest
from conftest import ROOT, child, eventually
from corpus import trees

sys.path.append(os.fspath(ROOT / "tests/mount"))
import readers  # noqa: E402

LIMIT = 60
CORE = ["mount/test_bytes.py"]


def need_root(*programs):
    """Skips the test without root or one of these programs."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")


def forget(root):
    """Drops what the page cache lets go of."""
    os.sync()
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def put(path, source):
    """A copy of the source on another file system."""
    shutil.copytree(source.root, path, dirs_exist_ok=True, symlinks=True)
    return trees.Source.at(path, source)


def check(m, source):
    """In a child: which files there are, and every byte of them in each method, cold and warm."""
    oracle.check_source(m.path, source)
    files = oracle.plain_files(m.path, source)
    for cold in (True, False):
        for method in readers.METHODS:
            if cold:
                forget(source.root)
                forget(m / "shards")
                forget(m / "merged")
            readers.check_files(files, method)


def way_below(m):
    """How the daemon reads: direct or buffered, and why."""
    io = json.loads(m.read(".fstfs/status"), object_pairs_hook=oracle.no_duplicates)["io"]
    why = io.get("direct_refused")
    return f"buffered: {why}" if why else "direct"


def core_tests(path):
    """The tests that the suite is about, their own places lying there."""
    environment = {**os.environ, "TMPDIR": os.fspath(path)}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE],
                          cwd=ROOT / "tests", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20000:]
    return "pass"


def rewrite(path, version):
    """Writes the shards of a version of a model (trees.versions) over those at path, in place."""
    for name, _ in version.checkpoints[0].shards:
        with open(path / "m" / name, "r+b") as f:
            f.write(Path(version.path("m", name)).read_bytes())


def replace(path, version):
    """Replaces the shards at path by those of another version, by rename."""
    for name, _ in version.checkpoints[0].shards:
        new = path / "m" / f".{name}.new"
        shutil.copyfile(version.path("m", name), new)
        new.rename(path / "m" / name)


def shows(m, version):
    """Whether all views of a mount show a version completely."""
    try:
        child(oracle.check_source, m.path, version, seconds=LIMIT)
    except (AssertionError, OSError, ValueError, struct.error):
        return False
    return True


def wait_for(m, version):
    """Waits until all views show a version, and prints how long that took."""
    start = time.monotonic()
    assert eventually(lambda: shows(m, version), LIMIT, 0.1)
    print(f"{m.source}: the change shows after {time.monotonic() - start:.1f} s")
