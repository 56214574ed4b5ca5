# SPDX-License-Identifier: Apache-2.0
"""Runs fstfs from the command line: shared by the tests of the command line."""

import os
import re
import signal
import subprocess

import pytest
from conftest import BUILD, SLOW, as_user, eventually, mounted_at, process_stat
from corpus import trees

REFUSE = BUILD / "tests/sandbox/refuse"


def run(*command, user=None, seconds=20, **more):
    return subprocess.run([*as_user(user), *map(os.fspath, command)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=seconds * SLOW, **more)


def daemons(mountpoint):
    """Process IDs of the fstfs daemons that serve a mount point, without their helper processes."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                comm, fields = process_stat(entry)
            except OSError:
                continue
            if b"fstfs" in os.path.basename(words[0]) and os.fsencode(mountpoint) in words \
                    and comm not in ("fstfs-unmount", "fstfs-open", "fstfs-log"):
                parents[int(entry)] = int(fields[1])
    # A helper process that has just been forked does not have its own name yet.
    return [pid for pid, parent in parents.items() if parent not in parents]


@pytest.fixture
def source(place):
    return trees.in_root(place / "s")


@pytest.fixture
def mnt(place):
    """A mount point that is cleaned up, whatever state the test leaves it in."""
    path = place / "mnt"
    path.mkdir()
    yield path
    for _ in range(3):
        if mounted_at(path):
            subprocess.run(["fusermount3", "-uz", path], capture_output=True)
            if mounted_at(path):
                subprocess.run(["umount", "-l", path], capture_output=True)
    for pid in daemons(path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def gone(mnt):
    assert eventually(lambda: not mounted_at(mnt)), "still mounted"
    assert eventually(lambda: not daemons(mnt)), "the daemon is still running"
    return True


def refused(done, *words):
    """Asserts a non-zero exit status and a helpful message on standard error."""
    assert done.returncode != 0, done
    text = done.stderr
    assert text.strip() and len(text.splitlines()) <= 12, text
    for word in words:
        assert re.search(word, text, re.IGNORECASE), f"{word!r} is not in {text!r}"
    assert "Assertion" not in text and "Sanitizer" not in text


def nothing_left(mnt):
    assert not mounted_at(mnt)
    assert eventually(lambda: not daemons(mnt))
