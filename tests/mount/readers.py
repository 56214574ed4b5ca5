# SPDX-License-Identifier: Apache-2.0
"""Readers that check every byte they read: by read(), by page faults and with O_DIRECT.

The expected content of a file is a tuple of contents, one for each version that its source may
have, all of the same size. Everything read through one open file must belong to one of them.
"""

import dataclasses
import errno
import itertools
import mmap
import os
import pickle
import random
import select
import signal
import struct
import time
import traceback

from conftest import SLOW, allow_crash, become_user
from corpus import trees

METHODS = ("read", "mmap", "direct")
BLOCK = 4096
MOST = 1 << 20  # bytes per read


class WrongBytes(Exception):
    """The bytes belong to no version."""


def mixtures(versions):
    """The states of a source of one checkpoint while its shards are replaced one after another: a
    Source for each choice of a version for each shard."""
    first = versions[0]
    was, = first.checkpoints
    for chosen in itertools.product(versions, repeat=len(was.shards)):
        mixed = trees.Source.at(first.root, first)
        shards = [v.checkpoints[0].shards[i] for i, v in enumerate(chosen)]
        mixed.checkpoints = [dataclasses.replace(was, shards=shards)]
        yield mixed


class OpenFile:
    """A file of the mount, opened to be read by one method."""

    def __init__(self, path, method, versions):
        self.path, self.method, self.versions = path, method, versions
        self.fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if method == "direct" else 0))
        try:
            self.size = os.fstat(self.fd).st_size
            if self.size != len(versions[0]):
                raise WrongBytes(f"{path!r}: {self.size} bytes, expected {len(versions[0])}")
            if method == "mmap" and self.size:
                # Python would treat a size that it can no longer get as 0, and fail with EINVAL.
                self.mapping = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
            elif method == "direct":
                self.buffer = mmap.mmap(-1, MOST)  # aligned, as O_DIRECT requires
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.method == "mmap" and self.size:
            self.mapping.close()
        os.close(self.fd)

    def get(self, offset, length):
        if self.method == "mmap":
            return self.mapping[offset:offset + length] if self.size else b""
        if self.method == "read":
            return os.pread(self.fd, length, offset)
        got = os.preadv(self.fd, [memoryview(self.buffer)[:length]], offset)
        return self.buffer[:got]

    def check(self, offset, length):
        """Reads a range up to its end or the end of the file, and checks it. Returns its length."""
        if self.method == "direct":
            offset, length = offset // BLOCK * BLOCK, -(-length // BLOCK) * BLOCK
        start, end = offset, min(offset + length, self.size)
        while offset < end:
            part = self.get(offset, min(length, MOST))
            wanted = {v[offset:offset + len(part)] for v in self.versions}
            if not part:
                raise WrongBytes(f"{self.path!r}, {self.method}: ends at {offset} of {self.size}")
            if part not in wanted:
                raise WrongBytes(f"{self.path!r}, {self.method}: {len(part)} bytes at {offset}: "
                                 f"{differs(part, wanted)}")
            self.versions = [v for v in self.versions if v[offset:offset + len(part)] == part]
            offset += len(part)
            length -= len(part)
            if self.method == "direct" and offset < end and offset % BLOCK:
                raise WrongBytes(f"{self.path!r}, direct: a read ended at {offset} of {self.size}")
        return offset - start


def differs(part, wanted):
    """Describes the first byte that differs from the version that matches longest."""
    def same(other):
        return next((i for i, (a, b) in enumerate(zip(part, other)) if a != b), len(part))

    best = max(wanted, key=same)
    at = same(best)
    return f"from byte {at} on {part[at:at + 16].hex()}, expected {best[at:at + 16].hex()}"


def check_files(files, method):
    """Checks every byte of every file, in ranges in random order. `files`: [(path, content)]."""
    rng = random.Random(method)
    for path, want in files:
        with OpenFile(path, method, (want,)) as file:
            starts = list(range(0, max(1, len(want)), 300_000))
            rng.shuffle(starts)
            for start in starts:
                file.check(start, 300_000)


