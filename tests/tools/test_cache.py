# SPDX-License-Identifier: Apache-2.0
"""fstfs-cache, compared with mincore() called from here.

The kernel may evict any page that is not locked at any time. So exact numbers are those of locked
pages in files that are otherwise evicted, and warming is repeated until it is seen to be complete.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile

import pytest
from conftest import BUILD, SANITIZER, SLOW, as_user, drop_from_page_cache, eventually
from corpus import gguffiles, torchfiles, trees
from page_cache import LIBC, PAGE, cached, drop, mapped

CACHE = BUILD / "fstfs-cache"
REFUSE = BUILD / "tests/sandbox/refuse"
SLOWFS = BUILD / "tests/slowfs/slowfs"
MIB = 1 << 20

@contextlib.contextmanager
def locked(path, *ranges):
    """Only these ranges of a file are in the page cache, and stay there."""
    drop(path)
    with mapped(path) as (at, _):
        for begin, end in ranges:
            assert LIBC.mlock(ctypes.c_void_p(at + begin), ctypes.c_size_t(end - begin)) == 0
        yield


def run(*args, status=0, prefix=(), program=CACHE, **more):
    done = subprocess.run([*map(str, prefix), program, *map(str, args)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=60 * SLOW, **more)
    assert not any(sign in done.stderr for sign in SANITIZER), done.stderr
    assert status is None or done.returncode == status, (done.returncode, done.stderr)
    return done


def report(*args, **more):
    return json.loads(run("--json", *args, **more).stdout)


def warm_until(is_complete, *args):
    """Warms again as long as the kernel evicts some of it."""
    assert eventually(lambda: run("--warm", *args, status=None) and is_complete())


@pytest.fixture
def source(place):
    kind = subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True)
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("the test directory is on tmpfs, where nothing can be evicted")
    made = trees.Source(place / "models")
    made.add("llama", "model", [trees.tensor(name, "U8", (4 * MIB,)) for name in ("a.0", "b.0", "b.1")])
    return made


@pytest.fixture
def shard(source):
    return source.path("llama/model.safetensors")


def range_of(path, name):
    """The pages that have bytes of a tensor of a safetensors file, as a slice."""
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        begin, end = json.loads(f.read(length))[name]["data_offsets"]
    return slice((8 + length + begin) // PAGE, -(-(8 + length + end) // PAGE))


@pytest.mark.parametrize("refused", [[], ["cachestat=ENOSYS"], ["cachestat=EPERM"]])
def test_residency(shard, refused):
    """By cachestat(), and by mincore() on kernels and in containers without it."""
    prefix = [REFUSE, *refused, "--"] if refused else []
    pages = -(-os.path.getsize(shard) // PAGE)
    with locked(shard, (0, MIB), (5 * MIB, 5 * MIB + PAGE)):
        assert sum(cached(shard)) == MIB // PAGE + 1
        found = report(shard, prefix=prefix)
        row = {"path": shard, "files": 1, "tensors": 0, "bytes": os.path.getsize(shard), "pages": pages,
               "cached_pages": MIB // PAGE + 1}
        assert found["paths"] == [row] and found["page_bytes"] == PAGE
        assert {key: found[key] for key in row if key != "path"} == {
            key: row[key] for key in row if key != "path"}
        lines = run(shard, prefix=prefix).stdout.splitlines()
    assert lines[0].split() == ["cached", "of"]
    assert lines[1].split() == ["1.05", "MB", "12.6", "MB", "8", "%", shard] and len(lines) == 2


@pytest.fixture(params=["lower", "upper"])
def overlaid(request, source, shard, place):
    """The shard on overlayfs, where the pages belong to the file of the lower or upper directory."""
    for name in ("empty", "work", "overlay"):
        (place / name).mkdir()
    lower, upper = (source.root, "empty") if request.param == "lower" else ("empty", source.root)
    options = f"lowerdir={place / lower},upperdir={place / upper},workdir={place / 'work'}"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", place / "overlay"],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount overlay: {done.stderr.strip()}")
    yield os.fspath(place / "overlay" / os.path.relpath(shard, source.root))
    subprocess.run(["umount", place / "overlay"], check=True)


def test_overlay(overlaid, shard):
    with locked(overlaid, (0, MIB)):
        assert sum(cached(shard)) == sum(cached(overlaid)) == MIB // PAGE
        assert report(overlaid)["cached_pages"] == MIB // PAGE
        assert "some pages stay cached" in run("--evict", overlaid, status=1).stderr
    warm_until(lambda: all(cached(shard)), overlaid)
    assert eventually(lambda: run("--warm", overlaid, status=None).returncode == 0)
    run("--evict", overlaid)
    assert not any(cached(shard))


def test_warm_and_evict(shard):
    drop(shard)
    warm_until(lambda: all(cached(shard)), shard)
    run("--evict", shard)
    assert not any(cached(shard))


def test_warm_reads_only_the_tensors(shard):
    wanted = range_of(shard, "b.0")

    def warmed():
        """The pages that are cached then, if all that are wanted are."""
        drop(shard)
        run("--warm", "--tensors=b.0", shard, status=None)
        flags = cached(shard)
        return flags if all(flags[wanted]) else None

    flags = eventually(warmed)
    # the header is read to find the tensors, with the kernel's readahead
    assert not any(flags[MIB // PAGE:wanted.start]) and not any(flags[wanted.stop:])
    found = report("--tensors=b.0", shard)
    assert found["tensors"] == 1 and found["bytes"] == 4 * MIB
    assert found["pages"] == wanted.stop - wanted.start
    run("--evict", "--tensors=b.?", shard)
    assert not any(cached(shard)[wanted])


def test_globs(source, shard):
    """All containers; files that only look like one, and other files, are skipped."""
    source.directory("gguf")
    with open(source.path("gguf/model.gguf"), "wb") as f:
        f.write(gguffiles.gguf([("b.7", [32], 0, bytes(128))]))
    with open(source.path("llama/pytorch_model.bin"), "wb") as f:
        f.write(torchfiles.torch_file({"b.9": ((2,), bytes(8))}))
    with open(source.path("llama/optimizer.bin"), "wb") as f:
        f.write(b"not a checkpoint")
    source.add_side("llama/config.json")
    assert report("--tensors=b.*", source.root)["tensors"] == 4
    assert report("--tensors=b.*", "--tensors=a.0", source.path("llama"))["tensors"] == 4
    done = run("--tensors=c.*", "--tensors=b.0", shard, status=1)
    assert done.stderr == "fstfs-cache: --tensors=c.*: matches no tensor\n"
    assert "4.19 MB" in done.stdout  # the other pattern is not affected


def test_names_with_nul(source):
    """A glob must match the whole name, including NUL."""
    source.add("nul", "model", [trees.tensor(name, "U8", (5,)) for name in ("\0.w", "a", "a\0", "a\0.w", "a.w")])
    path = source.path("nul/model.safetensors")
    for pattern, tensors in (("*.w", 3), ("a", 1), ("a?", 1), ("a?.w", 1), ("[!a].w", 1), ("*", 5)):
        assert report(f"--tensors={pattern}", path)["tensors"] == tensors, pattern


def test_tied_tensors(source):
    """Bytes that tensors share count once."""
    path = source.path("llama/pytorch_model.bin")
    shared, own = torchfiles.storage("0", 3 * PAGE), torchfiles.storage("1", PAGE)
    root = {"embed": torchfiles.tensor(shared, (3 * PAGE,)), "head": torchfiles.tensor(shared, (3 * PAGE,)),
            "tail": torchfiles.tensor(shared, (2 * PAGE,), offset=PAGE), "own": torchfiles.tensor(own, (PAGE,))}
    with open(path, "wb") as f:
        f.write(torchfiles.archive(root, {"0": bytes(12 * PAGE), "1": bytes(4 * PAGE)}))
    for pattern, tensors, pages in (("*", 4, 16), ("[eh]*", 2, 12), ("[th]*", 2, 12), ("tail", 1, 8)):
        found = report(f"--tensors={pattern}", path)
        assert (found["tensors"], found["bytes"]) == (tensors, pages * PAGE), pattern


def test_directories(source, shard):
    """A row for each directory with files; links to a file count once, hidden files not at all."""
    source.add_side("llama/config.json", b"x" * 5000)
    source.add_side("llama/.hidden")
    source.add_side("empty/nothing", b"")
    os.link(shard, source.path("again.safetensors"))
    os.symlink(source.root, source.path("llama/loop"))
    size = os.path.getsize(shard)
    found = report(source.root)
    assert [(row["path"], row["files"], row["bytes"]) for row in found["paths"]] == [
        (source.root, 1, size), (source.path("empty"), 1, 0), (source.path("llama"), 1, 5000)]
    assert found["bytes"] == size + 5000 and found["pages"] == -(-size // PAGE) + 2
    lines = run(source.root).stdout.splitlines()
    assert lines[-1].endswith("  total") and len(lines) == 5
    assert lines[2].split() == ["0", "B", "0", "B", "-", source.path("empty")]


def test_index(source):
    source.add("cut", "model", [trees.tensor(name, "U8", (MIB,)) for name in "xy"], shards=2)
    index = source.path("cut/model.safetensors.index.json")
    assert report(index)["files"] == 2 and report("--tensors=y", index)["files"] == 1


def test_memory_limit(shard):
    drop(shard)
    first = slice(0, 2 * MIB // PAGE)
    warm_until(lambda: all(cached(shard)[first]), "--memory=2M", shard)
    assert not any(cached(shard)[first.stop:])


def test_evicted_again(shard, memory_group):
    """Cached pages after the first SIZE bytes do not make up for evicted ones before."""
    wrapper, killed = memory_group(96 * MIB)
    os.truncate(shard, 256 * MIB)
    with locked(shard, (128 * MIB, 256 * MIB)):
        done = run("--warm", "--memory=128M", shard, prefix=wrapper, status=1)
    assert "the kernel has evicted " in done.stderr and killed() == 0


@pytest.mark.parametrize("args", [["--warm"], ["--keep"], ["--keep", "--memory=128M"]], ids=str)
def test_more_than_the_memory(shard, memory_group, args):
    """What does not fit is not read at all."""
    wrapper, killed = memory_group(64 * MIB)
    os.truncate(shard, 256 * MIB)
    drop(shard)
    done = run(*args, shard, prefix=wrapper, status=1)
    size = "134 MB" if "--memory=128M" in args else "268 MB"
    assert f"not enough memory: {size} are selected, " in done.stderr and killed() == 0
    assert not any(cached(shard))


@pytest.mark.parametrize("view, tensors", [("merged/llama", 0), ("tensors/llama/model", 3)])
def test_mount(mount, source, view, tensors):
    """The pages are those of the mount's own files."""
    m = mount(source.root)
    paths = [os.path.join(m / view, name) for name in os.listdir(m / view) if name[0] != "."]
    run("--evict", m / view)
    assert not any(sum(cached(path)) for path in paths)
    warm_until(lambda: all(all(cached(path)) for path in paths), m / view)
    found = report("--tensors=b.*", m / view)
    assert found["tensors"] == 2 and found["files"] == (2 if tensors else 1)
    run("--evict", "--tensors=b.*", m / view)
    if tensors:
        assert [any(cached(path)) for path in sorted(paths)] == [True, False, False]
    else:
        assert not any(cached(paths[0])[range_of(paths[0], "b.1")])
        assert any(cached(paths[0])[range_of(paths[0], "a.0")])


