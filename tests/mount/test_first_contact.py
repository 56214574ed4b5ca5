# SPDX-License-Identifier: Apache-2.0
"""What fstfs prints to new users: command lines in the style of other programs, options without
effect, and problems with the machine, with solutions."""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, INSTRUMENTED, as_user, child, eventually, mounted_at, process_stat, processes_of
from corpus import trees
from command_line import gone, mnt, nothing_left, refused, run, source  # noqa: F401 (fixtures)
from test_change import ended, wait_at

SLOWFS = BUILD / "tests/slowfs/slowfs"


def unmount(mnt):
    assert run("fusermount3", "-u", mnt).returncode == 0
    gone(mnt)


# --- values as separate words ---

VALUES = {"--view": "merged", "--shards": "2", "--shard-size": "1K", "--memory": "64M",
          "--io": "threads", "--direct": "off", "--prefetch": "off", "--queue-depth": "8",
          "--threads": "2", "--readahead": "keep", "--passthrough": "off", "--sandbox": "off",
          "--pid": str(os.getpid())}


def test_every_option_with_a_value_is_known(fstfs):
    assert set(re.findall(r"^ +(--[a-z-]+)=", run(fstfs, "--help").stdout, re.MULTILINE)) == \
        set(VALUES)


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("form", ["word", "equals", "mount-option"])
def test_value(fstfs, source, mnt, option, form):  # noqa: F811
    value = VALUES[option]
    words = {"word": [option, value], "equals": [f"{option}={value}"],
             "mount-option": ["-o", f"ro,{option[2:]}={value}"]}[form]
    done = run(fstfs, *words, source.root, mnt)
    assert (done.returncode, done.stderr) == (0, "")
    if option == "--view":
        assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    else:
        oracle.check_source(mnt, source, [f"{option}={value}"])
    unmount(mnt)


def test_value_of_memory_is_used(mount, source):  # noqa: F811
    for words in (["--memory", "8M"], ["--memory=8M"], ["-o", "memory=8M"]):
        m = mount(source.root, *words)
        assert m.metrics()["fstfs_buffer_budget_bytes"] == 8 << 20
        m.unmount()


def test_values_after_the_paths_and_in_any_order(fstfs, source, mnt):  # noqa: F811
    done = run(fstfs, "-o", "nodev", source.root, "--memory", "8M", mnt, "--view", "merged")
    assert done.returncode == 0, done
    assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    unmount(mnt)


def test_paths_that_look_like_options(fstfs, source, mnt, place):  # noqa: F811
    """After --, and as the value of -o, a word is not an option."""
    os.rename(source.root, place / "--memory")
    done = run(fstfs, "--view", "merged", "--", "--memory", mnt, cwd=place)
    assert done.returncode == 0, done
    assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
    unmount(mnt)
    refused(run(fstfs, "-o", "--memory", place / "--memory", mnt), "memory")
    nothing_left(mnt)


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("words", [["{}", "-f"], ["{}", "--foreground"], ["{}", "--"], ["{}="],
                                   ["-o", "{0:.0}ro,{1}"], ["-o", "{1}="]], ids=" ".join)
def test_value_is_missing(fstfs, source, mnt, option, words):  # noqa: F811
    words = [word.format(option, option[2:]) for word in words]
    done = run(fstfs, *words, source.root, mnt)
    refused(done, f"^fstfs: {option} needs a value")
    assert done.returncode == 2
    nothing_left(mnt)


@pytest.mark.parametrize("option", VALUES)
def test_value_is_missing_at_the_end(fstfs, source, mnt, option):  # noqa: F811
    done = run(fstfs, source.root, mnt, option)
    refused(done, f"^fstfs: {option} needs a value")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    nothing_left(mnt)


@pytest.mark.parametrize("program, option", [
    ("fstfs-check", "--hashes"), ("fstfs-pack", "--stem"), ("fstfs-pack", "--drop"),
    ("fstfs-pack", "--max-shard-size"), ("fstfs-bench", "--methods"), ("fstfs-bench", "--svg"),
    ("fstfs-top", "--interval")])
