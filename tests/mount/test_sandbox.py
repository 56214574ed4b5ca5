# SPDX-License-Identifier: Apache-2.0
"""The privileges that the daemon drops after mounting: they are gone, serving does not need them,
and it works with what the kernel lacks."""

import contextlib
import errno
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path

import oracle
import pytest
from conftest import (
    BUILD, ROOT, SANITIZED, alive, as_user, child, eventually, helpers_of, mounted_at, stop)
from corpus import trees

INTRUDER = BUILD / "tests/sandbox/intruder.so"
REFUSE = BUILD / "tests/sandbox/refuse"
PARTS = ("no_new_privileges", "capabilities", "landlock", "system_calls")
DAC_OVERRIDE, DAC_READ_SEARCH, SYS_ADMIN, LEASE = 1 << 1, 1 << 2, 1 << 21, 1 << 28


def sandbox_of(m):
    text = child(m.read, ".fstfs/status", user=m.user)
    return json.loads(text, object_pairs_hook=oracle.no_duplicates)["sandbox"]


def have_landlock():
    """Whether this kernel has Landlock, by a direct system call."""
    import ctypes
    return ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1) > 0


def threads(pid):
    """/proc/PID/status of each thread."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/status") as f:
                lines = f.read().splitlines()
        except OSError:
            continue  # the thread has ended
        found.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
    assert found
    return found


@pytest.fixture
def source(place):
    return trees.in_root(place / "s")


def test_all_privileges_are_dropped(mount, source, who):
    m = mount(source.root, **who)
    child(oracle.check_source, m.path, source, user=m.user)
    output = sandbox_of(m)
    for part in PARTS:
        if part != "landlock" or have_landlock():
            assert output[part] == {"on": True}, output
    shut = output["landlock"]["on"] and not SANITIZED
    assert output["reads"] == ("the source" if shut else "any file")
    assert output.get("opened_outside", 0) == 0  # no link leads out of the source
    for pid in (m.pid, helpers_of(m)["fstfs-open"]) if output["landlock"]["on"] else (m.pid,):
        for thread in threads(pid):
            assert (thread["NoNewPrivs"], thread["Seccomp"]) == ("1", "2"), thread["Name"]
            rights = int(thread["CapPrm"], 16)
            assert (rights & ~LEASE in (DAC_OVERRIDE, DAC_READ_SEARCH) if m.user is None
                    else rights == 0)
            assert int(thread["CapEff"], 16) == rights
            assert int(thread["CapInh"], 16) == int(thread["CapAmb"], 16) == 0


def test_sandbox_off(mount, source, who):
    m = mount(source.root, "--sandbox=off", **who)
    child(oracle.check_source, m.path, source, user=m.user)
    output = sandbox_of(m)
    assert [output[part] for part in PARTS] == [{"on": False, "why": "not wanted"}] * len(PARTS)
    assert list(helpers_of(m)) == ["fstfs-unmount"]
    assert all(thread["Seccomp"] == threads("self")[0]["Seccomp"] for thread in threads(m.pid))
    m.signal(signal.SIGTERM)
    assert m.wait() == 0 and not mounted_at(m.path)


def test_passthrough_keeps_its_capability(mount, source):
    if os.geteuid() != 0 or not int(threads("self")[0]["CapPrm"], 16) & SYS_ADMIN:
        pytest.skip("needs root: passthrough does")
    m = mount(source.root, "--passthrough=on")
    oracle.check_source(m.path, source)
    assert all(int(thread["CapEff"], 16) & SYS_ADMIN for thread in threads(m.pid))


def memory_of(pid):
    """The writable memory of a process."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            if " rw-p " in line and end - start < 1 << 30:  # not a sanitizer's shadow
                memory.seek(start)
                with contextlib.suppress(OSError):
                    found.append(memory.read(end - start))
    return found


