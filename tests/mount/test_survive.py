# SPDX-License-Identifier: Apache-2.0
"""Sixteen readers use all views and methods while the daemon is killed, the mount removed, or a
shard truncated or replaced. All of them end in time, with an error or correct bytes. No process,
mount or connection remains."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
import readers
from conftest import (
    BINARY, BUILD, SLOW, alive, as_user, child, eventually, helpers_of, mounted_at, preload,
    processes_of, waits_for_fuse)
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
LIMIT = 30  # seconds within which all must end; only a hang takes longer
ROUNDS = 20  # of kill -9
# Errors of a reader whose mount dies or is removed (ENOENT: the mount point is empty).
ENDS = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO}
# Errors of a reader whose source changes.
CHANGES = {errno.ESTALE, errno.EIO, errno.ENOENT}


@pytest.fixture(scope="session")
def versions(shared_place):
    """Two versions of a model, with the same shapes and different bytes."""
    return trees.versions(shared_place, 2)


def expected(m, versions):
    """[(path, content of one version, of the next...)] of all views."""
    lists = [child(oracle.plain_files, m.path, v, user=m.user) for v in versions]
    return [(together[0][0], *[want for _, want in together]) for together in zip(*lists)]


@pytest.fixture
def group():
    """group(m, files, ...): readers that have all started; they are killed at the end of the test."""
    made = []

    def start(m, files, **more):
        made.append(readers.ReaderGroup(files, user=m.user, **more))
        assert eventually(made[-1].reading, LIMIT), "not all readers got to read"
        return made[-1]

    yield start
    for one in made:
        one.kill()


def connection(m):
    """The number of the mount's FUSE connection."""
    line, = mounted_at(m.path)
    return int(line.split()[2].split(":")[1])


def abort(m, number):
    """Aborts a mount's FUSE connection, so that no process can wait for it; needs root. The kernel may
    have reused the number of a connection that has ended."""
    own = mounted_at(m.path)
    if any(line.split()[2] == f"0:{number}" for line in mounted_at("") if line not in own):
        return
    control = tempfile.mkdtemp(prefix="fusectl-")
    if subprocess.run(["mount", "-t", "fusectl", "none", control]).returncode == 0:
        try:
            with open(f"{control}/{number}/abort", "w") as f:
                f.write("1")
        except OSError:
            pass  # it no longer exists
        subprocess.run(["umount", "-l", control], check=True)
    os.rmdir(control)


def ended(m, number):
    """Waits for the daemon's end and returns its exit status (negative: a signal)."""
    threads = processes_of(m.process.pid)
    if m.wait(LIMIT) is None or not eventually(lambda: not processes_of(m.process.pid), LIMIT):
        stacks = "\n".join(readers.where(pid) for pid in set(threads) & set(
            processes_of(m.process.pid)))
        abort(m, number)
        pytest.fail(f"the daemon does not end:\n{stacks}")
    status = m.exit
    return 128 - status if status > 128 else status  # timeout(1) reports a signal this way


class InBackground:
    """The interface of Mount, for a mount that is served in the background."""

    user = None

    def __init__(self, path):
        self.path = os.fspath(path)
        self.pid = json.loads(self.read(".fstfs/status"))["pid"]

    def read(self, relative):
        with open(f"{self.path}/{relative}", "rb") as f:
            return f.read()


def judge(group, allowed):
    """All readers end, none has read a wrong byte, and each ended with a permitted error."""
    group.finish(LIMIT)
    faults = group.faults(allowed)
    assert not faults, "\n".join(faults)


def dead(m):
    """A mount whose daemon was killed: it still exists, and returns ENOTCONN."""
    assert mounted_at(m.path)
    # paths that the kernel has not cached
    for call in (os.listdir, lambda p: os.stat(p + "/unheard-of"),
                 lambda p: os.open(p + "/merged/m/model.safetensors", os.O_RDONLY)):
        with pytest.raises(OSError) as raised:
            child(call, m.path, user=m.user, seconds=LIMIT)
        assert raised.value.errno == errno.ENOTCONN


