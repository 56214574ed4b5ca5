# SPDX-License-Identifier: Apache-2.0
"""The storages. Each writes the checkpoint to a place of its kind, and removes it afterwards."""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager

from checkpoint import Segment, segments
from harness import Daemon, cached, evict
from machine import Run


class Unavailable(Exception):
    """The machine lacks something, or the user a permission; the text says what."""


class Storage:
    """The location of the shards, and how they are read. A context manager."""

    distant = False  # whether requests have latency
    library_bound = 0.95  # for libfstfs, of fio's rate
    bandwidth = None  # of its link, bytes per second
    rows = ()  # the rows to run unless others are given; empty: all

    def __init__(self, machine, checkpoint, commands):
        self.machine, self.checkpoint, self.commands = machine, checkpoint, commands
        self.plans = {}

    def __enter__(self):
        with ExitStack() as stack:
            self.source = self.build(stack)
            self.stack = stack.pop_all()
        self.files = sorted(os.path.join(self.source, name) for name in os.listdir(self.source)
                            if name.endswith(".safetensors"))
        self.mountpoint = self.machine.make_mountpoint("mount")
        return self

    def __exit__(self, *exception):
        return self.stack.__exit__(*exception)

    def build(self, stack):
        """Creates it; returns the directory of the checkpoint."""
        raise NotImplementedError

    def write(self, directory):
        source = os.path.join(directory, "source")
        os.mkdir(source)
        self.checkpoint.write(source)
        return source

    def drop(self):
        evict(self.machine.build, self.files)

    def cached(self):
        return cached(self.machine.build, self.files)

    def backing_device(self):
        """(major, minor) of the device of the shards."""
        device = os.stat(self.files[0]).st_dev
        return os.major(device), os.minor(device)

    def readahead(self):
        """The sysfs file with the device's readahead."""
        major, minor = self.backing_device()
        return f"/sys/class/bdi/{major}:{minor}/read_ahead_kb"

    @contextmanager
    def default_readahead(self):
        """Sets the kernel's default of 128 KiB temporarily."""
        with open(self.readahead(), "r+") as f:
            own = f.read()
            f.seek(0)
            f.write("128")
            f.flush()
            try:
                yield
            finally:
                f.seek(0)
                f.write(own)

    def can_change_readahead(self):
        """Whether the device's readahead differs from the kernel's default and can be set."""
        if not os.access(self.readahead(), os.W_OK):
            return False
        with open(self.readahead()) as f:
            return int(f.read()) != 128

    def tensors(self):
        """The tensors of the shards by name, in file order."""
        found = {}
        for path in self.files:
            found |= segments(path, self.start(path))
        return found

    def start(self, path):
        """The start of a file, with its header; read as the user."""
        return self.machine.output("head", "-c", str(4 << 20), path)

    def whole(self, paths):
        sizes = [int(n) for n in self.machine.output("stat", "-L", "-c", "%s", *paths).split()]
        return [Segment(p, 0, n) for p, n in zip(paths, sizes)]

    def fio(self):
        """fio's best rate on the bare shards."""
        if not shutil.which("fio"):
            raise Unavailable("fio is not installed")
        job = json.loads(self.machine.output(
            "fio", "--name=best", "--filename=" + ":".join(self.files), "--readonly", "--rw=read",
            "--ioengine=io_uring", "--direct=1", "--iodepth=32", "--bs=1M",
            "--file_service_type=sequential", "--output-format=json",
        ))["jobs"][0]["read"]
        return Run(job["runtime"] / 1e3, job["io_bytes"])

    def mount(self, which=0):
        return Mount(self, self.commands[which])

    def planned(self, which, plan):
        """The segments that a plan of a row reads through the mount. Found on a separate
        mount, so that the timed one is cold; the paths are the same."""
        key = (which, plan)
        if key not in self.plans:
            with self.mount(which) as mount:
                self.plans[key] = plan(mount)
        return self.plans[key]

    def plain(self):
        """The shards through a plain FUSE passthrough file system."""
        return Daemon(self.machine.identity, self.mountpoint,
                      self.slowfs(), "-f", self.source)

    def slowfs(self):
        path = os.path.join(self.machine.build, "tests/slowfs/slowfs")
        if not os.path.exists(path):
            raise Unavailable("slowfs is not built")
        return path


class Mount(Daemon):
    """The shards through fstfs."""

    def __init__(self, storage, command):
        super().__init__(storage.machine.identity, storage.mountpoint,
                         *command, "-f", storage.source)
        self.storage, self.machine = storage, storage.machine
        self.merged = os.path.join(self.path, "merged/model.safetensors")

    def __enter__(self):
        """Mounts, lets fstfs read the headers, and drops the shards from the page cache."""
        super().__enter__()
        try:
            self.machine.output("stat", self.merged)
            self.storage.drop()
        except BaseException:
            self.close()
            raise
        return self

    def tensors(self):
        """The tensors of the merged file by name, in file order."""
        return segments(self.merged, self.storage.start(self.merged))

    def shards(self):
        return self.storage.whole([os.path.join(self.path, "shards", os.path.basename(f))
                                   for f in self.storage.files])

    def tensor_files(self):
        """The tensor files, in shard order."""
        return [Segment(os.path.join(self.path, "tensors/model", name), 0, length)
                for name, length in self.storage.checkpoint.tensors.items()]

    def storage_bytes(self):
        """Bytes read from the storage so far: counted by the device, or by fstfs if there is
        no device."""
        if self.storage.distant:
            return self.metrics()["fstfs_storage_read_bytes_total"]
        return self.device_bytes()

    def budget(self):
        """--memory in bytes; 0 for a program without this metric."""
        return self.metrics().get("fstfs_buffer_budget_bytes", 0)

    def metrics(self):
        text = self.machine.output("cat", os.path.join(self.path, ".fstfs/metrics")).decode()
        return {line.split()[0]: float(line.split()[1])
                for line in text.splitlines() if not line.startswith("#")}


