# SPDX-License-Identifier: Apache-2.0
"""The source on distributed file systems, whose servers the tests start: every byte while a server
is killed and restored, and when a change that another client makes shows."""

import errno
import os
import signal
import struct
import time
from pathlib import Path

import oracle
import pytest
import tables
from common import (LIMIT, check, core_tests, need_root, put, readers, replace, rewrite,
                    wait_for, way_below)
from conftest import SLOW, child, eventually
from corpus import trees
from gluster import Gluster
from moosefs import MooseFS
from s3 import S3, rclone, s3fs

NAMESPACES = ("ip", "nsenter")
GLUSTER = ("glusterd", "gluster", *NAMESPACES)
MOOSEFS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfscheckfile", *NAMESPACES)


@pytest.fixture(scope="session")
def rich(shared_place):
    return trees.rich(shared_place / "rich")


@pytest.fixture(scope="session")
def versions(shared_place):
    return trees.versions(shared_place / "versions", 3)


def load_while(files, events):
    """Sixteen readers load; between two events each of them reads on. None may get an error."""
    group = readers.ReaderGroup(files)
    try:
        assert eventually(group.reading, LIMIT)
        for event in events:
            event()
            before = [r.count for r in group.readers]
            assert eventually(lambda: all(r.count > b + 20 for r, b in
                                          zip(group.readers, before)), LIMIT), group.faults({0})
        group.stop()
        group.finish(LIMIT)
        assert not group.faults({0})
    finally:
        group.kill()


@pytest.mark.limit(900)
def test_gluster(mount, place, rich):
    """A volume of two bricks on two hosts. Each brick in turn is killed during a load, started and
    healed: readers do not notice."""
    need_root(*GLUSTER)
    with Gluster(place) as volume:
        source = put(volume.path / "s", rich)
        m = mount(source.root, "--memory=8M", limit=600 * SLOW)
        child(check, m, source, seconds=200)

        def events():
            for host in volume.hosts:
                yield lambda: volume.stop_brick(host)
                yield lambda: volume.start_brick(host)
                yield volume.heal

        load_while(oracle.plain_files(m.path, source), events())
        below = way_below(m)
        assert m.unmount() == 0
        core = core_tests(volume.path)
    tables.check("sources", "GlusterFS, two bricks, each stopped under load", below, "right", core)


@pytest.mark.limit(900)
def test_moosefs(mount, place, rich):
    """One master, two chunkservers, goal 2. Each chunkserver in turn is killed during a load and
    started again: readers do not notice."""
    need_root(*MOOSEFS)
    with MooseFS(place) as volume:
        source = put(volume.path / "s", rich)
        shards = [source.path(c.directory, name) for c in source.checkpoints
                  for name, _ in c.shards]
        assert eventually(lambda: volume.copies(*shards) == {2}, LIMIT, 0.2)
        m = mount(source.root, "--memory=8M", limit=600 * SLOW)
        child(check, m, source, seconds=200)

        def restore(node):
            volume.start_chunkserver(node)
            assert eventually(lambda: volume.copies(*shards) == {2}, LIMIT, 0.2)

        def events():
            for node in volume.chunkservers:
                yield lambda: volume.stop_chunkserver(node)
                yield lambda: restore(node)

        load_while(oracle.plain_files(m.path, source), events())
        below = way_below(m)
        assert m.unmount() == 0
        core = core_tests(volume.path)
    tables.check("sources", "MooseFS, two chunkservers, each killed under load", below, "right",
                 core)


def possible(m, *versions):
    """[(path, content, ...)]: what each file may be while shards are replaced one after another."""
    states = [oracle.plain_files(m.path, mixed) for mixed in readers.mixtures(versions)]
    return [(same[0][0], *{content for _, content in same}) for same in zip(*states)]


ENGINES = {"gluster": (Gluster, GLUSTER), "moosefs": (MooseFS, MOOSEFS)}


