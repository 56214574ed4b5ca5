# SPDX-License-Identifier: Apache-2.0
"""The command line: what mounts, what is refused, and that nothing stays behind."""

import ctypes
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time

import oracle
import pytest
from conftest import BUILD, SLOW, as_user, child, eventually, mounted_at
from corpus import trees

REFUSE = BUILD / "tests/sandbox/refuse"

def run(*command, user=None, seconds=20, **more):
    return subprocess.run([*as_user(user), *map(os.fspath, command)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=seconds * SLOW, **more)


def daemons(mountpoint):
    """Ids of the fstfs processes that serve a mount point, their helpers left out."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{entry}/stat") as f:
                    comm, fields = f.read().split("(", 1)[1].rsplit(")", 1)
            except OSError:
                continue
            if b"fstfs" in os.path.basename(words[0]) and os.fsencode(mountpoint) in words \
                    and comm not in ("fstfs-unmount", "fstfs-open", "fstfs-log"):
                parents[int(entry)] = int(fields.split()[1])
    # a helper that was forked a moment ago has no name of its own yet
    return [pid for pid, parent in parents.items() if parent not in parents]


@pytest.fixture
def source(place):
    return trees.in_root(place / "s")


@pytest.fixture
def mnt(place):
    """A mount point that is cleaned up, whatever the test did with it."""
    path = place / "mnt"
    path.mkdir()
    yield path
    for _ in range(3):
        if mounted_at(path):
            subprocess.run(["fusermount3", "-uz", path], capture_output=True)
            if mounted_at(path):
                subprocess.run(["umount", "-l", path], capture_output=True)
    for pid in daemons(path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def gone(mnt):
    assert eventually(lambda: not mounted_at(mnt)), "still mounted"
    assert eventually(lambda: not daemons(mnt)), "the daemon is still there"
    return True


def refused(done, *words):
    """Non-zero, with a message a person can act on, on standard error."""
    assert done.returncode != 0, done
    text = done.stderr
    assert text.strip() and len(text.splitlines()) <= 12, text
    for word in words:
        assert re.search(word, text, re.IGNORECASE), f"{word!r} is not in {text!r}"
    assert "Assertion" not in text and "Sanitizer" not in text


def nothing_left(mnt):
    assert not mounted_at(mnt)
    assert eventually(lambda: not daemons(mnt))


# --- what works ---


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(fstfs, flag):
    done = run(fstfs, flag)
    assert done.returncode == 0
    for word in ("SOURCE", "MOUNTPOINT", "--shard-size", "--shards", "--view", "-f", "-o"):
        assert word in done.stdout, word


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(fstfs, flag):
    done = run(fstfs, flag)
    assert done.returncode == 0
    assert re.search(r"fstfs.*\d+\.\d+\.\d+", done.stdout)


def test_background_returns_when_usable(fstfs, source, mnt):
    done = run(fstfs, source.root, mnt)  # hangs here if the daemon keeps our pipes open
    assert done.returncode == 0, done
    assert done.stdout == "" and done.stderr == ""
    assert sorted(os.listdir(mnt)) == [".fstfs", "merged", "npy", "shards", "tensors"]
    oracle.check_source(mnt, source)
    pid, = daemons(mnt)
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert not any(os.readlink(f"/proc/{pid}/fd/{n}").startswith("/dev/pts") for n in (0, 1, 2))
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


def test_relative_paths(fstfs, source, mnt, place):
    """Both paths are taken from where the command was given, though the daemon goes to /."""
    done = run(fstfs, "s", "mnt", cwd=place)
    assert done.returncode == 0, done
    oracle.check_source(mnt, source)
    extents = os.getxattr(mnt / "tensors/model/t0.weight", "user.fstfs.extents")
    assert os.fsencode(source.root) in extents
    run("fusermount3", "-u", mnt)
    gone(mnt)


def test_odd_paths(fstfs, place):
    root = place / "a source, with = and \\ and ünïcode"
    source = trees.in_root(root)
    mnt = place / "a mount,point o=x \\040"
    mnt.mkdir()
    done = run(fstfs, root, mnt)
    try:
        assert done.returncode == 0, done
        oracle.check_source(mnt, source)
    finally:
        run("fusermount3", "-u", mnt)
    assert eventually(lambda: not daemons(mnt))


def test_trailing_slashes_and_dots(fstfs, source, mnt):
    done = run(fstfs, f"{source.root}/./", f"{mnt}//")
    assert done.returncode == 0, done
    oracle.check_source(mnt, source)
    run("fusermount3", "-u", mnt)
    assert eventually(lambda: not mounted_at(mnt))
    assert eventually(lambda: not daemons(f"{mnt}//"))


def test_options_in_any_order(mount, source):
    m = mount(source.root, "-o", "ro", "--view=merged")
    assert sorted(os.listdir(m.path)) == ["config.json", "model.safetensors"]


def test_options_for_others(mount, source):
    """What mount(8) keeps to itself comes here by those who are not mount(8)."""
    m = mount(source.root, "-o", "x-systemd.automount,X-own.word=1,x-gvfs-hide,view=merged")
    assert sorted(os.listdir(m.path)) == ["config.json", "model.safetensors"]


def test_options_after_the_paths(fstfs, source, mnt):
    done = run(fstfs, source.root, mnt, "--view=merged")
    assert done.returncode == 0, done
    assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    run("fusermount3", "-u", mnt)
    gone(mnt)


def test_long_options_with_a_space(fstfs, source, mnt):
    """`--view merged` either works as `--view=merged` does or is refused; it is no source."""
    done = run(fstfs, "--view", "merged", source.root, mnt)
    if done.returncode == 0:
        assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    else:
        refused(done)
        nothing_left(mnt)


@pytest.mark.parametrize("size", ["512M", "5G", "5GB", "512MB", "1T", "1TB", "1K", "4096", "5GiB",
                                  "512m", "5g", "5gb"])
def test_sizes_are_taken(mount, source, size):
    m = mount(source.root, f"--shard-size={size}")
    assert os.listdir(m / "shards")


@pytest.mark.parametrize("options", [
    ["--shard-size=5X"], ["--shard-size="], ["--shard-size=0"], ["--shard-size=-1"],
    ["--shard-size=5G5"], ["--shard-size=G"], ["--shard-size=99999999999999999999"],
    ["--shard-size=99999999999T"], ["--shard-size= 5G"], ["--shard-size=0x10"],
    ["--shard-size=5 "], ["--shard-size=5 B"],
    ["--shards=0"], ["--shards=-3"], ["--shards=x"], ["--shards="], ["--shards=3x"],
    ["--shards=99999999999999999999"], ["--shards=100000"],
    ["--shards=2", "--shard-size=5G"], ["--shard-size=5G", "--shards=2"],
    ["--view=nothing"], ["--view="], ["--view=TENSORS"], ["--view=tensors/"],
    ["--bogus"], ["--bogus=1"], ["-Z"], ["-o", "no_such_option_xyz"], ["-o"],
], ids=" ".join)
def test_refused_options(fstfs, source, mnt, options):
    if options == ["-o"]:
        done = run(fstfs, source.root, mnt, *options)
    else:
        done = run(fstfs, *options, source.root, mnt)
    word = options[-1].split("=")[0].lstrip("-")
    refused(done, word if len(word) > 1 else ".")
    nothing_left(mnt)


@pytest.mark.parametrize("option", ["--view=", "--memory=", "--", "-o"])
def test_what_is_refused_is_said_on_one_line(fstfs, source, mnt, option):
    done = run(fstfs, f"{option}a\nb\x1b[31m", source.root, mnt)
    refused(done, re.escape(r"a\x0ab\x1b[31m"))
    assert done.stderr.count("\n") == 1
    nothing_left(mnt)


def test_both_cuts_refused_by_name(fstfs, source, mnt):
    refused(run(fstfs, "--shards=2", "--shard-size=5G", source.root, mnt), "shards", "shard-size")
    nothing_left(mnt)


@pytest.mark.parametrize("arguments", [[], ["SOURCE"], ["SOURCE", "MNT", "more"]],
                         ids=["none", "one", "three"])
def test_wrong_number_of_arguments(fstfs, source, mnt, arguments):
    words = {"SOURCE": source.root, "MNT": os.fspath(mnt)}
    refused(run(fstfs, *[words.get(a, a) for a in arguments]))
    nothing_left(mnt)


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
class TestRefusedPaths:
    def test_no_such_source(self, fstfs, place, mnt, flags):
        refused(run(fstfs, *flags, place / "nothing", mnt), "nothing", "no such")
        nothing_left(mnt)

    def test_source_is_a_file(self, fstfs, place, source, mnt, flags):
        refused(run(fstfs, *flags, place / "s/config.json", mnt), "config.json", "not a directory")
        nothing_left(mnt)

    def test_source_is_a_checkpoint_file(self, fstfs, place, source, mnt, flags):
        refused(run(fstfs, *flags, place / "s/model.safetensors", mnt), "not a directory")
        nothing_left(mnt)

    def test_source_is_empty_string(self, fstfs, mnt, flags):
        refused(run(fstfs, *flags, "", mnt))
        nothing_left(mnt)

    def test_mount_point_is_missing(self, fstfs, place, source, flags):
        refused(run(fstfs, *flags, source.root, place / "nowhere"), "nowhere", "no such")
        assert not (place / "nowhere").exists()
        nothing_left(place / "nowhere")

    def test_mount_point_is_a_file(self, fstfs, place, source, flags):
        (place / "file").write_bytes(b"x")
        refused(run(fstfs, *flags, source.root, place / "file"), "file", "not a directory")
        nothing_left(place / "file")

    def test_mount_point_is_not_empty(self, fstfs, source, mnt, flags):
        (mnt / "something").write_bytes(b"x")
        refused(run(fstfs, *flags, source.root, mnt), "not empty")
        nothing_left(mnt)
        assert (mnt / "something").read_bytes() == b"x"

    def test_mount_point_is_busy(self, fstfs, source, mnt, flags):
        assert run(fstfs, source.root, mnt).returncode == 0
        refused(run(fstfs, *flags, source.root, mnt), re.escape(os.fspath(mnt)))
        assert len(mounted_at(mnt)) == 1 and len(daemons(mnt)) == 1
        oracle.check_source(mnt, source)  # the first one is unhurt
        run("fusermount3", "-u", mnt)
        gone(mnt)

    def test_mount_point_is_the_source(self, fstfs, source, flags):
        refused(run(fstfs, *flags, source.root, source.root))
        nothing_left(source.root)

    def test_no_dev_fuse(self, fstfs, source, mnt, flags):
        if os.geteuid() != 0:
            pytest.skip("needs root: a mount namespace without /dev/fuse")
        probe = run("unshare", "-m", "true")
        if probe.returncode:
            pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
        done = run("unshare", "-m", "--propagation", "slave", "sh", "-c",
                   'mount -t tmpfs none /dev && exec "$@"', "sh", fstfs, *flags, source.root, mnt)
        refused(done, "/dev/fuse")
        nothing_left(mnt)


def test_mount_point_inside_the_source(fstfs, place, source):
    """The daemon must not walk into its own mount: refused, or it stands and nothing hangs."""
    mnt = place / "s/mnt"
    mnt.mkdir()
    done = run(fstfs, source.root, mnt)
    try:
        if done.returncode:
            refused(done)
            nothing_left(mnt)
            return
        def work():
            found = oracle.walk(mnt / "tensors")
            oracle.walk(mnt / "merged")
            return found

        assert b"model/t0.weight" in child(work, seconds=20)
        assert child(oracle.read_all, mnt / "tensors/model/t0.weight", seconds=10)
    finally:
        for pid in daemons(mnt):
            if done.returncode == 0:
                run("fusermount3", "-uz", mnt)
        assert eventually(lambda: not daemons(mnt)) or [os.kill(p, 9) for p in daemons(mnt)]


def test_source_below_another_fstfs_mount(mount, source):
    """A mount of a mount: SOURCE may be on any file system, another FUSE included."""
    first = mount(source.root)
    second = mount(first / "merged")
    oracle.check_source(second.path, source, views=("tensors", "npy", "merged"))
    assert oracle.read_all(second / "shards/model.safetensors") == \
        oracle.read_all(first / "merged/model.safetensors")
    second.unmount()


def test_mount_point_in_what_the_source_shows(mount, fstfs, place, source):
    """A mount of a mount, made inside the source of the latter, would show itself without end.
    SOURCE may be the other mount, a part of it, a directory above it, or a mount of it."""
    source.directory("in side")
    inside = source.path("in side")
    above = place / "above"
    (above / "m").mkdir(parents=True)
    assert run(fstfs, source.root, above / "m").returncode == 0
    try:
        second = mount(above / "m/merged")
        for of in (above / "m", above / "m/merged", above, second.path):
            done = run(fstfs, of, inside)
            if done.returncode == 0:
                run("fusermount3", "-uz", inside)
            refused(done, re.escape(inside), re.escape(os.fspath(source.root)), "elsewhere")
            assert not mounted_at(inside)
        third = mount(above / "m/merged")  # the same elsewhere
        oracle.check_source(third.path, source, views=("merged",))
        third.unmount()
        second.unmount()
    finally:
        run("fusermount3", "-uz", above / "m")
    gone(above / "m")


def test_dead_mount_point(mount, fstfs, source):
    """After kill -9: a new mount says what is wrong; after `fusermount3 -u` it works."""
    m = mount(source.root, died=True)
    m.signal(signal.SIGKILL)
    m.wait()
    with pytest.raises(OSError):
        os.listdir(m.path)
    done = run(fstfs, source.root, m.path)
    if done.returncode:
        refused(done, re.escape(m.path), "not connected|fusermount3|umount")
        assert run("fusermount3", "-u", m.path).returncode == 0
        assert run(fstfs, source.root, m.path).returncode == 0
    oracle.check_source(m.path, source)
    run("fusermount3", "-u", m.path)
    gone(m.path)


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_remount_right_after_a_kill(fstfs, source, mnt, flags):
    """The kernel still has the attributes of the dead mount cached. No mount is stacked on it."""
    for _ in range(20):
        assert run(fstfs, source.root, mnt).returncode == 0
        pid, = daemons(mnt)
        os.listdir(mnt)  # the kernel caches attributes and entries
        os.kill(pid, signal.SIGKILL)
        done = run(fstfs, *flags, source.root, mnt)
        refused(done, re.escape(os.fspath(mnt)), f"fusermount3 -u {re.escape(os.fspath(mnt))} ")
        assert done.returncode == 1
        assert len(mounted_at(mnt)) == 1
        assert eventually(lambda: run("fusermount3", "-u", mnt).returncode == 0)
        nothing_left(mnt)


def test_mount_point_of_a_stopped_daemon(fstfs, source, mnt):
    """Refused without asking that daemon for anything, which would wait for it."""
    assert run(fstfs, source.root, mnt).returncode == 0
    pid, = daemons(mnt)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(1.2)  # longer than the kernel caches attributes: what it asks now would hang
        done = run(fstfs, source.root, mnt)
    finally:
        os.kill(pid, signal.SIGCONT)
    refused(done, "busy")
    assert done.returncode == 1 and len(mounted_at(mnt)) == 1
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


def test_mount_point_below_a_hidden_mount(fstfs, source, mnt, place):
    """A mount that another one hides does not make the place below the other one busy."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount")
    assert run(fstfs, source.root, mnt).returncode == 0
    above = place / "above"
    above.mkdir()
    (above / "mnt").mkdir()
    (above / "s").symlink_to(source.root)
    subprocess.run(["mount", "--bind", above, place], check=True)
    try:
        done = run(fstfs, mnt, mnt)
        refused(done, "is inside of")  # and not busy: what is at the path now is a plain directory
    finally:
        subprocess.run(["umount", place], check=True)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


