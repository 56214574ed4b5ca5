# SPDX-License-Identifier: Apache-2.0
"""Hundreds of processes that read one file. A separate program, so that fork is cheap.

    many.py share|map COUNT FILE EXPECTED

share: all use one descriptor and one mapping, and come and go. map: each has its own mapping, and
all mappings exist before the first process ends. Each process compares ranges with the file
EXPECTED. The exit status is 0 if all were equal.
"""

import mmap
import os
import random
import sys


def mapping(fd):
    return mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)


def start(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = not work()
        finally:
            os._exit(status)
    return pid


def ended(pids):
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)


def share(count, path, want):
    fd = os.open(path, os.O_RDONLY)
    mapped = mapping(fd)

    def reader(seed):
        at = random.Random(seed).randrange(len(want))
        return os.pread(fd, 5000, at) == want[at:at + 5000] == mapped[at:at + 5000]

    return ended([start(lambda i=i: reader(i)) for i in range(count)])


def map_all(count, path, want):
    ready, into = os.pipe()
    released, go = os.pipe()

    def reader(seed):
        os.close(go)
        fd = os.open(path, os.O_RDONLY)
        mapped = mapping(fd)
        places = [random.Random(f"{seed}.{i}").randrange(len(want)) for i in range(5)]
        fine = all(mapped[at:at + 100] == want[at:at + 100] for at in places)
        os.write(into, b"r")
        os.read(released, 1)  # end of the file
        return fine

    pids = [start(lambda i=i: reader(i)) for i in range(count)]
    os.close(into)
    while count and (got := os.read(ready, count)):
        count -= len(got)
    os.close(go)
    return count + ended(pids)


def main():
    how, count, path, expected = sys.argv[1:]
    with open(expected, "rb") as f:
        want = mapping(f.fileno())
    failed = {"share": share, "map": map_all}[how](int(count), path, want)
    if failed:
        print(f"{failed} of {count} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