def test_values_of_the_tools(source, place, program, option):  # noqa: F811
    """An option is not taken as the value of another one, and a missing value at the end is an
    error."""
    for words in ([option, "--help"], [option]):
        done = run(BUILD / program, *words, cwd=place)
        refused(done, f"{option}.* (missing value|requires an argument)")
        assert done.returncode == 2 and not done.stdout, done
    assert sorted(os.listdir(place)) == ["s"]
    assert run(BUILD / program, f"{option}=--help", cwd=place).returncode == 2  # without a path


# --- problems with the machine, the paths or the user, and their solutions ---

CONTAINER = "docker run --device /dev/fuse --cap-add SYS_ADMIN"
NO_SYS_ADMIN = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


def in_namespace(script, *command, **more):
    """Runs a command in a mount namespace that a shell script has changed."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace")
    probe = run("unshare", "-m", "true")
    if probe.returncode:
        pytest.skip(f"cannot create a mount namespace: {probe.stderr.strip()}")
    return run("unshare", "-m", "--propagation", "slave", "sh", "-c", f'{script} && exec "$@"',
               "sh", *command, **more)


def assert_line(done, *texts):
    """Asserts exactly one line, from fstfs itself, with these texts."""
    assert done.returncode == 1 and not done.stdout, done
    assert done.stderr.startswith("fstfs: ") and done.stderr.count("\n") == 1, done.stderr
    for text in texts:
        assert os.fspath(text) in done.stderr, (text, done.stderr)


@pytest.fixture
def user_mnt(mnt, test_user):  # noqa: F811
    """A mount point that belongs to the test user."""
    if as_user(test_user):
        who = pwd.getpwnam(test_user)
        os.chown(mnt, who.pw_uid, who.pw_gid)
    return mnt


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
class TestDevice:
    def test_missing_path(self, fstfs, source, mnt, flags):  # noqa: F811
        done = in_namespace("mount -t tmpfs none /dev", fstfs, *flags, source.root, mnt)
        assert_line(done, "/dev/fuse: No such file", "modprobe fuse", CONTAINER)
        nothing_left(mnt)

    def test_path_is_a_file(self, fstfs, source, mnt, flags):  # noqa: F811
        done = in_namespace("mount -t tmpfs none /dev && touch /dev/fuse",
                            fstfs, *flags, source.root, mnt)
        assert_line(done, "/dev/fuse: found a file, expected a character device", CONTAINER)
        nothing_left(mnt)

    @pytest.mark.parametrize("owner, mode, cure", [
        ("root:root", "0600", "chmod 0666 /dev/fuse"),
        ("root:root", "0660", "chmod 0666 /dev/fuse"),
        ("root:audio", "0660", "usermod -aG audio")])
    def test_path_is_not_accessible(self, user_binary, test_user, source, user_mnt, flags,  # noqa: F811
                                   owner, mode, cure):
        script = (f"mount -t tmpfs none /dev && mknod /dev/fuse c 10 229 && "
                  f"chown {owner} /dev/fuse && chmod {mode} /dev/fuse")
        done = in_namespace(script, *as_user(test_user), user_binary, *flags, source.root, user_mnt)
        assert_line(done, "/dev/fuse: Permission denied for user", f"found mode {mode} of {owner}", cure)
        nothing_left(user_mnt)


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_no_permission_to_mount(fstfs, source, mnt, flags):  # noqa: F811
    """As in a container without --cap-add SYS_ADMIN."""
    if os.geteuid() != 0:
        pytest.skip("needs root: drops CAP_SYS_ADMIN")
    done = run(*NO_SYS_ADMIN, fstfs, *flags, source.root, mnt)
    assert_line(done, mnt, "Operation not permitted", CONTAINER)
    nothing_left(mnt)


# libfuse has a path of fusermount3 compiled in, and also tries $PATH.
NO_FUSERMOUNT = "mount --bind /dev/null $(readlink -f $(command -v fusermount3))"


@pytest.mark.parametrize("flags", [[], ["-f"]], ids=["background", "foreground"])
def test_no_fusermount(user_binary, test_user, source, user_mnt, flags):  # noqa: F811
    done = in_namespace(NO_FUSERMOUNT, *as_user(test_user), user_binary, *flags, source.root,
                        user_mnt)
    assert_line(done, user_mnt, "fusermount", "cannot be run", "install it (package fuse3)")
    nothing_left(user_mnt)


def test_no_fusermount_in_a_container(fstfs, source, mnt):  # noqa: F811
    done = in_namespace(NO_FUSERMOUNT, *NO_SYS_ADMIN, fstfs, source.root, mnt)
    assert_line(done, mnt, CONTAINER)
    nothing_left(mnt)


def test_no_new_privileges(user_binary, test_user, source, user_mnt):  # noqa: F811
    if not as_user(test_user):
        pytest.skip("needs root: runs as another user")
    done = run("setpriv", "--no-new-privs", *as_user(test_user), user_binary, source.root, user_mnt)
    assert_line(done, user_mnt, "no_new_privs", "NoNewPrivileges=")
    nothing_left(user_mnt)


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=oct)
def test_mount_point_of_another_user(user_binary, test_user, source, mnt, mode):  # noqa: F811
    if not as_user(test_user):
        pytest.skip("needs root: a directory of another user")
    mnt.chmod(mode)
    done = run(user_binary, source.root, mnt, user=test_user)
    assert_line(done, mnt, "fusermount3", f"found owner root and mode {mode:04o}", f"chown {test_user}")
    nothing_left(mnt)


def test_allow_other_as_unprivileged_user(user_binary, test_user, source, user_mnt):  # noqa: F811
    if re.search(r"^\s*user_allow_other", fuse_conf(), re.MULTILINE):
        pytest.skip("/etc/fuse.conf has user_allow_other")
    done = run(user_binary, "-o", "allow_other", source.root, user_mnt, user=test_user)
    assert_line(done, user_mnt, "user_allow_other", "/etc/fuse.conf")
    nothing_left(user_mnt)


def fuse_conf():
    try:
        with open("/etc/fuse.conf") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def test_mount_of_a_user_blocks_root(mount, fstfs, user_binary, test_user, source,  # noqa: F811
                                               place, mnt):
    """Root can neither mount on it nor look into it. The message names its owner."""
    if not as_user(test_user):
        pytest.skip("needs root")
    m = mount(source.root, user=test_user, binary=user_binary)
    assert_line(run(fstfs, source.root, m.path), "busy", f"user {test_user} has mounted",
                f"fusermount3 -u {m.path}")
    assert len(mounted_at(m.path)) == 1
    for inside in (m.path, f"{m.path}/merged", f"{m.path}/merged/../tensors"):
        done = run(fstfs, inside, mnt)
        assert_line(done, inside, "Permission denied", f"user {test_user} has mounted",
                    f"on {m.path}", "allow_other")
    assert_line(run(fstfs, source.root, f"{m.path}/merged"), "Permission denied", f"on {m.path}")
    (place / "link").symlink_to(m.path)
    assert_line(run(fstfs, place / "link", mnt), f"on {m.path}", "allow_other")
    nothing_left(mnt)


def test_dead_mount(mount, fstfs, source, place, mnt):  # noqa: F811
    m = mount(source.root, died=True)
    os.statvfs(m.path)  # answered: if it dies before, fusermount3 of libfuse 3.17 unmounts
    m.signal(signal.SIGKILL)
    m.wait()
    cure = f"fusermount3 -u {m.path} "
    assert_line(run(fstfs, source.root, m.path), cure, "daemon has died")
    for inside in (m.path, f"{m.path}/merged"):
        assert_line(run(fstfs, inside, mnt), inside, "Transport endpoint is not connected", cure)
    assert_line(run(fstfs, source.root, f"{m.path}/merged"), "Transport endpoint is not connected", cure)
    nothing_left(mnt)
    assert run("fusermount3", "-u", m.path).returncode == 0


def test_status_0_means_mounted(fstfs, source, mnt):  # noqa: F811
    """With every limit of memory, it is mounted, or the reason why not is printed."""
    if INSTRUMENTED:
        pytest.skip("the sanitizer needs memory itself")
    if not shutil.which("prlimit"):
        pytest.skip("prlimit is not installed")
    outcomes = set()
    for mib in range(10, 150, 2):
        done = run("prlimit", f"--as={mib << 20}", fstfs, source.root, mnt)
        outcomes.add(done.returncode)
        assert done.returncode in (0, 1, 127), done  # 127: of the dynamic linker
        assert bool(mounted_at(mnt)) == (done.returncode == 0), (mib, done)
        assert done.returncode == 0 or done.stderr, mib
        if done.returncode == 0:
            unmount(mnt)
    assert len(outcomes) > 1


def test_mount_dies_meanwhile(user_binary, test_user, source, place, mnt):  # noqa: F811
    """An error that only fusermount3 detects is also printed with its solution."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace")
    fake = place / "fusermount3"
    fake.write_text("#!/bin/sh\necho 'fusermount3: failed to access mountpoint: "
                    "Transport endpoint is not connected' >&2\nexit 1\n")
    fake.chmod(0o755)
    done = in_namespace(f"mount --bind {fake} $(readlink -f $(command -v fusermount3))",
                        *as_user(test_user), user_binary, source.root, mnt)
    assert_line(done, "failed to access mountpoint", f"fusermount3 -u {mnt} clears it")
    nothing_left(mnt)