# --- descriptors of the caller ---


def holders(mnt, path):
    """Names of the processes of a mount, helpers included, that have a file open."""
    found = []
    pid, = daemons(mnt)
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        family = [pid, *map(int, f.read().split())]
    for one in family:
        for fd in os.listdir(f"/proc/{one}/fd"):
            if os.readlink(f"/proc/{one}/fd/{fd}") == os.fspath(path):
                found.append((open(f"/proc/{one}/comm").read().strip(), fd))
    assert len(family) > 1
    return found


def is_locked(path):
    with open(path) as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True


@pytest.mark.parametrize("kernel", [[], ["close_range=ENOSYS"]], ids=["", "no-close_range"])
@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_descriptors_of_the_caller_are_closed(fstfs, source, mnt, place, flags, kernel):
    """A lock of the script that started fstfs, and a file that it had open for writing."""
    if kernel and (os.geteuid() != 0 or not REFUSE.exists()):
        pytest.skip("needs root and tests/sandbox/refuse: a filter of system calls")
    wrapper = f"{REFUSE} {kernel[0]} --" if kernel else ""
    lock, written = place / "lock", place / "written"
    script = (f"exec 9>{lock} 200>{written}; flock 9; {wrapper} {fstfs} {' '.join(flags)} "
              f"{source.root} {mnt} {'>/dev/null 2>&1 &' if flags else ''}")
    assert run("bash", "-c", script).returncode == 0
    assert eventually(lambda: os.path.exists(mnt / "tensors"))
    assert not is_locked(lock)
    assert holders(mnt, lock) == holders(mnt, written) == []
    oracle.check_source(mnt, source)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


