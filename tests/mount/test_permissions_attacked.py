# SPDX-License-Identifier: Apache-2.0
"""Attacks on the permission checks (test_permissions.py): reused inode numbers, callers with
unknown groups, death of the helper process, limits."""

import concurrent.futures
import contextlib
import ctypes
import errno
import mmap
import os
import re
import shutil
import struct
import subprocess

import oracle
import pytest
from conftest import child, disk_image, eventually, files_open_in
from corpus import trees
from test_permissions import (ALICE, BOB, CAROL, GROUP, LEFT, MASK, NONE, RIGHT, R, add, around, become,
                              errors_of, exchange, files_of, give_list, openable, readable, source)

__all__ = ["source"]  # a fixture

# numbers of <asm/unistd.h>
SYS = {"x86_64": {"setgroups": 116, "setresuid": 117},
       "aarch64": {"setgroups": 159, "setresuid": 147}}[os.uname().machine]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users")


def replaced_with_same_inode(path, content):
    """The calling user, who owns the directory, replaces a file with their own world-readable file
    with the same inode number, size and modification time. False: the file system assigned
    another number."""
    before = os.stat(path)
    assert len(content) == before.st_size
    os.unlink(path)
    for i in range(1000):
        fd = os.open(f"{path}.{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            if os.fstat(fd).st_ino != before.st_ino:
                continue
            os.write(fd, content)
        finally:
            os.close(fd)
        os.utime(f"{path}.{i}", ns=(before.st_mtime_ns, before.st_mtime_ns))
        os.rename(f"{path}.{i}", path)
        return True
    return False


def read_or_errno(path):
    try:
        return oracle.read_all(path)
    except OSError as error:
        return error.errno


@pytest.fixture
def ext4(place):
    """A directory on its own ext4, which reuses the inode number of a removed file for the next
    one."""
    with disk_image(place, 16 << 20, "mkfs.ext4", "-q") as root:
        yield root


@pytest.mark.parametrize("held", [False, True], ids=["path", "descriptor"])
def test_reused_inode_number(mount, ext4, held):
    """The owner of a directory replaces root's closed file in it by their own, with the same inode
    number, size and modification time. They get nothing of the closed file from the page cache."""
    source = trees.Source(ext4 / "s")
    source.add_side("d/side.txt", b"secret" * 100)
    path = source.path("d/side.txt")
    os.chmod(path, 0o600)
    os.chown(source.path("d"), ALICE, LEFT)
    m = mount(source.root, "-o", "allow_other")
    shown = m / "merged/d/side.txt"
    assert oracle.read_all(shown) == b"secret" * 100
    # until the daemon has closed it, because an open file keeps its number
    assert eventually(lambda: path not in files_open_in(m.pid).values(), 30)

    def attempt():
        become("alice")
        descriptor = os.open(shown, os.O_PATH)
        assert replaced_with_same_inode(path, b"public" * 100)
        return read_or_errno(f"/proc/self/fd/{descriptor}" if held else shown)

    def later():
        become("alice")
        return read_or_errno(shown)

    assert child(attempt) in (b"public" * 100, errno.ESTALE)
    assert eventually(lambda: child(later) == b"public" * 100), child(later)


def test_reused_inode_number_and_tensors(mount, ext4):
    """As above, for the names of the tensors of the closed file."""
    source = trees.Source(ext4 / "s")
    source.add("d", "m", [trees.tensor("secret", "U8", (8,))])
    path = source.path("d/m.safetensors")
    os.chmod(path, 0o600)
    os.chown(source.path("d"), ALICE, LEFT)
    m = mount(source.root, "-o", "allow_other")
    shown = m / "tensors/d/m"
    assert os.listdir(shown) == ["secret"]
    assert eventually(lambda: path not in files_open_in(m.pid).values(), 30)

    def attempt():
        assert os.listdir(shown) == ["secret"]  # so that the daemon has just checked the source
        assert eventually(lambda: path not in files_open_in(m.pid).values(), 30)
        become("alice")
        assert replaced_with_same_inode(path, trees.file_bytes([trees.tensor("public", "U8", (8,))]))
        try:
            return os.listdir(shown)
        except OSError as error:
            return error.errno

    assert child(attempt) in (["public"], errno.ESTALE)


@pytest.mark.parametrize("who", ["root", "alice"])
def test_busy_directory(mount, source, who):
    """Names that appear and disappear in a directory do not disturb requests for other names."""
    os.chmod(add(source, "d/sub", "m"), 0o644)
    source.add_side("d/side.txt", b"side")
    os.chmod(source.path("d/side.txt"), 0o644)
    m = mount(source.root, "-o", "allow_other")
    busy = os.fork()
    if busy == 0:
        while True:
            os.close(os.open(source.path("d/coming-and-going"), os.O_CREAT | os.O_WRONLY))
            os.unlink(source.path("d/coming-and-going"))

    def attempt():
        if who != "root":
            become(who)
        for _ in range(300):
            assert "side.txt" in os.listdir(m / "merged/d")
            assert oracle.read_all(m / "merged/d/side.txt") == b"side"
            assert oracle.read_all(m / "tensors/d/sub/m/t")
        return True

    try:
        assert child(attempt)
    finally:
        os.kill(busy, 9)
        os.waitpid(busy, 0)


# --- links ---


def errno_of_stat(path):
    try:
        os.stat(path)
    except OSError as error:
        return error.errno
    return 0


@pytest.fixture
def linked(place, source):
    """A source in which alice's directory `a` has links of root into a directory that only root may
    search. Returns their targets, by the name of the link."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    secret = [trees.tensor(f"S{i}", "U8", (1 << 20,)) for i in range(4)]
    (closed / "model.safetensors").write_bytes(trees.file_bytes(secret))
    (closed / "bad.safetensors").write_bytes(b"bad")
    (closed / "side.json").write_text("{}")
    (closed / "directory").mkdir()
    os.mkfifo(closed / "fifo")
    found = {"exists.json": "side.json", "absent.json": "absent", "directory": "directory",
             "fifo.json": "fifo", "valid.safetensors": "model.safetensors",
             "invalid.safetensors": "bad.safetensors", "none.safetensors": "absent"}
    os.mkdir(source.path("a"))
    for name, target in found.items():
        os.symlink(closed / target, source.path("a", name))
    source.add_side("a/own.json", b"{}")
    # As a shard of a checkpoint, the closed file would show by a duplicate which tensors it has.
    for stem, guess in (("right", "S0"), ("wrong", "T0")):
        os.symlink(closed / "model.safetensors", source.path(f"a/{stem}-00001-of-00002.safetensors"))
        source.add("a", stem, [trees.tensor(guess, "U8", (8,))],
                   names=[f"{stem}-00002-of-00002.safetensors"])
    for directory, _, names in os.walk(source.root):
        for path in [directory, *(os.path.join(directory, name) for name in names)]:
            if not os.path.islink(path):
                os.chown(path, ALICE, LEFT)
    os.chmod(source.root, 0o755)
    return found


@pytest.mark.parametrize("options", [(), ("--shard-size=1M",)], ids=["shards", "re-cut"])
def test_links_reveal_nothing_about_their_targets(mount, source, linked, options):
    """In the source, whoever may not follow a link only sees its name. In the mount, they cannot
    find out either whether the target exists, what it is, or which tensors it has."""
    m = mount(source.root, "-o", "allow_other", *options)
    generated = ["valid", "invalid", "none", "right", "wrong", "valid.index.json", "wrong.safetensors",
                 "right.safetensors", "right.safetensors.index.json", "wrong.safetensors.index.json",
                 *(f"valid-0000{i}-of-00004.safetensors" for i in range(1, 6))]

    own = [f"{stem}-00002-of-00002.safetensors" for stem in ("right", "wrong")]

    def attempt():
        become("alice")
        assert {errno_of_stat(source.path("a", name)) for name in linked} == {errno.EACCES}
        for view in ("merged", "shards", "tensors", "npy"):
            listed = set(os.listdir(m / f"{view}/a"))
            assert listed <= {"own.json", *own}, view
            assert len({name in listed for name in own}) == 1, view
            assert len({errno_of_stat(m / f"{view}/a/{name}") for name in own}) == 1, view
            for name in linked:
                assert errno_of_stat(m / f"{view}/a/{name}") == errno.EACCES, (view, name)
            for name in generated:
                assert errno_of_stat(m / f"{view}/a/{name}") == errno.ENOENT, (view, name)

    child(attempt)
    assert {"exists.json", "directory", "own.json"} < set(os.listdir(m / "merged/a"))
    assert {"valid", "right", "wrong"} <= set(os.listdir(m / "tensors/a"))
    child(attempt)  # after root has caused the headers to be read


def test_link_to_a_file_that_is_open_for_writing(mount, place, source):
    """ETXTBSY would tell whoever created the link that its target exists and is being written."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    content = trees.file_bytes(trees.small_tensors())
    links = {"one.safetensors": "one", "many-00001-of-00001.safetensors": "many"}
    os.makedirs(source.path("a"))
    for name in (*links, "gone.safetensors"):
        os.symlink(closed / name, source.path("a", name))
    for name in links:
        (closed / name).write_bytes(content)
    opened = [open(closed / name, "ab") for name in links]
    m = mount(source.root, "-o", "allow_other", "--shards=1")

    def attempt():
        become("bob")
        errors = set()
        for view in ("merged", "shards", "tensors", "npy"):
            for name in ("one", "one.index.json", "many", "many.safetensors", "many.index.json",
                         "many.safetensors.index.json"):
                errors.add(errno_of_stat(m / f"{view}/a/{name}"))
        return errors

    assert child(attempt) == {errno.ENOENT}
    with pytest.raises(OSError) as caught:
        open(m / "merged/a/many.safetensors", "rb")
    assert caught.value.errno == errno.ETXTBSY
    for file in opened:
        file.close()


def test_refused_lookups_read_nothing(mount, source):
    """Otherwise its duration would tell which names exist."""
    os.makedirs(source.path("closed"), mode=0o700)
    for i in range(3):
        source.add("closed", f"good{i}", trees.small_tensors())
        source.add_side(f"closed/bad{i}.safetensors", b"bad")
    m = mount(source.root, "-o", "allow_other")

    def counters():
        return [m.status()["problems"], *(m.metric(name) for name in (
            "checkpoints", "tensors", "headers_total", "header_bytes_total", "table_bytes"))]

    def attempt():
        become("bob")
        for i, form in enumerate(("tensors/closed/{}", "npy/closed/{}/t", "merged/closed/{}.safetensors")):
            for stem in ("none", "good", "bad"):
                assert errno_of_stat(m / form.format(f"{stem}{i}")) == errno.EACCES, (form, stem)

    before = counters()
    child(attempt)
    assert counters() == before


# --- callers whose groups are unknown ---


def in_pid_namespace_of(m, pid, command):
    """Runs a command in the PID namespace of a mount's daemon, with this PID there."""
    return subprocess.run(
        ["nsenter", "-t", str(m.pid_inside), "-p", "sh", "-c",
         f'echo {pid - 1} > /proc/sys/kernel/ns_last_pid; "$@"; exit $?', "sh", *command],
        capture_output=True)


def mount_in_pid_namespace(mount, source):
    """A mount whose daemon has its own PID namespace."""
    m = mount(source, "-o", "allow_other", wrapper=["unshare", "-p", "-f", "--kill-child"])
    with open(f"/proc/{m.pid}/task/{m.pid}/children") as f:  # the child of unshare
        m.pid_inside = int(f.read().split()[0])
    return m


def test_proc_of_another_pid_namespace(mount, source):
    """A PID that belongs to another process in /proc does not grant that process's permissions."""
    path = add(source, "", "m")
    os.chmod(path, 0o600)
    os.chown(path, ALICE, LEFT)
    m = mount_in_pid_namespace(mount, source.root)
    shown = m / "shards/m.safetensors"
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    # User 0 without capabilities has the PID of a process with capabilities.
    command = [*without, "sh", "-c", 'echo $$; exec cat "$1"', "sh", shown]

    def attempt():
        """None: a thread of the daemon has that PID, perhaps for long; the next attempt has another."""
        with subprocess.Popen(["sleep", "60"]) as other:
            done = in_pid_namespace_of(m, other.pid, command)
            other.kill()
        return done if done.stdout.startswith(b"%d\n" % other.pid) else None

    done = eventually(attempt)
    assert done and re.fullmatch(rb"\d+\n", done.stdout), done
    assert b"Permission denied" in done.stderr, done


def test_unknown_groups(mount, source):
    """A user who is denied access by a supplementary group that the daemon cannot see does not get
    the permissions of others."""
    for stem, mode, entries in (("all", 0o644, None), ("not-left", 0o604, None),
                                ("list", 0o644, [(GROUP, LEFT, 0), (MASK, None, R)])):
        path = add(source, "", stem)
        os.chown(path, ALICE, LEFT)
        os.chmod(path, mode)
        if entries:
            os.chown(path, ALICE, RIGHT)
            give_list(path, entries)
    m = mount_in_pid_namespace(mount, source.root)
    shown = {m / f"shards/{stem}.safetensors": stem for stem in ("all", "not-left", "list")}
    ours = {source.path(f"{stem}.safetensors"): stem for stem in shown.values()}
    assert {ours[path] for path in child(readable, "bob-with-left", list(ours))} == {"all", "list"}
    for who in ("bob-with-left", "carol-with-both"):
        may = {ours[path] for path in child(readable, who, list(ours))}
        assert {shown[path] for path in child(readable, who, list(shown))} == {"all"} <= may


# --- location of the source ---


def test_source_is_recreated_below_a_closed_directory(mount, place):
    """Directories above the source may be closed to users, also when the source is mounted again
    and a user's request notices it."""
    os.makedirs(place / "closed/s")
    root = place / "closed/s"

    def make(seed):
        subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
        source = trees.Source(root)
        source.add("", "m", [trees.tensor("t", "U8", (8,), seed=seed)])
        os.chmod(root, 0o755)
        os.chmod(source.path("m.safetensors"), 0o644)
        return oracle.read_all(source.path("m.safetensors"))

    first = make("first")
    try:
        os.chmod(place / "closed", 0o700)
        m = mount(root, "-o", "allow_other")

        def attempt():
            become("bob")
            try:
                return oracle.read_all(m / "shards/m.safetensors")
            except OSError:
                return None

        for _ in range(20):
            assert child(attempt) == first
        subprocess.run(["umount", "-l", root], check=True)
        second = make("second")
        assert first != second and eventually(lambda: child(attempt) == second)
    finally:
        subprocess.run(["umount", "-l", root], check=True)


# --- limits ---


@pytest.mark.limit(120)
def test_many_shards(mount, source):
    """A checkpoint whose shard paths need several messages to the helper: each shard is checked."""
    directory = "d" * 240
    tensors = [trees.tensor(f"t{i:03}", "U8", (8,), seed=str(i)) for i in range(500)]
    c = source.add(directory, "model", tensors, shards=500)
    paths = [source.path(directory, name) for name, _ in c.shards]
    assert len(paths) == 500
    for path in paths:
        os.chmod(path, 0o644)
    m = mount(source.root, "-o", "allow_other")
    shown = [m / f"merged/{directory}/model.safetensors", m / f"tensors/{directory}/model.index.json"]
    assert child(readable, "bob", shown) == set(shown)
    for path in (paths[0], paths[250], paths[-1]):
        os.chmod(path, 0o600)
        assert eventually(lambda: child(readable, "bob", shown) == set())
        os.chmod(path, 0o644)
        assert eventually(lambda: child(readable, "bob", shown) == set(shown))


def test_names_and_groups_at_their_limits(mount, source):
    """A path of 4,000 bytes, a name with a newline, and a caller with 65,536 groups."""
    long = "/".join(["n" * 239 + "\n"] * 16)
    for directory in (long, "new\nline"):
        path = add(source, directory, "m")
        os.chown(path, ALICE, LEFT)
        os.chmod(path, 0o640)
    m = mount(source.root, "-o", "allow_other")

    def attempt(groups):
        os.setgroups(groups)
        os.setresgid(RIGHT, RIGHT, RIGHT)
        os.setresuid(BOB, BOB, BOB)
        view = os.open(m / "shards", os.O_PATH)
        os.chdir(m / "shards/new\nline")
        found = errors_of([lambda: oracle.read_all("m.safetensors")])
        os.fchdir(view)
        return found + errors_of([lambda: oracle.read_all(f"{long}/m.safetensors")])

    others = list(range(100_000, 100_000 + 65_535))
    assert child(attempt, [*others, LEFT]) == [0, 0]
    assert child(attempt, [LEFT, *others]) == [0, 0]
    assert child(attempt, others) == [errno.EACCES] * 2


def test_threads_with_different_users(mount, source):
    """Each thread has the permissions of its own user and groups (as in nfs-ganesha)."""
    for stem, owner in (("alice", ALICE), ("bob", BOB)):
        path = add(source, "", stem)
        os.chown(path, owner, NONE)
        os.chmod(path, 0o600)
    path = add(source, "", "left")
    os.chown(path, 0, LEFT)
    os.chmod(path, 0o640)
    m = mount(source.root, "-o", "allow_other")
    shown = {m / f"shards/{stem}.safetensors": stem for stem in ("alice", "bob", "left")}
    libc = ctypes.CDLL(None, use_errno=True)

    def in_thread(user, groups):
        numbers = (ctypes.c_uint32 * len(groups))(*groups)
        # of this thread only: the system call, not the C library
        assert libc.syscall(SYS["setgroups"], len(groups), numbers) == 0
        assert libc.syscall(SYS["setresuid"], user, user, user) == 0
        for _ in range(100):
            found = {shown[path] for path in openable(shown)}
        return found

    def attempt():
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            return [f.result() for f in [pool.submit(in_thread, *who) for who in (
                (ALICE, []), (BOB, []), (CAROL, [LEFT]))]]

    assert child(attempt) == [{"alice"}, {"bob"}, {"left"}]


# --- the purpose of each check ---


def test_names_behind_a_closed_path(mount, place, source):
    """A user who cannot traverse the path to a link's target sees neither its size nor its xattrs."""
    other = trees.Source(place / "way/on")
    path = add(other, "", "far")
    os.chmod(path, 0o644)
    os.symlink(path, source.path("near.safetensors"))
    os.symlink(other.root, source.path("dir"))
    os.chmod(place / "way", 0o700)
    m = mount(source.root, "-o", "allow_other")
    names = [m / "merged/near.safetensors", m / "shards/near.safetensors", m / "merged/dir"]
    generated = [m / "tensors/near/t", m / "npy/near/t.npy", m / "tensors/near.index.json",
                 m / "tensors/near"]

    def attempt(paths):
        become("bob")
        return set(errors_of([lambda path=path: os.stat(path) for path in paths]))

    assert child(attempt, names) == {errno.EACCES}
    assert child(attempt, generated) == {errno.ENOENT}
    os.chmod(place / "way", 0o711)
    assert child(attempt, names + generated) == {0}


def test_xattrs_of_a_descriptor_opened_before(mount, source):
    """Xattrs of an open descriptor are denied if the file cannot be read now."""
    path = add(source, "", "m")
    os.chmod(path, 0o644)
    m = mount(source.root, "-o", "allow_other")

    def hold():
        become("bob")
        return [f"/proc/self/fd/{os.open(m / name, os.O_PATH)}"
                for name in ("tensors/m/t", "shards/m.safetensors", "merged/m.safetensors")]

    def look(links):
        return errors_of([lambda: os.getxattr(links[0], "user.fstfs.extents"),
                          lambda: os.getxattr(links[0], "user.safetensors.name"),
                          lambda: os.getxattr(links[1], "user.fstfs.extents"),
                          lambda: os.getxattr(links[2], "user.fstfs.source")])

    assert around(hold, lambda: None, look) == [0] * 4
    assert around(hold, lambda: os.chmod(path, 0o600), look) == [errno.EACCES] * 4


@pytest.mark.parametrize("view", ["tensors", "merged", "shards", "npy"])
def test_listing_of_a_replaced_directory(mount, source, view):
    """The names of a closed directory that the daemon has just read do not appear in the open one
    that replaces it."""
    for directory, mode in (("d", 0o755), ("closed", 0o700)):
        os.chmod(add(source, directory, directory), 0o644)
        os.chmod(source.path(directory), mode)
    m = mount(source.root, "-o", "allow_other")
    shown = m / f"{view}/d"

    def attempt():
        become("carol")
        return [name for name in os.listdir(shown) if name.startswith("closed")]

    for _ in range(10):
        exchange(source.path("d"), source.path("closed"))
        assert eventually(lambda: any(name.startswith("closed") for name in os.listdir(shown)))
        exchange(source.path("d"), source.path("closed"))
        assert child(attempt) == []


@pytest.mark.parametrize("mapped", ["users", "groups", "neither"])
def test_user_0_of_a_namespace(mount, source, mapped):
    """User 0 of a user namespace that lacks some users and groups has capabilities only inside it."""
    probe = subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"cannot create a user namespace: {probe.stderr.strip()}")
    path = add(source, "", "m")
    os.chown(path, ALICE, LEFT)
    os.chmod(path, 0o600)
    m = mount(source.root, "-o", "allow_other")
    paths = [path, *files_of(m, "", "m")]

    def inside():
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x10000000) == 0  # CLONE_NEWUSER
        assert around_parent("map") == "mapped"
        with open("/proc/self/status") as f:
            assert "CapEff:\t0000000000000000" not in f.read()
        return openable(paths)

    def around_parent(word):
        """Asks the process above, outside the namespace, to write its map."""
        os.write(ask, word.encode())
        return os.read(answered, 10).decode()

    def map_ids(pid):
        for name, whole in (("uid_map", mapped == "users"), ("gid_map", mapped == "groups")):
            with open(f"/proc/{pid}/{name}", "w") as f:
                f.write("0 0 4294967295" if whole else "0 0 1")

    asked, ask = os.pipe()
    answered, answer = os.pipe()

    def inside_with_pid():
        os.write(ask, str(os.getpid()).encode().ljust(10))
        return inside()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        got = pool.submit(child, inside_with_pid)
        pid = int(os.read(asked, 10))
        assert os.read(asked, 3) == b"map"
        map_ids(pid)
        os.write(answer, b"mapped")
        assert got.result() == set()
    for end in (asked, ask, answered, answer):
        os.close(end)


