# SPDX-License-Identifier: Apache-2.0
"""The rows: what is read, by which readers, beside which peers, and what is promised."""

import random
from contextlib import nullcontext

from machine import mib

READ = ["-b", str(mib(1)), "read"]
READ_SMALL = ["-b", str(128 << 10), "read"]
MMAP = ["mmap"]
COPY = ["-b", str(mib(1)), "copy"]
DIRECT = ["-b", str(mib(8)), "-d", "4", "direct"]
FILES = ["-b", str(mib(1)), "file"]

TOGETHER = (2, 4, 8, 16)
DISTANT_BOUND = 10  # times the raw reader, where each request takes 2 ms


class Arm:
    def __init__(self, name, run):
        self.name, self.run = name, run


class Ratio:
    """of: what one round gives, from its runs by arm."""

    def __init__(self, name, of, bound, better):
        self.name, self.of, self.bound, self.better = name, of, bound, better


class Row:
    def __init__(self, storage):
        self.storage, self.machine = storage, storage.machine
        self.arms, self.ratios = [], []
        self.same_bytes = False  # whether all arms read the same tensors, whole

    def arm(self, name, run):
        self.arms.append(Arm(name, run))
        return name

    def mount(self, name, reader, plan, before=None, after=None):
        """The mount, cold. plan(mount): what is read. before(mount): done first.
        after(mount, run): takes down more than time. With two builds: both arms."""

        def run(which):
            segments = self.storage.planned(which, plan)
            with self.storage.mount(which) as mount:
                if before:
                    before(mount, segments)
                cpu = mount.cpu()
                run = self.machine.reader(reader, segments)
                run.cpu = mount.cpu() - cpu
                if after:
                    after(mount, run)
            return run

        self.arm(name, lambda: run(0))
        if len(self.storage.commands) > 1:
            second = self.arm(f"{name} [second build]", lambda: run(1))
            self.ratio(second, name)
        return name

    def raw(self, name, reader, segments, default_readahead=False, warm=False):
        """The bare shards, by the same reader."""

        def run():
            self.storage.drop()
            with self.storage.default_readahead() if default_readahead else nullcontext():
                if warm:
                    self.machine.reader(reader, segments)
                return self.machine.reader(reader, segments)

        return self.arm(name, run)

    def plain(self, name, reader, warm=False):
        def run():
            self.storage.drop()
            with self.storage.plain() as plain:
                paths = [f.replace(self.storage.source, plain.path) for f in self.storage.files]
                if warm:
                    self.machine.reader(reader, self.storage.whole(paths))
                return self.machine.reader(reader, self.storage.whole(paths))

        return self.arm(name, run)

    def fio(self):
        def run():
            self.storage.drop()
            return self.storage.fio()

        return self.arm("fio", run)

    def ratio(self, arm, to, bound=None):
        def of(runs):
            return runs[to].seconds / runs[arm].seconds * runs[arm].bytes / runs[to].bytes

        self.ratios.append(Ratio(f"{arm} / {to}", of, bound, "more"))

    def most(self, name, arm, fact, bound):
        self.ratios.append(Ratio(name, lambda runs: runs[arm].facts[fact], bound, "less"))


def merged(mount):
    return mount.storage.whole([mount.merged])


def merged_tensors(mount):
    return list(mount.tensors().values())


def merged_by_name(mount):
    return [s for _, s in sorted(mount.tensors().items())]


def shuffled(segments):
    rng = random.Random(2)
    return rng.sample(segments, len(segments))


def against_fio(storage):
    row = Row(storage)
    fio = row.fio()
    for name, reader in ("read 1M", READ), ("mmap", MMAP):
        row.ratio(row.mount(f"merged {name}", reader, merged), fio, storage.fio_bound)
    if storage.distant:  # what the machine leaves room for, of what `read` and `mmap` promise
        row.ratio(fio, row.raw("raw read 1M", READ, storage.whole(storage.files)))
    return row


def against_raw(reader_name, reader, by_kernel=True):
    """The merged file and the shards in the mount, by the same reader as the bare shards.
    by_kernel: whether it is the kernel's readahead that this reader waits for."""

    def make(storage):
        row = Row(storage)
        bound = 1.0
        if storage.distant:
            bound = DISTANT_BOUND if by_kernel else None
        mine = row.mount(f"merged {reader_name}", reader, merged)
        shards = row.mount(f"shards {reader_name}", reader, lambda mount: mount.shards())
        whole = storage.whole(storage.files)
        raw = row.raw(f"raw {reader_name}", reader, whole)
        row.ratio(mine, raw, bound)
        row.ratio(shards, raw, bound)
        if by_kernel and storage.can_change_readahead():
            default = row.raw(f"raw {reader_name} 128K readahead", reader, whole,
                              default_readahead=True)
            row.ratio(mine, default, bound)
        row.ratio(mine, row.plain(f"plain FUSE {reader_name}", reader))
        return row

    return make