def test_source_by_a_descriptor_of_the_caller(fstfs, source, mnt):
    assert run("bash", "-c", f"exec 9<{source.root}; {fstfs} /dev/fd/9 {mnt}").returncode == 0
    oracle.check_source(mnt, source)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_standard_streams(fstfs, source, mnt, closed):
    """None of the daemon's own descriptors takes the number of a standard stream."""
    assert run("bash", "-c", f"{fstfs} {source.root} {mnt} {closed}").returncode == 0
    pid, = daemons(mnt)
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
    oracle.check_source(mnt, source)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


# --- the end ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
                         ids=lambda n: n.name)
def test_signals_unmount(mount, source, number):
    m = mount(source.root)
    oracle.check_tensors(m / "tensors", source.checkpoints[0])
    m.signal(number)
    assert m.wait() == 0
    assert not mounted_at(m.path)


def test_sigterm_in_the_background(fstfs, source, mnt):
    assert run(fstfs, source.root, mnt).returncode == 0
    os.kill(daemons(mnt)[0], signal.SIGTERM)
    gone(mnt)


def test_sigterm_while_files_are_open(mount, source):
    m = mount(source.root)
    fd = os.open(m / "tensors/model/t4.weight" if os.path.exists(m / "tensors/model/t4.weight")
                 else m / "merged/model.safetensors", os.O_RDONLY)
    os.pread(fd, 10, 0)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert not mounted_at(m.path)
    os.close(fd)


