# SPDX-License-Identifier: Apache-2.0
"""`.fstfs/loads` and the metrics of loads: what was read, and what limited it."""

import contextlib
import errno
import json
import multiprocessing
import os
import random
import stat
import subprocess
import sys
import time

import pytest
from conftest import BUILD, child, eventually
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
PAUSE = 2  # LOAD_PAUSE_SECONDS of src/fuse/loads.h
MOST = 100  # LOADS_MOST
TENSORS = 24
SIZE = 1 << 20
CHECKPOINT = "llama/model"


def tensor_names():
    """In file order, which is neither the order of names nor its reverse."""
    names = [f"w{i:02}" for i in range(TENSORS)]
    random.Random(4).shuffle(names)
    return names


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("llama", "model", [trees.tensor(name, "U8", (SIZE,)) for name in tensor_names()])
    made.add_side("llama/config.json", b"{}\n")
    return made


def loads_of(m):
    m.wait_until_idle()
    return [json.loads(line) for line in m.read(".fstfs/loads").splitlines()]


def read_tensors(m, names):
    """Reads the tensors one by one. Returns the bytes read."""
    size = 0
    for name in names:
        with open(m / f"tensors/{CHECKPOINT}/{name}", "rb", buffering=0) as f:
            while part := f.read(1 << 18):
                size += len(part)
    return size


