#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random readers of a mount whose source changes at random, compared with a model.

    tests/fuzz/mounts.py [--build DIR] [--place DIR] [--jobs N] [--minutes M] FIRST [LAST]

A seed determines everything: options of the mount, the source, each change to it, and the actions
of each reader. Only the timing depends on the machine.

The model knows every content that each source file ever has, and so the possible contents of a file
in a view: ranges of one state of each shard. Everything that is read from one open file must fit
one combination of states. Documented errors are accepted (ESTALE, EIO; ENOENT and ETXTBSY when a
path is looked up). A shard that is being rewritten in place is a mixture itself; each of its bytes
must be a correct byte of some state. At the end the source stops changing, and every view must show
exactly its last state.

Prints what failed and how to repeat it. The exit status is 1 if anything failed.
"""

import argparse
import errno
import itertools
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.fspath(HERE.parent))

import numpy as np  # noqa: E402
import oracle  # noqa: E402
from conftest import BUILD, SLOW, Mount, eventually  # noqa: E402
from corpus import trees  # noqa: E402

READERS = 3
OPERATIONS = 40  # operations of each reader
CHANGES = 12
GONE = {errno.ESTALE, errno.EIO}
ABSENT = GONE | {errno.ENOENT, errno.ENOTDIR, errno.ETXTBSY}
METADATA = {"format": "pt"}
OPTIONS = [[], ["--io=threads"], ["--direct=off"], ["--prefetch=off"], ["--memory=4M"],
           ["--shards=1"], ["--io=threads", "--direct=off", "--memory=4M"]]
SIZES = (1, 3, 100, 4095, 4096, 5000, 65536, 70_000, 131_072, 300_000)
LIMIT = 60  # seconds for one seed; only a hang takes longer


# ---- the source and its changes ----


class Shard:
    """A file of the source, and all contents that it will have."""

    def __init__(self, rng, directory, name, number, linked=False):
        self.directory, self.name, self.linked = directory, name, linked
        self.layouts = [self.layout(rng, number, which) for which in range(2)]
        self.states = []  # (layout, content) of the valid ones
        self.cut = set()  # sizes after truncation: shards/ also lists refused files
        self.loose = False  # rewritten in place at some time

    @property
    def path(self):
        return f"{self.directory}/{self.name}"

    def layout(self, rng, number, which):
        tensors = []
        for i in range(rng.randrange(1, 6)):
            dtype = rng.choice(("U8", "F16", "BF16", "F32", "I64"))
            size = trees.DTYPE_BITS[dtype] // 8
            name = f"{number}.{rng.choice(('t', 'a/b', '.', 'é', '%41'))}{i}"
            tensors.append(trees.tensor(name, dtype, (max(1, rng.choice(SIZES) // size),), fill=0))
        if rng.random() < 0.3:  # at most one: the order of several at one offset is undefined
            tensors.append(trees.tensor(f"{number}.empty", "U8", (0,)))
        return tensors

    def content(self, rng, layout):
        """Creates content in one of the layouts, and records the state."""
        tensors = self.layouts[layout]
        head = trees.header([(t.name, t.dtype, t.shape, t.size) for t in tensors], METADATA)
        data = head + rng.randbytes(sum(t.size for t in tensors))
        self.states.append((layout, data))
        return data

    def places(self, layout):
        """{tensor's name: (tensor, offset)}."""
        tensors = self.layouts[layout]
        at = len(trees.header([(t.name, t.dtype, t.shape, t.size) for t in tensors], METADATA))
        found = {}
        for t in tensors:
            found[t.name] = (t, at)
            at += t.size
        return found


class Plan:
    """Everything that a seed determines."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.seed = seed
        self.options = rng.choice(OPTIONS)
        self.shards = [Shard(rng, "one", "model.safetensors", 0),
                       Shard(rng, "two", "model-00001-of-00002.safetensors", 1),
                       Shard(rng, "two", "model-00002-of-00002.safetensors", 2),
                       Shard(rng, "link", "model.safetensors", 3, linked=True)]
        self.side = [b'{"config": 0}']
        self.start = [(shard, shard.content(rng, 0)) for shard in self.shards]
        self.in_place = rng.choice(self.shards[:3]) if rng.random() < 0.4 else None
        self.changes = [self.change(rng) for _ in range(rng.randrange(1, 2 * CHANGES))]
        self.end = [(shard, shard.content(rng, rng.randrange(2))) for shard in self.shards]

    def change(self, rng):
        """(pause, name of a method of Changer, its arguments)."""
        shard = rng.choice(self.shards)
        what = rng.choice(("replace", "replace", "replace", "truncate", "zeros", "remove", "mode",
                           "touch", "twin", "away", "side", "wild", "wild", "rewrite"))
        pause = rng.random() * 0.12
        if what == "replace":
            return pause, what, (shard, shard.content(rng, rng.randrange(2)))
        if what == "rewrite":
            if shard is not self.in_place:
                return pause, "touch", (shard,)
            shard.loose = True
            layout = rng.randrange(2)
            old, new = shard.content(rng, layout), shard.content(rng, layout)
            return pause, what, (shard, old, new, rng.choice((4096, 50_000, 1 << 20)))
        if what in ("truncate", "zeros"):
            # distinct content, so that truncated parts are recognized
            layout = rng.randrange(2)
            data = shard.content(rng, layout)
            start = 8 + struct.unpack("<Q", data[:8])[0]
            keep = rng.randrange(start, len(data)) if len(data) > start else start
            shard.cut.add(keep)
            if what == "zeros":
                shard.states.append((layout, data[:keep] + bytes(len(data) - keep)))
            return pause, what, (shard, data, keep)
        if what == "side":
            self.side.append(json.dumps({"config": rng.random(), "x": "x" * rng.randrange(9000)})
                             .encode())
            return pause, what, (self.side[-1],)
        if what == "wild":
            return pause, what, (rng.choice(("model.safetensors", "model.safetensors.index.json",
                                             "model-00001-of-00002.safetensors")),
                                 self.wild(rng), rng.random() < 0.5)
        if what == "mode":
            return pause, what, (shard, rng.choice((0o400, 0o644, 0o640)))
        return pause, what, (shard,)

    def wild(self, rng):
        """Bytes that may be a header, an index, or neither."""
        if rng.random() < 0.3:
            return trees.index_bytes({"w": rng.choice(("model-00001-of-00002.safetensors", "../x",
                                                       "gone.safetensors"))})
        data = bytearray(trees.file_bytes([trees.tensor("w", "U8", (rng.choice(SIZES),), fill=7),
                                           trees.tensor("v", "F32", (5,), fill=8)]))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(min(len(data), 150))] = rng.randrange(256)
        return bytes(data[:rng.randrange(len(data))] if rng.random() < 0.3 else data)


class Changer:
    """Performs the changes."""

    def __init__(self, root, plan):
        self.root, self.plan, self.count = Path(root), plan, 0

    def make(self):
        for name in ("one", "two", "link", "wild", "blobs"):
            (self.root / name).mkdir(parents=True)
        for shard, data in self.plan.start:
            self.replace(shard, data)
        self.side(self.plan.side[0])

    def run(self):
        for pause, what, arguments in self.plan.changes:
            time.sleep(pause)
            getattr(self, what)(*arguments)

    def finish(self):
        for shard, data in self.plan.end:
            self.replace(shard, data)
        shutil.rmtree(self.root / "wild")

    def put(self, path, data):
        self.count += 1
        new = self.root / f"blobs/new{self.count}"
        new.write_bytes(data)
        os.rename(new, self.root / path)

    def replace(self, shard, data):
        if not shard.linked:
            self.put(shard.path, data)
            return
        self.count += 1
        (self.root / f"blobs/{self.count}").write_bytes(data)
        os.symlink(f"../blobs/{self.count}", self.root / "blobs/link")
        os.rename(self.root / "blobs/link", self.root / shard.path)

    def rewrite(self, shard, old, new, step):
        self.replace(shard, old)
        with open(self.root / shard.path, "r+b", buffering=0) as f:
            for at in range(0, len(new), step):
                f.write(new[at:at + step])
                time.sleep(0.002)

    def truncate(self, shard, data, keep):
        self.replace(shard, data)
        time.sleep(0.03)
        os.truncate(self.root / shard.path, keep)

    def zeros(self, shard, data, keep):
        self.truncate(shard, data, keep)
        os.truncate(self.root / shard.path, len(data))

    def remove(self, shard):
        (self.root / shard.path).unlink(missing_ok=True)

    def mode(self, shard, mode):
        if (self.root / shard.path).exists():
            os.chmod(self.root / shard.path, mode)

    def touch(self, shard):
        if (self.root / shard.path).exists():
            os.utime(self.root / shard.path)

    def twin(self, shard):
        if (self.root / shard.path).exists():
            self.count += 1
            os.link(self.root / shard.path, self.root / f"blobs/twin{self.count}")

    def away(self, shard):
        os.rename(self.root / shard.directory, self.root / "away")
        time.sleep(0.02)
        os.rename(self.root / "away", self.root / shard.directory)

    def side(self, data):
        self.put("one/config.json", data)

    def wild(self, name, data, in_place):
        if in_place:
            (self.root / "wild" / name).write_bytes(data)
        else:
            self.put(f"wild/{name}", data)


# ---- the possible contents of a view ----


class Choice:
    """One possible structure of a file in a view: ranges of fixed bytes and of shards, and for each
    shard the contents that are still possible."""

    def __init__(self, runs, states):
        self.runs = runs  # bytes, or (shard, offset, length)
        self.states = states  # {shard: [content]}
        self.size = sum(len(r) if isinstance(r, bytes) else r[2] for r in runs)

    def pieces(self, at, data):
        """(range, offset in it, bytes read of it)."""
        start = 0
        for run in self.runs:
            length = len(run) if isinstance(run, bytes) else run[2]
            begin, end = max(at, start), min(at + len(data), start + length)
            if begin < end:
                yield run, begin - start, data[begin - at:end - at]
            start += length

    def fits(self, at, data):
        """Whether these bytes are possible. Excludes contents that they do not fit."""
        for run, inside, got in self.pieces(at, data):
            if isinstance(run, bytes):
                if run[inside:inside + len(got)] != got:
                    return False
                continue
            shard, offset, _ = run
            begin, length = offset + inside, len(got)
            if shard.loose:
                if not self.loosely(self.states[shard], begin, got):
                    return False
                continue
            self.states[shard] = [s for s in self.states[shard] if s[begin:begin + length] == got]
            if not self.states[shard]:
                return False
        return True

    def loosely(self, states, begin, got):
        got = np.frombuffer(got, "u1")
        right = np.zeros(len(got), bool)
        for state in states:
            right |= np.frombuffer(state, "u1", len(got), begin) == got
        return right.all()


class Model:
    """{path in the mount: function that returns its choices}."""

    def __init__(self, plan):
        self.plan = plan
        self.recut = "--shards=1" in plan.options
        self.files = {}
        self.names = {}  # {directory in the mount: possible names}
        self.tensors = {}  # {path in tensors/: [tensor]}
        self.cut = {}  # {path in shards/: its sizes while it is refused}
        self.made = {}  # {path of a file that is made of several: its shards}
        for directory in ("one", "two", "link"):
            self.add_checkpoint(directory)
        for view in ("merged", "shards"):
            self.files[f"{view}/one/config.json"] = self.side
            self.names[f"{view}/one"].add("config.json")

    def side(self):
        return [Choice([data], {}) for data in self.plan.side]

    def add(self, path, choices):
        self.files[path] = choices
        directory, _, name = path.rpartition("/")
        self.names.setdefault(directory, set()).add(name)

    def add_checkpoint(self, directory):
        shards = [s for s in self.plan.shards if s.directory == directory]
        for view in ("tensors", "npy"):
            self.names[f"{view}/{directory}"] = {"model", "model.index.json"}
        self.names[f"shards/{directory}"] = {"model.safetensors.index.json"}
        for shard in shards:
            for name in {t.name for layout in shard.layouts for t in layout}:
                file = oracle.escape(name).decode()
                path = f"tensors/{directory}/model/{file}"
                self.add(path, lambda s=shard, n=name: self.tensor(s, n, False))
                self.tensors[path] = [t for layout in shard.layouts for t in layout
                                      if t.name == name]
                self.add(f"npy/{directory}/model/{file}.npy",
                         lambda s=shard, n=name: self.tensor(s, n, True))
            if not self.recut or len(shards) == 1:  # a single file is shown unchanged
                self.add(f"shards/{directory}/{shard.name}", lambda s=shard: self.whole(s))
                self.cut[f"shards/{directory}/{shard.name}"] = shard.cut
        for view in ("merged", "shards") if self.recut and len(shards) > 1 else ("merged",):
            path = f"{view}/{directory}/model.safetensors"
            self.add(path, lambda: self.merged(shards))
            self.made[path] = shards

    def estimates(self, path):
        """The sizes that stat() may return while a shard is open for writing: the sum of its shards'."""
        sizes = [{0, *shard.cut, *(len(content) for _, content in shard.states)}
                 for shard in self.made.get(path, ())]
        return {max(1, sum(some)) for some in itertools.product(*sizes)} if sizes else set()

    def states(self, shard, layout):
        return [content for known, content in shard.states if known == layout]

    def tensor(self, shard, name, npy):
        choices = []
        for layout in range(2):
            found = shard.places(layout).get(name)
            if found:
                t, offset = found
                head = oracle.npy_bytes(t.dtype, t.shape, bytes(t.size)) if npy else b""
                choices.append(Choice([head[:len(head) - t.size] if npy else b"",
                                       (shard, offset, t.size)],
                                      {shard: self.states(shard, layout)}))
        return choices

    def whole(self, shard):
        return [Choice([(shard, 0, len(self.states(shard, layout)[0]))],
                       {shard: self.states(shard, layout)})
                for layout in range(2) if self.states(shard, layout)]

    def merged(self, shards):
        if len(shards) == 1:
            return self.whole(shards[0])
        choices = []
        for layouts in itertools.product(range(2), repeat=len(shards)):
            states = {s: self.states(s, layout) for s, layout in zip(shards, layouts)}
            if not all(states.values()):
                continue
            where = {}
            for shard, layout in zip(shards, layouts):
                where.update({name: (shard, offset) for name, (_, offset) in
                              shard.places(layout).items()})
            order = oracle.file_order([t for shard, layout in zip(shards, layouts)
                                       for t in oracle.by_zero_size(shard.layouts[layout])])
            head = trees.header([(t.name, t.dtype, t.shape, t.size) for t in order], METADATA,
                                pad=4096)
            choices.append(Choice([head] + [(*where[t.name], t.size) for t in order], states))
        return choices


# ---- readers ----


class Wrong(Exception):
    pass


class Open:
    """An open file, and its possible contents."""

    def __init__(self, path, choices, flags):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | flags)
        self.choices = choices
        self.size = os.fstat(self.fd).st_size
        self.keep(lambda choice: choice.size == self.size, f"a size of {self.size}")

    def keep(self, test, what):
        self.choices = [choice for choice in self.choices if test(choice)]
        if not self.choices:
            raise Wrong(f"{self.path}: {what} fits no state of the source (any more)")

    def took(self, at, data, wanted):
        """The result of a read. After a short read, the rest must be an error, not the end of the
        file."""
        wanted = max(0, min(wanted, self.size - at))
        if len(data) > wanted:
            raise Wrong(f"{self.path}: {len(data)} bytes at {at}, past the end at {self.size}")
        if data:
            self.keep(lambda choice: choice.fits(at, data), f"{len(data)} bytes at {at}")
        if len(data) < wanted:
            try:
                more = os.pread(self.fd, 1, at + len(data))
            except OSError as error:
                if error.errno in GONE:
                    return
                raise
            raise Wrong(f"{self.path}: {len(data)} of {wanted} bytes at {at}, then {more!r}")

    def read(self, at, length):
        self.took(at, os.pread(self.fd, length, at), length)

    def read_direct(self, at, length):
        with mmap.mmap(-1, max(1, length)) as buffer:
            got = os.preadv(self.fd, [buffer], at)
            self.took(at, buffer[:got], len(buffer))

    def map(self, at, length):
        """By page faults in the kernel: EFAULT instead of SIGBUS."""
        if not self.size:
            return
        copy = os.memfd_create("copy")
        mapped = mmap.mmap(self.fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        view = memoryview(mapped)
        try:
            part = view[at:at + length]
            got = os.write(copy, part)
            self.keep(lambda choice: choice.fits(at, os.pread(copy, got, 0)),
                      f"{got} mapped bytes at {at}")
            part.release()
        except OSError as error:
            part.release()
            if error.errno != errno.EFAULT:
                raise
        finally:
            view.release()
            mapped.close()
            os.close(copy)

    def close(self):
        os.close(self.fd)


class Reader:
    def __init__(self, plan, number, root):
        self.rng = random.Random(f"{plan.seed}/{number}")
        self.model, self.root = Model(plan), root
        self.paths = sorted(self.model.files)
        self.held = []
        self.did = []  # the last operations, for debugging
        self.counts = {"operations": 0, "bytes": 0, "errors": 0}

    def run(self):
        for _ in range(OPERATIONS):
            time.sleep(self.rng.random() * 0.02)
            what = self.rng.choice((self.read, self.read, self.read, self.hold, self.hold,
                                    self.list, self.stat, self.attributes, self.page, self.write,
                                    self.wild))
            # Decided in advance, so that the result of an operation does not affect later ones.
            rng = random.Random(self.rng.random())
            self.counts["operations"] += 1
            self.did = self.did[-5:] + [what.__name__]
            try:
                what(rng)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise Wrong(f"{what.__name__}: {error}") from error
                self.counts["errors"] += 1
        for file in self.held:
            file.close()

    def some(self, rng):
        path = rng.choice(self.paths)
        self.did[-1] += f" {path}"
        return path

    def open(self, rng):
        path = self.some(rng)
        flags = os.O_DIRECT if rng.random() < 0.25 else 0
        return Open(os.path.join(self.root, path), self.model.files[path](), flags)

    def take(self, file, rng):
        """A few reads at unusual offsets, or the whole file."""
        size = file.size
        how = rng.choice((file.read, file.read, file.read_direct, file.map))
        if rng.random() < 0.25:
            step = rng.choice((4096, 65_536, 100_000, 1 << 20))
            places = [(at, step) for at in range(0, size + 1, step)]
        else:
            places = [(rng.choice((0, size - 1, size, size // 2, rng.randrange(size + 1))),
                       rng.choice((1, 100, 4096, 50_000, 200_000))) for _ in range(4)]
        for at, length in places:
            if 0 <= at:
                how(at, length)
                self.counts["bytes"] += max(0, min(length, size - at))

    def read(self, rng):
        file = self.open(rng)
        try:
            self.take(file, rng)
        finally:
            file.close()

    def hold(self, rng):
        """Opens a file for later, or reads one that was opened before."""
        if len(self.held) < 3:
            self.held.append(self.open(rng))
            return
        file = rng.choice(self.held)
        try:
            self.take(file, rng)
        finally:
            if rng.random() < 0.4:
                self.held.remove(file)
                file.close()

    def list(self, rng):
        directory = rng.choice(sorted(self.model.names))
        names = os.listdir(os.path.join(self.root, directory))
        if len(set(names)) != len(names) or names != sorted(names, key=os.fsencode):
            raise Wrong(f"{directory}: names twice or not in order: {names}")
        if strange := set(names) - self.model.names[directory]:
            raise Wrong(f"{directory}: names that nothing has: {strange}")

    def stat(self, rng):
        path = self.some(rng)
        st = os.stat(os.path.join(self.root, path))
        sizes = {choice.size for choice in self.model.files[path]()}
        sizes |= self.model.cut.get(path, set()) | self.model.estimates(path)
        if st.st_size not in sizes or st.st_mode & 0o222 or not st.st_ino:
            raise Wrong(f"{path}: {st}, sizes can be {sizes}")

    def attributes(self, rng):
        path = rng.choice(sorted(self.model.tensors))
        here = os.path.join(self.root, path)
        values = [os.getxattr(here, f"user.safetensors.{what}").decode()
                  for what in ("name", "dtype", "shape")]
        # separate lookups, possibly of different versions
        for value, can in zip(values, zip(*[(t.name, t.dtype, t.shape)
                                            for t in self.model.tensors[path]])):
            if not any(value == (c if isinstance(c, str) else json.dumps(c)) or
                       (not isinstance(c, str) and json.loads(value) == c) for c in can):
                raise Wrong(f"{path}: xattr {value!r}, can be {can}")
        os.getxattr(here, "user.fstfs.extents")

    def page(self, rng):
        what = rng.choice(("status", "metrics", "problems"))
        with open(os.path.join(self.root, ".fstfs", what), "rb") as f:
            data = f.read()
        if what == "status":
            json.loads(data)
        elif not data.endswith(b"\n") and data:
            raise Wrong(f"{what} ends in mid-line: {data[-100:]!r}")

    def write(self, rng):
        path = os.path.join(self.root, self.some(rng))
        try:
            rng.choice((lambda: os.open(path, os.O_RDWR), lambda: os.unlink(path),
                        lambda: os.truncate(path, 0), lambda: os.rename(path, path + "x")))()
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        else:
            raise Wrong(f"{path} could be written to")

    def wild(self, rng):
        """Accesses whatever exists, valid or not: errors and sizes must have a reason."""
        view = rng.choice(("tensors", "merged", "shards", "npy"))
        for directory, _, names in os.walk(os.path.join(self.root, view, "wild")):
            for name in names:
                with open(os.path.join(directory, name), "rb", buffering=0) as f:
                    size = os.fstat(f.fileno()).st_size
                    got = sum(iter(lambda: len(f.read(1 << 20)), 0))
                    if got != size:
                        raise Wrong(f"{directory}/{name}: {got} bytes, size {size}")


# ---- running a seed ----


def in_process(place, name, work):
    """Runs work() in a child process, which leaves its output in a file. Returns its PID."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            (place / name).write_text(work() or "")
            status = 0
        except BaseException:
            (place / name).write_text(traceback.format_exc())
    finally:
        os._exit(status)


def read_on(plan, number, root):
    reader = Reader(plan, number, root)
    try:
        reader.run()
    except BaseException as error:
        raise Wrong(f"reader {number}, after {reader.did}") from error
    return json.dumps(reader.counts)


def wait_for(pids, end):
    """Waits for processes. Returns the names of those that failed, and of those that hang."""
    bad = []
    for pid, name in pids.items():
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                bad.append(f"{name} hangs")
                found = os.waitpid(pid, 0)
                break
            time.sleep(0.005)
        if found[1] and f"{name} hangs" not in bad:
            bad.append(name)
    return bad


def shows(model, plan, root):
    """Everything that does not show the last state of the source; empty if all does."""
    last = {shard: data for shard, data in plan.end}
    for path, make in model.files.items():
        here = os.path.join(root, path)
        choices = [c for c in make() if all(last[s] in states for s, states in c.states.items())]
        if path.endswith("/config.json"):
            choices = choices[-1:]
        for choice in choices:
            choice.states = {shard: [last[shard]] for shard in choice.states}
        try:
            data = oracle.read_all(here)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            if choices:
                return f"{path}: {error.strerror}"
            continue
        if not any(c.size == len(data) and exactly(c, data) for c in choices):
            return f"{path}: not what the source holds"
    return None


def exactly(choice, data):
    for run, inside, got in choice.pieces(0, data):
        source = run if isinstance(run, bytes) else choice.states[run[0]][0]
        start = inside if isinstance(run, bytes) else run[1] + inside
        if source[start:start + len(got)] != got:
            return False
    return True


def short(argument):
    if isinstance(argument, Shard):
        return argument.path
    return f"({len(argument)} bytes)" if isinstance(argument, bytes) else str(argument)


def run_seed(seed, build, place):
    """Descriptions of faults (empty: none), and counts."""
    plan = Plan(seed)
    changer = Changer(place / "source", plan)
    changer.make()
    end = time.monotonic() + LIMIT * SLOW
    m = Mount(place, place / "source", *plan.options, limit=2 * LIMIT * SLOW,
              binary=build / "fstfs")
    counts, faults = {}, []
    try:
        pids = {in_process(place, "changer", changer.run): "changer"}
        for number in range(READERS):
            pids[in_process(place, f"reader{number}",
                            lambda n=number: read_on(plan, n, m.path))] = f"reader{number}"
        for name in wait_for(pids, end):
            output = place / name
            faults.append(f"{name}: {output.read_text()[-4000:] if output.exists() else ''}")
        if not faults:
            for number in range(READERS):
                for what, count in json.loads((place / f"reader{number}").read_text()).items():
                    counts[what] = counts.get(what, 0) + count
            changer.count += 1000  # names not used by the process that changes the source
            changer.finish()
            model = Model(plan)
            if not eventually(lambda: shows(model, plan, m.path) is None, 10):
                faults.append(f"in the end: {shows(model, plan, m.path)}")
    finally:
        faults += m.finish()
    if faults:
        faults.append(f"{' '.join(m.command)}\n{m.log_text()[-8000:]}")
        faults.append("\n".join(f"{pause:.3f} {what} {' '.join(map(short, args))}"
                                for pause, what, args in plan.changes))
    return faults, counts


def one(seed, build, parent):
    """Runs a seed in its own directory; returns its findings as text."""
    place = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-", dir=parent))
    try:
        faults, counts = run_seed(seed, build, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return json.dumps([faults, counts])


def run(seeds, build, parent, jobs, seconds=None):
    """Runs seeds, `jobs` at a time, until they or the seconds run out. Returns (number of seeds
    run, {seed: faults}, counts)."""
    running, failed, total, done = {}, {}, {}, 0
    end = time.monotonic() + seconds if seconds else None
    seeds = iter(seeds)
    while True:
        while len(running) < jobs and not (end and time.monotonic() > end):
            seed = next(seeds, None)
            if seed is None:
                break
            running[in_process(parent, f"result-{seed}",
                               lambda s=seed: one(s, build, parent))] = seed
        if not running:
            return done, failed, total
        pid, status = os.wait()
        if pid not in running:
            continue
        seed = running.pop(pid)
        result = (parent / f"result-{seed}").read_text()
        faults, counts = ([result], {}) if status else json.loads(result)
        done += 1
        for what, count in counts.items():
            total[what] = total.get(what, 0) + count
        if faults:
            failed[seed] = faults
            print(f"seed {seed} failed:", *faults, sep="\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--place", type=Path, help="where sources and mounts are made")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--minutes", type=float, help="no new seed after them")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    args = parser.parse_args()
    last = args.last if args.last is not None else (sys.maxsize if args.minutes else args.first)
    parent = Path(tempfile.mkdtemp(prefix="fstfs-fuzz-", dir=args.place))
    try:
        done, failed, counts = run(range(args.first, last + 1), args.build.resolve(), parent,
                                   args.jobs, args.minutes and args.minutes * 60)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    summary = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{done} seeds from {args.first} on: {summary}; {len(failed)} failed"
          + "".join(f" {seed}" for seed in failed))
    if failed:
        print(f"again: tests/fuzz/mounts.py --build {args.build} {min(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