def test_sigterm_under_load(mount, place):
    source = trees.Source(place / "s")
    source.add("", "model", [trees.tensor(f"t{i}", "U8", (1 << 20,), seed=i) for i in range(20)])
    m = mount(source.root)
    readers = [subprocess.Popen(
        [sys.executable, "-c", "import os,sys\ntry:\n while True:\n  for n in os.listdir(sys.argv[1]):\n"
         "   open(os.path.join(sys.argv[1],n),'rb').read()\nexcept OSError: pass", m / "tensors/model"],
        stderr=subprocess.DEVNULL) for _ in range(4)]
    time.sleep(0.5)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert not mounted_at(m.path)
    for r in readers:
        r.wait(10 * SLOW)


def test_fusermount_while_busy(mount, source):
    """Busy: refused and all goes on; lazily: open files read to their end."""
    m = mount(source.root)
    path = m / "merged/model.safetensors"
    want = oracle.read_all(path)
    fd = os.open(path, os.O_RDONLY)
    assert run("fusermount3", "-u", m.path).returncode != 0
    oracle.check_source(m.path, source)
    assert run("fusermount3", "-uz", m.path).returncode == 0
    assert os.pread(fd, len(want) + 5, 0) == want
    os.close(fd)
    assert m.wait() == 0