def order(storage):
    row = Row(storage)
    row.same_bytes = True
    mine = row.mount("mmap in file order", MMAP, merged_tensors)
    by_name = row.mount("mmap in name order", MMAP, merged_by_name)
    at_random = row.mount("mmap in random order", MMAP, lambda m: shuffled(merged_tensors(m)))
    tensors = storage.tensors()
    raw_by_name = row.raw("raw mmap in name order", MMAP, [s for _, s in sorted(tensors.items())])
    raw_at_random = row.raw("raw mmap in random order", MMAP, shuffled(list(tensors.values())))
    row.ratio(by_name, mine, 0.9)
    row.ratio(at_random, mine)
    row.ratio(by_name, raw_by_name)
    row.ratio(at_random, raw_at_random)
    return row


def sparse(storage):
    """A tenth of the tensors: what the device reads for it."""
    names = set(storage.checkpoint.some(0.1))

    def in_merged(mount):
        return [s for n, s in mount.tensors().items() if n in names]

    def files(mount):
        return [s for n, s in zip(storage.checkpoint.tensors, mount.tensor_files()) if n in names]

    def before(mount, _):
        mount.read_before = mount.storage_bytes()

    def after(mount, run):
        run.facts["read"] = (mount.storage_bytes() - mount.read_before) / run.bytes

    row = Row(storage)
    row.same_bytes = True
    for name, reader, plan in (
        ("mmap of 10 %", MMAP, in_merged),
        ("read of 10 %", READ, in_merged),
        ("files of 10 %", FILES, files),
    ):
        arm = row.mount(name, reader, plan, before, after)
        row.most(f"{name}: bytes of the device / asked", arm, "read", 1.05)
    tensors = storage.tensors()
    raw = row.raw("raw mmap of 10 %", MMAP, [s for n, s in tensors.items() if n in names])
    row.ratio("mmap of 10 %", raw)
    return row


def warm(storage):
    row = Row(storage)
    whole = storage.whole(storage.files)
    for name, reader in ("read 1M", READ), ("mmap", MMAP), ("mmap copy", COPY):
        mine = row.mount(f"merged {name} again", reader, merged,
                         lambda mount, segments: mount.machine.reader(reader, segments))
        raw = row.raw(f"raw {name} again", reader, whole, warm=True)
        row.ratio(mine, raw, 0.95)
        # What FUSE's own page cache gives: no request of the second read comes to a daemon.
        row.ratio(mine, row.plain(f"plain FUSE {name} again", reader, warm=True))
    return row


def one_copy(storage):
    def after(mount, run):
        run.facts["cached"] = storage.cached() / run.bytes

    row = Row(storage)
    for name, reader in ("read 1M", READ), ("mmap", MMAP):
        arm = row.mount(f"merged {name}", reader, merged, after=after)
        row.most(f"page cache of the shards after {name}", arm, "cached", 0.05)
    return row


def together(reader, plan, option, what, more=()):
    """Readers that share the work (or with -a each read all), against one of them."""

    def make(storage):
        row = Row(storage)
        row.same_bytes = not more
        one = row.mount(f"1 {what}", [option, "1", *more, *reader], plan)
        for n in TOGETHER:
            many = row.mount(f"{n} {what}", [option, str(n), *more, *reader], plan)
            row.ratio(many, one, 1.0)
        return row

    return make


def tensor_files(mount):
    return mount.tensor_files()


def memory(storage):
    """The most memory the daemon has, less its budget."""

    def after(mount, run):
        run.facts["over"] = (mount.peak() - mount.budget()) / mib(1)

    row = Row(storage)
    for name, reader, plan in (
        ("merged mmap", MMAP, merged),
        ("16 threads, tensor files", ["-t", "16", *FILES], tensor_files),
    ):
        arm = row.mount(name, reader, plan, after=after)
        row.most(f"{name}: MiB over the budget", arm, "over", 64)
    return row


def library(storage):
    """libfstfs, by the shards themselves, into memory."""
    row = Row(storage)

    def arm(name, *options):
        def run():
            storage.drop()
            return storage.machine.load(*options, storage.source)

        return row.arm(name, run)

    fio = row.fio()
    for name, options, bound in (
        ("libfstfs, all tensors", ["-r"], storage.library_bound),
        ("libfstfs, one tensor", ["-r", "-1"], storage.library_bound),
        ("libfstfs, one tensor, memory as the file", ["-r", "-1", "-l"], storage.library_bound),
        ("libfstfs, all tensors, fresh memory", [], None),
    ):
        row.ratio(arm(name, *options), fio, bound)
    return row


ROWS = {
    "fio": against_fio,
    "read": against_raw("read 1M", READ),
    "read128": against_raw("read 128K", READ_SMALL),
    "mmap": against_raw("mmap", MMAP),
    "direct": against_raw("O_DIRECT 8M x 4", DIRECT, by_kernel=False),
    "order": order,
    "sparse": sparse,
    "warm": warm,
    "copy": one_copy,
    "files": together(FILES, tensor_files, "-t", "threads, tensor files"),
    "processes": together(FILES, tensor_files, "-p", "processes, tensor files"),
    "handle": together(READ, merged_tensors, "-t", "threads, one handle"),
    "ranks": together(READ, merged, "-p", "processes, each all of it", ["-a"]),
    "memory": memory,
    "library": library,
}
