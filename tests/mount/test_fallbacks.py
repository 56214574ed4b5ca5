# SPDX-License-Identifier: Apache-2.0
"""A kernel, sandbox or file system refuses something: the mount falls back to another method with
the same bytes, and reports once what is off and why."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import oracle
import pytest
import readers
from bench.harness import cached
from conftest import BUILD, as_user, child, drop_from_page_cache, mounted_at, preload
from corpus import trees
from page_cache import cachestat_is_allowed

REFUSE = BUILD / "tests/sandbox/refuse"
SLOWFS = BUILD / "tests/slowfs/slowfs"

# Refused system calls: (rules for refuse, options of fstfs, what status reports)
REFUSED = {
    "uring-eperm": (["io_uring_setup=EPERM"], (),
                    {"io_uring": "io_uring is refused: Operation not permitted"}),
    "uring-enosys": (["io_uring_setup=ENOSYS"], (),
                     {"io_uring": "io_uring is refused: Function not implemented"}),
    "uring-enter": (["io_uring_enter=EPERM"], (),
                    {"io_uring": "io_uring is refused: Operation not permitted"}),
    "uring-register": (["io_uring_register=EPERM"], (),
                       {"io_uring": "io_uring is refused: Operation not permitted"}),
    "cachestat-enosys": (["cachestat=ENOSYS"], (), {"cachestat": "the kernel does not support it"}),
    "cachestat-eperm": (["cachestat=EPERM"], (), {"cachestat": "the kernel does not support it"}),
    "dontcache": (["RWF_DONTCACHE=EOPNOTSUPP"], ("--io=threads", "--direct=off"),
                  {"dontcache": "the kernel or a file system does not support it"}),
    "nowait": (["RWF_NOWAIT=EOPNOTSUPP"], (), {}),
    "direct": (["O_DIRECT=EINVAL"], (), {"direct": "the file system refuses O_DIRECT"}),
    "statx": (["statx=ENOSYS"], (), {}),
    "all": (["io_uring_setup=EPERM", "cachestat=ENOSYS", "RWF_DONTCACHE=EOPNOTSUPP",
             "RWF_NOWAIT=EOPNOTSUPP", "O_DIRECT=EINVAL", "statx=ENOSYS"], (),
            {"io_uring": "io_uring is refused: Operation not permitted",
             "cachestat": "the kernel does not support it",
             "dontcache": "the kernel or a file system does not support it",
             "direct": "the file system refuses O_DIRECT"}),
}


@pytest.fixture(scope="session")
def refuse():
    """A wrapper that refuses system calls to a program."""
    if not REFUSE.exists():
        pytest.skip("tests/sandbox/refuse is not built for this architecture")
    return lambda rules: [os.fspath(REFUSE), *rules, "--"]


@pytest.fixture(scope="session")
def rich(shared_place):
    return trees.rich(shared_place / "rich")


def shards_of(source):
    return [source.path(c.directory, name) for c in source.checkpoints for name, _ in c.shards]


def check(m, source, method, warm):
    """In a child, as the user who mounted: reads all files of all views by one method."""
    files = oracle.plain_files(m.path, source)
    drop_from_page_cache([path for path, _ in files])
    drop_from_page_cache(shards_of(source))
    if warm:
        for path in shards_of(source):
            oracle.read_all(path)
    readers.check_files(files, method)


def check_all(m, source, warm=False):
    for method in readers.METHODS:
        child(check, m, source, method, warm, user=m.user)


def io_status(m):
    text = child(m.read, ".fstfs/status", user=m.user)
    return json.loads(text, object_pairs_hook=oracle.no_duplicates)["io"]


def what_is_off(io):
    """{switch: reason} of everything that is off, and of direct reads that a file refuses."""
    found = {name: output["why"] for name, output in io.items()
             if isinstance(output, dict) and not output["on"]}
    if "direct_refused" in io:
        found["direct"] = io["direct_refused"]
    return found


def from_page_cache(m):
    """Whether anything was read from the page cache of the source."""
    return child(m.metrics, user=m.user)["fstfs_page_cache_read_bytes_total"] > 0


def nothing_logged_twice(m):
    lines = m.log_text().splitlines()
    assert len(lines) == len(set(lines)), lines


def test_refuse_refuses(refuse):
    """Tests the tool with a program other than fstfs."""
    ask = """
import ctypes, errno, fcntl, os, sys
def tried(call):
    try:
        call()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]
libc = ctypes.CDLL(None, use_errno=True)
def setup():
    if libc.syscall(425, 4, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "")
fd = os.open(sys.executable, os.O_RDONLY)
print(tried(setup), tried(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)),
      tried(lambda: os.open(sys.executable, os.O_RDONLY | os.O_DIRECT)),
      tried(lambda: os.preadv(fd, [bytearray(10)], 0, os.RWF_NOWAIT)),
      tried(lambda: os.preadv(fd, [bytearray(10)], 0)),
      tried(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)))