class Disk(Storage):
    """Files on a disk (--place)."""

    name = "disk"
    fio_bound = 0.95

    def build(self, stack):
        return self.write(self.machine.folder)


class Loop(Storage):
    """ext4 on a loop device over tmpfs: as fast as memory."""

    name = "loop"
    fio_bound = 0.85

    def build(self, stack):
        if not self.machine.root:
            raise Unavailable("a loop device needs root")
        folder = stack.enter_context(memory_folder(self.machine))
        image = os.path.join(folder, "image")
        with open(image, "wb") as f:
            f.truncate((self.checkpoint.size * 11 // 10 + (64 << 20)) // 4096 * 4096)
        # nodiscard and no lazy initialization: no background work during the measurement.
        run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", image)
        device = run("losetup", "--find", "--show", image).strip()
        stack.callback(run, "losetup", "--detach", device)
        place = os.path.join(self.machine.folder, "loop")
        os.mkdir(place)
        run("mount", device, place)
        stack.callback(run, "umount", place)
        return self.write(place)


class Throttled(Loop):
    """The same, limited to 1000 requests per second by a cgroup, as cloud disks are."""

    name = "iops"
    fio_bound = 0.95
    requests = 1000

    def build(self, stack):
        source = super().build(stack)
        device = os.stat(source).st_dev
        try:
            stack.enter_context(limited(os.major(device), os.minor(device), self.requests))
        except OSError as e:
            raise Unavailable(f"no cgroup can limit requests: {e}") from e
        return source


class Slow(Storage):
    """slowfs over tmpfs: 2 ms latency per request."""

    name = "slow"
    fio_bound = None
    distant = True
    options = "delay=2000"

    def build(self, stack):
        source = self.write(stack.enter_context(memory_folder(self.machine)))
        place = os.path.join(self.machine.folder, "slow")
        os.mkdir(place)
        options = self.options + (",allow_other" if self.machine.root else "")
        daemon = Daemon({}, place, self.slowfs(), "-f", "-o", options, source)
        stack.enter_context(daemon)
        return place


class Network(Slow):
    """slowfs over tmpfs: each request takes the round-trip time plus a random part of the jitter, and
    all reads share the bandwidth of the link. For a busy machine, `stretch` multiplies all delays, so
    that the readers have as much more processor time in relation to them."""

    rows = ("link",)
    round_trip_ms = jitter_ms = None  # set by network()
    link_bandwidth = 300_000_000  # bytes per second
    stretch = 1

    @property
    def bandwidth(self):
        return self.link_bandwidth / self.stretch

    @property
    def options(self):
        delay, jitter = (round(ms * 1000 * self.stretch)
                         for ms in (self.round_trip_ms, self.jitter_ms))
        return f"delay={delay},jitter={jitter},bandwidth={round(self.bandwidth / 1e6)}"


def network(round_trip_ms, jitter_ms=0):
    """The class of a network with this round-trip time, to which up to `jitter_ms` are added."""
    name = f"net{round_trip_ms:g}" + (f"+{jitter_ms:g}" if jitter_ms else "")
    return type("Network", (Network,), {
        "name": name, "round_trip_ms": round_trip_ms, "jitter_ms": jitter_ms})


@contextmanager
def control_group(controllers, limit):
    """Moves this process and its children into a new control group. `controllers`: the names of the
    controller in version 1 and 2. limit(group, is_first): writes the limits of the group, of version
    1 if is_first."""
    first, second = controllers
    is_first = os.path.isdir(f"/sys/fs/cgroup/{first}")
    parent = f"/sys/fs/cgroup/{first}" if is_first else "/sys/fs/cgroup"
    with open("/proc/self/cgroup") as f:
        groups = dict(line.strip().split(":", 2)[1:] for line in f)
    home = parent + groups[first if is_first else ""]
    group = f"{parent}/fstfs-bench-{second}.{os.getpid()}"
    if not is_first:
        write(f"{parent}/cgroup.subtree_control", f"+{second}")
    os.mkdir(group)
    try:
        limit(group, is_first)
        write(f"{group}/cgroup.procs", os.getpid())
        try:
            yield
        finally:
            write(f"{home}/cgroup.procs", os.getpid())
    finally:
        os.rmdir(group)


def limited(major, minor, requests):
    """Limits the requests per second of this process and its children to a device."""
    def limit(group, is_first):
        if is_first:
            write(f"{group}/blkio.throttle.read_iops_device", f"{major}:{minor} {requests}")
        else:
            write(f"{group}/io.max", f"{major}:{minor} riops={requests}")

    return control_group(("blkio", "io"), limit)


def limited_memory(size):
    """Limits the memory of this process and its children, page cache included."""
    return control_group(("memory", "memory"), lambda group, is_first: write(
        f"{group}/{'memory.limit_in_bytes' if is_first else 'memory.max'}", size))


def write(path, value):
    with open(path, "w") as f:
        f.write(str(value))


@contextmanager
def memory_folder(machine):
    """A directory on tmpfs."""
    folder = machine.make_folder("/dev/shm")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


DEFAULT = (Disk, Loop, Throttled, Slow)
NETWORKS = [*map(network, (0.2, 1, 5, 20, 50)), network(5, 15)]
STORAGES = {s.name: s for s in (*DEFAULT, *NETWORKS)}
