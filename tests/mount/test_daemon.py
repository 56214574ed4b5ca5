# SPDX-License-Identifier: Apache-2.0
"""Events that affect the daemon: killed and restarted by a supervisor, stopped, out of memory, out
of descriptors, thousands of readers. Readers get correct bytes or an error, in time."""

import errno
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import oracle
import pytest
import readers
from conftest import (BINARY, BUILD, SLOW, as_user, become_user, child, eventually, mounted_at,
                      preload, thread_states)
from corpus import trees

UNIT = BUILD / "fstfs@.service"
LIMIT = 30  # seconds within which all processes must end
BUDGET = 8 << 20
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO}


@pytest.fixture(scope="session")
def model(shared_place):
    source = trees.Source(shared_place / "model")
    source.add("m", "model", [trees.tensor(f"t{i:03}", "U8", (50_000 + 1031 * i,))
                              for i in range(100)], shards=3)
    return source


# --- supervisors ---


def unit_lines(unit, key):
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


class Supervisor:
    """The part of systemd that the unit file needs: ExecStartPre, ExecStart, Restart=on-failure."""

    def __init__(self, source, mountpoint):
        unit = UNIT.read_text()
        self.environment = {"SOURCE": os.fspath(source), "MOUNTPOINT": os.fspath(mountpoint),
                            "OPTIONS": "--memory=32M"}
        self.before = [shlex.split(line) for line in unit_lines(unit, "ExecStartPre")]
        line, = unit_lines(unit, "ExecStart")
        line = re.sub(r"^\S*/fstfs ", f"{BINARY} ", line)
        line = re.sub(r"\$(\w+)(?=\s)", lambda m: self.environment[m[1]], line)
        self.command = [re.sub(r"\$\{(\w+)\}", lambda m: self.environment[m[1]], word)
                        for word in shlex.split(line)]
        assert unit_lines(unit, "Restart") == ["on-failure"]
        self.starts, self.stopping, self.status = 0, False, None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        environment = {**os.environ, **self.environment}
        while not self.stopping:
            for command in self.before:
                subprocess.run(command, env=environment, check=True)
            self.process = subprocess.Popen(self.command, env=environment)
            self.starts += 1
            self.status = self.process.wait()
            if self.status == 0:
                return

    def stop(self):
        """Stops it with SIGTERM, as systemd does. Returns the exit status."""
        self.stopping = True
        self.process.terminate()
        self.thread.join(LIMIT * SLOW)
        return self.status


def test_supervisor(fstfs, place, model):
    """Killed three times with active readers: open files fail, and reopening works at the same
    path."""
    mountpoint = place / "mnt"
    mountpoint.mkdir()
    supervisor = Supervisor(model.root, mountpoint)
    try:
        assert eventually(lambda: mounted_at(mountpoint), LIMIT)
        files = oracle.plain_files(mountpoint, model)
        group = readers.ReaderGroup(files, passed=GONE)
        try:
            for turn in range(3):
                assert eventually(group.reading, LIMIT)
                supervisor.process.kill()
                assert eventually(lambda: supervisor.starts == turn + 2, LIMIT)
                assert eventually(lambda: read_on(group), LIMIT)
            group.stop()
            group.finish(LIMIT)
            assert not group.faults({0})
        finally:
            group.kill()
        for method in readers.METHODS:
            child(readers.check_files, files[:20], method)
    finally:
        status = supervisor.stop()
    assert status == 0
    assert not mounted_at(mountpoint)
    assert os.listdir(mountpoint) == []


def read_on(group):
    """Whether every reader has read something since the last call that returned True (or since the
    first call). Readers whose mapping died with the mount are replaced."""
    group.revive()
    if not hasattr(group, "counts"):
        group.counts = [(r.pid, r.count) for r in group.readers]
    now = [(r.pid, r.count) for r in group.readers]
    if any(pid == other and count <= before
           for (pid, count), (other, before) in zip(now, group.counts)):
        return False
    del group.counts
    return True


def test_living_mount_is_left_alone(mount, model):
    """ExecStartPre removes a dead mount, and nothing else."""
    m = mount(model.root)
    command, = unit_lines(UNIT.read_text(), "ExecStartPre")
    subprocess.run(shlex.split(command), env={**os.environ, "MOUNTPOINT": m.path}, check=True)
    assert m.read("tensors/m/model/t000") == model.checkpoints[0].tensors[0].data


def test_unit_file(place):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={BINARY}", UNIT.read_text(), flags=re.MULTILINE)
    (place / "fstfs@.service").write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", place / "fstfs@.service"],
                          capture_output=True, text=True, env={**os.environ, "HOME": "/"})
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "fstfs@" in line]
    assert not complaints, complaints


# --- a stopped daemon, and busy mounts ---