@pytest.mark.limit(200)
def test_kill(mount, versions, group, who):
    """Repeatedly, at different moments. A dead mount remains, and can be removed."""
    rng = random.Random(3)
    contents = {}  # by path below the mount
    for turn in range(ROUNDS):
        m = mount(versions[0].root, died=True, **who)
        contents = contents or {os.path.relpath(path, os.fsencode(m.path)): want
                                for path, want in expected(m, versions[:1])}
        files = [(os.path.join(os.fsencode(m.path), path), want)
                 for path, want in contents.items()]
        number = connection(m)
        all_of_them = group(m, files, seed=turn)
        time.sleep(rng.random() * 0.2)
        m.signal(signal.SIGKILL)
        try:
            judge(all_of_them, ENDS - {errno.ENOENT})
        except AssertionError as fault:
            stacks = "\n".join(readers.where(pid) for pid in processes_of(m.process.pid))
            abort(m, number)
            raise AssertionError(f"round {turn}: {fault}\nthe daemon:\n{stacks}") from None
        assert ended(m, number) == -signal.SIGKILL, f"round {turn}"
        dead(m)
        subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
        assert not mounted_at(m.path)


@pytest.mark.parametrize("how", ["fusermount3-uz", "umount-l"])
def test_lazy_unmount(mount, versions, group, who, how):
    """Readers end when they no longer find files, and the daemon with the last of them."""
    if how == "umount-l" and os.geteuid() != 0:
        pytest.skip("needs root: umount")
    m = mount(versions[0].root, **who)
    files = expected(m, versions[:1])
    number = connection(m)
    all_of_them = group(m, files)
    command = ["umount", "-l"] if how == "umount-l" else [*as_user(m.user), "fusermount3", "-uz"]
    subprocess.run([*command, m.path], check=True)
    assert not mounted_at(m.path)
    judge(all_of_them, {errno.ENOENT})
    assert ended(m, number) == 0
    assert os.listdir(m.path) == []


def test_request_is_read_at_the_end(mount, versions, place, who):
    """Linux then returns ECONNABORTED to the thread that reads the request, and ENODEV to others
    (fuse_dev_do_read() in fs/fuse/dev.c). libfuse would print the error, cancel the thread while it
    prints, and leave stderr locked: exit(3) would not return."""
    m = mount(versions[0].root, environment=preload("misfortune", place, ABORTED_READ=1), **who)
    number = connection(m)
    child(os.listdir, m / "merged", user=m.user)
    subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
    assert ended(m, number) == 0
    assert m.log_text() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_signal(mount, versions, group, who, number):
    m = mount(versions[0].root, **who)
    all_of_them = group(m, expected(m, versions[:1]))
    device = connection(m)
    m.signal(number)
    judge(all_of_them, ENDS)
    assert ended(m, device) == 0
    assert eventually(lambda: not mounted_at(m.path)), "still mounted"