def test_paths(fstfs, source, place, mnt):  # noqa: F811
    file = place / "s/config.json"
    assert_line(run(fstfs, file, mnt), f"source {file}: not a directory", "found a file",
                "expected the directory that holds the models")
    assert_line(run(fstfs, place / "no", mnt), f"source {place}/no: No such file", "directory that holds the models")
    assert_line(run(fstfs, source.root, file), f"mount point {file}: not a directory", "found a file",
                "expected an empty directory")
    assert_line(run(fstfs, source.root, place / "no"), f"mount point {place}/no: No such file",
                f"mkdir -p {place}/no\n")
    (place / "s/in").mkdir()
    assert_line(run(fstfs, source.root, place / "s/in"), "it is inside of the source", "mount it elsewhere")
    assert_line(run(fstfs, source.root, place), "is inside of it", "mount it elsewhere")
    (mnt / "one").touch()
    assert_line(run(fstfs, source.root, mnt), "not empty", "found one", "mount on an empty directory")
    nothing_left(mnt)


def test_source_is_not_readable(user_binary, test_user, place, user_mnt):
    if not as_user(test_user):
        pytest.skip("needs root: a directory of another user")
    (place / "shut/below").mkdir(parents=True)
    (place / "shut").chmod(0o700)
    for path in (place / "shut", place / "shut/below"):
        assert_line(run(user_binary, path, user_mnt, user=test_user), f"{path}: Permission denied",
                    f"user {test_user}")
    nothing_left(user_mnt)