def test_working_directory_below_a_closed_one(mount, source):
    """Every directory from the source down is checked, also for a user whose working directory is
    below a closed one, and right after a permitted user."""
    os.chmod(add(source, "closed/sub", "m"), 0o644)
    os.chmod(source.path("closed"), 0o700)
    m = mount(source.root, "-o", "allow_other")

    def attempt():
        os.chdir(m / "shards/closed/sub")
        calls = [lambda: oracle.read_all("m.safetensors"), lambda: os.stat("m.safetensors"),
                 lambda: os.listdir(".")]
        assert errors_of(calls) == [0] * 3
        become("bob")
        return errors_of(calls)

    for _ in range(10):
        assert child(attempt) == [errno.EACCES] * 3


def test_access_to_directories(mount, source):
    """access(2) and chdir(2) of directories, and missing names in a closed directory."""
    os.chmod(add(source, "open/sub", "m"), 0o644)
    for directory, mode in (("closed", 0o700), ("search", 0o711), ("list", 0o744)):
        add(source, directory, "m")
        os.chmod(source.path(directory), mode)
    m = mount(source.root, "-o", "allow_other")

    def attempt():
        become("bob")
        got = {}
        for directory in ("open", "closed", "search", "list"):
            path = m / f"merged/{directory}"
            got[directory] = (os.access(path, os.R_OK), os.access(path, os.X_OK),
                              *errors_of([lambda path=path: os.chdir(path),
                                          lambda path=path: os.stat(f"{path}/none")]))
        return got

    assert child(attempt) == {
        "open": (True, True, 0, errno.ENOENT), "closed": (False, False, errno.EACCES, errno.EACCES),
        "search": (False, True, 0, errno.ENOENT), "list": (True, False, errno.EACCES, errno.EACCES)}


