# SPDX-License-Identifier: Apache-2.0
"""Sources on FUSE file systems that root mounted without allow_other: no other user can read them
through a mount of fstfs either."""

import os
import subprocess

import pytest
from conftest import BUILD, child, eventually
from corpus import trees
from test_permissions import ALICE, BOB, files_of, guess_by_shard, openable, own, readable, what_bob_sees

SLOWFS = BUILD / "tests/slowfs/slowfs"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users"),
    pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built"),
]


@pytest.fixture(params=["private", "allow_other"])
def fuse(request, mount, place):
    """Mounts a checkpoint by slowfs at a path. Returns its files that bob can read."""
    backing = trees.Source(place / "backing")
    backing.add(".", "model", [trees.tensor("t", "U8", (6000,))])

    def at(path):
        path.mkdir(parents=True, exist_ok=True)
        options = ["-o", "allow_other"] if request.param == "allow_other" else []
        mount(backing.root, *options, binary=SLOWFS, mountpoint=path)
        return child(readable, "bob", [path / "model.safetensors"])

    at.is_private = request.param == "private"
    return at


def check_bob(fuse, m, directory):
    """Root can read all files of the checkpoint; bob none, or all if the mount has allow_other."""
    paths = set(files_of(m, directory, "model"))
    assert eventually(lambda: all(map(os.path.exists, paths)))
    assert openable(paths) == paths
    assert child(readable, "bob", paths) == (set() if fuse.is_private else paths)
    assert openable(paths) == paths


def test_source_is_a_mount(fuse, mount, place):
    assert bool(fuse(place / "s")) is not fuse.is_private
    check_bob(fuse, mount(place / "s", "-o", "allow_other"), ".")


def test_links_to_a_mount(fuse, mount, place):
    """bob could place these links in a directory of theirs."""
    bare = fuse(place / "fuse")
    (place / "s/file").mkdir(parents=True)
    os.symlink(place / "fuse", place / "s/directory")
    os.symlink(place / "fuse/model.safetensors", place / "s/file/model.safetensors")
    assert bool(bare) is not fuse.is_private
    m = mount(place / "s", "-o", "allow_other")
    check_bob(fuse, m, "directory")
    check_bob(fuse, m, "file")


def test_link_through_a_mount(fuse, mount, place):
    """The file is on another file system, but the path to it leads through the mount."""
    fuse(place / "fuse")
    (place / "s").mkdir()
    other = trees.Source(place / "other")
    other.add(".", "model", [trees.tensor("t", "U8", (5000,))])
    os.symlink(place / "fuse/../other", place / "s/x")
    check_bob(fuse, mount(place / "s", "-o", "allow_other"), "x")


def test_mount_inside_a_mount(fuse, mount, place):
    """A bind mount inside the FUSE mount is reached through it only."""
    os.makedirs(place / "backing/inside")
    other = trees.Source(place / "other")
    other.add(".", "model", [trees.tensor("t", "U8", (5000,))])
    fuse(place / "s/fuse")
    subprocess.run(["mount", "--bind", other.root, place / "s/fuse/inside"], check=True)
    try:
        m = mount(place / "s", "-o", "allow_other")
        check_bob(fuse, m, "fuse/inside")
        m.unmount()
    finally:
        subprocess.run(["umount", place / "s/fuse/inside"], check=True)


def test_mounted_later(fuse, mount, place):
    source = trees.Source(place / "s")
    source.add("plain", "model", [trees.tensor("t", "U8", (5000,))])
    m = mount(source.root, "-o", "allow_other")
    plain = set(files_of(m, "plain", "model"))
    assert child(readable, "bob", plain) == plain
    fuse(place / "s/late")
    check_bob(fuse, m, "late")
    assert child(readable, "bob", plain) == plain


def test_server_that_decides_at_open(mount, place):
    """The file system grants access(2) by modes, and refuses open(2) to all users but alice."""
    backing = trees.Source(place / "backing")
    backing.add("d", "model", [trees.tensor("t", "U8", (6000,))])
    backing.add_side("d/config.json", b"{}")
    (place / "s").mkdir()
    mount(backing.root, "-o", f"allow_other,only={ALICE}", binary=SLOWFS, mountpoint=place / "s")
    m = mount(place / "s", "-o", "allow_other")
    theirs = [place / "s/d/model.safetensors", place / "s/d/config.json"]
    shown = [*files_of(m, "d", "model"), m / "merged/d/config.json"]
    for who, may in (("alice", True), ("bob", False), ("alice", True)):
        assert child(readable, who, theirs) == set(theirs if may else ())
        assert child(readable, who, shown) == set(shown if may else ()), who


def test_server_that_shows_any_owner(mount, place):
    """Bob can read a shard that a server shows as Alice's, with the mode of her closed shard. He learns
    nothing about the names in that one."""
    seen, shown = [], []
    for guess in ("hidden", "absent"):
        source, backing = trees.Source(place / f"s-{guess}"), place / f"backing-{guess}"
        guess_by_shard(source, guess)
        own(source, "m-00001-of-00002.safetensors", "alice", 0o600)
        backing.mkdir()
        os.rename(source.path("m-00001-of-00002.safetensors"), backing / "m")
        server = mount(backing, "-o", f"allow_other,only={BOB}", binary=SLOWFS)
        os.symlink(server / "m", source.path("m-00001-of-00002.safetensors"))
        assert child(readable, "bob", [server / "m"])
        m = mount(source.root, "-o", "allow_other")
        seen.append(child(what_bob_sees, m, guess))
        shown.append(os.listdir(m / "merged"))
    assert seen[0] == seen[1] and shown[0] != shown[1]
