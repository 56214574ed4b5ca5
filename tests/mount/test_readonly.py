# SPDX-License-Identifier: Apache-2.0
"""Attributes, xattrs and statfs; nothing can be written."""

import errno
import json
import os
import stat

import oracle
import pytest
from conftest import child
from corpus import trees


@pytest.fixture(scope="session")
def source(shared_place):
    made = trees.nested(shared_place / "readonly", models=6)
    made.add("fine", "model", trees.rich_tensors(), shards=3)
    for i, (name, _) in enumerate(made.checkpoints[-1].shards):
        path = made.path("fine", name)
        os.chmod(path, 0o644 if i else 0o664)
        os.utime(path, ns=(1_500_000_000_123_456_789 + i, 1_600_000_000_987_654_321 + i))
        if os.geteuid() == 0:
            os.chown(path, 1234, 4321)
    os.chmod(made.path("README.md"), 0o755)
    return made


def fails(number, call, *args, **more):
    with pytest.raises(OSError) as raised:
        call(*args, **more)
    assert raised.value.errno in (number if isinstance(number, tuple) else (number,)), \
        f"{call.__name__}{args}: {raised.value}"


def writing_calls(files, directories):
    for path in files:
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC,
                      os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT):
            fails(errno.EROFS, os.open, path, flags)
        fails(errno.EROFS, os.truncate, path, 0)
        fails(errno.EROFS, os.unlink, path)
        fails(errno.EROFS, os.rename, path, path + b"x")
        fails(errno.EROFS, os.link, path, path + b"x")
        fails(errno.EROFS, os.chmod, path, 0o777)
        fails(errno.EROFS, os.chown, path, os.getuid(), -1)
        fails(errno.EROFS, os.utime, path)
        fails(errno.EROFS, os.setxattr, path, "user.x", b"y")
        fails(errno.EROFS, os.setxattr, path, "user.safetensors.name", b"y")
        fails((errno.EROFS, errno.ENODATA), os.removexattr, path, "user.x")
    for path in directories:
        fails(errno.EROFS, os.open, path + b"/new", os.O_WRONLY | os.O_CREAT, 0o666)
        fails(errno.EROFS, os.open, path + b"/new", os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666)
        fails(errno.EROFS, os.mkdir, path + b"/new")
        fails(errno.EROFS, os.symlink, b"x", path + b"/new")
        fails(errno.EROFS, os.mkfifo, path + b"/new")
        fails(errno.EROFS, os.chmod, path, 0o777)
        fails(errno.EROFS, os.utime, path)
        fails((errno.EROFS, errno.EBUSY), os.rmdir, path)
        fails((errno.EROFS, errno.EOPNOTSUPP), os.open, path, os.O_TMPFILE | os.O_RDWR, 0o600)


def test_writing_calls_return_erofs(mount, source):
    m = mount(source.root)
    base = "org0/family0/model000"
    files = [m / p for p in (f"tensors/{base}/model/m0.t0.weight", f"tensors/{base}/model.index.json",
                             f"merged/{base}/model.safetensors", f"merged/{base}/config.json",
                             f"shards/{base}/model.safetensors", "shards/README.md",
                             f"npy/{base}/model/m0.t0.weight.npy", ".fstfs/status",
                             ".fstfs/metrics", ".fstfs/problems")]
    directories = [m.path] + [m / p for p in ("tensors", "merged", "shards", "npy", ".fstfs",
                                   f"tensors/{base}", f"tensors/{base}/model",
                                   f"npy/{base}/model", f"merged/{base}")]
    writing_calls([os.fsencode(p) for p in files], [os.fsencode(p) for p in directories])
    fails(errno.EROFS, os.mknod, m / "merged/new", 0o600 | stat.S_IFREG)
    for path in files:
        assert os.access(path, os.R_OK)
        assert not os.access(path, os.W_OK)
    assert not os.access(files[0], os.X_OK)
    # README.md has these bits in the source; the mount is noexec.
    assert os.stat(files[5]).st_mode & 0o111 and not os.access(files[5], os.X_OK)
    for path in directories:
        assert os.access(path, os.R_OK | os.X_OK) and not os.access(path, os.W_OK)
    with open(files[0], "rb") as f:
        fails((errno.EBADF, errno.EINVAL), os.ftruncate, f.fileno(), 0)
        os.fsync(f.fileno())  # succeeds: there is nothing to write back