@pytest.mark.skipif(os.geteuid() != 0, reason="passthrough needs root")
def test_passthrough(mount, source, shard):
    """The pages are those of the source."""
    m = mount(source.root, "--passthrough=on")
    passthrough = m.status()["kernel"]["passthrough"]
    if not passthrough["on"]:
        pytest.skip(passthrough["why"])
    path = m / "shards/llama/model.safetensors"
    with locked(shard, (0, MIB)):
        assert report(path)["cached_pages"] == MIB // PAGE
        done = run("--evict", path, status=1)
        assert "its pages belong to the file of the source" in done.stderr
    run("--evict", shard)
    run("--evict", path)
    assert not any(cached(shard))


class Kept:
    """A running fstfs-cache --keep that holds its pages."""

    def __init__(self, *args, prefix=(), **more):
        self.process = subprocess.Popen([*prefix, CACHE, "--keep", *map(str, args)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def __enter__(self):
        line = self.process.stderr.readline()
        assert line == "locked in memory until SIGINT, SIGTERM or SIGHUP\n", line + self.process.stderr.read()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def ends(self, number):
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30 * SLOW)
        return self.process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_keep(shard, number):
    drop(shard)
    wanted = range_of(shard, "b.0")
    with Kept("--tensors=b.0", shard) as kept:
        drop_from_page_cache([shard])
        assert all(cached(shard)[wanted])
        done = run("--evict", shard, status=1)
        assert "some pages stay cached" in done.stderr and "model.safetensors" in done.stderr
        assert all(cached(shard)[wanted])
        assert kept.ends(number) == (0, "")
    run("--evict", shard)
    assert not any(cached(shard))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_keep_with_an_ignored_signal(shard, number):
    """SIGHUP under nohup(1), or SIGINT in a background job of a shell without job control."""
    with Kept("--tensors=b.0", shard, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN)) as kept:
        kept.process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            kept.process.wait(2)
        assert kept.ends(signal.SIGTERM) == (0, "")