def test_stopped_and_continued(mount, model, who):
    """Readers wait and can be killed; after SIGCONT they continue."""
    m = mount(model.root, **who)
    files = child(oracle.plain_files, m.path, model, user=m.user)
    group = readers.ReaderGroup(files, user=m.user)
    try:
        for _ in range(3):
            assert eventually(group.reading, LIMIT)
            m.stop()
            before = group.count
            # A new reader, because the others may be unkillable: a process waits uninterruptibly for
            # a request that the daemon has taken from the kernel's queue (fs/fuse/dev.c,
            # request_wait_answer).
            group.readers.append(group.make("read", "late"))
            late = group.readers[-1]
            assert eventually(lambda: thread_states(late.pid)[0] in "SD", LIMIT)
            os.kill(late.pid, signal.SIGKILL)
            assert late.end(time.monotonic() + LIMIT * SLOW) == "SIGKILL"
            group.readers.pop()
            m.signal(signal.SIGCONT)
            assert eventually(lambda: group.count > before + 100, LIMIT)
        group.stop()
        group.finish(LIMIT)
        assert not group.faults({0})
    finally:
        m.signal(signal.SIGCONT)
        group.kill()


def test_terminated_while_stopped(mount, model):
    m = mount(model.root)
    child(os.listdir, m.path)  # a signal makes mounting fail, in libfuse 3.17 also after mount(2)
    m.stop()
    m.signal(signal.SIGTERM)
    m.signal(signal.SIGCONT)
    assert m.wait(LIMIT) == 0
    assert eventually(lambda: not mounted_at(m.path))


def test_busy_unmount(mount, model, who):
    """An open file makes unmounting fail, without effect on its reader."""
    m = mount(model.root, **who)
    files = child(oracle.plain_files, m.path, model, user=m.user)
    group = readers.ReaderGroup(files, user=m.user)

    def busy():
        done = subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path],
                              capture_output=True, text=True)
        assert done.returncode != 0 and "busy" in done.stderr, done

    try:
        assert eventually(group.reading, LIMIT)
        held = child_holding(files[0][0], m.user)
        try:
            for _ in range(20):
                busy()
        finally:
            os.kill(held, signal.SIGKILL)
            os.waitpid(held, 0)
        group.stop()
        group.finish(LIMIT)
        assert not group.faults({0})
    finally:
        group.kill()
    assert m.unmount() == 0


def child_holding(path, user):
    """PID of a process that has the file open until it is killed."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_user(user)
        os.open(path, os.O_RDONLY)
        os.write(into, b"o")
        signal.pause()
    assert os.read(out, 1) == b"o"
    os.close(out)
    os.close(into)
    return pid


# --- lack of resources ---


@pytest.mark.limit(120)
def test_memory_group(mount, model, memory_group):
    """The kernel enforces the memory bound: --memory and 64 MiB, under any load."""
    if os.environ.get("ASAN_OPTIONS"):
        pytest.skip("the sanitizer needs memory itself")
    wrapper, killed = memory_group(BUDGET + (64 << 20))
    m = mount(model.root, f"--memory={BUDGET}", wrapper=wrapper, limit=120 * SLOW)
    files = oracle.plain_files(m.path, model)
    group = readers.ReaderGroup(files, 32)
    try:
        assert eventually(lambda: group.count > 4000, LIMIT)
        for view in ("tensors", "npy", "merged", "shards"):
            oracle.walk(m / view)
        group.stop()
        group.finish(LIMIT)
        assert not group.faults({0})
    finally:
        group.kill()
    assert killed() == 0
    assert m.unmount() == 0


def test_no_descriptors_left(mount, model):
    """Files that cannot be opened are errors, logged once, until descriptors are available again."""
    m = mount(model.root, "--prefetch=off", "--direct=off")
    path = m / "tensors/m/model/t000"
    m.read(".fstfs/status")
    before = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)
    fd = os.open(path, os.O_RDONLY)
    resource.prlimit(m.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    for _ in range(3):
        with pytest.raises(OSError) as raised:
            os.pread(fd, 4096, 0)
        assert raised.value.errno in (errno.EMFILE, errno.EIO)
    resource.prlimit(m.pid, resource.RLIMIT_NOFILE, before)
    assert os.pread(fd, 4096, 0) == model.checkpoints[0].tensors[0].data[:4096]
    os.close(fd)
    assert len(m.log_text().splitlines()) <= 1, m.log_text()
    assert eventually(lambda: reads_all(m, model))


def test_few_descriptors_for_headers(mount, model):
    """A file that cannot be opened for lack of descriptors is not reported as missing."""
    m = mount(model.root)
    m.read(".fstfs/status")
    paths = [m / "tensors/m/model/t000", m / "merged/m/model.safetensors"]
    before = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)
    results = set()
    for most in range(3, 64):  # enough for a directory, but not for a header in it, in between
        resource.prlimit(m.pid, resource.RLIMIT_NOFILE, (most, before[1]))
        for path in 2 * paths:
            try:
                os.stat(path)
                results.add(0)
            except OSError as error:
                results.add(error.errno)
    assert results <= {errno.EMFILE, 0}
    resource.prlimit(m.pid, resource.RLIMIT_NOFILE, before)
    assert eventually(lambda: all(map(os.path.exists, paths)))


def reads_all(m, model):
    try:
        return m.read("tensors/m/model/t099") == model.checkpoints[0].tensors[99].data
    except OSError:
        return False


# --- many processes ---


def many(place, how, count, file):
    path, want = file
    (place / "expected").write_bytes(want)
    done = subprocess.run([sys.executable, "-I", Path(__file__).with_name("many.py"), how,
                           str(count), path, place / "expected"], capture_output=True, text=True,
                          timeout=LIMIT * SLOW)
    assert done.returncode == 0, done


def merged_file(m, source):
    found, = [f for f in oracle.plain_files(m.path, source) if b"/merged/" in f[0]]
    return found


def test_fork_storms(mount, model, place):
    """Hundreds of processes come and go, and share open files."""
    m = mount(model.root, "--memory=16M")
    for _ in range(3):
        many(place, "share", 300, merged_file(m, model))
    assert eventually(lambda: m.metrics()["fstfs_reads_in_flight"] == 0)


def test_mapped_by_a_thousand_processes(mount, model, place):
    m = mount(model.root)
    many(place, "map", 1000, merged_file(m, model))


def test_ten_thousand_open_files(mount, model, who):
    """These are files of the mount; the number of the daemon's open files stays small."""
    m = mount(model.root, **who)
    files = child(oracle.plain_files, m.path, model, user=m.user)
    assert child(open_many, files, 10_000, m.pid, m.user, seconds=2 * LIMIT)
    assert eventually(lambda: child(m.metrics, user=m.user)["fstfs_reads_in_flight"] == 0)


