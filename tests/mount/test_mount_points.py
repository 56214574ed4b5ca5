# SPDX-License-Identifier: Apache-2.0
"""Sources and mount points: which are refused, and mounts inside each other."""

import os
import re
import signal
import subprocess
import time

import oracle
import pytest
from command_line import (daemons, gone, mnt, nothing_left, refused,  # noqa: F401 (fixtures)
                          run, source)
from conftest import child, eventually, mounted_at, stop


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
class TestRefusedPaths:
    def test_no_such_source(self, fstfs, place, mnt, flags):
        refused(run(fstfs, *flags, place / "nothing", mnt), "nothing", "no such")
        nothing_left(mnt)

    def test_source_is_a_file(self, fstfs, place, source, mnt, flags):
        refused(run(fstfs, *flags, place / "s/config.json", mnt), "config.json", "not a directory")
        nothing_left(mnt)

    def test_source_is_a_checkpoint_file(self, fstfs, place, source, mnt, flags):
        refused(run(fstfs, *flags, place / "s/model.safetensors", mnt), "not a directory")
        nothing_left(mnt)

    def test_source_is_empty_string(self, fstfs, mnt, flags):
        refused(run(fstfs, *flags, "", mnt))
        nothing_left(mnt)

    def test_mount_point_is_missing(self, fstfs, place, source, flags):
        refused(run(fstfs, *flags, source.root, place / "nowhere"), "nowhere", "no such")
        assert not (place / "nowhere").exists()
        nothing_left(place / "nowhere")

    def test_mount_point_is_a_file(self, fstfs, place, source, flags):
        (place / "file").write_bytes(b"x")
        refused(run(fstfs, *flags, source.root, place / "file"), "file", "not a directory")
        nothing_left(place / "file")

    def test_mount_point_is_not_empty(self, fstfs, source, mnt, flags):
        (mnt / "something").write_bytes(b"x")
        refused(run(fstfs, *flags, source.root, mnt), "not empty")
        nothing_left(mnt)
        assert (mnt / "something").read_bytes() == b"x"

    def test_mount_point_is_busy(self, fstfs, source, mnt, flags):
        assert run(fstfs, source.root, mnt).returncode == 0
        refused(run(fstfs, *flags, source.root, mnt), re.escape(os.fspath(mnt)))
        assert len(mounted_at(mnt)) == 1 and len(daemons(mnt)) == 1
        oracle.check_source(mnt, source)  # the first mount still works
        run("fusermount3", "-u", mnt)
        gone(mnt)

    def test_mount_point_is_the_source(self, fstfs, source, flags):
        refused(run(fstfs, *flags, source.root, source.root))
        nothing_left(source.root)

    def test_no_dev_fuse(self, fstfs, source, mnt, flags):
        if os.geteuid() != 0:
            pytest.skip("needs root: a mount namespace without /dev/fuse")
        probe = run("unshare", "-m", "true")
        if probe.returncode:
            pytest.skip(f"cannot create a mount namespace: {probe.stderr.strip()}")
        done = run("unshare", "-m", "--propagation", "slave", "sh", "-c",
                   'mount -t tmpfs none /dev && exec "$@"', "sh", fstfs, *flags, source.root, mnt)
        refused(done, "/dev/fuse")
        nothing_left(mnt)


def test_mount_point_inside_the_source(fstfs, place, source):
    """The daemon must not walk into its own mount: the mount is refused, or works without hanging."""
    mnt = place / "s/mnt"
    mnt.mkdir()
    done = run(fstfs, source.root, mnt)
    try:
        if done.returncode:
            refused(done)
            nothing_left(mnt)
            return
        def work():
            found = oracle.walk(mnt / "tensors")
            oracle.walk(mnt / "merged")
            return found

        assert b"model/t0.weight" in child(work, seconds=20)
        assert child(oracle.read_all, mnt / "tensors/model/t0.weight", seconds=10)
    finally:
        for pid in daemons(mnt):
            if done.returncode == 0:
                run("fusermount3", "-uz", mnt)
        assert eventually(lambda: not daemons(mnt)) or [os.kill(p, 9) for p in daemons(mnt)]