@pytest.mark.parametrize("options", [[], ["-o", "allow_other"]], ids=" ".join)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it reads the memory of the daemon")
def test_environment_is_erased(mount, source, who, options):
    """The caller's secrets are neither in /proc/PID/environ nor elsewhere in memory."""
    if options and who.get("user"):
        pytest.skip("an unprivileged user cannot use allow_other")
    secret = "hf_" + "AbCdEfGhIj" * 3
    m = mount(source.root, *options, environment={"HF_TOKEN": secret, "TZ": "UTC"}, **who)
    child(oracle.check_source, m.path, source, user=m.user)
    for pid in (m.pid, *helpers_of(m).values()):
        kept = Path(f"/proc/{pid}/environ").read_bytes().replace(b"\0", b"\n").split()
        names = {variable.split(b"=")[0] for variable in kept}
        assert {b"PATH", b"TZ"} <= names <= {b"PATH", b"TZ", b"NOTIFY_SOCKET"}
        if not SANITIZED:  # a sanitizer keeps a copy
            memory = memory_of(pid)
            assert any(b"PATH=" in part for part in memory)  # the environment is in it
            assert not any(secret.encode() in part for part in memory)


def intrude(mount, place, source, services, **more):
    """{attempt: result} of code that runs inside a daemon."""
    if not INTRUDER.exists():
        pytest.skip("tests/sandbox/intruder is not built with this C library")
    user = more.get("user")
    outside = place / "outside"
    outside.write_text("a secret")
    inside = source.path("config.json")
    report = place / "report"  # timeout(1) loads the intruder too
    report.touch()
    os.chmod(report, 0o666)
    for path in (outside, inside, source.root, place):
        if user and os.geteuid() == 0:
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        os.chmod(path, 0o755 if os.path.isdir(path) else 0o644)
    options = more.pop("options", ())
    library = shutil.copy(INTRUDER, place)  # the build directory may be closed to the user
    victim = subprocess.Popen([*as_user(user), "sleep", "1000"])
    limits = Path(f"/proc/{victim.pid}/limits").read_text()
    try:
        m = mount(source.root, *options, **more, environment={
            "LD_PRELOAD": os.fspath(library), "INTRUDER": os.fspath(report),
            "INTRUDER_INSIDE": os.fspath(inside), "INTRUDER_OUTSIDE": os.fspath(outside),
            "INTRUDER_STREAM": services.stream, "INTRUDER_DATAGRAM": services.datagram,
            "INTRUDER_VICTIM": str(victim.pid)})
        child(oracle.read_all, m / "tensors/model/t0.weight", user=m.user)
        lines = map(str.split, report.read_text().splitlines())  # the log is there, too
        found = dict(words for words in lines if len(words) == 2)
        found["limits-changed"] = limits != Path(f"/proc/{victim.pid}/limits").read_text()
    finally:
        victim.kill()
        victim.wait()
    assert found.pop("end") == "works"
    child(oracle.check_source, m.path, source, user=m.user)  # it keeps serving
    assert sandbox_of(m)["system_calls"]["on"] == (not options)
    return found


class Services:
    """Sockets of other programs of the daemon's user, with mode 0600, or abstract."""

    def __init__(self, place, user, abstract):
        self.stream, self.datagram = (
            f"@{place}/{name}" if abstract else f"{place}/{name}" for name in ("stream", "datagram"))
        self.sockets = []
        for path, kind in ((self.stream, socket.SOCK_STREAM), (self.datagram, socket.SOCK_DGRAM)):
            one = socket.socket(socket.AF_UNIX, kind)
            one.bind(path.replace("@", "\0") if abstract else path)
            one.setblocking(False)
            if not abstract:
                os.chmod(path, 0o600)
                if user and os.geteuid() == 0:
                    os.chown(path, pwd.getpwnam(user).pw_uid, -1)
            self.sockets.append(one)
        self.sockets[0].listen(1)

    def reached(self):
        """The number of sockets that received something."""
        count = 0
        for one, look in zip(self.sockets, ("accept", "recv")):
            with contextlib.suppress(BlockingIOError):
                one.accept() if look == "accept" else one.recv(99)
                count += 1
            one.close()
        return count


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def services(place, who, request):
    return Services(place, who.get("user"), request.param)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer needs refused system calls")
