# SPDX-License-Identifier: Apache-2.0
"""The source on one file system after another, each in an image, on a loop device or served for
the test: every byte in every view and by every method to read, and by which path the daemon reads.
Run by tools/sources, which installs what it needs; what a machine lacks is skipped, with the reason."""

import os
import shutil
import subprocess

import pytest
import tables
import versions
from common import check, core_tests, put, way_below
from conftest import SLOW, child, eventually
from corpus import trees

SIZE = "300M"


def run(*command, **more):
    """A command that has to work; what the machine lacks skips the test."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def rich(shared_place):
    return trees.rich(shared_place / "rich")


@pytest.fixture
def disk(place):
    """disk(kind): where a file system of that kind is mounted, gone after the test."""
    mounted = []

    def kernel_has(kind):
        with open("/proc/filesystems") as f:
            if kind not in f.read().split():
                pytest.skip(f"the kernel has no {kind}")

    def mount_on(path, *arguments):
        path.mkdir(exist_ok=True)
        run("mount", *arguments, path)
        mounted.append(path)
        if os.access(path, os.W_OK):
            path.chmod(0o755)
        return path

    def image(kind, *maker):
        kernel_has(kind)
        file = place / f"{kind}.img"
        run("truncate", "-s", SIZE, file)
        run(*maker, file)
        options = ["-o", "loop,compress=zstd"] if kind == "btrfs" else ["-o", "loop"]
        return mount_on(place / kind, "-t", kind, *options, file)

    def packed(kind, rich, *maker):
        kernel_has(kind)
        file = place / f"{kind}.img"
        if maker[0] == "mksquashfs":
            run(maker[0], rich.root, file, *maker[1:])
        else:
            run(*maker, file, rich.root)
        return mount_on(place / kind, "-t", kind, "-o", "loop,ro", file)

    def make(kind, rich):
        if os.geteuid() != 0:
            pytest.skip("needs root: file systems are mounted")
        if kind == "ext4":
            return image(kind, "mkfs.ext4", "-q")
        if kind == "XFS":
            return image("xfs", "mkfs.xfs", "-q")
        if kind == "btrfs, compressed":
            return image("btrfs", "mkfs.btrfs", "-q")
        if kind == "tmpfs":
            return mount_on(place / "tmpfs", "-t", "tmpfs", "tmpfs")
        if kind == "overlay":
            for name in ("lower", "upper", "work"):
                (place / name).mkdir()
            return mount_on(place / "overlay", "-t", "overlay", "-o",
                            f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work",
                            "overlay")
        if kind == "squashfs":
            return packed(kind, rich, "mksquashfs", "-quiet", "-no-progress")
        if kind == "erofs, compressed":
            return packed("erofs", rich, "mkfs.erofs", "-zlz4")
        assert kind == "bindfs"
        (place / "below").mkdir()
        (place / "bindfs").mkdir()
        run("bindfs", place / "below", place / "bindfs")
        mounted.append(place / "bindfs")
        return place / "bindfs"

    yield make
    for path in reversed(mounted):
        assert eventually(lambda: subprocess.run(["umount", path]).returncode == 0), path


KINDS = ["ext4", "XFS", "btrfs, compressed", "overlay", "tmpfs", "squashfs", "erofs, compressed",
         "bindfs"]
PACKED = ("squashfs", "erofs, compressed")
NO_CORE = {kind: "it cannot be written to" for kind in PACKED} | {
    # a directory cannot be removed at once when something in it was
    "bindfs": "not run: what is removed while it is open stays for a moment"}


@pytest.mark.limit(900)
@pytest.mark.parametrize("kind", KINDS)
def test_source(disk, mount, rich, kind):
    path = disk(kind, rich)
    below = set()
    source = trees.Source.at(path, rich) if kind in PACKED else put(path / "s", rich)
    for engine in ((), ("--io=threads",)):
        m = mount(source.root, *engine, limit=300 * SLOW)
        child(check, m, source, seconds=200)
        below.add(way_below(m))
        assert m.unmount() == 0
    assert len(below) == 1, below
    core = NO_CORE.get(kind) or core_tests(path)
    tables.check("sources", kind, below.pop(), "right", core)


VERSIONS = {"ext4": ["mkfs.ext4", "-q"], "ext4, 128-byte inodes": ["mkfs.ext4", "-q", "-I", "128"],
            "btrfs": ["mkfs.btrfs", "-q"], "XFS": ["mkfs.xfs", "-q"], "tmpfs": None}


@pytest.mark.limit(900)
@pytest.mark.parametrize("kind", VERSIONS)
def test_versions(place, mount, kind):
    """Writers of every kind beside readers of every view."""
    if os.geteuid() != 0:
        pytest.skip("needs root: file systems are mounted")
    path = place / "disk"
    path.mkdir()
    if VERSIONS[kind]:
        run("truncate", "-s", "3G", place / "image")
        run(*VERSIONS[kind], place / "image")
        run("mount", "-o", "loop", place / "image", path)
    else:
        run("mount", "-t", "tmpfs", "tmpfs", path)
    mounts = []

    def mount_at(source, *options):
        mounts.append(mount(source, *options, limit=800 * SLOW))
        return mounts[-1].path

    try:
        found = versions.measure(path / "s", mount_at, 5 * SLOW)
    finally:
        for m in mounts:
            m.unmount()
        assert eventually(lambda: subprocess.run(["umount", path]).returncode == 0)
    tables.check("versions", kind, *versions.cells(found))