def test_writing_calls_as_unprivileged_user(mount, place, test_user, user_binary):
    source = trees.in_root(place / "s")
    m = mount(source.root, user=test_user, binary=user_binary)

    def work():
        oracle.check_source(m.path, source)
        for path in (m / "tensors/model/t0.weight", m / "merged/model.safetensors"):
            # The file belongs to another user, or the mount is read-only; an error in both cases.
            fails((errno.EROFS, errno.EACCES), os.open, path, os.O_RDWR)
            fails((errno.EROFS, errno.EACCES, errno.EPERM), os.unlink, path)
            fails((errno.EROFS, errno.EPERM), os.chmod, path, 0o777)
        fails((errno.EROFS, errno.EACCES), os.mkdir, m / "merged/new")

    child(work, user=test_user)


def test_tensor_files_have_the_attributes_of_their_shards(mount, source):
    m = mount(source.root)
    c = source.checkpoints[-1]
    for shard, tensors in c.shards:
        want = os.stat(source.path("fine", shard))
        paths = [oracle.tensor_file(m / view, c, t, view == "npy")
                 for t in tensors for view in ("tensors", "npy")]
        for path in paths + [os.fsencode(m / f"shards/fine/{shard}")]:
            st = os.stat(path)
            assert st.st_mode == want.st_mode & ~0o222
            assert (st.st_uid, st.st_gid) == (want.st_uid, want.st_gid)
            assert st.st_mtime_ns == want.st_mtime_ns
            assert st.st_nlink == 1
            assert st.st_blocks * 512 >= st.st_size or st.st_size == 0
    st = os.stat(m / "merged/fine/model.safetensors")
    assert st.st_mode == stat.S_IFREG | 0o444
    assert st.st_mtime_ns == max(os.stat(source.path("fine", s)).st_mtime_ns for s, _ in c.shards)
    side, want = os.stat(m / "merged/README.md"), os.stat(source.path("README.md"))
    assert side.st_mode == stat.S_IFREG | 0o555
    assert (side.st_size, side.st_mtime_ns) == (want.st_size, want.st_mtime_ns)
    for view in ("tensors", "merged", "shards", "npy"):
        st, want = os.stat(m / f"{view}/org0"), os.stat(source.path("org0"))
        assert st.st_mode == want.st_mode & ~0o222
        assert (st.st_uid, st.st_gid, st.st_mtime_ns) == \
            (want.st_uid, want.st_gid, want.st_mtime_ns)


def test_xattrs(mount, source):
    m = mount(source.root)
    c = source.checkpoints[-1]
    for shard, tensors in c.shards:
        for t in tensors:
            path = oracle.tensor_file(m / "tensors", c, t)
            assert {"user.safetensors.name", "user.safetensors.dtype", "user.safetensors.shape",
                    "user.fstfs.extents"} <= set(os.listxattr(path))
            assert os.getxattr(path, "user.safetensors.name") == t.name.encode()
            assert os.getxattr(path, "user.safetensors.dtype") == t.dtype.encode()
            assert os.getxattr(path, "user.safetensors.shape") == json.dumps(t.shape).encode()
            extents = json.loads(os.getxattr(path, "user.fstfs.extents"))
            data = b""
            for e in extents:
                assert set(e) >= {"path", "offset", "length"}
                assert os.path.isabs(e["path"])
                assert os.path.samefile(e["path"], source.path("fine", shard))
                with open(e["path"], "rb") as f:
                    f.seek(e["offset"])
                    data += f.read(e["length"])
            assert data == t.data
            fails(errno.ENODATA, os.getxattr, path, "user.nothing")
            fails(errno.ENODATA, os.getxattr, path, "user.safetensors.")


def strictly(value):
    """Strict JSON: without lone surrogates, which Python accepts."""
    read = json.loads(value.decode())
    json.dumps(read, ensure_ascii=False).encode()
    return read