@pytest.mark.limit(900)
@pytest.mark.parametrize("engine", ENGINES)
def test_changes(mount, place, versions, engine):
    """What another client rewrites in place or replaces shows, with the default cache times of the
    engine's client. Readers of files that are replaced get one version or ESTALE."""
    start, programs = ENGINES[engine]
    need_root(*programs)
    first, second, third = versions
    with start(place) as volume:
        put(volume.path / "s", first)
        m = mount(volume.mount(volume.place / "other") / "s", limit=600 * SLOW)
        wait_for(m, first)
        rewrite(volume.path / "s", second)
        wait_for(m, second)
        group = readers.ReaderGroup(possible(m, second, third), passed=(errno.ESTALE,))
        try:
            assert eventually(group.reading, LIMIT)
            replace(volume.path / "s", third)
            wait_for(m, third)
            group.stop()
            group.finish(LIMIT)
            assert not group.faults({0})
        finally:
            group.kill()
        assert m.unmount() == 0


class Loader(readers.Reader):
    """A process that loads whole files in order, again and again. Any error ends it."""

    def read(self):
        count = compared = 0
        while not self.shared[16]:
            for path, content in self.files:
                with readers.OpenFile(path, self.method, (content,)) as file:
                    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    for start in range(0, file.size, readers.MOST):
                        compared += file.check(start, readers.MOST)
                        self.shared[8:16] = struct.pack("<Q", compared)
            count += 1
            self.shared[:8] = struct.pack("<Q", count)
        return 0


@pytest.mark.limit(900)
def test_moosefs_nodes(mount, place):
    """Three nodes, each with a client and a mount, load one checkpoint while a chunkserver is killed
    and restored: no wrong byte, and no loader is restarted."""
    need_root(*MOOSEFS)
    model = trees.Source(place / "model")
    model.add("m", "model", [trees.tensor(f"t{i:02}", "U8", (1 << 20,)) for i in range(64)],
              shards=4)
    loaders = []
    with MooseFS(place, clients=3) as volume:
        source = put(volume.path / "s", model)
        shards = [source.path("m", name) for name, _ in source.checkpoints[0].shards]
        assert eventually(lambda: volume.copies(*shards) == {2}, LIMIT, 0.2)
        mounts = [mount(volume.mount(volume.place / f"node{node}", node=node) / "s", "--memory=8M",
                        limit=600 * SLOW, wrapper=volume.network.enter(node))
                  for node in (3, 4, 5)]
        files = [[(path, content) for path, content in oracle.plain_files(m.path, source)
                  if os.fsencode(m / view) in path]
                 for m, view in zip(mounts, ("merged", "shards", "tensors"))]

        def load_again():
            """Whether each loader completes a load that began after now."""
            before = [loader.count for loader in loaders]
            return eventually(lambda: all(loader.count >= b + 2 for loader, b in
                                          zip(loaders, before)), 2 * LIMIT)

        start = time.monotonic()
        try:
            loaders += [Loader(part, method, 0) for part, method in zip(files, readers.METHODS)]
            for event in (lambda: None, lambda: volume.stop_chunkserver(1),
                          lambda: volume.start_chunkserver(1)):
                event()
                assert load_again(), [loader.end(0) for loader in loaders]
            for loader in loaders:
                loader.stop()
            assert [loader.end(start + 800 * SLOW) for loader in loaders] == [0, 0, 0]
            total = sum(loader.compared for loader in loaders)
            print(f"three nodes, a chunkserver killed and restored: {total >> 20} MiB, "
                  f"{total / (time.monotonic() - start) / 2**20:.0f} MiB/s together")
        finally:
            for loader in loaders:
                if loader.outcome is None:
                    os.kill(loader.pid, signal.SIGKILL)
                    loader.end(time.monotonic() + 5)
        for m in mounts:
            assert m.unmount() == 0


S3_CLIENTS = {"rclone": rclone}
# ENOENT: the header of a shard cannot be read, so its tensors are not known.
FAILED = (errno.EIO, errno.ESTALE, errno.ENOENT)


