# SPDX-License-Identifier: Apache-2.0
"""fstfs.mount(): mounts and errors. No mount and no daemon outlives the process."""

import inspect
import mmap
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import BINARY, ROOT, alive, eventually, mounted_at

from . import files
from .module import fstfs

pytestmark = pytest.mark.usefixtures("fstfs")


@pytest.fixture(scope="module")
def models(shared_place):
    """A directory with the checkpoint `llama`, of three shards."""
    root = shared_place / "mounted"
    os.mkdir(root)
    files.write_checkpoint(root / "llama", files.tensors_of(("F32", "U8"), [(6, 4), (3,)]))
    return root


@pytest.fixture
def temporary(place, monkeypatch):
    """The folder of temporary mount points."""
    path = place / "temporary"
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", os.fspath(path))
    return path


@pytest.fixture(params=["root", "user"])
def user(request, monkeypatch):
    """The name of the user who mounts."""
    if request.param == "user":
        program = request.getfixturevalue("user_binary")
        monkeypatch.setenv("PATH", f"{os.path.dirname(program)}:{os.environ['PATH']}")
        return request.getfixturevalue("test_user")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return "root"


def is_same(directory, models):
    found, want = (fstfs.load_checkpoint(path, framework="np")
                   for path in (directory, models / "llama"))
    return found.keys() == want.keys() and all(np.array_equal(found[k], want[k]) for k in want)


def is_gone(path, daemon):
    return eventually(lambda: not mounted_at(path) and not alive(daemon))


def test_with(models, temporary):
    with fstfs.mount(models) as mount:
        daemon = mount.status()["pid"]
        assert mounted_at(mount.path) and mount.status()["source"] == os.fspath(models)
        for view in ("shards", "merged"):
            assert mount.checkpoint("llama", view) == f"{mount.path}/{view}/llama"
            assert is_same(mount.checkpoint("llama", view), models)
        assert mount.checkpoint("llama") == f"{mount.path}/shards/llama"
        assert mount.checkpoint() == f"{mount.path}/shards"
        for name in ("nothing", "../merged", "/", "llama/model.safetensors.index.json"):
            with pytest.raises(FileNotFoundError, match="No such checkpoint in the mount"):
                mount.checkpoint(name)
        with pytest.raises(ValueError, match="^view 'x' is not in the mount"):
            mount.checkpoint("llama", "x")
    assert is_gone(mount.path, daemon) and os.listdir(temporary) == []
    mount.unmount()
    with pytest.raises(FileNotFoundError):
        mount.status()


def test_mount_point(models, place):
    """The mount point of the caller stays; links in its path are followed."""
    (place / "mnt").mkdir()
    (place / "link").symlink_to("mnt")
    mount = fstfs.mount(models, place / "link", "merged")
    assert mount.path == os.fspath(place / "mnt") and mount.view == "merged"
    assert is_same(mount.checkpoint("llama"), models)
    with pytest.raises(ValueError, match="expected merged"):
        mount.checkpoint("llama", "shards")
    mount.unmount()
    assert os.listdir(place / "mnt") == [] and (place / "link").is_symlink()


def test_parent_of_a_link(models, place, monkeypatch):
    """".." after a symbolic link is the parent of the link's target."""
    (place / "link").symlink_to(models / "llama")
    monkeypatch.chdir(place)
    with fstfs.mount("link/..") as mount:
        assert mount.status()["source"] == os.fspath(models)


def test_options(models):
    """Each option of the program has a parameter, except those that control the process.
    --passthrough=on works only as root, with some kernels."""
    text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    options = {name.replace("-", "_") for name in re.findall(r"^ +--([a-z-]+)=", text, re.MULTILINE)}
    names = list(inspect.signature(fstfs.mount).parameters)
    assert names[:4] == ["source", "mountpoint", "view", "memory"]
    assert set(names) - {"source", "mountpoint", "options"} == options - {"pid"}
    with fstfs.mount(models, None, "shards", "64M", shards=2, io="threads", direct="off",
                     prefetch="off", queue_depth=8, threads=3, readahead="keep",
                     passthrough="off", sandbox="off", options="noexec") as mount:
        status = mount.status()
        shards = sorted(os.listdir(mount.checkpoint("llama")))
        assert " ro,nosuid,nodev,noexec," in mounted_at(mount.path)[0]
    assert len(shards) == 3, shards
    assert (status["view"], status["shards"], status["io"]["memory"]) == ("shards", 2, 64 << 20)
    assert not status["io"]["io_uring"]["on"] and not status["io"]["direct"]["on"]
    assert not status["io"]["prefetch"]["on"] and not status["sandbox"]["landlock"]["on"]
    assert (status["io"]["queue_depth"], status["io"]["threads"]) == (8, 3)
    with fstfs.mount(models, memory=32 << 20, shard_size=100) as mount:
        status = mount.status()
    assert (status["io"]["memory"], status["shard_size"]) == (32 << 20, 100)


