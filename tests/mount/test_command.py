# SPDX-License-Identifier: Apache-2.0
"""The command line: options, descriptors of the caller, signals, ordinary users."""

import fcntl
import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys

import oracle
import pytest
from command_line import (REFUSE, daemons, gone, mnt, nothing_left, refused,  # noqa: F401 (fixtures)
                          run, source)
from conftest import SLOW, as_user, child, eventually, files_open_in, mounted_at, preload
from corpus import trees


# --- options and arguments ---


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
    done = run(fstfs, source.root, mnt)  # hangs if the daemon keeps the pipes open
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


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_init_is_refused(fstfs, source, mnt, place, flags, how):
    """libfuse refuses to answer INIT, before or after it calls init(): fstfs reports the failure."""
    done = run(fstfs, *flags, source.root, mnt, seconds=5,
               env={**os.environ, **preload("misfortune", place, REFUSED_INIT=how)})
    refused(done, "fuse: .*(version|maximum read size)", "serving ended: Protocol error")
    assert done.returncode == 1
    nothing_left(mnt)


def test_relative_paths(fstfs, source, mnt, place):
    """Relative paths refer to the caller's working directory, although the daemon changes to /."""
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


def test_options_of_other_programs(mount, source):
    """Options that mount(8) does not pass on are ignored if other programs pass them on."""
    m = mount(source.root, "-o", "x-systemd.automount,X-own.word=1,x-gvfs-hide,view=merged")
    assert sorted(os.listdir(m.path)) == ["config.json", "model.safetensors"]


def test_options_after_the_paths(fstfs, source, mnt):
    done = run(fstfs, source.root, mnt, "--view=merged")
    assert done.returncode == 0, done
    assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    run("fusermount3", "-u", mnt)
    gone(mnt)


def test_long_options_with_a_space(fstfs, source, mnt):
    """`--view merged` is equivalent to `--view=merged` or refused; it is not taken as the source."""
    done = run(fstfs, "--view", "merged", source.root, mnt)
    if done.returncode == 0:
        assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    else:
        refused(done)
        nothing_left(mnt)


@pytest.mark.parametrize("size", ["512M", "5G", "5GB", "512MB", "1T", "1TB", "1K", "4096", "5GiB",
                                  "512m", "5g", "5gb"])
def test_valid_sizes(mount, source, size):
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
def test_refused_value_is_printed_on_one_line(fstfs, source, mnt, option):
    done = run(fstfs, f"{option}a\nb\x1b[31m", source.root, mnt)
    refused(done, re.escape(r"a\x0ab\x1b[31m"))
    assert done.stderr.count("\n") == 1
    nothing_left(mnt)


def test_shards_and_shard_size_refused_together(fstfs, source, mnt):
    refused(run(fstfs, "--shards=2", "--shard-size=5G", source.root, mnt), "shards", "shard-size")
    nothing_left(mnt)


@pytest.mark.parametrize("arguments", [[], ["SOURCE"], ["SOURCE", "MNT", "more"]],
                         ids=["none", "one", "three"])
def test_wrong_number_of_arguments(fstfs, source, mnt, arguments):
    words = {"SOURCE": source.root, "MNT": os.fspath(mnt)}
    refused(run(fstfs, *[words.get(a, a) for a in arguments]))
    nothing_left(mnt)


# --- descriptors inherited from the caller ---


def holders(mnt, path):
    """Names of the processes of a mount, including helpers, that have a file open."""
    found = []
    pid, = daemons(mnt)
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        family = [pid, *map(int, f.read().split())]
    for one in family:
        for fd, opened in files_open_in(one).items():
            if opened == os.fspath(path):
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
    """The caller holds a lock and has a file open for writing."""
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


def test_limit_of_descriptors_is_raised(mount, source):
    """The soft limit is often 1024, which hung callers could take up."""
    m = mount(source.root, wrapper=("sh", "-c", 'ulimit -S -n 100; exec "$@"', "sh"))
    soft, hard = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)
    assert soft == hard > 100


@pytest.mark.parametrize("how", ["block", "ignore"])
def test_an_inherited_signal_mask(mount, source, how):
    """Callers may block or ignore SIGTERM, and pass that on. It ends the daemon all the same."""
    m = mount(source.root, wrapper=["env", f"--{how}-signal=TERM"])
    oracle.check_source(m.path, source)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_standard_streams_of_the_caller(fstfs, source, mnt, place, flags):
    """Standard input and output may be a terminal, or a file that others use."""
    read, written = place / "read", place / "written"
    read.write_text("typed")
    script = (f"{fstfs} {' '.join(flags)} {source.root} {mnt} <{read} >{written} "
              f"{'2>/dev/null &' if flags else ''}")
    assert run("bash", "-c", script).returncode == 0
    assert eventually(lambda: os.path.exists(mnt / "tensors"))
    assert holders(mnt, read) == holders(mnt, written) == []
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