def test_keep_under_pressure(source, shard, place, memory_group):
    """Pages that are only warmed are evicted from a full memory cgroup; kept ones are not."""
    wrapper, killed = memory_group(96 * MIB)
    control, other = place / "control", place / "other"
    control.write_bytes(os.urandom(8 * MIB))
    other.write_bytes(bytes(256 * MIB))
    for path in (shard, control, other):
        drop(path)
    with Kept(shard, prefix=wrapper):
        run("--warm", control, prefix=wrapper, status=None)
        run(other, program="cat", prefix=wrapper)
        assert all(cached(shard)) and not all(cached(control))
    assert killed() == 0


@pytest.mark.skipif(not SLOWFS.exists(), reason="slowfs is not built")
def test_keep_rests_after_a_long_check(mount, source, shard, place):
    """A check opens the file, which takes a second here. The next one is at least 20 s away."""
    (place / "faults").write_text("open * delay=1000000\n")
    m = mount(source.root, "-o", f"ro,faults={place}/faults", binary=SLOWFS)
    opened = LIBC.inotify_init1(os.O_NONBLOCK)
    with Kept("--tensors=b.0", m / os.path.relpath(shard, source.root)) as kept, \
            open(opened, "rb", buffering=0) as events:
        assert LIBC.inotify_add_watch(opened, os.fsencode(shard), 0x20) >= 0  # IN_OPEN
        assert not select.select([events], [], [], 8)[0]
        assert kept.ends(signal.SIGTERM) == (0, "")