def test_errors(models, place, temporary, monkeypatch):
    """The message is that of the program, and nothing is left."""
    for options, text in (({"memory": "x"}, "--memory: expected a size from 4M to 1T, found: x"),
                          ({"view": "x"}, "--view: expected tensors, merged, shards or npy"),
                          ({"options": "x"}, "unknown option"),
                          ({"shards": 2, "shard_size": 9}, "--shards and --shard-size exclude each other")):
        with pytest.raises(ValueError, match=f"^fstfs: {text}"):
            fstfs.mount(models, **options)
    for name, paths in (("source", ("",)), ("mountpoint", (models, ""))):
        with pytest.raises(ValueError, match=f"^fstfs: {name}: expected a directory, found an empty"):
            fstfs.mount(*paths)
    with pytest.raises(OSError, match="^fstfs: source .*/nothing: No such file or directory"):
        fstfs.mount(place / "nothing")
    with pytest.raises(OSError, match="^fstfs: mount point .*: not empty"):
        fstfs.mount(models, temporary.parent)
    (place / "none").mkdir()
    with pytest.warns(RuntimeWarning, match="found no checkpoint") as warned:
        fstfs.mount(place / "none").unmount()
    assert warned[0].filename == __file__
    monkeypatch.setenv("PATH", os.fspath(place))
    with pytest.raises(FileNotFoundError, match="^fstfs: not found in .* or in PATH"):
        fstfs.mount(models)
    assert os.listdir(temporary) == [] and not mounted_at(place)


def test_mapped_files_survive(models):
    """unmount() removes the mount at once; an open or mapped file stays readable."""
    mount = fstfs.mount(models)
    daemon = mount.status()["pid"]
    with open(f"{mount.path}/merged/llama/model.safetensors", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mount.unmount()
        assert not mounted_at(mount.path) and not os.path.exists(mount.path)
        assert file.read() == mapped[:] and alive(daemon)
    mapped.close()
    assert is_gone(mount.path, daemon)


@pytest.mark.parametrize("how", ["fusermount3", "kill"])
def test_unmount_of_a_mount_that_is_gone(models, temporary, how):
    mount = fstfs.mount(models)
    daemon = mount.status()["pid"]
    if how == "kill":
        os.kill(daemon, signal.SIGKILL)
        assert eventually(lambda: not alive(daemon))
    else:
        subprocess.run(["fusermount3", "-u", mount.path], check=True)
    mount.unmount()
    assert is_gone(mount.path, daemon) and os.listdir(temporary) == []


def test_a_mount_that_is_gone_at_once(models, place, monkeypatch):
    """mount() raises an error. The mount beneath stays."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount")
    run = fstfs.Mount._run

    def run_and_unmount(self):
        run(self)
        subprocess.run(["umount", self.path], check=True)

    monkeypatch.setattr("fstfs._mount.Mount._run", run_and_unmount)
    (place / "mnt").mkdir()
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        before = mounted_at(place)
        with pytest.raises(OSError, match="^fstfs: .*/mnt: no longer mounted$"):
            fstfs.mount(models, place / "mnt")
        assert len(before) == 1 and mounted_at(place) == before
    finally:
        subprocess.run(["umount", "-l", place], stderr=subprocess.DEVNULL)


@pytest.fixture
def mounted(models, place):
    """A mount at place/mnt. At the end all that is mounted in `place` is unmounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount")
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "--make-private", place], check=True)  # for mount --move
    for name in ("mnt", "other"):
        (place / name).mkdir()
    found = fstfs.mount(models, place / "mnt")
    yield found
    subprocess.run(["umount", "-l", place], check=True)
    found.unmount()


def bind_part(mounted, other, models):
    """The same file system with the same daemon, so with the same device number."""
    subprocess.run(["mount", "--bind", mounted.path, other], check=True)
    subprocess.run(["umount", mounted.path], check=True)
    subprocess.run(["mount", "--bind", other / "tensors", mounted.path], check=True)


def mount_again(mounted, other, models):
    """The kernel mostly gives the same numbers to the next mount."""
    daemon = mounted.status()["pid"]
    subprocess.run(["umount", mounted.path], check=True)
    assert eventually(lambda: not alive(daemon))
    subprocess.run([BINARY, models, mounted.path], check=True)