def test_source_by_an_inherited_descriptor(fstfs, source, mnt):
    assert run("bash", "-c", f"exec 9<{source.root}; {fstfs} /dev/fd/9 {mnt}").returncode == 0
    oracle.check_source(mnt, source)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_standard_streams(fstfs, source, mnt, closed):
    """The daemon's own descriptors do not get the numbers of the closed standard streams."""
    assert run("bash", "-c", f"{fstfs} {source.root} {mnt} {closed}").returncode == 0
    pid, = daemons(mnt)
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
    oracle.check_source(mnt, source)
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


# --- shutdown ---


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


@pytest.mark.parametrize("who", ["root", "user"])
def test_sigchld_is_ignored(mount, source, test_user, user_binary, who):
    """Callers that ignore SIGCHLD, as some supervisors do, pass that on."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    m = mount(source.root, wrapper=["env", "--ignore-signal=CHLD"],
              **({"user": test_user, "binary": user_binary} if who == "user" else {}))
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert "cannot unmount" not in m.log_text()
    assert eventually(lambda: not mounted_at(m.path))


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_failure_while_sigchld_is_ignored(fstfs, source, mnt, place, flags):
    done = run("env", "--ignore-signal=CHLD", fstfs, *flags, source.root, mnt,
               env={**os.environ, **preload("misfortune", place, REFUSED_INIT="before")})
    assert done.returncode == 1
    nothing_left(mnt)


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
         "   open(os.path.join(sys.argv[1],n),'rb').read()\n   os.write(1, b'.')\n"
         "except OSError: pass", m / "tensors/model"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
    for r in readers:
        assert r.stdout.read(1) == b"."
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert not mounted_at(m.path)
    for r in readers:
        r.communicate(timeout=10 * SLOW)


def test_fusermount_while_busy(mount, source):
    """Unmounting a busy mount fails without effect; after a lazy unmount, open files stay readable."""
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


def test_mount_table_entry(mount, source):
    m = mount(source.root)
    line, = mounted_at(m.path)
    fields, behind = line.split(" - ")
    kind, device, superblock = behind.split()
    assert kind == "fuse.fstfs"
    assert device != "hf-mount"  # transformers disables mmap for this name
    assert "ro" in fields.split()[5].split(",")
    assert {"nosuid", "nodev", "noexec"} <= set(fields.split()[5].split(","))


@pytest.mark.parametrize("options", [(), ("-o", "exec")], ids=["default", "exec"])
def test_programs_in_the_source(mount, source, options):
    """Are executed only if that was requested: the source may be mounted noexec."""
    source.add_side("tool", b"#!/bin/sh\nexit 3\n")
    os.chmod(source.path("tool"), 0o755)
    path = mount(source.root, *options) / "merged/tool"
    if options:
        assert run(path).returncode == 3
    else:
        with pytest.raises(PermissionError):
            run(path)


# --- unprivileged users ---


def test_unprivileged_user(user_binary, test_user, place, source):
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


def test_sigterm_unprivileged(mount, test_user, user_binary, source):
    m = mount(source.root, user=test_user, binary=user_binary)
    child(oracle.check_source, m.path, source, user=test_user)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert eventually(lambda: not mounted_at(m.path))


def test_allow_other_is_refused_to_unprivileged_users(user_binary, test_user, place, source):
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
        pytest.skip("needs root: a directory of another user")
    mnt = place / "root-mnt"
    mnt.mkdir(mode=0o755)
    refused(run(user_binary, source.root, mnt, user=test_user))
    nothing_left(mnt)


def test_unreadable_source_is_refused(user_binary, test_user, place):
    if os.geteuid() != 0:
        pytest.skip("needs root: a directory of another user")
    root = place / "shut"
    root.mkdir(mode=0o700)
    mnt = place / "user-mnt"
    mnt.mkdir()
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)
    refused(run(user_binary, root, mnt, user=test_user), "shut", "permission")
    nothing_left(mnt)


def test_other_users_have_no_access_without_allow_other(mount, source, test_user):
    if os.geteuid() != 0:
        pytest.skip("needs root: another user looks")
    m = mount(source.root)

    def look():
        with pytest.raises(PermissionError):
            os.listdir(m.path)

    child(look, user=test_user)


# --- many mounts, debugging, environment ---


def test_many_mounts_at_once(mount, source):
    mounts = [mount(source.root, f"--view={v}") for v in ("tensors", "merged", "shards", "npy") * 2]
    for m in mounts:
        assert oracle.walk(m.path)


def test_mount_and_unmount_repeatedly(fstfs, source, mnt):
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


def test_low_descriptor_limit(mount, place):
    """256 files are open at once with a limit of 64 descriptors."""
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


def test_minimal_environment(fstfs, source, mnt):
    """Without HOME, with a minimal PATH, umask 077 and an unusual locale, as under an init system."""
    done = subprocess.run(["env", "-i", "LC_ALL=tr_TR.UTF-8", "sh", "-c",
                           'umask 077; exec "$@"', "sh", fstfs, source.root, mnt],
                          capture_output=True, text=True, timeout=20 * SLOW)
    assert done.returncode == 0, done
    oracle.check_source(mnt, source)
    assert shutil.which("fusermount3")
    run("fusermount3", "-u", mnt)
    gone(mnt)