@pytest.fixture
def private(place):
    """A directory in which mounts can be moved, which a shared mount does not allow."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount")
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "--make-private", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def other_file_system(path):
    """Mounts a tmpfs, and checks at the end that it is still mounted."""
    subprocess.run(["mount", "-t", "tmpfs", "other", path], check=True)
    try:
        yield
        assert any(" - tmpfs other " in line for line in mounted_at(path)), mounted_at(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("where", ["", "tensors/m"], ids=["on-it", "inside"])
def test_mount_under_another(private, mount, versions, group, who, where):
    """Another file system that is mounted on the mount or inside it is kept. The mount cannot be
    unmounted then: readers get an error, and a dead mount remains. Nothing may look up names inside
    it: the kernel then detaches what is mounted there."""
    if where and who:
        pytest.skip("root cannot enter the mount of another user")
    m = mount(versions[0].root, died=True, **who)
    all_of_them = None if where else group(m, expected(m, versions[:1]))
    device = connection(m)
    subprocess.run(["mount", "-t", "tmpfs", "other", m / where], check=True)
    m.signal(signal.SIGTERM)
    if all_of_them:
        judge(all_of_them, ENDS)
    assert ended(m, device) == 1
    assert "cannot unmount: another file system is mounted" in m.log_text()
    assert [line.split(" - ")[1].split()[0] for line in mounted_at(m.path)] == ["fuse.fstfs", "tmpfs"]
    if not where:
        subprocess.run(["umount", m.path], check=True)
        dead(m)
    subprocess.run(["umount", "-l", m.path], check=True)
    assert not mounted_at(m.path)


@pytest.mark.parametrize("how", ["moved", "unmounted"])
def test_mount_left_its_path(private, mount, versions, who, how):
    """The mount is moved or unmounted, and another file system is mounted in its place: SIGTERM
    unmounts only the mount."""
    m = mount(versions[0].root, died=True, **who)
    device = connection(m)
    other = private / "other place"
    other.mkdir()
    reader = subprocess.Popen([*as_user(m.user), "sh", "-c", 'exec 3<"$0"; echo; read line; cat <&3',
                               m / "merged/m/model.safetensors"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout.read(1) == b"\n"  # keeps the connection after the unmount
    subprocess.run(["mount", "--move", m.path, other] if how == "moved" else
                   ["umount", "-l", m.path], check=True)
    with other_file_system(m.path):
        m.signal(signal.SIGTERM)
        assert ended(m, device) == 0
        assert not mounted_at(other)
        reader.communicate(b"\n", timeout=LIMIT)
        assert reader.returncode != 0


def test_log_is_full(mount, versions, who):
    """RLIMIT_FSIZE: no more can be written to the log. The mount serves and ends as usual."""
    m = mount(versions[0].root, wrapper=["prlimit", "--fsize=0"], **who)
    child(readers.check_files, expected(m, versions[:1]), "read", user=m.user)
    device = connection(m)
    m.signal(signal.SIGTERM)  # logged by the daemon
    assert ended(m, device) == 0
    assert m.log_text() == ""
    assert eventually(lambda: not mounted_at(m.path)), "still mounted"


CONNECT = """
import os, socket, sys
out = socket.socket(socket.AF_UNIX)
out.connect(sys.argv[1])
os.dup2(out.fileno(), 2)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind", ["pipe", "pipe that cannot be opened", "socket"])
def test_log_is_not_read(mount, place, who, kind):
    """Standard error is full: lines are lost, and no request waits for its reader."""
    if kind == "pipe that cannot be opened" and not who:
        pytest.skip("root can open any pipe")
    source, log = trees.Source(place / "s"), place / "log"
    for d in range(40):
        for i in range(20):
            source.add_side(f"bad{d}/{'long' * 40}{i}.safetensors", b"invalid")
    source.add("good", "model", trees.small_tensors())
    if kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        server.bind(os.fspath(log))
        server.listen()
        wrapper = [sys.executable, "-c", CONNECT, os.fspath(log)]
    else:
        os.mkfifo(log)
        reader = os.open(log, os.O_RDWR)  # a reader that never reads
        wrapper = ["sh", "-c", f'exec "$@" 2>"{log}"', "sh"]
    os.chmod(log, 0o666 if kind == "pipe" else 0o600)
    m = mount(source.root, "--prefetch=off", wrapper=wrapper, **who)
    device = connection(m)
    with ThreadPoolExecutor(40) as pool:
        for found in pool.map(lambda d: child(os.listdir, m / f"merged/bad{d}", user=m.user), range(40)):
            assert found == []
    assert child(oracle.read_all, m / "merged/good/model.safetensors", user=m.user)
    m.signal(signal.SIGTERM)
    assert ended(m, device) == 0
    if kind == "socket":
        with server, server.accept()[0] as connected:
            lines = b"".join(iter(lambda: connected.recv(1 << 20), b""))
    else:
        lines = os.read(reader, 1 << 20)
        os.close(reader)
    assert 100 < lines.count(b"refused") < 800  # it was full


