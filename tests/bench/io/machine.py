# SPDX-License-Identifier: Apache-2.0
"""What the bench asks of the machine: programs as a user, mounts, page cache, devices."""

import ctypes
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

MINE = 451  # cachestat(2), Linux 6.5


def mib(n):
    return n << 20


class Failed(Exception):
    """A program of the bench did not do what it should; the text says what."""


class Run:
    """What one arm measured."""

    def __init__(self, seconds, size, checksum=None, cpu=None):
        self.seconds, self.bytes, self.checksum, self.cpu = seconds, size, checksum, cpu
        self.facts = {}


class Machine:
    """A working folder, and programs that run as the user that is to be measured."""

    def __init__(self, build, place, user):
        self.build, self.user = build, user
        self.root = os.geteuid() == 0
        if user and not self.root:
            raise SystemExit("--user needs root")
        self.identity = {}
        if user:
            entry = pwd.getpwnam(user)
            if os.stat("/dev/fuse").st_mode & 0o6 != 0o6:
                raise SystemExit("only root may open /dev/fuse here: chmod 666 /dev/fuse")
            self.identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self.place = place

    def __enter__(self):
        self.folder = self.make_folder(self.place)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def make_folder(self, place):
        folder = tempfile.mkdtemp(prefix="fstfs-bench-io.", dir=place)
        os.chmod(folder, 0o755)
        return folder

    def make_mountpoint(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        if self.identity:
            os.chown(path, self.identity["user"], self.identity["group"])
        return path

    def output(self, *command, **options):
        """Runs a program as the user; returns its standard output as bytes."""
        done = subprocess.run(command, stdout=subprocess.PIPE, **self.identity, **options)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}")
        return done.stdout

    def reader(self, reader, segments):
        """Runs the timed reader on segments; reader: its options and kind."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix="plan.") as plan:
            plan.writelines(f"{s}\n" for s in segments)
            plan.flush()
            os.chmod(plan.name, 0o644)
            program = f"{self.build}/tests/bench/io/reader"
            said = json.loads(self.output(program, *reader, plan.name))
        return Run(said["seconds"], said["bytes"], said["sum"])

    def load(self, *arguments):
        """Runs the timed reader that uses libfstfs."""
        said = json.loads(self.output(f"{self.build}/tests/bench/io/load", *arguments))
        return Run(said["seconds"], said["bytes"], said["sum"])


class Daemon:
    """A FUSE daemon in the foreground, mounted while this lives."""

    def __init__(self, machine, identity, mountpoint, *command):
        self.machine, self.identity, self.path = machine, identity, mountpoint
        self.command = [*command, self.path]

    def __enter__(self):
        # A session of its own: ^C ends this program, which then unmounts.
        self.process = subprocess.Popen(self.command, start_new_session=True, **self.identity)
        try:
            while not is_mounted(self.path):
                if self.process.poll() is not None:
                    raise Failed(f"{' '.join(self.command)} did not mount")
                time.sleep(0.001)
            self.machine.output("stat", self.path)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if is_mounted(self.path):
            subprocess.run(["fusermount3", "-u", "-z", self.path])
        # A copy of the mount in another namespace keeps it alive: then by a signal.
        for signum, seconds in (None, 5), (signal.SIGTERM, 15), (signal.SIGKILL, None):
            try:
                if signum:
                    self.process.send_signal(signum)
                self.process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                continue
        if self.process.returncode == -signal.SIGKILL:
            raise Failed(f"{self.command[0]} had to be killed after its unmount")

    def cpu(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        """The most memory it has had, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))

    def device_bytes(self):
        """What storage devices have read for it."""
        with open(f"/proc/{self.process.pid}/io") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("read_bytes"))


def is_mounted(path):
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == path for line in f)


class CacheRange(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class CacheStat(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in
                ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


libc = ctypes.CDLL(None, use_errno=True)


def cached(path):
    """Bytes of a file that the page cache holds."""
    fd = os.open(path, os.O_RDONLY)
    try:
        whole, stat = CacheRange(0, 0), CacheStat()
        if libc.syscall(MINE, fd, ctypes.byref(whole), ctypes.byref(stat), 0) == 0:
            return stat.cache * os.sysconf("SC_PAGESIZE")
        return resident(fd)
    finally:
        os.close(fd)


def resident(fd):
    """The same by mincore(2), before Linux 6.5."""
    size, page = os.fstat(fd).st_size, os.sysconf("SC_PAGESIZE")
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, size, 1, 1, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    pages = (ctypes.c_ubyte * ((size + page - 1) // page))()
    failed = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(p & 1 for p in pages) * page


def drop(paths):
    """Drops files from the page cache and sees that they are gone."""
    for path in paths:
        for _ in range(20):
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            if cached(path) == 0:
                break
            time.sleep(0.01)  # a page may be held for a moment
        else:
            if cached(path) > os.stat(path).st_size // 100:
                raise Failed(f"{path} stays in the page cache")