def test_xattrs_of_names_that_are_not_utf8(mount, place):
    """The names are hexadecimal, under another key, and the bytes are found."""
    strange = os.fsdecode(b"m\xff\xfe\"\x01")
    source = trees.Source(place / "s")
    c = source.add(f"{strange}/d", "st\udce9m", [trees.tensor("t", "U8", (5000,))])
    m = mount(source.root)
    whole = os.path.join(m.path, "shards", c.directory, c.shards[0][0])
    for path, want in ((oracle.tensor_file(m / "tensors", c, c.tensors[0]), c.tensors[0].data),
                       (whole, oracle.read_all(source.path(c.directory, c.shards[0][0])))):
        extent, = strictly(os.getxattr(path, "user.fstfs.extents"))
        assert "path" not in extent
        below = bytes.fromhex(extent["path_hex"])
        assert below == os.fsencode(source.path(c.directory, c.shards[0][0]))
        with open(below, "rb") as f:
            f.seek(extent["offset"])
            assert f.read(extent["length"]) == want
    for path in (f"tensors/{c.directory}/{c.stem}", f"merged/{c.directory}/{c.stem}.safetensors"):
        origin = strictly(os.getxattr(m / path, "user.fstfs.source"))
        assert not {"directory", "checkpoint"} & set(origin)
        assert bytes.fromhex(origin["directory_hex"]) == os.fsencode(source.path(c.directory))
        assert bytes.fromhex(origin["checkpoint_hex"]) == os.fsencode(c.stem)


def test_files_without_xattrs(mount, source):
    m = mount(source.root)
    for path in ("tensors", "tensors/fine/model", "tensors/fine/model.index.json",
                 "merged/README.md", ".fstfs/status"):
        assert [n for n in os.listxattr(m / path) if n.startswith("user.safetensors")] == []
        fails(errno.ENODATA, os.getxattr, m / path, "user.safetensors.name")
        fails((errno.ENODATA, errno.EOPNOTSUPP), os.getxattr, m / path, "security.selinux")


def test_xattr_sizes(mount, source):
    """The kernel's protocol: size 0 asks for the size; a small buffer gets ERANGE."""
    import ctypes
    m = mount(source.root)
    c = source.checkpoints[-1]
    path = oracle.tensor_file(m / "tensors", c, c.tensors[0])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.getxattr.restype = libc.listxattr.restype = ctypes.c_ssize_t
    for name in (b"user.safetensors.name", b"user.fstfs.extents"):
        size = libc.getxattr(path, name, None, 0)
        assert size == len(os.getxattr(path, name))
        buffer = ctypes.create_string_buffer(size)
        assert libc.getxattr(path, name, buffer, size) == size
        assert libc.getxattr(path, name, buffer, size - 1) == -1
        assert ctypes.get_errno() == errno.ERANGE
    size = libc.listxattr(path, None, 0)
    buffer = ctypes.create_string_buffer(size)
    assert libc.listxattr(path, buffer, size) == size
    assert libc.listxattr(path, buffer, size - 1) == -1 and ctypes.get_errno() == errno.ERANGE


def test_xattrs_with_unusual_names(mount, place):
    source = trees.names(place / "s")
    c, = source.checkpoints
    m = mount(source.root)
    for view, npy in (("tensors", False),):
        for t in c.tensors:
            path = oracle.tensor_file(m / view, c, t, npy)
            assert os.getxattr(path, "user.safetensors.name") == t.name.encode()


def test_statfs(mount, source):
    m = mount(source.root)
    here = os.statvfs(source.root)
    for path in (m.path, m / "merged/README.md", m / "tensors/fine/model"):
        there = os.statvfs(path)
        assert there.f_blocks * there.f_frsize == here.f_blocks * here.f_frsize
        assert there.f_namemax == 255
        assert there.f_flag & os.ST_RDONLY
    assert there.f_bavail == 0 or there.f_bavail * there.f_frsize <= \
        here.f_blocks * here.f_frsize


def test_ordinary_errors(mount, source):
    m = mount(source.root)
    fails(errno.EISDIR, oracle.read_all, m / "tensors")
    fails(errno.ENOTDIR, os.listdir, m / "merged/README.md")
    fails(errno.ENOTDIR, os.open, m / "merged/README.md/x", os.O_RDONLY)
    fails(errno.EINVAL, os.readlink, m / "merged/README.md")
    fd = os.open(m / "merged/README.md", os.O_RDONLY)
    fails(errno.EBADF, os.write, fd, b"x")
    fails(errno.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
    os.close(fd)