def test_keep_changed_file(shard):
    with Kept("--tensors=b.0", shard) as kept:
        with open(shard, "ab") as f:
            f.write(b"more")
        assert kept.process.stderr.readline().endswith("model.safetensors: has changed since it was selected\n")
        assert kept.ends(signal.SIGTERM)[0] == 1


def test_locked_memory_limit(shard, test_user, user_program):
    os.chmod(os.path.dirname(os.path.dirname(shard)), 0o755)
    drop(shard)
    done = run("--keep", shard, prefix=["prlimit", "--memlock=65536", *as_user(test_user)],
               program=user_program(CACHE), status=1)
    assert "RLIMIT_MEMLOCK is 65536 bytes" in done.stderr and done.stderr.count("\n") == 1
    assert not any(cached(shard)) and not done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of another user")
@pytest.mark.parametrize("refused", [[], ["cachestat=ENOSYS"]])
@pytest.mark.parametrize("who", ["user", "root"])
def test_files_of_others(shard, test_user, user_program, refused, who):
    """The kernel does not reveal what is cached: mincore() would report all of it. Neither does it
    to root without capabilities."""
    other = as_user(test_user)
    if who == "root":
        os.chown(shard, 12345, -1)
        other = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    prefix = [*([REFUSE, *refused, "--"] if refused else []), *other]
    drop(shard)
    found = report(shard, prefix=prefix, program=user_program(CACHE))
    assert found["cached_pages"] is None and found["paths"][0]["cached_pages"] is None
    assert run(shard, prefix=prefix, program=user_program(CACHE)).stdout.split()[2] == "unknown"
    assert run("--warm", shard, prefix=prefix, program=user_program(CACHE)).stderr == ""
    assert any(cached(shard))