def need_s3(client):
    need_root(client)
    pytest.importorskip("moto.server")
    pytest.importorskip("boto3")


def read_all_direct(files):
    """In a child: reads all files with O_DIRECT, and returns the first errno or 0. Wrong bytes raise
    an exception."""
    try:
        for path, content in files:
            with readers.OpenFile(path, "direct", (content,)) as file:
                file.check(0, len(content))
    except OSError as error:
        return error.errno
    return 0


@pytest.mark.limit(900)
@pytest.mark.parametrize("client", S3_CLIENTS)
def test_s3(mount, place, rich, client):
    """A server that is slow, refuses requests and cuts replies, and that is absent for a while: what
    is returned is right or an error, and the mount recovers by itself."""
    need_s3(client)
    with S3(place, S3_CLIENTS[client]) as store:
        store.put(rich)
        source = trees.Source.at(store.mount("mnt"), rich)
        m = mount(source.root, "--memory=8M", limit=600 * SLOW)
        store.disturb(delay=0.005)
        child(check, m, source, seconds=200)
        below = way_below(m)
        files = oracle.plain_files(m.path, source)
        group = readers.ReaderGroup(files, passed=FAILED)

        def all_read_on():
            before = group.count
            return eventually(lambda: group.revive() or group.count > before + 300, LIMIT)

        try:
            assert eventually(group.reading, LIMIT)
            store.disturb(delay=0.02, errors=0.3, cut=0.3)
            assert all_read_on(), group.faults({0})
            counts = store.disturb()
            assert min(counts.values()) > 0, counts

            errors = m.metric("read_errors_total")
            store.disappear()
            # a read of rclone fails after seconds, and one at a time
            assert eventually(lambda: m.metric("read_errors_total") > errors, LIMIT)
            store.return_again()
            assert eventually(lambda: child(read_all_direct, files, seconds=LIMIT) == 0, LIMIT)
            assert all_read_on(), group.faults({0})
            group.stop()
            group.finish(LIMIT)
            assert not group.faults({0})
        finally:
            group.kill()
        child(check, m, source, seconds=200)
        assert m.unmount() == 0
    tables.check("sources", f"S3 by {client}, bad replies, the server absent for a while", below,
                 "right", "not run: it is mounted read-only")


@pytest.mark.limit(900)
def test_s3_changes(mount, place, versions):
    """An object that is replaced in S3 shows once rclone's cached attributes expire."""
    need_s3("rclone")
    first, second, _ = versions
    shard = "shards/m/model-00001-of-00002.safetensors"
    with S3(place, rclone) as store:
        store.put(first)
        m = mount(store.mount("mnt"), limit=600 * SLOW)
        late = mount(store.mount("late", expire=3600), limit=600 * SLOW)
        wait_for(m, first)
        wait_for(late, first)
        before = os.stat(late / shard).st_mtime_ns
        store.put(second)
        wait_for(m, second)
        assert os.stat(m / shard).st_mtime_ns != before
        assert os.stat(late / shard).st_mtime_ns == before
        assert m.unmount() == 0
        assert late.unmount() == 0


@pytest.mark.limit(900)
def test_exception_s3fs_open_file(mount, place, versions):
    """s3fs returns the old bytes of a replaced object, with its new attributes, while any process has
    the file open. The new bytes show once it is closed."""
    need_s3("s3fs")
    first, second, _ = versions
    name = "model-00001-of-00002.safetensors"
    with S3(place, s3fs) as store:
        store.put(first)
        source = store.mount("mnt")
        m = mount(source, limit=600 * SLOW)
        wait_for(m, first)
        before = os.stat(m / f"shards/m/{name}").st_mtime_ns
        with open(source / "m" / name, "rb") as held:
            old = Path(first.path("m", name)).read_bytes()
            assert held.read() == old
            store.put(second)
            assert eventually(lambda: os.stat(source / "m" / name).st_mtime_ns != before, LIMIT)
            assert (source / "m" / name).read_bytes() == old
        wait_for(m, second)
        assert m.unmount() == 0
