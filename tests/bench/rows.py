# SPDX-License-Identifier: Apache-2.0
"""The rows: what is read, by which readers, against what, and the bounds."""

import random
from contextlib import nullcontext

from machine import mib
from storage import Unavailable

READ = ["-b", str(mib(1)), "read"]
READ_SMALL = ["-b", str(128 << 10), "read"]
MMAP = ["mmap"]
COPY = ["-b", str(mib(1)), "copy"]
DIRECT = ["-b", str(mib(8)), "-d", "4", "direct"]
FILES = ["-b", str(mib(1)), "file"]

TOGETHER = (2, 4, 8, 16)
DISTANT_BOUND = 10  # ratio to the bare reader at 2 ms latency per request
LINK_BOUND = 0.8  # of the link's bandwidth, up to this round-trip time:
LINK_BOUND_MS = 20


class Arm:
    def __init__(self, name, run):
        self.name, self.run = name, run


class Ratio:
    """`of` computes the value of one round from its runs by arm."""

    def __init__(self, name, of, bound, better):
        self.name, self.of, self.bound, self.better = name, of, bound, better


class Row:
    def __init__(self, storage):
        self.storage, self.machine = storage, storage.machine
        self.arms, self.ratios = [], []
        self.same_bytes = False  # whether all arms read the same tensors completely

    def arm(self, name, run):
        self.arms.append(Arm(name, run))
        return name

    def mount(self, name, reader, plan, before=None, after=None):
        """A cold read through the mount of the segments plan(mount), after before(mount,
        segments); after(mount, run) records more results. Two builds have an arm each."""

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

    def bare(self, name, reader, segments, default_readahead=False, warm=False):
        """A read of the bare shards."""

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

    def library(self, name, *options):
        """A cold read of the bare shards by libfstfs."""

        def run():
            self.storage.drop()
            return self.machine.load(*options, self.storage.source)

        return self.arm(name, run)

    def ratio(self, arm, to, bound=None):
        def of(runs):
            return runs[to].seconds / runs[arm].seconds * runs[arm].bytes / runs[to].bytes

        self.ratios.append(Ratio(f"{arm} / {to}", of, bound, "more"))

    def over_link(self, arm, bound=None):
        def of(runs):
            return runs[arm].bytes / runs[arm].seconds / self.storage.bandwidth

        self.ratios.append(Ratio(f"{arm} / link", of, bound, "more"))

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
    if storage.distant:  # an upper limit for the bounds of `read` and `mmap`
        row.ratio(fio, row.bare("bare read 1M", READ, storage.whole(storage.files)))
    return row


def against_bare(reader_name, reader, by_kernel=True):
    """The merged file and the shards of the mount, against the bare shards.
    by_kernel: whether the reader depends on the kernel's readahead."""

    def make(storage):
        row = Row(storage)
        bound = 1.0
        if storage.distant:
            bound = DISTANT_BOUND if by_kernel else None
        mine = row.mount(f"merged {reader_name}", reader, merged)
        shards = row.mount(f"shards {reader_name}", reader, lambda mount: mount.shards())
        whole = storage.whole(storage.files)
        bare = row.bare(f"bare {reader_name}", reader, whole)
        row.ratio(mine, bare, bound)
        row.ratio(shards, bare, bound)
        if by_kernel and storage.can_change_readahead():
            default = row.bare(f"bare {reader_name} 128K readahead", reader, whole,
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
    bare_by_name = row.bare("bare mmap in name order", MMAP, [s for _, s in sorted(tensors.items())])
    bare_at_random = row.bare("bare mmap in random order", MMAP, shuffled(list(tensors.values())))
    row.ratio(by_name, mine, 0.9)
    row.ratio(at_random, mine)
    row.ratio(by_name, bare_by_name)
    row.ratio(at_random, bare_at_random)
    return row


def sparse(storage):
    """Bytes read from the device for a tenth of the tensors."""
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
        row.most(f"{name}: bytes read from the device / requested", arm, "read", 1.05)
    tensors = storage.tensors()
    bare = row.bare("bare mmap of 10 %", MMAP, [s for n, s in tensors.items() if n in names])
    row.ratio("mmap of 10 %", bare)
    return row


def warm(storage):
    row = Row(storage)
    whole = storage.whole(storage.files)
    for name, reader in ("read 1M", READ), ("mmap", MMAP), ("mmap copy", COPY):
        mine = row.mount(f"merged {name} again", reader, merged,
                         lambda mount, segments: mount.machine.reader(reader, segments))
        bare = row.bare(f"bare {name} again", reader, whole, warm=True)
        row.ratio(mine, bare, 0.95)
        # The limit of FUSE's page cache: the second read causes no requests.
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
    """Several readers that share the work (with -a, each reads everything), against one."""

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
    """Peak memory of the daemon minus its budget."""

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
    """libfstfs, from the bare shards into memory."""
    row = Row(storage)
    fio = row.fio()
    for name, options, bound in (
        ("libfstfs, all tensors", ["-r"], storage.library_bound),
        ("libfstfs, one tensor", ["-r", "-1"], storage.library_bound),
        ("libfstfs, one tensor, aligned memory", ["-r", "-1", "-l"], storage.library_bound),
        ("libfstfs, all tensors, fresh memory", [], None),
    ):
        row.ratio(row.library(name, *options), fio, bound)
    return row


def first(segments, size):
    """The first segments, up to `size` bytes."""
    taken = []
    for segment in segments:
        if size < segment.length:
            break
        taken.append(segment)
        size -= segment.length
    return taken


def link(storage):
    """Rates on a network, over the bandwidth of its link. The bare readers read a part: they would
    take minutes for everything. Eight together read eight times as much as one, so that none of
    them is done early."""
    if not storage.bandwidth:
        raise Unavailable("no link of a known bandwidth: use --storage net1")
    row = Row(storage)
    layers = [s for s in storage.tensors().values() if s.length <= mib(8)]
    part = mib(min(96, max(16, int(240 / storage.round_trip_ms))))
    bound = LINK_BOUND if storage.round_trip_ms <= LINK_BOUND_MS else None
    row.over_link(row.bare("bare, 1 reader", READ, first(layers, part)))
    row.over_link(row.bare("bare, 8 readers", ["-p", "8", *READ], first(layers, 8 * part)))
    row.over_link(row.mount("merged, 1 reader", READ, merged), bound)
    row.over_link(row.mount("merged, 8 readers", ["-p", "8", *READ], merged_tensors), bound)
    row.over_link(row.library("libfstfs"), bound)
    return row


ROWS = {
    "fio": against_fio,
    "read": against_bare("read 1M", READ),
    "read128": against_bare("read 128K", READ_SMALL),
    "mmap": against_bare("mmap", MMAP),
    "direct": against_bare("O_DIRECT 8M x 4", DIRECT, by_kernel=False),
    "order": order,
    "sparse": sparse,
    "warm": warm,
    "copy": one_copy,
    "files": together(FILES, tensor_files, "-t", "threads, tensor files"),
    "processes": together(FILES, tensor_files, "-p", "processes, tensor files"),
    "handle": together(READ, merged_tensors, "-t", "threads, one handle"),
    "ranks": together(READ, merged, "-p", "processes, each reads everything", ["-a"]),
    "memory": memory,
    "library": library,
    "link": link,
}