def test_umount_by_root(mount, source):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    m = mount(source.root)
    assert run("umount", m.path).returncode == 0
    assert m.wait() == 0


# --- mount(8) ---


def with_mount_helper(fstfs, kind, work):
    """Runs work() where mount(8) finds what mounts a type: mount.fuse3 has a PATH of its own, and
    mount.fstfs the path of an installed fstfs, so this is a mount namespace whose /usr/local/bin is
    the build folder, and in whose /sbin mount.fstfs is."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount(8)")
    if kind == "fuse.fstfs" and \
            not any(os.path.exists(f"{d}/mount.fuse3") for d in ("/sbin", "/usr/sbin")):
        pytest.skip("mount.fuse3 is not installed")
    sbin = os.path.realpath("/sbin")
    helper = fstfs.parent / "mount.fstfs"
    installed = re.search(r'"(/\S*)/fstfs"', helper.read_text())[1]

    def inside():
        if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS
            return "no mount namespace here"
        commands = [["mount", "--make-rslave", "/"],
                    ["mount", "--bind", fstfs.parent, installed]]
        if kind == "fstfs":
            # a folder of links to what is there, and the helper
            old = "/mnt"
            commands += [["mount", "--bind", sbin, old], ["mount", "-t", "tmpfs", "sbin", sbin],
                         ["sh", "-c", f"ln -s {old}/* {sbin}/"],
                         ["install", "-m", "755", helper, f"{sbin}/mount.fstfs"]]
        for command in commands:
            done = run(*command)
            assert done.returncode == 0, done
        return work()

    if why := child(inside):
        pytest.skip(why)


@pytest.fixture(params=["fuse.fstfs", "fstfs"])
def kind(request):
    """The two types: that of mount.fuse3, and our own."""
    return request.param


@pytest.mark.parametrize("options", ["defaults", "ro,noauto,nofail,_netdev,x-systemd.automount",
                                     "rw,allow_other", "view=merged", "shards=2", "shard-size=1K",
                                     "nosuid,nodev,noatime", "group,relatime,X-own.word=1"])
def test_fstab(fstfs, source, mnt, place, kind, options):
    tab = place / "fstab"
    tab.write_text(f"{source.root} {mnt} {kind} {options} 0 0\n")

    def work():
        done = run("mount", "-T", tab, mnt)
        assert done.returncode == 0, done
        line, = mounted_at(mnt)
        assert " fuse.fstfs " in line
        if options == "view=merged":
            assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
        elif options == "shards=2":
            with open(mnt / ".fstfs/status") as f:  # a single file is not cut by number
                assert json.load(f)["shards"] == 2
        else:
            oracle.check_source(mnt, source, [f"--{options}"])
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_command(fstfs, source, mnt, kind):
    def work():
        done = run("mount", "-t", kind, source.root, mnt)
        assert done.returncode == 0, done
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_command_says_why_not(fstfs, source, mnt, place, kind):
    def work():
        refused(run("mount", "-t", kind, place / "nothing", mnt), "nothing")
        refused(run("mount", "-t", kind, "-o", "view=bogus", source.root, mnt), "bogus")
        nothing_left(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_exit_status(fstfs, source, mnt, place):
    """mount(8)'s own: 1 for a wrong invocation, 32 for a mount that failed."""
    def work():
        assert run("mount", "-t", "fstfs", place / "nothing", mnt).returncode == 32
        assert run("mount", "-t", "fstfs", "-o", "bogus", source.root, mnt).returncode == 1
        assert run("mount", "-t", "fstfs", "-o", "setuid=no-such", source.root, mnt).returncode == 1
        helper = os.path.realpath("/sbin/mount.fstfs")
        assert run(helper, source.root).returncode == 1
        assert run(helper, source.root, mnt, "-x").returncode == 1
        assert run(helper, source.root, mnt, "-o", "ro", mnt).returncode == 1
        nothing_left(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_remount_is_refused(fstfs, source, mnt):
    def work():
        assert run("mount", "-t", "fstfs", source.root, mnt).returncode == 0
        done = run("mount", "-o", "remount,ro", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 32
        refused(done, "remount")
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_in_vain(fstfs, source, mnt):
    """mount -f does all but to mount; -v says what is run, and -s and -n change nothing."""
    def work():
        done = run("mount", "-f", "-v", "-o", "allow_other", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 0
        assert f"/fstfs -o rw,allow_other -- {source.root} {mnt}\n" in done.stdout
        nothing_left(mnt)
        done = run("mount", "-n", "-s", "-v", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 0, done
        assert run("umount", mnt).returncode == 0

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_all(fstfs, source, mnt, place):
    """What is mounted is not mounted again; what is noauto is not mounted; odd names are kept."""
    odd = place / "a model, or -two"
    os.rename(source.root, odd)
    source.root = str(odd)
    other = place / "other"
    other.mkdir()
    tab = place / "fstab"
    escaped = str(odd).replace(" ", "\\040")
    tab.write_text(f"{escaped} {mnt} fstfs nofail 0 0\n{escaped} {other} fstfs noauto 0 0\n")

    def work():
        for _ in range(2):
            done = run("mount", "-a", "-T", tab)
            assert done.returncode == 0, done
            assert len(mounted_at(mnt)) == 1
        assert not mounted_at(other)
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_as_another_user(fstfs, test_user, source, mnt):
    """setuid=USER: the daemon is that user's, and nobody else's is the mount."""
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)

    def work():
        done = run("mount", "-t", "fstfs", "-o", f"nodev,setuid={test_user},view=merged",
                   source.root, mnt)
        assert done.returncode == 0, done
        pid, = daemons(mnt)
        assert os.stat(f"/proc/{pid}").st_uid == who.pw_uid
        assert f"user_id={who.pw_uid}," in mounted_at(mnt)[0]
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_user_mounts_by_fstab(fstfs, test_user, source, mnt, place):
    """A line with `user` lets an ordinary user mount and unmount."""
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)
    tab = place / "fstab"
    tab.write_text(f"{source.root} {mnt} fstfs user,noauto 0 0\n")

    def work():
        done = run("mount", "--bind", tab, "/etc/fstab")
        assert done.returncode == 0, done
        done = run("mount", mnt, user=test_user)
        assert done.returncode == 0, done
        pid, = daemons(mnt)
        assert os.stat(f"/proc/{pid}").st_uid == who.pw_uid
        done = run("umount", mnt, user=test_user)
        assert done.returncode == 0, done
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_in_a_namespace(fstfs, source, mnt):
    """mount -N: in another process's mount namespace, and not here."""
    def work():
        with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo && exec sleep 3600"],
                              stdout=subprocess.PIPE) as other:
            try:
                other.stdout.readline()
                inside = f"--mount=/proc/{other.pid}/ns/mnt"
                if run("nsenter", inside, "test", "-d", mnt).returncode:
                    return "in a chroot: mount -N goes to the namespace's own root"
                done = run("mount", "-N", str(other.pid), "-t", "fstfs", source.root, mnt)
                assert done.returncode == 0, done
                assert not mounted_at(mnt)
                with open(f"/proc/{other.pid}/mountinfo") as f:
                    assert any(line.split()[4] == str(mnt) for line in f)
                done = run("umount", "-N", str(other.pid), mnt)
                assert done.returncode == 0, done
                assert eventually(lambda: not daemons(mnt))
            finally:
                other.kill()

    with_mount_helper(fstfs, "fstfs", work)


def test_shows_in_the_mount_table(mount, source):
    m = mount(source.root)
    line, = mounted_at(m.path)
    fields, behind = line.split(" - ")
    kind, device, superblock = behind.split()
    assert kind == "fuse.fstfs"
    assert device != "hf-mount"  # transformers turns mmap off for that name
    assert "ro" in fields.split()[5].split(",")
    assert {"nosuid", "nodev"} <= set(fields.split()[5].split(","))


# --- ordinary users ---


def test_as_ordinary_user(user_binary, test_user, place, source):
    mnt = place / "user-mnt"
    mnt.mkdir()
    if as_user(test_user):
        who = pwd.getpwnam(test_user)
        os.chown(mnt, who.pw_uid, who.pw_gid)
    done = run(user_binary, source.root, mnt, user=test_user)
    try:
        assert done.returncode == 0, done
        child(oracle.check_source, mnt, source, user=test_user)
        pid, = daemons(mnt)
        assert os.stat(f"/proc/{pid}").st_uid == pwd.getpwnam(test_user).pw_uid
        done = run("fusermount3", "-u", mnt, user=test_user)
        assert done.returncode == 0, done
        gone(mnt)
    finally:
        run("fusermount3", "-uz", mnt)


def test_sigterm_as_ordinary_user(mount, test_user, user_binary, source):
    m = mount(source.root, user=test_user, binary=user_binary)
    child(oracle.check_source, m.path, source, user=test_user)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert eventually(lambda: not mounted_at(m.path))


def test_allow_other_is_refused_to_users(user_binary, test_user, place, source):
    try:
        with open("/etc/fuse.conf") as f:
            if any(line.strip() == "user_allow_other" for line in f):
                pytest.skip("/etc/fuse.conf has user_allow_other")
    except OSError:
        pass
    mnt = place / "user-mnt"
    mnt.mkdir()
    if as_user(test_user):
        who = pwd.getpwnam(test_user)
        os.chown(mnt, who.pw_uid, who.pw_gid)
    for flags in ([], ["-f"]):
        done = run(user_binary, *flags, "-o", "allow_other", source.root, mnt, user=test_user)
        refused(done, "allow_other")
        nothing_left(mnt)


def test_mount_point_of_another_user_is_refused(user_binary, test_user, place, source):
    if os.geteuid() != 0:
        pytest.skip("needs root: a directory of somebody else")
    mnt = place / "root-mnt"
    mnt.mkdir(mode=0o755)
    refused(run(user_binary, source.root, mnt, user=test_user))
    nothing_left(mnt)


def test_source_not_readable_is_refused(user_binary, test_user, place):
    if os.geteuid() != 0:
        pytest.skip("needs root: a directory of somebody else")
    root = place / "shut"
    root.mkdir(mode=0o700)
    mnt = place / "user-mnt"
    mnt.mkdir()
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)
    refused(run(user_binary, root, mnt, user=test_user), "shut", "permission")
    nothing_left(mnt)