def read_some(m, offset=0):
    """Reads one byte of the merged file, which is not in the page cache of the mount. Returns the
    process group."""
    with open(m / f"merged/{CHECKPOINT}.safetensors", "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(offset)
        f.read(1)
    return os.getpgrp()


def in_own_group(work, *args):
    os.setpgid(0, 0)
    return work(*args)


def unless_stalled(work, seconds=PAUSE):
    """Calls work(), and repeats it if it fails after taking this long: then the machine may have
    stalled for the pause that ends a load."""
    for left in reversed(range(10)):
        start = time.monotonic()
        try:
            return work()
        except (AssertionError, ValueError):
            if time.monotonic() - start < seconds or not left:
                raise


def test_whole_load(mount, source):
    unless_stalled(lambda: check_whole_load(mount(source.root)))


def check_whole_load(m):
    assert loads_of(m) == []
    m.read("merged/llama/config.json")  # not of a checkpoint
    began = int(time.time())
    size = child(read_tensors, m, tensor_names())
    assert size == TENSORS * SIZE
    load, = loads_of(m)
    assert load["bytes"] == size
    assert load["errors"] == 0 and load["opens"] == TENSORS
    assert (load["checkpoint"], load["view"]) == (CHECKPOINT, "tensors")
    assert load["command"] == open("/proc/self/comm").read().strip()
    assert load["process_group"] == os.getpgrp()
    assert began <= load["start"] <= time.time()
    parts = [load[f"{part}_seconds"] for part in ("storage", "daemon", "reader")]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(load["seconds"], abs=1e-4)
    assert load["bottleneck"] in ("storage", "daemon", "reader")
    assert "%" in load["verdict"]
    assert load["storage_bytes"] >= size > load["prefetched_wasted_bytes"]
    assert load["read_ratio"] == pytest.approx(load["storage_bytes"] / size, abs=0.001)
    assert len(load["slices"]) == len(load["slices_busy"]) <= 20
    assert sum(load["slices"]) == size
    assert all(0 <= busy <= 1 for busy in load["slices_busy"])
    assert len(load["slices"]) * load["slice_seconds"] >= load["seconds"]


@pytest.mark.parametrize("order", ["file", "name", "random"])
def test_order(mount, source, order):
    names = tensor_names()
    if order == "name":
        names.sort()
    elif order == "random":
        random.Random(9).shuffle(names)

    def check():
        m = mount(source.root)
        child(read_tensors, m, names)
        assert loads_of(m)[0]["order"] == order

    unless_stalled(check)


def test_views_process_groups_and_checkpoints_have_separate_loads(mount, source):
    source.add("other", "model", [trees.tensor("w", "U8", (SIZE,))])
    m = mount(source.root)
    groups = [child(in_own_group, read_some, m), child(in_own_group, read_some, m)]
    child(read_tensors, m, tensor_names())
    m.read("merged/other/model.safetensors")
    found = {(load["checkpoint"], load["view"], load["process_group"]) for load in loads_of(m)}
    assert found == {(CHECKPOINT, "merged", groups[0]), (CHECKPOINT, "merged", groups[1]),
                     (CHECKPOINT, "tensors", os.getpgrp()), ("other/model", "merged", os.getpgrp())}


def test_pause_ends_a_load(mount, source):
    """A load ends after the pause even if its file stays open."""
    unless_stalled(lambda: check_pause(mount(source.root)), 2 * PAUSE + 0.5)


def check_pause(m):
    with open(m / f"merged/{CHECKPOINT}.safetensors", "rb", buffering=0) as f:
        f.read(1 << 16)
        assert loads_of(m)[0]["running"]
        time.sleep(PAUSE + 0.5)
        first, = loads_of(m)
        assert not first["running"]
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(20 * SIZE)
        f.read(1 << 16)
    again, second = loads_of(m)
    assert again == first
    assert second["running"] and second["bytes"] >= 1 << 16
    assert second["command"] == first["command"]
    assert m.metric('load_duration_seconds_count{checkpoint="llama/model"}') == 1


def test_loads_of_one_checkpoint_after_another(mount, source):
    """Bytes that the second load reads are not counted for the first one, which has not ended."""
    def check():
        m = mount(source.root)
        child(in_own_group, read_tensors, m, tensor_names())
        first, = loads_of(m)
        child(in_own_group, read_tensors, m, tensor_names())
        assert loads_of(m)[0]["storage_bytes"] == first["storage_bytes"]

    unless_stalled(check)


def test_only_the_last_loads_are_kept(mount, source):
    m = mount(source.root)
    groups = [child(in_own_group, read_some, m, i * SIZE // 8) for i in range(MOST + 5)]
    assert [load["process_group"] for load in loads_of(m)] == groups[5:]
    # At least the loads that were removed from the list have ended.
    assert m.metric('load_duration_seconds_count{checkpoint="llama/model"}') >= 5


def test_slow_storage_is_the_bottleneck(mount, source, place):
    """Tensors in random order, so that little is prefetched."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    slow = mount(source.root, "-o", "delay=50000", binary=SLOWFS)
    m = mount(slow.path)
    names = tensor_names()
    random.Random(9).shuffle(names)
    child(read_tensors, m, names)
    load = loads_of(m)[0]
    assert load["bottleneck"] == "storage", load
    assert load["verdict"].startswith("storage: ")
    assert load["stalls"] > 0 and load["storage_seconds"] >= 0.05


class Faulty:
    """A mount of a source on slowfs, whose rules the test sets."""

    def __init__(self, mount, source, place):
        if not SLOWFS.exists():
            pytest.skip("tests/slowfs/slowfs is not built")
        self.rules = place / "faults"
        slow = mount(source.root, "-o", f"faults={self.rules}", binary=SLOWFS)
        self.m = mount(slow.path)
        os.stat(self.m / f"merged/{CHECKPOINT}.safetensors")  # reads the header

    def set(self, *rules):
        new = self.rules.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in rules))
        os.rename(new, self.rules)


def test_storage_hangs(mount, source, place):
    """The load's duration increases, and what it waits for is shown, before a read has ended."""
    faulty = Faulty(mount, source, place)
    faulty.set("read * hang")
    reader = multiprocessing.Process(target=read_some, args=(faulty.m, 12 * SIZE))
    reader.start()

    def first_load():
        page = faulty.m.read(".fstfs/loads").splitlines()
        return json.loads(page[0]) if page else {"seconds": 0}

    try:
        assert eventually(lambda: first_load()["seconds"] > 0.1)
        load = first_load()
        assert load["running"] and load["reads"] == 0
        assert load["storage_seconds"] == load["seconds"] > 0
        assert load["bottleneck"] == "storage", load
        assert eventually(lambda: first_load()["seconds"] > load["seconds"])
    finally:
        faulty.set()
        reader.join()
    load, = loads_of(faulty.m)
    assert load["bottleneck"] == "storage" and load["stalls"] > 0, load


def read_with_pauses(m, names):
    """Pauses four times as long as each read takes, however slow the machine is."""
    for name in names:
        start = time.monotonic()
        m.read(f"tensors/{CHECKPOINT}/{name}")
        m.wait_until_idle()
        time.sleep(min(4 * (time.monotonic() - start), PAUSE / 2))


def test_slow_reader_is_the_bottleneck(mount, source):
    m = mount(source.root)
    child(read_with_pauses, m, tensor_names())
    load = loads_of(m)[0]
    assert load["bottleneck"] == "reader", load
    assert load["verdict"].startswith("the reader: ")


def spin(processor):
    os.setsid()  # a group of its own, of those that share processors equally (sched(7))
    os.sched_setaffinity(0, {processor})
    while True:
        pass


@contextlib.contextmanager
def starved(pid):
    """While this context is active, the process gets a few percent of one processor."""
    processor = max(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # idle threads end
            os.sched_setaffinity(int(thread), {processor})
            os.setpriority(os.PRIO_PROCESS, int(thread), 10)
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/autogroup", "w") as f:
        f.write("10")
    busy = [multiprocessing.Process(target=spin, args=(processor,)) for _ in range(3)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def test_busy_daemon_is_the_bottleneck(mount, source):
    """Requests also wait in the kernel's queue, where the daemon does not see them."""
    if open("/proc/self/schedstat").read().split()[1] == "0" and \
            child(lambda: open("/proc/self/schedstat").read().split()[1]) == "0":
        pytest.skip("this kernel does not count how long threads wait for a processor")

    def attempt():
        m = mount(source.root)
        with starved(m.pid):
            child(m.read, f"merged/{CHECKPOINT}.safetensors")
        return loads_of(m)[0]

    for _ in range(10):  # on a busy machine the reader may wait longer for a processor
        load = attempt()
        if load["bottleneck"] == "daemon":
            break
    assert load["bottleneck"] == "daemon", json.dumps(load)
    assert load["verdict"].startswith("fstfs: ")


def test_private(mount, source, who):
    """Loads name programs and files, which other users may not see."""
    m = mount(source.root, **who)
    page = child(os.stat, m / ".fstfs/loads", user=m.user)
    assert stat.S_IMODE(page.st_mode) == 0o400


@pytest.mark.parametrize("public", [True, False])
def test_metrics(mount, place, public):
    """Names of checkpoints are labels, unless other users can read the metrics."""
    if not public and os.geteuid() != 0:
        pytest.skip("needs root, or user_allow_other")
    source = trees.Source(place / "models")
    for i in range(20):
        source.add(f'q"\\{i}', "m", [trees.tensor("w", "U8", (4096,))])
    m = mount(source.root, *([] if public else ["-o", "allow_other"]))
    for i in range(20):
        m.read(f'merged/q"\\{i}/m.safetensors')
    assert len(loads_of(m)) == 20
    assert eventually(lambda: count_of_loads(m) == 20, seconds=PAUSE + 10)
    lines = m.read(".fstfs/metrics").decode().splitlines()
    labels = {line.split("} ")[0].split("{")[1] for line in lines
              if line.startswith("fstfs_load_duration_seconds_count")}
    if public:
        # Quoted as in other pages, and again as a label.
        quoted = [f'checkpoint="q\\"' + 4 * "\\" + f'{i}/m"' for i in range(20)]
        assert len(labels) == 17 and labels <= {*quoted, 'checkpoint=""'}
    else:
        assert labels == {'checkpoint=""'}
    seconds = sum(float(line.split()[-1]) for line in lines
                  if line.startswith("fstfs_load_seconds_total"))
    total = sum(float(line.split()[-1]) for line in lines
                if line.startswith("fstfs_load_duration_seconds_sum"))
    assert seconds == pytest.approx(total, abs=1e-3)


def count_of_loads(m):
    return sum(int(line.split()[-1]) for line in m.read(".fstfs/metrics").decode().splitlines()
               if line.startswith("fstfs_load_duration_seconds_count"))


HOLDER = """
import os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for line in sys.stdin:
    for _ in range(int(line)):
        os.open(sys.argv[1], os.O_RDONLY)
    print("open", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_open_pages_are_limited(mount, source, test_user):
    """A page has a snapshot of its content while it is open. When that takes 16 MiB, other users get
    ENFILE, and root still opens pages."""
    m = mount(source.root, "-o", "allow_other")
    path = m / ".fstfs/metrics"
    count = (16 << 20) // len(m.read(".fstfs/metrics"))

    def open_as_user():
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            return error.errno
        return 0

    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        for opened, expected in ((count // 2, 0), (count, errno.ENFILE)):
            holder.stdin.write(f"{opened}\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "open\n"
            assert child(open_as_user, user=test_user) == expected
        holder.stdin.close()
    assert eventually(lambda: child(open_as_user, user=test_user) == 0)


def test_reads_that_fail(mount, source):
    """Reads of a changed file fail with ESTALE. The load counts them as errors."""
    m = mount(source.root)
    path = m / f"merged/{CHECKPOINT}.safetensors"
    with open(path, "rb", buffering=0) as f:
        f.read(1 << 16)
        shard = source.path("llama", "model.safetensors")
        with open(shard, "r+b") as written:
            written.seek(12 * SIZE)
            written.write(b"x")
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(12 * SIZE)
        with pytest.raises(OSError):
            f.read(1 << 16)
    assert loads_of(m)[0]["errors"] > 0


def test_reads_that_storage_fails(mount, source, place):
    """Failed reads have waited for storage, and that time is counted as storage time."""
    faulty = Faulty(mount, source, place)
    faulty.set("read * error=EIO")
    with pytest.raises(OSError):
        read_some(faulty.m, 12 * SIZE)
    load, = loads_of(faulty.m)
    assert load["stalls"] == load["errors"] == load["reads"] > 0
    assert load["storage_seconds"] > 0 and load["bytes"] == 0
    assert faulty.m.metric("stalls_total") == load["stalls"]