def test_intruder_is_contained(mount, place, source, services, who):
    if not have_landlock():
        pytest.skip("the kernel has no Landlock")
    found = intrude(mount, place, source, services, **who)
    assert found.pop("read-inside") == "works"
    assert found.pop("limits-changed") is False
    by_landlock = {"read-outside", "list-root"}
    assert found == {name: "EACCES" if name in by_landlock else "ENOSYS" for name in found}
    assert (place / "outside").read_text() == "a secret"
    assert services.reached() == 0


@pytest.mark.skipif(SANITIZED, reason="as above")
def test_intruder_without_the_sandbox(mount, place, source, services, who):
    """The intruder can do what the test above shows to be impossible."""
    found = intrude(mount, place, source, services, options=("--sandbox=off",), **who)
    assert found.pop("limits-changed") is True
    assert services.reached() == 2
    for name in ("read-outside", "write-inside", "write-outside", "make", "truncate", "chmod",
                 "remove", "list-root", "open-proc", "fork", "internet", "kill", "code", "socket",
                 "connect", "datagram-pair", "sendto", "limits", "read-limits", "own-limits",
                 "tgkill", "tkill", "owner", "owner-ex", "pidfd", "memory", "priority", "ioctl"):
        assert found[name] == "works", found
    assert "ENOSYS" not in found.values(), found


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_systemd_is_notified(mount, place, source, who, abstract):
    """systemd is notified once, by the daemon itself, and no socket remains that could send
    elsewhere."""
    path = f"{place}/notify"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    manager.bind("\0" + path if abstract else path)
    if not abstract:
        os.chmod(path, 0o666)
    m = mount(source.root, environment={"NOTIFY_SOCKET": "@" + path if abstract else path}, **who)
    child(oracle.check_source, m.path, source, user=m.user)
    manager.setblocking(False)
    output, ancillary, _, _ = manager.recvmsg(99, socket.CMSG_SPACE(12))
    assert output == b"READY=1"
    assert struct.unpack("iii", ancillary[0][2])[0] == m.pid
    with pytest.raises(BlockingIOError):
        manager.recv(99)
    assert set(socket_types(m.pid)) <= {socket.SOCK_SEQPACKET}


def test_systemd_does_not_read(mount, place, source):
    """The mount is served although the notification cannot be sent."""
    path = f"{place}/notify"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            sender.sendto(b"full", path)
    m = mount(source.root, environment={"NOTIFY_SOCKET": path})
    child(oracle.check_source, m.path, source)
    assert "cannot notify systemd: Resource temporarily unavailable" in m.log_text()


def socket_types(pid):
    """The types of the Unix sockets that a process has open."""
    types = {}
    with open(f"/proc/{pid}/net/unix") as f:
        for line in list(f)[1:]:
            words = line.split()
            types[words[6]] = int(words[4], 16)
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return [types[link[8:-1]] for link in links if link.startswith("socket:")]


