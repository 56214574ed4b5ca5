# SPDX-License-Identifier: Apache-2.0
"""Writers of every kind with a reader of every view: the number of bytes from a wrong version.

    tests/versions.py --build BUILD DIRECTORY...

prints a row of the table "versions" in docs/reliability.md for each directory, which should be on
the file system to test. A cell is "during / after": bytes of a second version from one open file,
and wrong bytes in a file opened after the writer has finished.
"""

import argparse
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from corpus import trees

OLD, NEW = ord("A"), ord("B")
SIZE, LONG = 1 << 20, 64 << 20
PAGE = mmap.PAGESIZE
VIEWS = {"merged": "merged/{}/model.safetensors", "shards": "shards/{}/model.safetensors",
         "re-cut": "shards/{}/model-00001-of-00002.safetensors",
         "tensors": "tensors/{}/model/w", "npy": "npy/{}/model/w.npy"}
OPTIONS = {"re-cut": ["--shard-size=1M"]}


def content(fill, size):
    return trees.file_bytes([trees.tensor("w", "U8", (size,), fill=fill),
                             trees.tensor("v", "U8", (size,), fill=fill)])


class Reader:
    """An open file of the mount, read from both ends. Failed reads give no bytes."""

    def __init__(self, path):
        self.seen = []
        try:
            self.fd = os.open(path, os.O_RDONLY)
            self.size = os.fstat(self.fd).st_size
        except OSError:
            self.fd = None

    def read(self, first, last):
        """Reads a range in sixteenths of the file."""
        for i in range(first, last):
            if self.fd is not None:
                try:
                    self.seen.append(os.pread(self.fd, PAGE, self.size * i // 16 + PAGE))
                except OSError:
                    pass

    def close(self):
        """The number of bytes of the less frequent version."""
        if self.fd is not None:
            os.close(self.fd)
        data = b"".join(self.seen)
        return min(data.count(bytes([OLD])), data.count(bytes([NEW])))


class Shard:
    """A file of the source, and its writers. Each writer calls the reader in the middle of its
    work."""

    def __init__(self, path):
        self.path = path
        self.size = SIZE

    def fill(self, fill):
        with open(self.path, "r+b" if self.path.exists() else "wb") as f:
            f.write(content(fill, self.size))

    def write(self):
        self.fill(NEW)

    def rename(self):
        other = self.path.with_suffix(".new")
        other.write_bytes(content(NEW, self.size))
        os.rename(other, self.path)

    def truncate(self):
        self.path.write_bytes(content(NEW, self.size))

    def restored_mtime(self):
        before = os.stat(self.path)
        self.fill(NEW)
        os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def restored_mtime_and_chmod(self):
        os.chmod(self.path, 0o640)
        self.restored_mtime()
        os.chmod(self.path, 0o600)

    def restored_mtime_and_link(self):
        self.restored_mtime()
        os.link(self.path, self.path.with_suffix(".bak"))

    def restored_mtime_and_rename(self):
        self.restored_mtime()
        self.rename()

    def mmap(self):
        """Maps the file, reads each page and then writes it: on tmpfs this changes no time stamp."""
        with open(self.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
            assert sum(mapped[::PAGE]) >= 0
            mapped[:] = content(NEW, self.size)


def beside(name):
    def work(shard, path, _):
        reader = Reader(path)
        reader.read(1, 8)
        getattr(shard, name)()
        reader.read(8, 15)
        return reader.close()
    return work


def dirty_mapping(shard, path, _):
    """The writer has mapped the file and made its pages dirty before the reader opens it."""
    with open(shard.path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        for at in range(0, len(mapped), PAGE):
            mapped[at] = mapped[at]
        reader = Reader(path)
        reader.read(1, 8)
        mapped[:] = content(NEW, shard.size)
        reader.read(8, 15)
        # A file opened now is read again after the writer has finished.
        Reader(path).close()
        return reader.close()


def long_write(shard, path, seconds):
    """One write(2), whose time stamp is from its start; readers are active all the time."""
    shard.size = LONG
    shard.fill(OLD)
    Reader(path).close()
    time.sleep(1)  # so that the next reader makes the mount check the file
    data = content(NEW, LONG)
    libc = ctypes.CDLL(None, use_errno=True)  # releases the GIL
    fd = os.open(shard.path, os.O_WRONLY)
    writer = threading.Thread(target=libc.write,
                              args=(fd, ctypes.c_char_p(data), ctypes.c_size_t(len(data))))
    readers = []
    writer.start()
    while True:
        over = not writer.is_alive()
        if len(readers) < 200 or over:
            readers.append(Reader(path))
            readers[-1].read(1, 8)
        if over:
            break
    os.close(fd)
    wrong = 0
    for reader in readers:
        reader.read(8, 15)
        wrong += reader.close()
    wrong_now = wrong_after(shard, path, seconds)
    shard.size = SIZE
    shard.truncate()
    return wrong + wrong_now


WRITERS = {
    "write": beside("write"),
    "long write": long_write,
    "mmap": beside("mmap"),
    "mmap, dirty before": dirty_mapping,
    "rename": beside("rename"),
    "truncate": beside("truncate"),
    "mtime restored": beside("restored_mtime"),
    "and chmod": beside("restored_mtime_and_chmod"),
    "and link": beside("restored_mtime_and_link"),
    "and rename": beside("restored_mtime_and_rename"),
}


def wrong_after(shard, path, seconds):
    """Wrong bytes in a file that is opened now, after the time in which changes become visible."""
    end = time.monotonic() + seconds
    while True:
        try:
            raw = Path(path).read_bytes()
            wrong = raw.count(bytes([OLD]))
            whole = True
        except OSError:
            wrong, whole = shard.size, False
        if (whole and wrong == 0) or time.monotonic() > end:
            return wrong
        time.sleep(0.02)


def measure(root, mount, seconds=5):
    """{writer: [during, after]} over all views. `mount(source, *options)` returns a mount point."""
    found = {writer: [0, 0] for writer in WRITERS}
    for view, pattern in VIEWS.items():
        source = Path(root) / view
        for number in range(len(WRITERS)):
            (source / f"m{number}").mkdir(parents=True)
            Shard(source / f"m{number}/model.safetensors").fill(OLD)
        at = mount(source, *OPTIONS.get(view, []))
        for number, (writer, work) in enumerate(WRITERS.items()):
            shard = Shard(source / f"m{number}/model.safetensors")
            path = os.path.join(at, pattern.format(f"m{number}"))
            shard.fill(OLD)  # just now
            found[writer][0] += work(shard, path, seconds)
            found[writer][1] += wrong_after(shard, path, seconds)
    return found


def cells(found):
    return [f"{during} / {after}" for during, after in found.values()]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--build", required=True)
    arguments.add_argument("directories", nargs="+")
    arguments = arguments.parse_args()
    print(f"| source on | {' | '.join(WRITERS)} |")
    for directory in arguments.directories:
        mounts = []
        place = tempfile.mkdtemp(prefix="fstfs-versions-", dir=directory)

        def mount(source, *options, mounts=mounts):
            mounts.append(tempfile.mkdtemp(prefix="fstfs-versions-"))
            subprocess.run([f"{arguments.build}/fstfs", *options, source, mounts[-1]], check=True)
            return mounts[-1]

        try:
            print(f"| {directory} | {' | '.join(cells(measure(place, mount)))} |", flush=True)
        finally:
            for path in mounts:
                subprocess.run(["fusermount3", "-u", path], check=True)
                os.rmdir(path)
            shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
