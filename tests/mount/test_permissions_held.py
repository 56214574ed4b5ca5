# SPDX-License-Identifier: Apache-2.0
"""Open directories whose paths now lead to something that their user may not look up."""

import ctypes
import errno
import os

import pytest
from conftest import eventually
from corpus import trees
from test_permissions import ALICE, LEFT, add, around, become, errors_of, source

__all__ = ["source"]  # a fixture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users")

VIEWS = ["tensors", "npy", "merged", "shards"]
AT_EMPTY_PATH, AT_STATX_DONT_SYNC = 0x1000, 0x4000
STATX_UID = 8
UID_AT = 20  # offset of stx_uid in struct statx
READ_COUNTERS = ("fstfs_listings_total", "fstfs_headers_total")


def cached_owner(fd):
    """The owner of an open file, without a request to its file system."""
    found = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).statx(fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_UID, found) == 0
    return int.from_bytes(found[UID_AT:UID_AT + 4], "little")


def hide(other, sub, model):
    """Creates the later target of the paths: a directory of mode 0700 in which `sub` is a directory,
    a file or missing, and m.safetensors is valid, refused, a directory or missing."""
    os.makedirs(other.path("private"))
    if sub == "directory":
        add(other, "private/sub", "m")
    elif sub == "file":
        other.add_side("private/sub")
    if model == "valid":
        add(other, "private", "m")
    elif model == "refused":
        other.add_side("private/m.safetensors", b"garbage")
    elif model == "directory":
        os.makedirs(other.path("private/m.safetensors"))
    os.chmod(other.path("private"), 0o700)


def calls_on(fd, name):
    """Calls on an open directory; `name`: of a file in it."""
    again = f"/proc/self/fd/{fd}"
    return [lambda: os.fstat(fd), lambda: os.listdir(again), lambda: os.stat(name, dir_fd=fd),
            lambda: os.stat("missing", dir_fd=fd), lambda: os.chdir(again),
            lambda: os.getxattr(again, "user.fstfs.source")]


@pytest.mark.parametrize("sub, model", [("directory", "valid"), ("file", "refused"),
                                        ("missing", "missing"), ("missing", "directory")])
@pytest.mark.parametrize("how", ["renamed", "link"])
def test_path_leads_to_something_hidden(mount, place, source, how, sub, model):
    """A user has directories of the mount open. Then the directory above them is replaced by a
    rename, or the user redirects their own link. No call on the descriptors, no counter, and no
    attribute in the kernel's cache depends on what is there now, also after root has looked."""
    add(source, "mine/private/sub", "m")
    add(source, "mine/private", "m")
    other = trees.Source(place / "other")
    hide(other, sub, model)
    for path in ("mine", "mine/private", "mine/private/sub", "mine/private/m.safetensors"):
        os.chown(source.path(path), ALICE, LEFT)
    base = source.path("base")
    if how == "link":
        os.symlink("mine", base)
        os.lchown(base, ALICE, LEFT)
    else:
        os.rename(source.path("mine"), base)
    m = mount(source.root, "-o", "allow_other")
    names = {f"{view}/base/private/sub": "m.safetensors" for view in VIEWS}
    names["tensors/base/private/sub"] = names["npy/base/private/sub"] = "m"
    names |= {"tensors/base/private/m": "t", "npy/base/private/m": "t.npy"}

    def hold():
        become("alice")
        held = {os.open(m / path, os.O_PATH): name for path, name in names.items()}
        assert {cached_owner(fd) for fd in held} == {ALICE}
        return held

    def change():
        if how == "link":
            os.symlink(other.root, f"{base}.new")
            os.lchown(f"{base}.new", ALICE, LEFT)
            os.rename(f"{base}.new", base)
        else:
            os.rename(base, source.path("mine"))
            os.rename(other.root, base)
        assert eventually(lambda: os.stat(m / "shards/base/private").st_mode & 0o777 == 0o500)
        errors_of([lambda path=path: os.stat(m / path) for path in names])  # as root
        before.update(m.metrics())

    def look(held):
        assert {cached_owner(fd) for fd in held} == {ALICE}
        # The kernel caches attributes for 0.5 s.
        assert eventually(lambda: errors_of([lambda fd=fd: os.fstat(fd) for fd in held])
                          == [errno.ESTALE] * len(held))
        return {error for fd, name in held.items() for error in errors_of(calls_on(fd, name))
                if error != errno.ENODATA}  # a directory of the source has no such xattr

    before = {}
    assert around(hold, change, look) == {errno.ESTALE}
    after = m.metrics()
    assert [after[name] for name in READ_COUNTERS] == [before[name] for name in READ_COUNTERS]


def test_attributes_of_open_directories(mount, source):
    """fstat() of an open directory returns its attributes, as in the source, until another one is at
    its path. That of a checkpoint's directory in tensors/ depends on the rights to look it up."""
    add(source, "d/sub", "m")
    m = mount(source.root, "-o", "allow_other")
    paths = [m / path for path in ("merged", "merged/d", "merged/d/sub", "tensors/d/sub/m")]

    def hold():
        become("bob")
        return [os.open(path, os.O_PATH) for path in paths]

    def mode(fd):
        try:
            return oct(os.fstat(fd).st_mode & 0o777)
        except OSError as error:
            return error.errno

    def check(change, expected):
        def look(held):  # The kernel caches attributes for 0.5 s.
            eventually(lambda: [mode(fd) for fd in held] == expected)
            return [mode(fd) for fd in held]

        assert around(hold, change, look) == expected

    def replace():
        os.rename(source.path("d/sub"), source.path("d/before"))
        add(source, "d/sub", "m")

    check(lambda: None, ["0o555"] * 4)
    check(replace, ["0o555", "0o555", errno.ESTALE, errno.ESTALE])
    check(lambda: os.chmod(source.path("d/sub"), 0o700), ["0o555", "0o555", "0o500", errno.EACCES])
    os.chmod(source.path("d/sub"), 0o755)
    check(lambda: os.chmod(source.path("d"), 0o700), ["0o555", "0o500", "0o555", errno.EACCES])


@pytest.mark.parametrize("target", ["valid", "missing"])
def test_link_to_a_hidden_file(mount, place, source, target):
    """Root replaces a shard by a link to where the user may not look. The user's open directory of
    its tensors does not reveal whether the target exists."""
    other = trees.Source(place / "other")
    if target == "valid":
        os.chmod(add(other, "", "m"), 0o644)
    os.chmod(other.root, 0o700)
    path = add(source, "d", "m")
    m = mount(source.root, "-o", "allow_other")

    def hold():
        become("bob")
        return os.open(m / "tensors/d/m", os.O_PATH)

    def change():
        os.symlink(other.path("m.safetensors"), f"{path}.new")
        os.rename(f"{path}.new", path)
        found = 0 if target == "valid" else errno.ENOENT
        assert eventually(lambda: errors_of([lambda: os.stat(m / "merged/d/m.safetensors")]) == [found])

    def look(fd):
        again = f"/proc/self/fd/{fd}"
        calls = [*calls_on(fd, "t"), lambda: os.open(again, os.O_RDONLY)]
        assert eventually(lambda: errors_of(calls[:1]) == [errno.ENOENT])
        return errors_of(calls)

    assert around(hold, change, look) == [errno.ENOENT] * 7