"""
    rules = ["io_uring_setup=ENOSYS", "O_DIRECT=EINVAL", "RWF_NOWAIT=EPERM"]
    done = subprocess.run([*refuse(rules), sys.executable, "-c", ask], capture_output=True,
                          text=True)
    assert done.stdout.split() == ["ENOSYS", "EINVAL", "EINVAL", "EPERM", "works", "works"], done
    assert subprocess.run([*refuse(["nothing=EPERM"]), "true"]).returncode == 125


@pytest.mark.parametrize("what", REFUSED)
def test_refused_calls(mount, rich, refuse, who, what):
    if os.geteuid() != 0:
        pytest.skip("needs root: a filter of an ordinary user keeps fusermount3 from its work")
    rules, options, off = REFUSED[what]
    plain = mount(rich.root, *options, **who)
    check_all(plain, rich)
    check_all(plain, rich, warm=True)
    m = mount(rich.root, *options, wrapper=refuse(rules), **who)
    check_all(m, rich)
    check_all(m, rich, warm=True)
    found = what_is_off(io_status(m))
    numbers = child(m.metrics, user=m.user)
    for method, why in found.items():
        refused = int(why != "not wanted")
        assert numbers[f'fstfs_fallback{{mechanism="{method}",reason="refused"}}'] == refused
    assert sum(value for name, value in numbers.items() if "_fallback{" in name) == len(found)
    expected = {**what_is_off(io_status(plain)), **off}
    if "dontcache" not in off:  # whether the file system supports it is only known after a try
        found.pop("dontcache", None)
        expected.pop("dontcache", None)
    assert found == expected
    if "cachestat" not in expected:
        allowed = child(cachestat_is_allowed, shards_of(rich)[0], user=m.user)
        assert from_page_cache(plain) == from_page_cache(m) == allowed
    nothing_logged_twice(m)


# --- file systems of the source ---


def test_threads_cannot_be_cancelled(mount, rich, who):
    """RLIMIT_SIGPENDING at 0: pthread_cancel() cannot send its signal. The sandbox does without, and
    SIGTERM ends the daemon although libfuse waits for its threads."""
    m = mount(rich.root, **who,
              environment=preload("misfortune", os.path.dirname(rich.root), NO_CANCEL=1))
    check_all(m, rich)
    m.signal(signal.SIGTERM)
    assert m.wait() == 0
    assert not mounted_at(m.path)


def test_threads_cannot_be_cancelled_after_an_unmount(mount, rich, who):
    """libfuse waits for its threads, and since glibc 2.35 these wait for the signal."""
    if not shutil.which("prlimit"):
        pytest.skip("prlimit is not installed")
    for _ in range(5):
        m = mount(rich.root, wrapper=["prlimit", "--sigpending=0"], **who)
        child(os.listdir, m.path, user=m.user)
        subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
        assert m.wait() == 0


@pytest.fixture
def source_on(place, rich):
    """source_on(kind, mount): a copy of the source on a file system of this kind, and the shards
    whose cached pages would be a second copy (none on a file system in memory)."""
    stack = ExitStack()

    def needs_root():
        if os.geteuid() != 0:
            pytest.skip("needs root: a file system is mounted")

    def mounted(*arguments):
        needs_root()
        path = tempfile.mkdtemp(prefix="on-", dir=place)
        done = subprocess.run(["mount", *arguments, path], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mount {arguments[1]}: {done.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", "-l", path], check=True)
        return path

    def tmpfs():
        if subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True,
                          text=True).stdout.strip() != "tmpfs":
            pytest.skip("/dev/shm is not a tmpfs")
        path = tempfile.mkdtemp(prefix="fstfs-test-", dir="/dev/shm")
        stack.callback(shutil.rmtree, path)
        os.chmod(path, 0o755)
        return path

    def copy(path):
        shutil.copytree(rich.root, path, dirs_exist_ok=True)
        return trees.Source.at(path, rich)

    def overlay(lower):
        """A file system that shows `lower`, and the shards below it."""
        empty = tempfile.mkdtemp(prefix="empty-", dir=place)
        path = mounted("-t", "overlay", "-o", f"ro,lowerdir={lower}:{empty}", "overlay")
        return trees.Source.at(path, rich), shards_of(trees.Source.at(lower, rich))

    def slowfs(mount, rule):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        (place / "faults").write_text(rule)
        others = ",allow_other" if os.geteuid() == 0 else ""
        m = mount(rich.root, "-o", f"ro,faults={place}/faults{others}", binary=SLOWFS)
        source = trees.Source.at(m.path, rich)
        return source, shards_of(source)

    def make(kind, mount):
        if kind == "tmpfs":
            return copy(tmpfs()), []
        if kind == "ramfs":
            return copy(mounted("-t", "ramfs", "ramfs")), []
        if kind == "overlay":
            return overlay(rich.root)
        if kind == "overlay-tmpfs":
            return overlay(copy(tmpfs()).root)[0], []
        if kind == "overlay-ramfs":
            return overlay(copy(mounted("-t", "ramfs", "ramfs")).root)[0], []
        return slowfs(mount, {"fuse": "", "fuse-no-direct": "read-direct * error=EINVAL\n"}[kind])

    with stack:
        yield make


# Whether direct reads are refused: None if kernels differ.
KINDS = {"tmpfs": None, "ramfs": "the file system refuses O_DIRECT", "overlay": None,
         "overlay-tmpfs": None, "overlay-ramfs": "the file system refuses",
         "fuse": "", "fuse-no-direct": "the file system refuses direct reads"}


@pytest.mark.parametrize("engine", [(), ("--io=threads",)], ids=["uring", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_sources(source_on, mount, who, kind, engine):
    source, shards = source_on(kind, mount)
    drop_from_page_cache(shards)
    m = mount(source.root, *engine, **who)
    check_all(m, source)
    # Reading leaves nothing in the page cache but headers.
    for path in shards:
        assert cached(BUILD, [path]) <= os.stat(path).st_size // 20, path
    refused = what_is_off(io_status(m)).get("direct", "")
    if KINDS[kind] is not None:
        assert refused.startswith(KINDS[kind]) and bool(refused) == bool(KINDS[kind])
    check_all(m, source, warm=True)
    nothing_logged_twice(m)