def test_log(fstfs, place, source):
    """A daemon in the background logs to syslog under its own name, also after syslogd restarts. It
    has no access to syslog itself; a helper does it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace with a /dev/log")
    dev, mnt = place / "dev", place / "mnt"
    for path in (dev, mnt):
        path.mkdir()
    for name in ("null", "fuse"):
        (dev / name).touch()

    def syslogd():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(dev / "log")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        made.bind(f"{dev}/log")
        made.setblocking(False)
        return made

    def line():
        with contextlib.suppress(BlockingIOError):
            return log.recv(4096).decode()

    log = syslogd()
    script = ('mount --bind /dev/null "$1/null" && mount --bind /dev/fuse "$1/fuse" && '
              'mount --rbind "$1" /dev && "$2" "$3" "$4" && echo && read end')
    namespace = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script,
                                  "sh", dev, fstfs, source.root, mnt],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert namespace.stdout.readline() == b"\n"
        inside = Path(f"/proc/{namespace.pid}/root{mnt}")
        pid = json.loads((inside / ".fstfs/status").read_text())["pid"]
        assert set(socket_types(pid)) == {socket.SOCK_SEQPACKET}

        def replaced():
            """The line that is logged when another directory replaces the source."""
            shutil.rmtree(source.root)
            trees.in_root(source.root)
            return eventually(lambda: os.listdir(inside / "tensors") and next(
                filter(mark.match, iter(line, None)), None))

        mark = re.compile(rf"^<\d+>.* fstfs\[{pid}\]: .*{re.escape(str(source.root))}")
        assert replaced()
        log.close()  # syslogd restarts
        log = syslogd()
        assert replaced()
        os.kill(pid, signal.SIGTERM)
        assert "unmounting: Terminated" in eventually(line)
        assert eventually(lambda: not alive(pid))
    finally:
        namespace.communicate(b"\n")
        log.close()


def test_system_calls_are_documented():
    """SECURITY.md lists exactly the system calls that the code allows."""
    code = (ROOT / "src/fuse/system_calls.c").read_text().split("/* ---- the filter")[0]
    rules = set(re.findall(r"\bSYS_(\w+)[,}]", code))
    text = (ROOT / "SECURITY.md").read_text()
    table, = re.findall(r"## System calls that remain\n(.*?)\n## ", text, re.DOTALL)
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[1])]
    assert len(listed) == len(set(listed))
    assert set(listed) == rules


# --- what the sandbox must permit ---


def test_links_out_of_the_source(mount, place, source, who):
    """Files and directories outside the source are readable if links lead to them, and no others."""
    other = trees.Source(place / "elsewhere")
    linked = other.add("", "far", trees.small_tensors("f.", count=3))
    linked = trees.Checkpoint("", "near", [("near.safetensors", linked.tensors)])
    deep = other.add("deep/er", "model", trees.small_tensors("d.", count=3), shards=2)
    os.symlink(place / "elsewhere/far.safetensors", source.path("near.safetensors"))
    os.symlink("../elsewhere/deep", source.path("deep"))
    m = mount(source.root, **who)

    def check():
        oracle.check_tensors(m / "tensors", linked)
        oracle.check_tensors(m / "tensors", deep)
        oracle.check_merged(m / "merged", deep)
        oracle.check_tensors(m / "tensors", source.checkpoints[0])

    child(check, user=m.user)
    if sandbox_of(m)["reads"] == "the source":
        assert sandbox_of(m)["opened_outside"] >= 4  # a directory with shards


def test_mounts_below_the_source(mount, place, source):
    """File systems that are mounted in the source after the start, and unmounted again."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts")
    os.mkdir(source.path("later"))
    m = mount(source.root)
    assert os.listdir(m / "tensors/later") == []
    subprocess.run(["mount", "-t", "tmpfs", "none", source.path("later")], check=True)
    try:
        there = source.add("later", "model", trees.small_tensors("l.", count=3), shards=2)
        assert eventually(lambda: os.path.exists(m / "merged/later/model.safetensors"))
        oracle.check_tensors(m / "tensors", there)
        oracle.check_merged(m / "merged", there)
    finally:
        subprocess.run(["umount", "-l", source.path("later")], check=True)
    assert eventually(lambda: os.listdir(m / "tensors/later") == [])