def test_source_below_another_fstfs_mount(mount, source):
    """SOURCE may be on any file system, including another FUSE mount."""
    first = mount(source.root)
    second = mount(first / "merged")
    oracle.check_source(second.path, source, views=("tensors", "npy", "merged"))
    assert oracle.read_all(second / "shards/model.safetensors") == \
        oracle.read_all(first / "merged/model.safetensors")
    second.unmount()


def test_mount_point_inside_its_own_source(mount, fstfs, place, source):
    """A mount inside what its source shows would contain itself without end. SOURCE may be another
    mount of fstfs, a part of it, a directory above it, or a mount of it."""
    source.directory("in side")
    inside = source.path("in side")
    above = place / "above"
    (above / "m").mkdir(parents=True)
    assert run(fstfs, source.root, above / "m").returncode == 0
    try:
        second = mount(above / "m/merged")
        for of in (above / "m", above / "m/merged", above, second.path):
            done = run(fstfs, of, inside)
            if done.returncode == 0:
                run("fusermount3", "-uz", inside)
            refused(done, re.escape(inside), re.escape(os.fspath(source.root)), "elsewhere")
            assert not mounted_at(inside)
        third = mount(above / "m/merged")  # a mount point elsewhere works
        oracle.check_source(third.path, source, views=("merged",))
        third.unmount()
        second.unmount()
    finally:
        run("fusermount3", "-uz", above / "m")
    gone(above / "m")


def test_dead_mount_point(mount, fstfs, source):
    """After kill -9, mounting again prints what is wrong, and works after `fusermount3 -u`."""
    m = mount(source.root, died=True)
    os.statvfs(m.path)  # answered: if it dies before, fusermount3 of libfuse 3.17 unmounts
    m.signal(signal.SIGKILL)
    m.wait()
    with pytest.raises(OSError):
        os.listdir(m.path)
    done = run(fstfs, source.root, m.path)
    if done.returncode:
        refused(done, re.escape(m.path), "not connected|fusermount3|umount")
        assert run("fusermount3", "-u", m.path).returncode == 0
        assert run(fstfs, source.root, m.path).returncode == 0
    oracle.check_source(m.path, source)
    run("fusermount3", "-u", m.path)
    gone(m.path)


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_remount_right_after_a_kill(fstfs, source, mnt, flags):
    """The kernel may have attributes of the dead mount cached. No mount is stacked on it."""
    for _ in range(20):
        assert run(fstfs, source.root, mnt).returncode == 0
        pid, = daemons(mnt)
        os.listdir(mnt)  # so that the kernel caches attributes and entries
        os.kill(pid, signal.SIGKILL)
        done = run(fstfs, *flags, source.root, mnt)
        refused(done, re.escape(os.fspath(mnt)), f"fusermount3 -u {re.escape(os.fspath(mnt))} ")
        assert done.returncode == 1
        assert len(mounted_at(mnt)) == 1
        assert eventually(lambda: run("fusermount3", "-u", mnt).returncode == 0)
        nothing_left(mnt)


def test_mount_point_of_a_stopped_daemon(fstfs, source, mnt):
    """Refused without a request to that daemon, which would hang."""
    assert run(fstfs, source.root, mnt).returncode == 0
    pid, = daemons(mnt)
    stop(pid)
    try:
        time.sleep(1.2)  # longer than the attribute timeout: a request would hang
        done = run(fstfs, source.root, mnt)
    finally:
        os.kill(pid, signal.SIGCONT)
    refused(done, "busy")
    assert done.returncode == 1 and len(mounted_at(mnt)) == 1
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


def test_mount_point_below_a_hidden_mount(fstfs, source, mnt, place):
    """A hidden mount does not make a directory below the mount that hides it busy."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount")
    assert run(fstfs, source.root, mnt).returncode == 0
    above = place / "above"
    above.mkdir()
    (above / "mnt").mkdir()
    (above / "s").symlink_to(source.root)
    subprocess.run(["mount", "--bind", above, place], check=True)
    try:
        done = run(fstfs, mnt, mnt)
        refused(done, "is inside of")  # not busy: the path is a plain directory now
    finally:
        subprocess.run(["umount", place], check=True)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)
