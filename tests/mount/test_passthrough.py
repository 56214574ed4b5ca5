# SPDX-License-Identifier: Apache-2.0
"""--passthrough: the kernel reads unchanged files by itself, and the daemon reads all others."""

import mmap
import os
import subprocess
import threading

import oracle
import pytest
from conftest import child, eventually
from corpus import trees

NEVER = ("built with", "the kernel does not support it")


def state(m):
    return m.status()["kernel"]["passthrough"]


def read_mapped(path):
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        return mapped[:]


def read_direct(path, block=1 << 20):
    fd, buffer, parts = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, block), []
    try:
        while count := os.preadv(fd, [buffer], sum(map(len, parts))):
            parts.append(buffer[:count])
    finally:
        os.close(fd)
    return b"".join(parts)


METHODS = {"read": oracle.read_all, "mmap": read_mapped, "direct": read_direct}


@pytest.fixture
def source(place):
    return trees.rich(place / "s")


@pytest.fixture
def possible(mount, place):
    """Skips if this build or kernel has no passthrough."""
    (place / "empty").mkdir()
    why = state(mount(place / "empty", "--passthrough=on")).get("why", "")
    if why.startswith(NEVER):
        pytest.skip(why)


@pytest.fixture
def allowed(possible):
    if os.geteuid() != 0:
        pytest.skip("needs root")


def wholes(source):
    """Unmodified files in shards/: (path in the view, path in the source)."""
    found = [(os.path.relpath(os.path.join(folder, name), source.root), os.path.join(folder, name))
             for folder, _, names in os.walk(source.root) for name in names]
    return [(path, full) for path, full in found if os.path.getsize(full)]


def check_wholes(root, source):
    for path, full in wholes(source):
        expected = oracle.read_all(full)
        for method, read in METHODS.items():
            assert read(os.path.join(root, path)) == expected, (path, method)


def test_off_by_default(mount, source):
    m = mount(source.root)
    with open(m / "shards/rich/config.json", "rb") as f:
        assert f.read(1) == b"{"
        assert state(m) == {"on": False, "why": "not asked for (--passthrough=on)"}


@pytest.mark.parametrize("value", ["auto", "yes", ""])
def test_invalid_value_is_refused(fstfs, source, place, value):
    (place / "m").mkdir()
    done = subprocess.run([fstfs, f"--passthrough={value}", source.root, place / "m"],
                          capture_output=True, text=True)
    output = "--passthrough: expected on or off" if value else "--passthrough needs a value"
    assert done.returncode == 2 and output in done.stderr


@pytest.mark.parametrize("options", [(), ("--shards=2",)], ids=["as-source", "recut"])
def test_whole_tree_reads_the_same(mount, source, options):
    """Also if passthrough is unavailable; status then has the reason."""
    m = mount(source.root, "--passthrough=on", *options)
    oracle.check_source(m.path, source, options)
    if not options:
        check_wholes(m / "shards", source)
    now = state(m)
    assert now["on"] is True or now["why"]
    assert "refused" not in now


def test_kernel_reads_by_itself(mount, source, allowed):
    m = mount(source.root, "--passthrough=on")
    before, size = m.metric("read_bytes_total"), 0
    for path, full in wholes(source):
        for method in ("read", "mmap"):
            with open(m / f"shards/{path}", "rb"):
                # The kernel reports a closed file with a delay.
                assert eventually(lambda: state(m) == {"on": True, "files": 1}), state(m)
                assert METHODS[method](m / f"shards/{path}") == oracle.read_all(full)
            size += os.path.getsize(full)
    assert m.metric("read_bytes_total") == before
    check_wholes(m / "shards", source)
    assert m.metric("read_bytes_total") - before == size / 2  # the daemon serves O_DIRECT
    assert eventually(lambda: state(m) == {"on": True, "files": 0}), state(m)


def test_generated_files_are_read_by_the_daemon(mount, source, allowed):
    m = mount(source.root, "--passthrough=on")
    for path in ("merged/rich/model.safetensors", "tensors/rich/model.index.json",
                 "tensors/rich/model/size.65536", "npy/rich/model/size.65536.npy"):
        with open(m / path, "rb"):
            assert state(m) == {"on": True, "files": 0}, path


def test_concurrent_opens_of_one_file(mount, source, possible):
    """All opens of a file must get the same answer, and succeed."""
    m = mount(source.root, "--passthrough=on")
    files = [(m / f"shards/{path}", oracle.read_all(full)) for path, full in wholes(source)]
    wrong = []

    def work(number):
        for step in range(60):
            path, expected = files[step % len(files)]
            read = list(METHODS.values())[(number + step) % 3]
            try:
                if read(path) != expected:
                    wrong.append((path, "bytes"))
            except OSError as error:
                wrong.append((path, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert eventually(lambda: state(m).get("files", 0) == 0), state(m)


def read_as_user(m, source):
    refused = {"on": False, "why": "the kernel allows it to root only"}
    assert state(m) == refused  # before the first try
    path = m / "shards/rich/config.json"
    with open(path, "rb") as a, open(path, "rb") as b:
        assert a.read() == b.read() == b'{"model_type": "rich"}\n'
    check_wholes(m / "shards", source)
    assert state(m) == refused


def test_refused_to_unprivileged_users(mount, test_user, user_binary, source, possible):
    m = mount(source.root, "--passthrough=on", user=test_user, binary=user_binary)
    child(read_as_user, m, source, user=test_user)


def test_refused_file_is_read_by_the_daemon(mount, source, allowed):
    """Passthrough on passthrough exceeds the stacking depth."""
    below = mount(source.root, "--passthrough=on")
    m = mount(below / "shards", "--passthrough=on")
    check_wholes(m / "shards", source)
    with open(m / "shards/rich/config.json", "rb"):
        now = state(m)
    assert now["on"] is True and now["files"] == 0 and "stacked" in now["refused"]


def test_file_system_without_direct_reads(mount, place, allowed):
    """The kernel would fail an open with O_DIRECT, which the daemon can serve."""
    root = place / "s"
    root.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "fstfs-test", root]).returncode != 0:
        pytest.skip("cannot mount ramfs")
    try:
        source = trees.rich(root / "source")
        m = mount(root, "--passthrough=on")
        check_wholes(m / "shards/source", source)
        assert "O_DIRECT" in state(m)["refused"]
    finally:
        subprocess.run(["umount", "-l", root], check=True)


@pytest.mark.parametrize("in_place", [False, True], ids=["replaced", "in-place"])
def test_new_version_becomes_visible(mount, source, allowed, in_place):
    target = os.path.join(source.root, "rich/tokenizer.model")
    old, new = oracle.read_all(target), os.urandom(300001)
    m = mount(source.root, "--passthrough=on")
    path = m / "shards/rich/tokenizer.model"
    with open(path, "rb", buffering=0) as opened:
        assert opened.read(10) == old[:10]
        written = target if in_place else target + ".tmp"
        with open(written, "r+b" if in_place else "wb") as f:
            f.write(new)
        os.rename(written, target)
        assert eventually(lambda: os.stat(path).st_size == len(new))
        assert oracle.read_all(path) == new
        # The exception of docs/reliability.md: a file that is rewritten in place mixes versions.
        assert opened.read(10) == (new if in_place else old)[10:20]
    assert read_mapped(path) == read_direct(path) == new