def test_other_users_are_kept_out_without_allow_other(mount, source, test_user):
    if os.geteuid() != 0:
        pytest.skip("needs root: another user looks")
    m = mount(source.root)

    def look():
        with pytest.raises(PermissionError):
            os.listdir(m.path)

    child(look, user=test_user)


# --- readiness ---


def test_many_mounts_at_once(mount, source):
    mounts = [mount(source.root, f"--view={v}") for v in ("tensors", "merged", "shards", "npy") * 2]
    for m in mounts:
        assert oracle.walk(m.path)


def test_mount_and_unmount_again_and_again(fstfs, source, mnt):
    for _ in range(15):
        done = run(fstfs, source.root, mnt)
        assert done.returncode == 0, done
        assert os.listdir(mnt / "tensors") == ["model", "model.index.json"]
        assert run("fusermount3", "-u", mnt).returncode == 0
        assert eventually(lambda: not mounted_at(mnt))
    gone(mnt)


def test_debug_output(mount, source):
    m = mount(source.root, "-d")
    oracle.check_tensors(m / "tensors", source.checkpoints[0])
    m.unmount()
    assert "LOOKUP" in m.log_text() or "lookup" in m.log_text()


def test_foreground_is_quiet(mount, source):
    m = mount(source.root)
    oracle.check_source(m.path, source)
    m.unmount()
    assert len(m.log_text().splitlines()) <= 3, m.log_text()


