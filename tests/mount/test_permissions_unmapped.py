# SPDX-License-Identifier: Apache-2.0
"""A daemon in a user namespace, as in a rootless container. The files and groups of the host that
the namespace does not map all have the number 65534 there, which is also a user of the container."""

import concurrent.futures
import contextlib
import ctypes
import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, child, eventually
from corpus import trees
from test_permissions import MASK, USER, R, give_list

FIRST = 300000  # the host's number of the container's root
NOBODY = 65534
THEIRS, OTHERS = 40001, 40002  # groups and users of the host
HOST_USER = 20001
NEW_NAMESPACES = 0x10000000 | 0x20000  # CLONE_NEWUSER, CLONE_NEWNS
SLOWFS = BUILD / "tests/slowfs/slowfs"
VIEWS = (("merged", "m.safetensors"), ("shards", "m.safetensors"), ("tensors", "m/t"))
AS_HOST_USER = ["setpriv", f"--reuid={HOST_USER}", f"--regid={HOST_USER}", "--clear-groups"]
# Commands that start a daemon with all rights of the container's root, or without CAP_SETUID and
# CAP_SETGID, so that it decides by modes
LIMITED = {
    "all": [],
    "sys_admin": ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+sys_admin"],
    "user": ["setpriv", "--reuid=1000", "--regid=0", "--keep-groups", "--inh-caps=+sys_admin",
             "--ambient-caps=+sys_admin"],
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it maps users")


def call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def in_container(place, work, groups=(), ids=((0, FIRST, NOBODY + 2),), before=lambda: None):
    """Returns work() of a process that is root of a user namespace with these IDs (there, of the
    host, count). It keeps its supplementary groups. before(): called as root of the host, in the
    mount namespace that the container's is a copy of."""
    asked, ask = os.pipe()
    answered, answer = os.pipe()

    def prepare():
        call("unshare", 0x20000)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", place / "dev"], check=True)
        os.mknod(place / "dev/fuse", 0o020666, os.makedev(10, 229))  # the host's may be closed to users
        os.chmod(place / "dev/fuse", 0o666)
        subprocess.run(["mount", "--bind", place / "dev/fuse", "/dev/fuse"], check=True)
        users = Path("/etc/passwd").read_text() + f"fstfs-host-user:x:{HOST_USER}:{HOST_USER}::/:/bin/sh\n"
        for name, text in (("fuse.conf", "user_allow_other\n"), ("passwd", users)):
            (place / "dev" / name).write_text(text)
            subprocess.run(["mount", "--bind", place / "dev" / name, f"/etc/{name}"], check=True)
        before()
        os.setgroups(groups)
        call("unshare", NEW_NAMESPACES)

    def inside():
        try:
            prepare()
        except BaseException as error:
            os.write(ask, b"0")
            if isinstance(error, OSError):
                return error
            raise
        os.write(ask, str(os.getpid()).encode())
        assert os.read(answered, 6) == b"mapped"
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        return work()

    (place / "dev").mkdir()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        got = pool.submit(child, inside)
        pid = int(os.read(asked, 10))
        for name in ("uid_map", "gid_map") if pid else ():
            with open(f"/proc/{pid}/{name}", "w") as f:
                f.write("".join(f"{' '.join(map(str, line))}\n" for line in ids))
        os.write(answer, b"mapped")
        result = got.result()
    for end in (asked, ask, answered, answer):
        os.close(end)
    if isinstance(result, OSError):
        pytest.skip(f"cannot create a user namespace: {result}")
    return result


def unmount(path):
    """A daemon whose source it is may still be ending."""
    assert eventually(lambda: subprocess.run(["umount", path]).returncode == 0)


def end_server(backing):
    """Ends a slowfs, whose mount namespace the test has left."""
    servers = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(b"slowfs") and os.fsencode(backing) in arguments:
                servers.append(int(process.name))
    for server in servers:
        os.kill(server, signal.SIGTERM)
    assert servers


def readable_by(user, group, keeps_groups, paths):
    if not keeps_groups:
        os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    found = set()
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb") as f:
            f.read(1)
            found.add(path)
    return found


# {name: (owner, group, mode)} in numbers of the host
FILES = {
    "group": (FIRST, THEIRS, 0o640), "not-group": (FIRST, THEIRS, 0o604), "owner": (THEIRS, FIRST, 0o440),
    "not-owner": (THEIRS, FIRST, 0o044), "all": (FIRST, THEIRS, 0o644), "nobody": (FIRST + NOBODY, FIRST, 0o440),
    "nogroup": (FIRST, FIRST + NOBODY, 0o640),
}
CALLERS = [(NOBODY, NOBODY, False), (2000, NOBODY, False), (NOBODY, 2000, False), (2000, 2000, True),
           (2000, 2000, False)]


@pytest.mark.parametrize("groups", [[], [THEIRS], [OTHERS]], ids=["none", "theirs", "others"])
@pytest.mark.parametrize("rights", ["all", "sys_admin", "user"])
def test_unmapped_ids(place, user_binary, rights, groups):
    """No user of the container reads what the kernel denies."""
    source = trees.Source(place / "s")
    for name, (owner, group, mode) in FILES.items():
        source.add(name, "m", [trees.tensor("t", "U8", (5,))])
        for path in (source.path(name, "m.safetensors"), source.path(name)):
            os.chown(path, owner, group)
            os.chmod(path, mode | (mode & 0o444) >> 2 if os.path.isdir(path) else mode)
        source.add(f"f/{name}", "m", [trees.tensor("t", "U8", (5,))])
        os.chown(source.path("f", name, "m.safetensors"), owner, group)
        os.chmod(source.path("f", name, "m.safetensors"), mode)
    (place / "mnt").mkdir()
    os.chown(place / "mnt", FIRST + 1000 * (rights == "user"), FIRST)

    def work():
        subprocess.run([*LIMITED[rights], user_binary, "-o", "allow_other", source.root, place / "mnt"], check=True)
        try:
            got = {}
            for caller in CALLERS:
                for top in ("", "f/"):
                    for name in FILES:
                        ours = source.path(f"{top}{name}", "m.safetensors")
                        shown = [f"{place}/mnt/{view}/{top}{name}/{file}" for view, file in VIEWS]
                        may = child(readable_by, *caller, [ours])
                        got[caller, top, name] = bool(may), child(readable_by, *caller, shown)
            return got
        finally:
            unmount(place / "mnt")

    got = in_container(place, work, groups)
    wrong = {key: sorted(shown) for key, (may, shown) in got.items() if shown and not may}
    assert not wrong
    assert any(len(shown) == 3 for may, shown in got.values())


@pytest.mark.parametrize("owner, group, mode", [(NOBODY, 0, 0o440), (0, NOBODY, 0o640)], ids=["owner", "group"])
def test_shards_of_two_unmapped_ids(place, user_binary, owner, group, mode):
    """A shard of the container's user (or group) 65534 beside one of an unmapped one: both show the
    same number. Whether a tensor of the first shard exists depends on the names in the second one,
    which the caller may not read."""
    source = trees.Source(place / "s")
    tensors = [trees.tensor(name, "U8", (5,)) for name in ("ours", "theirs")]
    shards = [name for name, _ in source.add("", "m", tensors, shards=2).shards]
    os.chown(source.path(shards[0]), FIRST + owner, FIRST + group)
    os.chown(source.path(shards[1]), THEIRS if owner else FIRST, THEIRS if group else FIRST)
    for name in shards:
        os.chmod(source.path(name), mode)
    (place / "mnt").mkdir()
    os.chown(place / "mnt", FIRST, FIRST)

    def work():
        subprocess.run([user_binary, "-o", "allow_other", source.root, place / "mnt"], check=True)
        try:
            return [len(child(readable_by, owner or 2000, group or 2000, False, paths)) for paths in (
                [source.path(shards[0])], [source.path(shards[1])], [f"{place}/mnt/tensors/m/ours"])]
        finally:
            unmount(place / "mnt")

    assert in_container(place, work) == [1, 0, 0]


@pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built")
@pytest.mark.parametrize("rights", ["all", "sys_admin"])
def test_private_file_system_of_a_host_user(place, user_binary, user_program, rights):
    """The container's root is the host's user who mounted a FUSE file system without allow_other. The
    table of mounts shows that user's number of the host, which is another user's in the container."""
    source, backing = trees.Source(place / "s"), trees.Source(place / "backing")
    for tree, directory in ((source, "d"), (backing, "")):
        tree.add(directory, "m", [trees.tensor("t", "U8", (5,))])
    (place / "mnt").mkdir()
    os.mkdir(source.path("private"))
    for path in (place / "mnt", source.path("private")):
        os.chown(path, HOST_USER, HOST_USER)
    slowfs = user_program(SLOWFS)

    def before():
        subprocess.run([*AS_HOST_USER, slowfs, backing.root, source.path("private")], check=True)

    def work():
        try:
            subprocess.run([*LIMITED[rights], user_binary, "-o", "allow_other", source.root, place / "mnt"], check=True)
            paths = {top: [f"{place}/mnt/{view}/{top}/{file}" for view, file in VIEWS] for top in ("d", "private")}
            theirs = [source.path("private/m.safetensors")]
            return {user: tuple(len(child(readable_by, user, user, False, at)) for at in (
                theirs, paths["private"], paths["d"])) for user in (HOST_USER, 1000)}
        finally:
            unmount(place / "mnt")

    try:
        got = in_container(place, work, ids=((0, HOST_USER, 1), (1, FIRST, NOBODY)), before=before)
    finally:
        end_server(backing.root)
    assert got == {HOST_USER: (0, 0, len(VIEWS)), 1000: (0, 0, len(VIEWS))}


@pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built")
def test_links_on_a_file_system_of_a_host_user(place, user_binary, user_program):
    """The host's user who mounted it has the number of the daemon's user in the container, and is
    somebody else: that user's links do not count as the daemon's."""
    source, backing = trees.Source(place / "s"), place / "backing"
    source.add_side("here", b"")
    (place / "closed").mkdir(mode=0o700)
    (place / "closed/file").write_bytes(b"")
    for path in (backing, place / "mnt", source.path("far")):
        os.mkdir(path)
    os.symlink(place / "closed/file", backing / "link")
    os.chown(source.path("far"), HOST_USER, HOST_USER)
    for path in (place / "mnt", place / "closed", place / "closed/file"):
        os.chown(path, FIRST + HOST_USER, FIRST + HOST_USER)
    slowfs = user_program(SLOWFS)

    def before():
        subprocess.run([*AS_HOST_USER, slowfs, "-o", "allow_other", backing, source.path("far")], check=True)

    def work():
        try:
            subprocess.run(["setpriv", *(f"--{kind}={HOST_USER}" for kind in ("reuid", "regid")), "--clear-groups",
                            "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin",
                            user_binary, "-o", "allow_other", source.root, place / "mnt"], check=True)
            assert os.listdir(place / "mnt/shards") == ["far", "here"]
            return os.listdir(place / "mnt/shards/far")
        finally:
            unmount(place / "mnt")

    try:
        assert in_container(place, work, before=before) == []
    finally:
        end_server(backing)


def test_mount_of_another_mount(place, user_binary):
    """A daemon that decides by modes cannot decide for the files of another fstfs: that shows neither
    access control lists nor the directories on the path of a link."""
    source = trees.Source(place / "s")
    for name in ("plain", "list", "closed/linked"):
        source.add_side(f"{name}.txt", b"x")
    os.chmod(source.path("closed"), 0o700)
    os.symlink("closed/linked.txt", source.path("link.txt"))
    os.chown(source.path("link.txt"), FIRST, FIRST, follow_symlinks=False)
    for name in ("", "closed", "plain.txt", "list.txt", "closed/linked.txt"):
        os.chown(source.path(name), FIRST + 1000, FIRST)
    give_list(source.path("list.txt"), [(USER, FIRST + 2000, 0), (MASK, None, R)])
    for name, owner in (("mnt", FIRST), ("over", FIRST + 1000)):
        (place / name).mkdir()
        os.chown(place / name, owner, FIRST)

    def work():
        subprocess.run([user_binary, "-o", "allow_other", source.root, place / "mnt"], check=True)
        subprocess.run([*LIMITED["user"], user_binary, "-o", "allow_other", place / "mnt/shards", place / "over"],
                       check=True)
        try:
            return {(user, group, at): {os.path.basename(path) for path in child(readable_by, user, group, False, [
                f"{place}/{at}/{name}.txt" for name in ("plain", "list", "link")])}
                for user, group in ((1000, 0), (2000, 2000)) for at in ("s", "mnt/shards", "over/shards")}
        finally:
            for name in ("over", "mnt"):
                unmount(place / name)

    got = in_container(place, work)
    for at in ("s", "mnt/shards"):
        assert got[2000, 2000, at] == {"plain.txt"}
    assert got[2000, 2000, "over/shards"] == set()
    for at in ("s", "mnt/shards", "over/shards"):
        assert got[1000, 0, at] == {"plain.txt", "list.txt", "link.txt"}