def test_another_fuse_below_the_source(mount, place, source, who):
    """Another fstfs for a model of this source, mounted afterwards by the same user."""
    os.mkdir(source.path("views"))
    if m_user := who.get("user"):
        if os.geteuid() == 0:
            os.chown(source.path("views"), pwd.getpwnam(m_user).pw_uid, -1)
    m = mount(source.root, **who)
    other = trees.Source(place / "other")
    c = other.add("", "model", trees.small_tensors("o.", count=4), shards=2)
    below = mount(other.root, "--view=shards", mountpoint=source.path("views"), **who)

    def check():
        assert eventually(lambda: os.path.exists(m / "merged/views/model.safetensors"))
        moved = trees.Checkpoint("views", "model", c.shards)
        oracle.check_tensors(m / "tensors", moved)
        oracle.check_merged(m / "merged", moved)

    child(check, user=m.user)
    assert m.unmount() == 0  # before the file system it reads from
    assert below.unmount() == 0


def test_source_is_moved(mount, place, who):
    """A parent of the source is renamed. The mount still shows the original directory, including
    files not opened before, and not the directory that is at the old path now."""
    source = trees.in_root(place / "parent/s")
    late = source.add("late", "model", trees.small_tensors("late.", count=3), shards=2)
    m = mount(source.root, **who)
    child(oracle.check_tensors, m / "tensors", source.checkpoints[0], user=m.user)
    os.rename(place / "parent", place / "moved")
    trees.Source(place / "parent/s").add("", "imposter", trees.small_tensors("i.", count=1))
    child(oracle.check_tensors, m / "tensors", late, user=m.user)
    child(oracle.check_merged, m / "merged", late, user=m.user)
    assert "imposter" not in child(os.listdir, m / "tensors", user=m.user)


# --- missing kernel features ---