def mount_tmpfs(mounted, other, models):
    subprocess.run(["umount", mounted.path], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", mounted.path], check=True)


@pytest.mark.parametrize("replace", [bind_part, mount_again, mount_tmpfs])
def test_another_mount_in_its_place(mounted, place, models, replace):
    replace(mounted, place / "other", models)
    before = mounted_at(mounted.path)
    assert len(before) == 1
    mounted.unmount()
    assert mounted_at(mounted.path) == before


@pytest.mark.parametrize("inside", ["", "tensors/llama"])
def test_another_mount_on_it_or_inside_it(mounted, inside):
    path = os.path.join(mounted.path, inside)
    subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
    before = mounted_at(mounted.path)
    with pytest.raises(OSError, match="Another file system is mounted on it or inside it"):
        mounted.unmount()
    assert repr(mounted) == f"<fstfs.Mount {mounted.path}>"
    assert len(before) == 2 and mounted_at(mounted.path) == before
    subprocess.run(["umount", path], check=True)
    mounted.unmount()
    assert not mounted_at(mounted.path) and repr(mounted).endswith(", unmounted>")


def test_moved_mount(mounted, place):
    """To a path with characters that the table of mounts escapes, or that are white space."""
    daemon, new = mounted.status()["pid"], place / "a b\\\r\n\t#"
    new.mkdir()
    subprocess.run(["mount", "--move", mounted.path, new], check=True)
    mounted.unmount()
    assert eventually(lambda: not alive(daemon)) and os.listdir(new) == []


# A process of a user that mounts, prints the mount point and the daemon's process ID, and goes on.
PROGRAM = """
import gc, os, pwd, sys, time
sys.path.insert(0, {package!r})
import fstfs
if {user!r} != "root" and os.geteuid() == 0:
    account = pwd.getpwnam({user!r})
    os.setgroups([])
    os.setresgid(*[account.pw_gid] * 3)
    os.setresuid(*[account.pw_uid] * 3)
mount = fstfs.mount({source!r})
print(mount.path, mount.status()["pid"], flush=True)
sys.stdin.readline()
{rest}
"""


class Program:
    def __init__(self, models, user, rest):
        text = PROGRAM.format(package=os.fspath(ROOT / "src/python"), source=os.fspath(models),
                              user=user, rest=rest)
        # Python 3.12 and later warn about fork() in a multithreaded process.
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.path, daemon = self.process.stdout.readline().split()
        self.daemon = int(daemon)
        assert mounted_at(self.path) and alive(self.daemon)

    def finish(self):
        """Removes everything, even if the test has failed."""
        self.process.kill()
        self.process.communicate()
        if mounted_at(self.path):
            os.kill(self.daemon, signal.SIGKILL)
            subprocess.run(["fusermount3", "-u", "-z", self.path], check=True)
        if os.path.isdir(self.path):
            os.rmdir(self.path)

    def go_on(self):
        """Runs the rest; returns the exit status and what it prints."""
        printed, errors = self.process.communicate("\n")
        assert not errors
        return self.process.returncode, printed


@pytest.fixture
def start(models, user):
    """start(rest): a Program of the user."""
    made = []

    def run(rest):
        made.append(Program(models, user, rest))
        return made[-1]

    yield run
    for program in made:
        program.finish()


@pytest.mark.parametrize("rest", ["sys.exit(3)", "mount.unmount(); sys.exit(3)",
                                  "del mount; gc.collect(); sys.exit(3)"])
def test_exit(start, rest):
    program = start(rest)
    assert program.go_on() == (3, "")
    assert is_gone(program.path, program.daemon) and not os.path.exists(program.path)


@pytest.mark.parametrize("rest", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os.abort()"])
def test_kill(start, rest):
    """The daemon ends. The temporary mount point remains as an empty directory."""
    program = start(rest)
    program.go_on()
    assert is_gone(program.path, program.daemon)
    os.rmdir(program.path)


def test_kill_with_children(start):
    """A child that has inherited all descriptors does not keep the mount alive."""
    program = start("""
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(1000)
print(child, flush=True)
os.kill(os.getpid(), 9)""")
    status, child = program.go_on()
    try:
        assert status == -signal.SIGKILL and alive(int(child))
        assert is_gone(program.path, program.daemon)
    finally:
        os.kill(int(child), signal.SIGKILL)
    os.rmdir(program.path)


def test_children_do_not_unmount(start):
    """Children unmount neither at their exit nor by calling unmount()."""
    program = start("""
for work in (lambda: None, mount.unmount):
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(os.listdir(mount.checkpoint()), flush=True)""")
    assert program.go_on() == (0, "['llama']\n['llama']\n")
    assert is_gone(program.path, program.daemon)


def test_no_fusermount3(start, user):
    if user == "root":
        pytest.skip("root unmounts without it")
    program = start("""
path, os.environ["PATH"] = os.environ["PATH"], "/nonexistent"
try:
    mount.unmount()
except FileNotFoundError as error:
    print(error)
os.environ["PATH"] = path""")
    assert program.go_on() == (0, "fusermount3 was not found in PATH; install the package fuse3\n")
    assert is_gone(program.path, program.daemon)