def test_process_ends(mount, versions, group, who):
    """--pid: the end of the process unmounts, also if it is killed and readers hold files open."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        m = mount(versions[0].root, f"--pid={process.pid}", **who)
        all_of_them = group(m, expected(m, versions[:1]))
        device = connection(m)
    finally:
        process.kill()
        process.wait()
    judge(all_of_them, ENDS)
    assert ended(m, device) == 0
    assert eventually(lambda: not mounted_at(m.path)), "still mounted"


def test_process_has_ended(fstfs, versions, place):
    """--pid of no process is refused before anything is mounted."""
    process = subprocess.Popen(["true"])
    process.wait()
    (place / "mnt").mkdir()
    result = subprocess.run([fstfs, f"--pid={process.pid}", versions[0].root, place / "mnt"],
                            capture_output=True, text=True)
    assert (result.returncode, result.stderr) == \
        (1, f"fstfs: --pid={process.pid}: No such process\n")
    assert not mounted_at(place / "mnt")


@pytest.mark.limit(120)
@pytest.mark.parametrize("options", [(), ("--shards=3",)], ids=["as-source", "recut"])
def test_source_changes(mount, versions, group, place, who, options):
    """Shards are truncated, replaced by another version, and removed, again and again."""
    root = place / "s"
    shutil.copytree(versions[0].root, root)
    m = mount(root, *options, limit=120 * SLOW, **who)
    files = expected(m, readers.mixtures(versions))  # the first content of each file is that of versions[0]
    all_of_them = group(m, files, passed=CHANGES)
    names = [name for name, _ in versions[0].checkpoints[0].shards]
    rng = random.Random(5)
    for turn in range(1, 13):
        for name in names:
            path, whole = root / "m" / name, versions[turn % 2].path("m", name)
            what = rng.choice(["cut", "cut", "remove", "replace"])
            if what == "cut":
                os.truncate(path, rng.randrange(os.stat(path).st_size))
                time.sleep(rng.random() * 0.2)
            elif what == "remove":
                os.unlink(path)
                time.sleep(rng.random() * 0.2)
            shutil.copyfile(whole, root / "m/new.tmp")
            os.rename(root / "m/new.tmp", path)
        time.sleep(rng.random() * 0.5)
    all_of_them.stop()
    judge(all_of_them, {0})
    # all correct at the end
    last = [(path, want) for path, want, *_ in files]

    def right():
        try:
            readers.check_files(last, "read")
            return True
        except OSError as error:
            assert error.errno in CHANGES
        except readers.WrongBytes:
            pass  # of the previous version

    assert child(lambda: eventually(right), user=m.user)
    assert m.unmount() == 0


# --- the helper processes (docs/reliability.md) ---


@pytest.fixture(params=["private", "allow_other"])
def shared(request, who):
    """Options of a private mount, and of a mount for all users."""
    if request.param == "private":
        return ()
    if who:
        pytest.skip("needs user_allow_other in /etc/fuse.conf")
    return "-o", "allow_other"


def kill_helper(m, name):
    helpers = helpers_of(m)
    if name not in helpers:
        pytest.skip("without Landlock a private mount has no process fstfs-open")
    os.kill(helpers[name], signal.SIGKILL)


def test_opener_is_killed(mount, versions, group, who, shared):
    """Without the opener, the daemon could never permit access again. It exits with an error, so
    that it is restarted."""
    m = mount(versions[0].root, *shared, died=True, **who)
    all_of_them = group(m, expected(m, versions[:1]))
    number = connection(m)
    kill_helper(m, "fstfs-open")
    judge(all_of_them, ENDS | {errno.EACCES})
    assert ended(m, number) == 1
    assert eventually(lambda: not mounted_at(m.path)), "still mounted"
    assert m.log_text().count("fstfs-open has died") == 1
    again = mount(versions[0].root, *shared, mountpoint=m.path, **who)
    child(readers.check_files, expected(again, versions[:1]), "read", user=m.user)


def test_opener_is_killed_while_storage_hangs(mount, versions, place):
    """The threads of the opener wait for storage and keep its sockets open. The daemon detects its
    death anyway, and no caller waits for its answer."""
    if os.geteuid() != 0 or not SLOWFS.exists():
        pytest.skip("needs root (allow_other) and tests/slowfs/slowfs")
    faults = place / "faults"
    storage = mount(versions[0].root, "-o", f"faults={faults},valid=0,allow_other", binary=SLOWFS)
    m = mount(storage.path, "-o", "allow_other", died=True)
    number = connection(m)
    path = m / "merged/m/model.safetensors"
    child(os.stat, path)

    def set_rules(text):
        (place / "rules").write_text(text)
        os.rename(place / "rules", faults)

    helper = helpers_of(m)["fstfs-open"]

    waiting = os.fork()
    if waiting == 0:
        with contextlib.suppress(OSError):
            while True:
                os.stat(path)
                time.sleep(0.01)
        os._exit(0)

    def helper_hangs():
        """From time to time the daemon also looks the file up. If the daemon hangs first, it does not
        ask the helper."""
        set_rules("lookup m/* hang\n")
        if eventually(lambda: waits_for_fuse(helper), 1):
            return True
        set_rules("")
        return False

    assert eventually(helper_hangs, LIMIT)
    os.kill(helper, signal.SIGKILL)
    freed = eventually(lambda: os.waitpid(waiting, os.WNOHANG)[0], 10)
    gone = eventually(lambda: not mounted_at(m.path), 10)
    faults.unlink()
    assert freed and gone
    assert m.log_text().count("fstfs-open has died") == 1
    assert ended(m, number) == 1


def test_unmounter_is_killed(mount, versions, group, who, shared):
    """Readers are not affected. At the end a dead mount remains, which the log and the exit status
    report."""
    m = mount(versions[0].root, *shared, died=True, **who)
    files = expected(m, versions[:1])
    all_of_them = group(m, files)
    number = connection(m)
    kill_helper(m, "fstfs-unmount")
    assert eventually(lambda: "fstfs-unmount has died" in m.log_text())
    child(readers.check_files, files, "read", user=m.user)
    m.signal(signal.SIGTERM)
    judge(all_of_them, ENDS)
    assert ended(m, number) == 1
    assert "cannot unmount" in m.log_text()
    dead(m)
    subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)


def test_unmount_without_the_unmounter(mount, versions, who):
    """Other programs can still unmount the mount completely."""
    m = mount(versions[0].root, **who)
    kill_helper(m, "fstfs-unmount")
    assert eventually(lambda: "fstfs-unmount has died" in m.log_text())
    assert m.unmount() == 0


def test_logger_is_killed(versions, place, fstfs, shared):
    """Log lines are lost, and nothing else."""
    mountpoint = place / "mnt"
    mountpoint.mkdir()
    subprocess.run([BINARY, *shared, versions[0].root, mountpoint], check=True)
    try:
        m = InBackground(mountpoint)
        files = expected(m, versions[:1])
        pid, helpers = m.pid, helpers_of(m)
        with open(f"/proc/{helpers['fstfs-log']}/status") as f:
            assert {line.split()[1] for line in f if line.startswith("Cap") and line[3] in "PEIA"} == {"0" * 16}
        os.kill(helpers["fstfs-log"], signal.SIGKILL)
        assert eventually(lambda: not alive(helpers["fstfs-log"]))
        readers.check_files(files, "read")
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not mounted_at(mountpoint))
        assert eventually(lambda: not any(alive(p) for p in (pid, *helpers.values())))
    finally:
        if mounted_at(mountpoint):
            subprocess.run(["fusermount3", "-uz", mountpoint], check=True)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_storage_hangs(mount, versions, group, place, who, end):
    """Killed while storage does not answer: readers are released at once. SIGTERM waits for reads
    in flight, which finish when the storage answers."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    faults = place / "faults"
    others = ",allow_other" if os.geteuid() == 0 else ""
    storage = mount(versions[0].root, "-o", f"faults={faults}{others}", binary=SLOWFS)
    # Too little memory for everything that is read repeatedly, so that storage is always needed.
    m = mount(storage.path, "--memory=4M", died=end == signal.SIGKILL, **who)
    number = connection(m)
    files = expected(m, versions[:1])
    all_of_them = group(m, files)
    faults.write_text("read m/* hang\n")

    def in_flight():
        text = child(m.read, ".fstfs/metrics", user=m.user).decode()
        return int(next(line.split()[1] for line in text.splitlines()
                        if line.startswith("fstfs_reads_in_flight ")))

    assert eventually(lambda: in_flight() > 4, LIMIT)
    m.signal(end)
    if end == signal.SIGTERM:
        time.sleep(0.2)
        faults.unlink()
    judge(all_of_them, ENDS)
    assert ended(m, number) == (-end if end == signal.SIGKILL else 0)
    if end == signal.SIGKILL:
        dead(m)
        subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
        faults.unlink()
    assert eventually(lambda: not mounted_at(m.path))
    # The kernel may keep files of the storage open until the reads of a dead process have ended.
    assert eventually(lambda: not subprocess.run(
        ["fusermount3", "-u", storage.path], capture_output=True).returncode, LIMIT)
    assert storage.wait() == 0