def test_mount_option_of_libfuse(fstfs, source, mnt):  # noqa: F811
    """An option that libfuse accepts, but with which fstfs could not serve."""
    done = run(fstfs, "-o", "max_read=4096", source.root, mnt)
    assert done.returncode == 2
    assert done.stderr == "fstfs: unknown option (fstfs -h lists them): max_read=4096\n"
    nothing_left(mnt)


def test_small_stack(fstfs, source, mnt):  # noqa: F811
    done = run("prlimit", "--stack=262144", fstfs, source.root, mnt)
    assert done.returncode == 1
    assert done.stderr == ("fstfs: the stack size limit is too small (found 256 KiB, expected at least "
                           "512 KiB); raise it with ulimit -s\n")
    nothing_left(mnt)


def test_too_few_descriptors(fstfs, source, mnt):  # noqa: F811
    done = run("prlimit", "--nofile=5", fstfs, "-f", source.root, mnt)
    assert done.returncode == 1
    assert done.stderr.endswith("cannot set up the session: Too many open files\n")
    nothing_left(mnt)


def test_messages_of_a_successful_mount_are_printed(fstfs, source, mnt):  # noqa: F811
    """The debug output of libfuse at startup, with -d."""
    log = mnt.with_name("log")
    with open(log, "wb") as stderr, \
            subprocess.Popen([fstfs, "-d", source.root, mnt], stderr=stderr) as daemon:
        try:
            assert eventually(lambda: b"FUSE library version" in log.read_bytes()), log.read_text()
            assert eventually(lambda: mounted_at(mnt))
        finally:
            daemon.terminate()
    gone(mnt)


# --- options that need root ---


def mounted_status(mnt, user=None):
    return child(lambda: json.loads((mnt / ".fstfs/status").read_text()), user=user)


def warnings(done):
    assert done.returncode == 0, done
    return done.stderr.splitlines()


