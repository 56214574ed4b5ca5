# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: interleaved rounds, statistics, cold caches and mounts."""

import os
import signal
import statistics
import subprocess
import time


class Failed(Exception):
    """A program failed; the text says how."""


def interleaved(names, rounds):
    """Yields each name once per round, in every second round in reverse order, so that
    disturbances affect all of them alike."""
    names = list(names)
    for number in range(rounds):
        yield from names if number % 2 == 0 else reversed(names)


def spread(values, unit=1.0, digits=2):
    """The median and the range, for people."""
    return (f"{statistics.median(values) * unit:.{digits}f} "
            f"({min(values) * unit:.{digits}f} - {max(values) * unit:.{digits}f})")


def page_cache(build, command, paths):
    """Runs a page cache function of fstfs-bench; see reader.c."""
    done = subprocess.run([f"{build}/tests/bench/reader", command, *map(os.fspath, paths)],
                          capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr.strip())
    return done.stdout


def evict(build, paths):
    """Drops files from the page cache and verifies it."""
    page_cache(build, "evict", paths)


def cached(build, paths):
    """Bytes of the files in the page cache."""
    return int(page_cache(build, "cached", paths))


def is_mounted(path):
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        return any(line.split()[4] == path for line in f)


class Processes:
    """Processes that print "ready", and then one answer for each line of their input; other lines of
    their output are ignored. They end with the `with` block. `options`: of subprocess.Popen."""

    def __init__(self, command, count, **options):
        self.processes = [subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, **options) for _ in range(count)]

    def __enter__(self):
        try:
            self._wait("ready")
        except Failed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stdin.close()
            process.wait()

    def _wait(self, expected):
        """Waits until each process has printed a line that starts with `expected`."""
        for process in self.processes:
            if not any(line.startswith(expected) for line in process.stdout):
                raise Failed(f"a process exited with {process.wait()}")

    def run(self, line, expected):
        """Returns the seconds until the slowest one has answered."""
        started = time.monotonic()
        for process in self.processes:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        self._wait(expected)
        return time.monotonic() - started


class Daemon:
    """A FUSE daemon in the foreground, mounted inside a `with`. `identity` has the arguments of
    subprocess.Popen for its user."""

    def __init__(self, identity, mountpoint, *command):
        self.identity, self.path = identity, os.fspath(mountpoint)
        self.command = [*map(os.fspath, command), self.path]

    def __enter__(self):
        # In a session of its own, ^C does not reach it: this program has to unmount first.
        started = time.monotonic()
        self.process = subprocess.Popen(self.command, start_new_session=True, **self.identity)
        try:
            while not is_mounted(self.path):
                if self.process.poll() is not None:
                    raise Failed(f"{' '.join(self.command)} did not mount")
                time.sleep(0.0005)
            self.seconds_to_mount = time.monotonic() - started
            subprocess.run(["stat", self.path], check=True, stdout=subprocess.DEVNULL,
                           **self.identity)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if is_mounted(self.path):
            subprocess.run(["fusermount3", "-u", "-z", self.path])
        # A copy of the mount in another namespace keeps the daemon alive: send a signal then.
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

    def _field(self, file, key):
        with open(f"/proc/{self.process.pid}/{file}") as f:
            return next(int(line.split()[1]) for line in f if line.startswith(key + ":"))

    def cpu(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        """Peak memory in bytes."""
        return self._field("status", "VmHWM") << 10

    def memory(self):
        """Anonymous resident memory in bytes."""
        return self._field("smaps_rollup", "Anonymous") << 10

    def device_bytes(self):
        """Bytes that storage devices have read for it."""
        return self._field("io", "read_bytes")