def open_many(files, count, daemon, user):
    """In a child: 1,000 files per process, each of which is read."""
    ready, into = os.pipe()
    released, go = os.pipe()
    pids = []
    for part in range(count // 1000):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            become_user(user)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1100)), hard))
            fds = []
            for i in range(1000):
                path, want = files[(part * 1000 + i) % len(files)]
                fds.append((os.open(path, os.O_RDONLY), want))
            os.write(into, b"o")
            os.read(released, 1)
            rng = random.Random(part)
            for fd, want in rng.sample(fds, 200):
                at = rng.randrange(len(want))
                if os.pread(fd, 100, at) != want[at:at + 100]:
                    os._exit(1)
            os._exit(0)
        pids.append(pid)
    os.close(into)
    left = len(pids)
    while left and (got := os.read(ready, left)):
        left -= len(got)
    opened = len(os.listdir(f"/proc/{daemon}/fd"))
    os.close(go)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    assert (left, failed) == (0, 0)
    assert opened < 64, opened
    return True


# --- other mount namespaces ---


@pytest.mark.parametrize("end", ["the namespace ends", "SIGTERM", "SIGTERM, unmounted at once"])
def test_copy_in_another_namespace(mount, model, end):
    """A mount namespace created while the mount exists has a copy, which an unmount here may not
    remove. The daemon serves it, and ends with the last copy or by a signal, also if it is
    unmounted here before the daemon reads mountinfo."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace is made")
    is_stopped = end == "SIGTERM, unmounted at once"
    m = mount(model.root,
              environment=preload("misfortune", STOP_AFTER_MOUNT=1) if is_stopped else None)
    if is_stopped:  # a SIGCONT before the SIGSTOP would have no effect
        assert eventually(lambda: set(thread_states(m.pid)) == {"T"})
    # Its standard output reports that the namespace exists; its standard input ends it.
    other = subprocess.Popen(["unshare", "-m", "--propagation=private", "sh", "-c",
                              "echo made; read line"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"made\n"
        subprocess.run(["fusermount3", "-u", m.path], check=True)
        assert not mounted_at(m.path) and os.listdir(m.path) == []
        m.signal(signal.SIGCONT)
        inside = f"/proc/{other.pid}/root{m.path}"
        for t in model.checkpoints[0].tensors[:10]:
            assert oracle.read_all(f"{inside}/tensors/m/model/{t.name}") == t.data
        assert m.process.poll() is None
        if end != "the namespace ends":
            m.signal(signal.SIGTERM)
            assert m.wait(LIMIT) == 0
    finally:
        other.communicate()
    assert m.wait(LIMIT) == 0