class Reader:
    """A process that reads random ranges of random files by one method, until it is stopped or gets
    an error that is not in `passed`. After an error in `passed`, it opens another file."""

    def __init__(self, files, method, seed, user=None, passed=()):
        self.method, self.files, self.passed = method, files, passed
        self.rng = random.Random(seed)
        self.shared = mmap.mmap(-1, 24)  # shared: [0:8] ranges read, [8:16] bytes, [16] stop
        out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(out)
                signal.setitimer(signal.ITIMER_REAL, 0)
                allow_crash()
                become_user(user)
                try:
                    outcome = self.read()
                except WrongBytes as wrong:
                    outcome = str(wrong)
                except BaseException:
                    outcome = traceback.format_exc()
                os.write(into, pickle.dumps(outcome))
            finally:
                os._exit(0)
        os.close(into)
        self.out = out
        self.outcome = None

    @property
    def count(self):
        """Number of ranges read correctly."""
        return int.from_bytes(self.shared[:8], "little")

    @property
    def compared(self):
        """Bytes in those ranges."""
        return int.from_bytes(self.shared[8:16], "little")

    def stop(self):
        self.shared[16] = 1

    def read(self):
        """In the child: returns 0 if it was stopped, otherwise the errno that ended it."""
        count = compared = 0
        while not self.shared[16]:
            path, *versions = self.rng.choice(self.files)
            try:
                with OpenFile(path, self.method, versions) as file:
                    for _ in range(self.rng.randrange(1, 12)):
                        if self.shared[16]:
                            break
                        if self.rng.random() < 0.3:  # so that the mount gets requests again
                            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        compared += file.check(
                            self.rng.randrange(max(1, file.size)),
                            self.rng.choice((1, 5000, 100_000, 400_000, 2 * MOST)))
                        count += 1
                        self.shared[:16] = struct.pack("<QQ", count, compared)
            except OSError as error:
                if error.errno not in self.passed:
                    return error.errno
                time.sleep(0.01)
        return 0

    def end(self, until):
        """Waits for the end of the process, until `until` (monotonic). Returns its outcome: an
        errno (0: it was stopped), "SIGBUS", or a message; None: it has not ended."""
        if self.outcome is None:
            ready, _, _ = select.select([self.out], [], [], max(0, until - time.monotonic()))
            if not ready:
                return None
            output = os.read(self.out, 1 << 16)
            _, status = os.waitpid(self.pid, 0)
            os.close(self.out)
            if output:
                self.outcome = pickle.loads(output)
            else:
                name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
                self.outcome = name or f"exit status {status}"
        return self.outcome


class ReaderGroup:
    """Several readers, using all methods."""

    def __init__(self, files, count=16, seed=0, **more):
        self.make = lambda method, seed: Reader(files, method, seed, **more)
        self.readers = [self.make(METHODS[i % len(METHODS)], f"{seed}.{i}") for i in range(count)]
        self.gone = []  # readers that have been replaced

    @property
    def count(self):
        """Number of ranges read correctly, by all readers."""
        return sum(r.count for r in self.readers + self.gone)

    @property
    def compared(self):
        """Bytes in those ranges."""
        return sum(r.compared for r in self.readers + self.gone)

    def reading(self):
        """Whether each reader has read something, or has ended."""
        return all(r.count > 0 or r.end(0) is not None for r in self.readers)

    def revive(self):
        """Replaces readers that ended with an unserved page fault: a mapping stays that of the old
        file."""
        for i, reader in enumerate(self.readers):
            if reader.method == "mmap" and reader.end(0) == "SIGBUS":
                self.gone.append(reader)
                self.readers[i] = self.make("mmap", f"{i}.{len(self.gone)}")

    def stop(self):
        for reader in self.readers:
            reader.stop()

    def finish(self, seconds):
        """Waits for all readers. For one that does not end, reports where it hangs."""
        until = time.monotonic() + seconds * SLOW
        for reader in self.readers:
            reader.end(until)
        hung = [r.pid for r in self.readers if r.outcome is None]
        places = "\n".join(where(pid) for pid in hung)
        self.kill()
        assert not hung, f"{len(hung)} readers did not end in {seconds} s:\n{places}"

    def faults(self, allowed):
        """Describes wrong bytes, and outcomes other than these errors. An unserved page fault in a
        mapping is always accepted."""
        ended = [(r.method, r.end(0)) for r in self.readers]
        return [f"{method}: {errno.errorcode.get(outcome, outcome)}" for method, outcome in ended
                if outcome is not None and outcome not in allowed
                and (method, outcome) != ("mmap", "SIGBUS")]

    def kill(self):
        """Kills the remaining readers, as far as the kernel permits."""
        for reader in self.readers:
            if reader.outcome is None:
                os.kill(reader.pid, signal.SIGKILL)
                reader.end(time.monotonic() + 2)


def where(pid):
    """Name, state and kernel stack of each thread of a process."""
    lines = []
    try:
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            def read_proc(what):
                try:
                    with open(f"/proc/{pid}/task/{thread}/{what}") as f:
                        return f.read()
                except OSError as error:
                    return error.strerror

            state = read_proc("stat").rpartition(")")[2].split()[:1]
            lines.append(f"process {pid} thread {thread} {read_proc('comm').strip()}: "
                         f"state {''.join(state)}, wchan {read_proc('wchan')}")
            lines += [f"    {line}" for line in read_proc("stack").splitlines()]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH):
            raise
    return "\n".join(lines) or f"process {pid} is gone"