def test_descriptors_do_not_leak(mount, place):
    source = trees.nested(place / "s", models=40)
    m = mount(source.root)

    def count():
        return len(os.listdir(f"/proc/{m.pid}/fd"))

    oracle.check_source(m.path, source, views=("tensors",))
    first = count()
    for _ in range(3):
        oracle.check_source(m.path, source, views=("tensors", "merged"))
    assert count() <= first + 200


def test_few_descriptors_are_enough(mount, place):
    """256 files are open at once where 64 descriptors may be."""
    source = trees.Source(place / "s")
    for i in range(256):
        source.add(f"d{i // 64}", f"m{i:03}", trees.small_tensors(seed=i, count=2))
    m = mount(source.root, wrapper=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"))
    fds = [(os.open(oracle.tensor_file(m / "tensors", c, c.tensors[0]), os.O_RDONLY),
            c.tensors[0].data) for c in source.checkpoints]
    for fd, want in fds + fds[::-1]:
        assert os.pread(fd, 1000, 0) == want
    for fd, _ in fds:
        os.close(fd)
    oracle.check_source(m.path, source, views=("tensors", "shards"))


def test_environment_needs_nothing(fstfs, source, mnt):
    """Started as init systems do: no HOME, no PATH but a bare one, umask 077, locale odd."""
    done = subprocess.run(["env", "-i", "LC_ALL=tr_TR.UTF-8", "sh", "-c",
                           'umask 077; exec "$@"', "sh", fstfs, source.root, mnt],
                          capture_output=True, text=True, timeout=20 * SLOW)
    assert done.returncode == 0, done
    oracle.check_source(mnt, source)
    assert shutil.which("fusermount3")
    run("fusermount3", "-u", mnt)
    gone(mnt)
