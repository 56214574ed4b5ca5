# SPDX-License-Identifier: Apache-2.0
"""What open descriptors of directories show once their paths lead to what their user may not look
up."""

import errno
import os

import pytest
from conftest import eventually
from corpus import trees
from test_permissions import ALICE, LEFT, add, around, become, errors_of, source

__all__ = ["source"]  # a fixture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users")

VIEWS = ["tensors", "npy", "merged", "shards"]


def hide(other, sub, model):
    """Makes what the paths lead to later: a closed directory, in which `sub` is a directory, a file
    or missing, and m.safetensors is sound, refused, a directory or missing."""
    os.makedirs(other.path("private"))
    if sub == "directory":
        add(other, "private/sub", "m")
    elif sub == "file":
        other.add_side("private/sub")
    if model == "sound":
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


@pytest.mark.parametrize("sub, model", [("directory", "sound"), ("file", "refused"),
                                        ("missing", "missing"), ("missing", "directory")])
@pytest.mark.parametrize("how", ["renamed", "link"])
def test_path_leads_to_something_hidden(mount, place, source, how, sub, model):
    """A user holds directories of the mount. Their path is replaced by another one, by rename, or
    because the user redirects a link of theirs. No call on the descriptors reveals what is there."""
    add(source, "mine/private/sub", "m")
    add(source, "mine/private", "m")
    other = trees.Source(place / "other")
    hide(other, sub, model)
    for path in ("mine", "mine/private", "mine/private/sub"):
        os.chown(source.path(path), ALICE, LEFT)
    base = source.path("base")
    if how == "link":
        os.symlink("mine", base)
        os.lchown(base, ALICE, LEFT)
    else:
        os.rename(source.path("mine"), base)
    m = mount(source.root, "-o", "allow_other")
    directories = {f"{view}/base/private/sub": "m.safetensors" for view in VIEWS}
    checkpoints = {"tensors/base/private/m": "t", "npy/base/private/m": "t.npy"}
    directories["tensors/base/private/sub"] = directories["npy/base/private/sub"] = "m"

    def hold():
        become("alice")
        return {os.open(m / path, os.O_PATH): name
                for path, name in (directories | checkpoints).items()}

    def change():
        if how == "link":
            os.symlink(other.root, f"{base}.new")
            os.lchown(f"{base}.new", ALICE, LEFT)
            os.rename(f"{base}.new", base)
        else:
            os.rename(base, source.path("mine"))
            os.rename(other.root, base)

    def look(held):
        # The kernel caches attributes for a time.
        assert eventually(lambda: errors_of([lambda fd=fd: os.fstat(fd) for fd in held])
                          == [errno.EACCES] * len(held)), [os.fstat(fd) for fd in held]
        return {error for fd, name in held.items() for error in errors_of(calls_on(fd, name))
                if error != errno.ENODATA}  # a directory of the source has no such xattr

    assert around(hold, change, look) == {errno.EACCES}


def test_attributes_of_held_directories(mount, source):
    """fstat() of a directory shows what stat() by name shows, also after a chmod and a replacement,
    and fails once the caller may not search the path."""
    add(source, "d/sub", "m")
    m = mount(source.root, "-o", "allow_other")
    paths = [m / path for path in ("merged", "merged/d", "merged/d/sub", "tensors/d/sub/m")]

    def hold():
        become("bob")
        return {path: os.open(path, os.O_PATH) for path in paths}

    def attributes(call):
        try:
            st = call()
            return st.st_mode, st.st_uid, st.st_ino, st.st_mtime_ns
        except OSError as error:
            return error.errno

    def look(held):
        def pairs():
            return [(attributes(lambda: os.fstat(fd)), attributes(lambda: os.stat(path)))
                    for path, fd in held.items()]

        # The kernel caches attributes for a time.
        assert eventually(lambda: all(by_fd == by_name for by_fd, by_name in pairs())), pairs()
        return [found if isinstance(found, int) else oct(found[0] & 0o777) for found, _ in pairs()]

    def replace():
        os.rename(source.path("d/sub"), source.path("d/before"))
        add(source, "d/sub", "m")

    assert around(hold, lambda: None, look) == ["0o555"] * 4
    assert around(hold, replace, look) == ["0o555"] * 4
    assert around(hold, lambda: os.chmod(source.path("d/sub"), 0o700), look) == \
        ["0o555", "0o555", "0o500", errno.EACCES]
    os.chmod(source.path("d/sub"), 0o755)
    assert around(hold, lambda: os.chmod(source.path("d"), 0o700), look) == \
        ["0o555", "0o500", errno.EACCES, errno.EACCES]