def test_readahead_as_unprivileged_user(user_binary, test_user, source, user_mnt):  # noqa: F811
    done = run(user_binary, "--readahead=1M", source.root, user_mnt, user=test_user)
    warning, = warnings(done)
    assert warning.startswith("fstfs: warning: --readahead=1024K: refused by the kernel ("), warning
    kilobytes = mounted_status(user_mnt, test_user)["kernel"]["readahead"]["bytes"] // 1024
    for words in ("Permission denied", "only root", f"readahead of this mount is {kilobytes}K"):
        assert words in warning
    unmount(user_mnt)


@pytest.mark.parametrize("option", ["--readahead=64K", "--readahead=keep", "--passthrough=off"])
def test_nothing_is_refused_without_need(user_binary, test_user, source, user_mnt, option):  # noqa: F811
    assert warnings(run(user_binary, option, source.root, user_mnt, user=test_user)) == []
    unmount(user_mnt)


def test_passthrough_as_unprivileged_user(user_binary, test_user, source, user_mnt):  # noqa: F811
    done = run(user_binary, "--passthrough=on", source.root, user_mnt, user=test_user)
    why = mounted_status(user_mnt, test_user)["kernel"]["passthrough"]["why"]
    assert warnings(done) == [f"fstfs: warning: --passthrough=on: refused: {why}; fstfs reads all "
                              "files for the kernel"]
    unmount(user_mnt)