REFUSED = {
    "landlock": (["landlock=ENOSYS"], {"landlock": "the kernel does not support it"}),
    "landlock-off": (["landlock=EOPNOTSUPP"], {"landlock": "the kernel does not support it"}),
    "landlock-container": (["landlock=EPERM"], {"landlock": "Operation not permitted"}),
    "seccomp": (["seccomp=EPERM"], {"system_calls": "Operation not permitted"}),
    "capset": (["capset=EPERM"], {"capabilities": "Operation not permitted"}),
    # Without no_new_privs, a filter needs a capability that has been dropped by then.
    "no-new-privs": (["no_new_privs=EINVAL"], {"no_new_privileges": "Invalid argument",
                                               "system_calls": "Permission denied"}),
    "all": (["landlock=ENOSYS", "seccomp=ENOSYS", "capset=EPERM", "no_new_privs=EINVAL"],
            {"landlock": "the kernel does not support it", "system_calls": "Function not implemented",
             "capabilities": "Operation not permitted", "no_new_privileges": "Invalid argument"}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_parts(mount, place, source, what):
    if os.geteuid() != 0:
        pytest.skip("needs root: a filter of an ordinary user keeps fusermount3 from its work")
    if not REFUSE.exists():
        pytest.skip("tests/sandbox/refuse is not built for this architecture")
    rules, off = REFUSED[what]
    shutil.copytree(source.root, place / "elsewhere")
    os.symlink("../elsewhere", source.path("linked"))
    plain = {name: part["why"] for name, part in sandbox_of(mount(source.root)).items()
             if name in PARTS and not part["on"]}
    m = mount(source.root, wrapper=[os.fspath(REFUSE), *rules, "--"])
    oracle.check_tensors(m / "tensors", source.checkpoints[0])
    assert oracle.read_all(m / "tensors/linked/model/t0.weight") == \
        oracle.read_all(m / "tensors/model/t0.weight")
    output = sandbox_of(m)
    assert {name: output[name]["why"] for name in PARTS if not output[name]["on"]} == {**plain, **off}
    m.signal(signal.SIGTERM)
    assert m.wait() == 0 and not mounted_at(m.path)


# --- shutdown ---


def is_dead(m):
    """Whether the daemon has closed the connection of a mount that remains."""
    try:
        child(os.stat, m.path + "/unheard-of", user=m.user)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


@pytest.mark.parametrize("ending", [False, True], ids=["before-the-end", "at-the-end"])
def test_end_without_the_unmounter(mount, source, who, ending):
    """The unmounter is killed before the daemon ends, or while the daemon waits for it. The daemon
    ends, and logs what the user has to do."""
    m = mount(source.root, **who, died=True)
    unmounter = helpers_of(m)["fstfs-unmount"]
    if ending:
        stop(unmounter)
        m.signal(signal.SIGTERM)
        assert eventually(lambda: is_dead(m))  # the daemon waits for a limited time
    os.kill(unmounter, signal.SIGKILL)
    assert eventually(lambda: not alive(unmounter))
    if not ending:
        m.signal(signal.SIGTERM)
    assert m.wait() is not None
    subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
    assert "cannot unmount" in m.log_text() and "fusermount3 -u" in m.log_text()


@pytest.mark.parametrize("end", ["SIGTERM", "umount"])
@pytest.mark.parametrize("stopped", [["fstfs-unmount"], ["fstfs-open"],
                                     ["fstfs-unmount", "fstfs-open"]], ids="+".join)
def test_end_with_stopped_helpers(mount, source, who, stopped, end):
    """The daemon ends although helpers are stopped. A mount that remains is dead until its unmounter
    continues."""
    m = mount(source.root, **who, died=True)
    helpers = helpers_of(m)
    if not set(stopped) <= set(helpers):
        pytest.skip("no fstfs-open: the kernel lacks Landlock")
    remains = end == "SIGTERM" and "fstfs-unmount" in stopped
    for name in stopped:
        stop(helpers[name])
    try:
        if end == "SIGTERM":
            m.signal(signal.SIGTERM)
        else:
            subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
        assert m.wait() == (1 if remains else 0)
        assert ("cannot unmount" in m.log_text()) == remains == bool(mounted_at(m.path))
    finally:
        for name in stopped:
            os.kill(helpers[name], signal.SIGCONT)
    assert eventually(lambda: not mounted_at(m.path))
    assert eventually(lambda: not any(alive(pid) for pid in helpers.values()))


def test_helpers_die_with_the_daemon(mount, source, who):
    m = mount(source.root, **who, died=True)
    helpers = helpers_of(m).values()
    m.signal(signal.SIGKILL)
    m.wait()
    subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
    assert eventually(lambda: not any(alive(pid) for pid in helpers))


def test_helpers_ignore_the_terminal(mount, source):
    """^C in a terminal reaches the whole process group. The daemon ends by it and unmounts."""
    m = mount(source.root)
    for pid in helpers_of(m).values():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    assert len(helpers_of(m)) == 1 + have_landlock()
    m.signal(signal.SIGINT)
    assert m.wait() == 0 and not mounted_at(m.path)


# --- core dumps ---


def regions(pid):
    """[(start, end, flags)] of the writable memory of a process."""
    found = []
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line):
                here = [int(match[1], 16), int(match[2], 16)]
            elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                here = None
            elif line.startswith("VmFlags:") and here:
                found.append((*here, line.split()[1:]))
    return found


@pytest.mark.skipif(SANITIZED, reason="the sanitizer retains memory")
def test_core_dump_has_no_tensors(mount, place):
    """The daemon's memory contains tensors, but not in regions that a core dump would include."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it reads the daemon's memory")
    mark = os.urandom(32)
    source = trees.Source(place / "s")
    data = mark * ((3 << 20) // len(mark))
    source.add("", "model", [trees.Tensor("t", "U8", [len(data)], data)])
    m = mount(source.root)
    path = m / "tensors/model/t"

    def found():
        """(number of regions excluded from a core dump, number of included ones) that contain it"""
        with open(path, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert f.read() == data
        kept = dumped = 0
        with open(f"/proc/{m.pid}/mem", "rb", buffering=0) as memory:
            for start, end, flags in regions(m.pid):
                try:
                    memory.seek(start)
                    has = mark in memory.read(end - start)
                except OSError:
                    continue
                kept += has and "dd" in flags
                dumped += has and "dd" not in flags
        assert not dumped
        return kept

    assert eventually(found)  # the daemon frees its buffers after some seconds