@pytest.mark.parametrize("action", [[], ["--warm"], ["--evict"]], ids=str)
def test_unreadable_file(shard, test_user, user_program, action):
    """What is cached of a file that cannot be opened is unknown, and its error is printed once."""
    os.chmod(os.path.dirname(os.path.dirname(shard)), 0o755)
    with open(shard, "rb") as f:
        f.read()
    os.chmod(shard, 0)
    more = {"prefix": as_user(test_user), "program": user_program(CACHE), "status": 1}
    done = run(*action, shard, **more)
    assert done.stdout.split()[2] == "unknown"
    line, = done.stderr.splitlines()
    assert line.endswith(f"{shard}: Permission denied")
    found = json.loads(run("--json", *action, shard, **more).stdout)
    assert found["cached_pages"] is None and found["paths"][0]["cached_pages"] is None


def test_errors_do_not_stop_others(source, shard, test_user, user_program):
    """Each is one line; the other files are warmed."""
    source.add_side("llama/closed", b"x" * 100)
    os.chmod(source.path("llama/closed"), 0)
    os.symlink("gone", source.path("llama/dangling"))
    os.mkfifo(source.path("fifo"))
    for path in (shard, source.path("llama")):
        os.chmod(path, 0o777)
    done = run("--warm", source.path("fifo"), source.path("gone"), source.path("llama"), status=1,
               prefix=as_user(test_user), program=user_program(CACHE))
    lines = done.stderr.splitlines()
    assert {line.split(": ", 1)[1] for line in lines} >= {
        f"{source.path('fifo')}: neither a file nor a directory",
        f"{source.path('gone')}: No such file or directory",
        f"{source.path('llama/dangling')}: No such file or directory",
        f"{source.path('llama/closed')}: Permission denied"}
    assert any(cached(shard)) and source.path("llama") in done.stdout


def test_damaged_shard(source, shard):
    source.add("bad", "model", [trees.tensor("w", "U8", (9,))])
    os.truncate(source.path("bad/model.safetensors"), 20)
    done = run("--tensors=*", source.root, status=1)
    assert done.stderr.count("\n") == 1 and "bad/model.safetensors" in done.stderr
    assert source.path("llama") in done.stdout
    assert run(source.root).stderr == ""  # without tensors, no header is read


def test_sparse_file(place):
    """Holes have pages when they are read."""
    path = place / "sparse"
    with open(path, "wb") as f:
        f.truncate(3 * MIB + 1)
    with locked(path, (MIB, 2 * MIB)):
        found = report(path)
        assert found["pages"] == 3 * MIB // PAGE + 1 and found["cached_pages"] == MIB // PAGE


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_tmpfs():
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="fstfs-test-") as f:
        f.write(bytes(MIB))
        f.flush()
        done = run("--evict", f.name, status=1)
        assert "stores files in memory only" in done.stderr and "100 %" in done.stdout


@pytest.mark.parametrize("args, said", [
    (["--warm", "--evict", "x"], "exclude each other"),
    (["--warm", "--keep", "x"], "exclude each other"),
    (["--memory=1G", "x"], "--memory requires"),
    (["--warm", "--memory=many", "x"], "--memory: invalid value"),
])
def test_command_line(args, said):
    done = run(*args, status=2)
    assert said in done.stderr and done.stderr.count("\n") == 1