# --- node IDs ---


class FileHandle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount_id = FileHandle(size=128), ctypes.c_int()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle),
                              ctypes.byref(mount_id), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at", path)
    return handle


def node_id_of(path):
    """The node ID in FUSE, which name_to_handle_at() reveals to every caller."""
    high, low = struct.unpack_from("=II", bytes(handle_of(path).bytes))  # fuse_encode_fh()
    return high << 32 | low


def node_number_of(path):
    """The number of the daemon's node: that of the set of tensors for a tensor (src/view/node.c)."""
    node_id = node_id_of(path)
    return node_id >> 32 & 0x7fffffff if node_id >> 63 else node_id


def read_by_handle(directory, handle):
    """The content of the file that a handle refers to, or the error. `directory`: any open file of
    the mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.open_by_handle_at(directory, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        return ctypes.get_errno()
    with open(fd, "rb") as f:
        return f.read()


def test_no_node_id_is_an_address(mount, place):
    source = trees.Source(place / "s")
    source.add("a/b", "model", trees.small_tensors("g.", count=3), shards=2)
    source.add_side("a/config.json")
    m = mount(source.root)
    paths = [m.path, *(os.path.join(at, name) for at, directories, files in os.walk(m.path)
                       for name in directories + files)]
    ids = {path: node_id_of(path) for path in paths}
    assert len(set(ids.values())) == len(ids) > 30
    with open(f"/proc/{m.pid}/maps") as f:
        mapped = [[int(end, 16) for end in line.split()[0].split("-")] for line in f]
    for path, of in ids.items():
        assert not any(low <= of < high for low, high in mapped), (path, hex(of))


def models_of_one_tensor(place, count):
    """A source of models m0, m1, ..., each with other bytes."""
    source = trees.Source(place / "s")
    for i in range(count):
        source.add(f"m{i}", "model", [trees.tensor("w", "U8", (64,), fill=i)])
    return source


@pytest.mark.parametrize("listed", [False, True], ids=["lookup", "readdirplus"])
@pytest.mark.parametrize("view", ["tensors/m{}/model/w", "merged/m{}/model.safetensors",
                                  "tensors/m{}/model"])
def test_handle_opens_no_other_file(mount, place, view, listed):
    """After the kernel has forgotten the file of a handle, its node is reused for others. The handle
    opens the same version or nothing."""
    source = models_of_one_tensor(place, 14)
    m = mount(source.root)
    paths = [m / view.format(i) for i in range(14)]
    reused = set()
    directory = os.open(m.path, os.O_RDONLY)
    page = os.open(m / ".fstfs/metrics", os.O_RDONLY)  # has a node from the beginning
    try:
        handle, first = handle_of(paths[0]), node_number_of(paths[0])
        is_file = os.path.isfile(paths[0])
        if is_file:
            assert read_by_handle(directory, handle) == oracle.read_all(paths[0])
        for i, path in enumerate(paths[1:6]):
            shutil.rmtree(source.path(f"m{i}"))
            assert eventually(lambda before=paths[i]: not os.path.exists(before))
            # The kernel forgets later. It keeps the top directories and the page.
            assert eventually(lambda: m.metric("nodes") <= 4)
            if listed:
                os.listdir(os.path.dirname(path))
            held = os.open(path, os.O_RDONLY)
            try:
                reused |= {node_number_of(at) for at in (path, os.path.dirname(path))}
                assert read_by_handle(directory, handle) == errno.ESTALE
                if is_file:
                    assert read_by_handle(directory, handle_of(path)) == oracle.read_all(path)
            finally:
                os.close(held)
        with contextlib.ExitStack() as stack:  # more files than there are free nodes
            for path in paths[6:]:
                stack.callback(os.close, os.open(path, os.O_RDONLY))
                reused |= {node_number_of(at) for at in (path, os.path.dirname(path))}
            assert read_by_handle(directory, handle) == errno.ESTALE
    finally:
        os.close(directory)
        os.close(page)
    assert first in reused


class Ring:
    """io_uring with one entry. Opens are done by worker threads of the kernel (IOSQE_ASYNC)."""

    ENTER, SETUP, OPENAT, ASYNC, CWD = 426, 425, 18, 0x10, -100

    def __init__(self):
        self.call = ctypes.CDLL(None, use_errno=True).syscall
        parameters = ctypes.create_string_buffer(120)
        self.fd = self.call(self.SETUP, 1, parameters)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        fields = struct.unpack("<30I", parameters.raw)
        self.sq, self.cq = fields[10:20], fields[20:30]
        size = max(self.sq[6] + 4 * fields[0], self.cq[5] + 16 * fields[1])
        self.rings = mmap.mmap(self.fd, size, offset=0)
        self.entries = mmap.mmap(self.fd, 64 * fields[0], offset=0x10000000)

    def number(self, offset):
        return struct.unpack_from("<I", self.rings, offset)[0]

    def can_open(self, path):
        name = ctypes.create_string_buffer(os.fsencode(path))
        tail, head = self.number(self.sq[1]), self.number(self.cq[0])
        self.entries[:64] = struct.pack("<BBHiQQIIQ24x", self.OPENAT, self.ASYNC, 0, self.CWD, 0,
                                        ctypes.addressof(name), 0, os.O_RDONLY, 0)
        struct.pack_into("<I", self.rings, self.sq[6], 0)
        struct.pack_into("<I", self.rings, self.sq[1], tail + 1)
        assert self.call(self.ENTER, self.fd, 1, 1, 1, None, 0) == 1
        at = self.cq[5] + 16 * (head & self.number(self.cq[2]))
        result = struct.unpack_from("<Qi", self.rings, at)[1]
        struct.pack_into("<I", self.rings, self.cq[0], head + 1)
        if result >= 0:
            os.close(result)
        return result >= 0


def opens_after_dropping_groups(paths):
    """Whether each file can be opened through io_uring before and after a group was dropped."""
    os.setgroups([LEFT])
    os.setresuid(BOB, BOB, 0)
    try:
        ring = Ring()
    except OSError as error:
        return str(error), None
    before = [ring.can_open(path) for path in paths]
    os.setresuid(0, 0, 0)
    os.setgroups([])
    os.setresuid(BOB, BOB, BOB)
    return before, [ring.can_open(path) for path in paths]


def test_groups_dropped_after_use_of_io_uring(mount, place):
    """The kernel's worker threads show the groups that the process had when they were created."""
    source = trees.Source(place / "s")
    source.add("", "model", [trees.tensor("t", "U8", (1000,))])
    real = source.path("model.safetensors")
    os.chown(real, 0, LEFT)
    os.chmod(real, 0o640)
    m = mount(source.root, "-o", "allow_other")
    before, after = child(opens_after_dropping_groups, [real, m / "merged/model.safetensors"])
    if after is None:
        pytest.skip(before)
    assert before[0] and not after[0]
    assert not after[1]