def test_options_that_need_root(fstfs, source, mnt):  # noqa: F811
    """One warning for each option without effect, and none for others."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    done = run(fstfs, "--passthrough=on", "--readahead=1M", source.root, mnt)
    kernel = mounted_status(mnt)["kernel"]
    off = {"--readahead=1024K": kernel["readahead"]["bytes"] < 1 << 20,
           "--passthrough=on": not kernel["passthrough"]["on"]}
    assert [w.split(": ")[2] for w in warnings(done)] == [o for o, is_off in off.items() if is_off]
    unmount(mnt)


def test_refusals_in_the_foreground_are_logged(mount, user_binary, test_user, source):  # noqa: F811
    m = mount(source.root, "--readahead=1M", user=test_user, binary=user_binary)
    assert eventually(lambda: "--readahead=1024K: refused by the kernel" in m.log_text())


# --- a source without checkpoints ---

NOTHING = "found no checkpoint (*.safetensors, *.gguf, or *.bin, *.pt, *.pth or *.ckpt of PyTorch); " \
          "other files are shown unchanged"
BROKEN = "found no valid checkpoint: every *.safetensors or *.gguf is invalid or not readable by this user, " \
         "see .fstfs/problems"


@pytest.fixture
def empty(place):
    root = place / "empty"
    (root / "a/b").mkdir(parents=True)
    (root / "a/pytorch_model.bin").write_bytes(b"PK")
    (root / "config.json").write_text("{}")
    return root


@pytest.fixture(params=["root", "user"])
def mounter(request, user_mnt):
    """Runs fstfs on user_mnt as each user."""
    if request.param == "user":
        return request.getfixturevalue("user_binary"), request.getfixturevalue("test_user")
    if os.geteuid() != 0:
        pytest.skip("needs root; the same runs as the user that we are")
    os.chown(user_mnt, 0, 0)
    return request.getfixturevalue("fstfs"), None


def warned_at_mount(mounter, source, mnt):  # noqa: F811
    binary, user = mounter
    found = warnings(run(binary, source, mnt, user=user))
    assert run("fusermount3", "-u", mnt, user=user).returncode == 0
    gone(mnt)
    return found


def test_nothing_to_read(mounter, empty, user_mnt, place):
    assert warned_at_mount(mounter, empty, user_mnt) == [f"fstfs: warning: {empty}: {NOTHING}"]
    (place / "bare").mkdir()
    assert warned_at_mount(mounter, place / "bare", user_mnt) == \
        [f"fstfs: warning: {place}/bare: {NOTHING}"]


def test_directory_with_the_name_of_a_checkpoint(mounter, empty, user_mnt):
    (empty / "model.safetensors").mkdir()
    assert warned_at_mount(mounter, empty, user_mnt) == [f"fstfs: warning: {empty}: {NOTHING}"]
    trees.Source(empty / "model.safetensors").add("", "model", trees.small_tensors("t."))
    assert warned_at_mount(mounter, empty, user_mnt) == []


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\x10" + b"\0" * 7 + b"x" * 100,
                                     b"\xff" * 7 + b"\0{}", b"\x10" + b"\0" * 7 + b"{}"],
                         ids=["empty", "short", "no-brace", "huge", "cut"])
def test_only_broken_files(mounter, empty, user_mnt, content):
    (empty / "a/b/model.safetensors").write_bytes(content)
    assert warned_at_mount(mounter, empty, user_mnt) == [f"fstfs: warning: {empty}: {BROKEN}"]


def test_dangling_and_special_files(mounter, empty, user_mnt):
    (empty / "a/model.safetensors").symlink_to("nowhere")
    os.mkfifo(empty / "a/other.safetensors")
    assert warned_at_mount(mounter, empty, user_mnt) == [f"fstfs: warning: {empty}: {BROKEN}"]


@pytest.mark.parametrize("where", ["", "a", "a/b", "z"])
def test_one_checkpoint_is_enough(mounter, empty, user_mnt, where):
    (empty / "broken.safetensors").write_bytes(b"no")
    trees.Source(empty).add(where, "model", trees.small_tensors("t."), shards=2)
    assert warned_at_mount(mounter, empty, user_mnt) == []


def test_checkpoint_behind_links(mounter, empty, user_mnt, place):
    """As in a Hugging Face cache: links to files, here also to a directory."""
    trees.Source(place / "blobs").add("", "model", trees.small_tensors("t."))
    (empty / "a/b/snapshot").symlink_to(place / "blobs")
    assert warned_at_mount(mounter, empty, user_mnt) == []
    (empty / "a/b/snapshot").unlink()
    (empty / "a/b/m.safetensors").symlink_to(place / "blobs/model.safetensors")
    assert warned_at_mount(mounter, empty, user_mnt) == []


def test_no_claim_about_unseen_files(user_binary, test_user, empty, user_mnt):
    """If a directory cannot be listed, or has too many entries to check, no warning is printed."""
    mounter = user_binary, test_user
    if as_user(test_user):
        (empty / "a/b").chmod(0)
        assert warned_at_mount(mounter, empty, user_mnt) == []
        (empty / "a/b").chmod(0o755)
    assert warned_at_mount(mounter, empty, user_mnt) != []
    for i in range(999):
        (empty / f"a/b/d{i}").mkdir()
    assert warned_at_mount(mounter, empty, user_mnt) == []


def test_links_in_a_circle(mounter, empty, user_mnt):
    (empty / "a/b/up").symlink_to("..")
    warned_at_mount(mounter, empty, user_mnt)


def test_hanging_storage(mount, fstfs, place, mnt):  # noqa: F811
    """The check is abandoned, and the mount works; no warning is printed."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    (place / "s/slow").mkdir(parents=True)
    (place / "real/h").mkdir(parents=True)
    (place / "faults").write_text("* h hang\n* h/* hang\n")
    mount(place / "real", "-o", f"faults={place}/faults,valid=0,age=60,allow_other"
          if os.geteuid() == 0 else f"faults={place}/faults,valid=0,age=60",
          binary=SLOWFS, mountpoint=place / "s/slow")
    done = run(fstfs, place / "s", mnt)
    assert warnings(done) == []
    assert sorted(os.listdir(mnt)) == [".fstfs", "merged", "npy", "shards", "tensors"]
    (place / "faults").write_text("")
    unmount(mnt)


def test_foreground_logs_the_warning(mount, empty):
    m = mount(empty)
    assert eventually(lambda: NOTHING in m.log_text())
    # A child that has just ended is a zombie until the daemon reaps it; the sanitizer starts one, too.
    assert eventually(lambda: not [pid for pid in processes_of(m.process.pid)
                                   if process_stat(pid)[1][0] == "Z"])


def test_links_to_fifos_are_not_opened(mount, place):
    """Nor by the search for a checkpoint before mounting: opening a FIFO or a device may have side
    effects. The process at the FIFO keeps waiting."""
    (place / "s").mkdir()
    os.mkfifo(place / "fifo")
    os.symlink(place / "fifo", place / "s/model.safetensors")
    writer = wait_at(place / "fifo")
    assert eventually(lambda: " S " in Path(f"/proc/{writer}/stat").read_text())
    m = mount(place / "s")
    assert os.listdir(m / "merged") == []
    status, = eventually(lambda: ended(writer))
    assert status != 0, "it was opened"
