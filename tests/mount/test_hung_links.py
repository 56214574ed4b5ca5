# SPDX-License-Identifier: Apache-2.0
"""Links in the source that lead to storage that does not answer: the rest of their directory is
listed and read."""

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, as_user, child, disk_image, eventually, mounted_at
from corpus import torchfiles, trees
from test_hang import callers, set_rules

__all__ = ["callers"]  # a fixture

SLOWFS = BUILD / "tests/slowfs/slowfs"
LIMIT = 30
MODEL = "model.safetensors"
FAR = "far.safetensors"
SILENT = "does not answer"


class Far:
    """A file system outside of the source, with checkpoints, side files and a directory."""

    def __init__(self, mount, place, name, count):
        self.real = trees.Source(place / "real" / name)
        self.real.add("", "far", trees.small_tensors(f"{name}."))
        for i in range(count):
            self.real.add("", f"m{i}", trees.small_tensors(f"{name}{i}."))
        self.real.add("dir", "in", trees.small_tensors(f"{name}.in."))
        self.real.add_side("side.json", b'{"side": 1}\n')
        self.path = place / name
        os.makedirs(self.path)
        others = ",allow_other" if os.geteuid() == 0 else ""
        self.server = mount(self.real.root, "-o", f"valid=0{others}", binary=SLOWFS,
                            mountpoint=self.path, limit=300)

    def hang(self):
        self.server.stop()

    def answer(self):
        self.server.signal(signal.SIGCONT)


@pytest.fixture
def far(mount, place):
    """far(name, count): a file system that can hang; with `count` files m*.safetensors."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    made = []

    def make(name="far", count=0):
        made.append(Far(mount, place, name, count))
        return made[-1]

    yield make
    for one in made:
        one.answer()


def add_links(directory, to):
    """Links of all kinds, relative and absolute. Returns {name in shards/: the file that it shows,
    or None for a directory}."""
    relative = os.path.relpath(to.path, directory)
    links = {
        FAR: (f"{relative}/{FAR}", to.real.path(FAR)),
        "absolute.json": (f"{to.path}/side.json", to.real.path("side.json")),
        "dots.json": (f"{relative}/dir/../side.json", to.real.path("side.json")),
        "chain.json": ("absolute.json", to.real.path("side.json")),
        "directory": (f"{relative}/dir", None),
    }
    for name, (target, _) in links.items():
        os.symlink(target, os.path.join(directory, name))
    return {name: real for name, (_, real) in links.items()}


def make_source(place):
    source = trees.Source(place / "s")
    for directory in ("", "below"):
        source.add(directory, "model", trees.small_tensors("good."))
        source.add_side(os.path.join(directory, "config.json"), b"{}\n")
    return source


def read_neighbours(mountpoint, source, directory):
    """Lists the directory in all views, and looks up and reads what is not a link."""
    names = {view: set(os.listdir(os.path.join(mountpoint, view, directory)))
             for view in ("shards", "merged", "tensors", "npy")}
    assert {MODEL, "config.json"} <= names["shards"]
    assert {MODEL, "config.json"} <= names["merged"]
    assert "model" in names["tensors"] & names["npy"]
    for view in ("shards", "merged"):
        for name in (MODEL, "config.json"):
            path = os.path.join(mountpoint, view, directory, name)
            assert stat.S_ISREG(os.stat(path).st_mode)
            assert oracle.read_all(path) == oracle.read_all(source.path(directory, name))
    tensors = os.path.join(mountpoint, "tensors", directory, "model")
    for name in os.listdir(tensors):
        oracle.read_all(os.path.join(tensors, name))
    return names


def check_links(mountpoint, directory, links):
    """Whether all links are shown. Reads what they lead to."""
    shown = os.path.join(mountpoint, "shards", directory)
    if not set(links) <= set(os.listdir(shown)):
        return False
    if FAR not in os.listdir(os.path.join(mountpoint, "merged", directory)):
        return False
    for name, real in links.items():
        path = os.path.join(shown, name)
        if real is None:
            assert "in.safetensors" in os.listdir(path)
        else:
            assert oracle.read_all(path) == oracle.read_all(real)
    return True


def problems(m):
    return child(oracle.read_all, m / ".fstfs/problems", user=m.user, seconds=LIMIT).decode()


@pytest.mark.limit(200)
@pytest.mark.parametrize("options", [(), ("-o", "allow_other")], ids=["private", "shared"])
@pytest.mark.parametrize("first", ["hangs", "answers"])
def test_neighbours(mount, place, far, who, first, options):
    """A mount that begins while the storage hangs does not show the links, and reports them. A
    mount that has shown them continues to list them. When the storage answers, all are shown."""
    if options and (who or os.geteuid() != 0):
        pytest.skip("needs root, or user_allow_other")
    source, hung = make_source(place), far()
    links = {directory: add_links(source.path(directory), hung) for directory in ("", "below")}
    if first == "hangs":
        hung.hang()
    m = mount(source.root, *options, limit=190, **who)
    if first == "answers":
        for directory in links:
            assert eventually(lambda: child(check_links, m.path, directory, links[directory],
                                            user=m.user, seconds=LIMIT), LIMIT)
        hung.hang()
    for _ in range(2):
        for directory in links:
            names = child(read_neighbours, m.path, source, directory, user=m.user, seconds=LIMIT)
            shown = names["shards"] & set(links[directory])
            assert shown == (set(links[directory]) if first == "answers" else set())
            assert (FAR in names["merged"]) == (first == "answers")
    if first == "hangs":
        text = problems(m)
        for name in links[""]:
            assert f"{name}: left out: the storage that the link leads to {SILENT}" in text
            assert f"below/{name}: left out: the storage" in text
    # A new name makes the directory be listed again.
    source.add_side("new.json", b"{}\n")
    assert eventually(lambda: "new.json" in child(os.listdir, m / "shards", user=m.user,
                                                  seconds=LIMIT), LIMIT)
    assert SILENT in problems(m)
    names = child(read_neighbours, m.path, source, "", user=m.user, seconds=LIMIT)
    assert (FAR in names["shards"]) == (first == "answers")
    hung.answer()
    for directory in links:
        assert eventually(lambda: child(check_links, m.path, directory, links[directory],
                                        user=m.user, seconds=LIMIT), LIMIT)
    for directory in links:  # a view keeps the listing that it showed last, and so its problems
        child(read_neighbours, m.path, source, directory, user=m.user, seconds=LIMIT)
    assert eventually(lambda: SILENT not in problems(m), LIMIT), problems(m)
    assert m.unmount() == 0


# --- many links ---

HUNG_SYSTEMS, LINKS = 3, 100


@pytest.mark.limit(300)
@pytest.mark.parametrize("directory", ["", "below"], ids=["top", "below"])
def test_many_links(mount, place, far, directory):
    """Hundreds of links to several file systems that hang, and links to one that answers, which are
    listed and served."""
    source = make_source(place)
    hung = [far(f"hung{i}", LINKS) for i in range(HUNG_SYSTEMS)]
    well = far("well", 20)
    for one in (*hung, well):
        name = os.path.basename(one.path)
        for i in range(20 if one is well else LINKS):
            os.symlink(one.path / f"m{i}.safetensors",
                       source.path(directory, f"{name}-{i}.safetensors"))
    for one in hung:
        one.hang()
    m = mount(source.root, limit=290)

    def read_well():
        names = read_neighbours(m.path, source, directory)
        for i in range(20):
            name = f"well-{i}.safetensors"
            assert name in names["shards"] & names["merged"], name
            for view in ("shards", "merged"):
                assert oracle.read_all(os.path.join(m.path, view, directory, name)) == \
                    oracle.read_all(well.real.path(f"m{i}.safetensors"))
        return names["shards"]

    well_names = {f"well-{i}.safetensors" for i in range(20)}
    assert eventually(lambda: well_names <= set(child(os.listdir, m / f"shards/{directory}",
                                                      seconds=LIMIT)), LIMIT)
    shown = child(read_well, seconds=3 * LIMIT)
    assert not [name for name in shown if name.startswith("hung")]
    for one in hung:
        one.answer()
    expected = {f"hung{k}-{i}.safetensors" for k in range(HUNG_SYSTEMS) for i in range(LINKS)}
    assert eventually(lambda: expected <= child(read_well, seconds=3 * LIMIT), LIMIT)
    for one in hung:
        one.hang()
    assert expected <= child(read_well, seconds=3 * LIMIT)
    for one in hung:
        one.answer()
    assert m.unmount() == 0


@pytest.mark.limit(120)
@pytest.mark.parametrize("directories", ["abcd", "aaaa"], ids=["four", "same"])
def test_listings_of_slow_storage(mount, place, directories):
    """Concurrent listings of links to storage that is slow but answers are all complete."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    real = trees.Source(place / "real")
    for i in range(80):
        real.add("", f"m{i}", trees.small_tensors(f"{i}."))
    below = mount(real.root, "-o", "delay=15000", binary=SLOWFS)
    source = trees.Source(place / "s")
    for directory in set(directories):
        os.makedirs(source.path(directory))
        for i in range(80):
            os.symlink(below / f"m{i}.safetensors", source.path(directory, f"m{i}.safetensors"))
    m = mount(source.root)
    with ThreadPoolExecutor() as pool:
        listings = list(pool.map(lambda name: os.listdir(os.path.join(m / "merged", name)),
                                 directories))
    assert [len(names) for names in listings] == [80] * 4


@pytest.mark.limit(120)
def test_files_that_hang_beside_others(mount, place):
    """Links to files that hang leave threads to links to other files of their file system."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    real = trees.Source(place / "real")
    source = trees.Source(place / "s")
    for i in range(20):
        directory = "hung" if i < 10 else "well"
        real.add(f"{directory}{i}", "m", trees.small_tensors(f"{i}."))
        os.makedirs(source.path(directory), exist_ok=True)
        os.symlink(place / f"far/{directory}{i}/m.safetensors",
                   source.path(directory, f"m{i}.safetensors"))
    rules = place / "faults"
    rules.write_text("* hung*/* hang\n")
    os.makedirs(place / "far")
    mount(real.root, "-o", f"valid=0,faults={rules}", binary=SLOWFS, mountpoint=place / "far")
    m = mount(source.root)
    try:
        assert os.listdir(m / "merged/hung") == []
        assert len(os.listdir(m / "merged/well")) == 10
    finally:
        rules.write_text("")


@pytest.mark.limit(120)
def test_chain_of_file_systems(mount, place, far):
    """A link to a file system that answers, and a link there to one that hangs."""
    source, hung, between = make_source(place), far("hung"), far("between")
    os.symlink(hung.path, between.real.path("on"))
    os.symlink(f"../between/on/{FAR}", source.path(FAR))
    os.symlink("../between/side.json", source.path("side.json"))
    hung.hang()
    m = mount(source.root, limit=110)
    names = child(read_neighbours, m.path, source, "", seconds=LIMIT)
    assert "side.json" in names["shards"] and FAR not in names["shards"]
    assert oracle.read_all(m / "shards/side.json") == oracle.read_all(between.real.path("side.json"))
    hung.answer()
    assert eventually(lambda: FAR in os.listdir(m / "shards"), LIMIT)
    assert oracle.read_all(m / f"shards/{FAR}") == oracle.read_all(hung.real.path(FAR))
    assert m.unmount() == 0


@pytest.mark.limit(120)
@pytest.mark.parametrize("how", ["redirected", "through"])
def test_path_of_open_files_hangs(mount, place, far, how):
    """Files of the source's file system whose path leads to storage that hangs, because their links
    were redirected after open(), or always did: reads of other files of that file system go on."""
    source, hung, local = make_source(place), far(), place / "local"
    local.mkdir()
    os.symlink(local, hung.real.path("local"))
    links = [source.path(f"{i}.safetensors") for i in range(40)]
    for i, link in enumerate(links):
        path = local / f"{i}.safetensors"
        path.write_bytes(trees.file_bytes(trees.small_tensors(f"{i}.")))
        os.symlink(path if how == "redirected" else hung.path / "local" / path.name, link)
    m = mount(source.root, limit=110)
    names = {os.path.basename(link) for link in links}
    assert eventually(lambda: names <= set(os.listdir(m / "merged")), LIMIT)
    readers = []
    for link in links:
        file = os.open(m / f"merged/{os.path.basename(link)}", os.O_RDONLY)
        if how == "redirected":
            os.symlink(hung.path / FAR, link + ".new")
            os.rename(link + ".new", link)
        readers.append(file)
    hung.hang()
    pids = []
    for file in readers:
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                os._exit(len(os.read(file, 1)) - 1)
            except OSError as error:
                os._exit(error.errno)
        os.close(file)
    try:
        if how == "through":
            assert eventually(lambda: m.metric("storage_reads_waiting") > 0, LIMIT)
        child(oracle.read_all, m / f"merged/{MODEL}", seconds=LIMIT)
    finally:
        if how == "through":
            hung.answer()
        statuses = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
        hung.answer()
    assert statuses == {0 if how == "through" else errno.ESTALE}
    assert m.unmount() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_link_to_a_local_disk(mount, place):
    """Names on local disks are looked up in the calling thread, so they never depend on how fast
    the query pool answers."""
    with disk_image(place, 16 << 20, "mkfs.ext4", "-q") as disk:
        trees.Source(disk).add("", "far", trees.small_tensors("far."))
        source = make_source(place)
        os.symlink(disk / FAR, source.path(FAR))
        m = mount(source.root)
        assert FAR in os.listdir(m / "merged")
        threads = []
        for thread in os.listdir(f"/proc/{m.pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                threads.append(oracle.read_all(f"/proc/{m.pid}/task/{thread}/comm"))
        assert threads and b"fstfs-query\n" not in threads
        assert m.unmount() == 0


def stat_as(uid, path):
    os.setresuid(uid, uid, uid)
    os.stat(path)


@pytest.mark.limit(200)
def test_first_lookups_in_a_view(mount, place, far, callers):
    """Links to file systems that hang are known from one view. Their first lookups in the other views
    do not use up the threads of the local file system."""
    if os.geteuid() != 0:
        pytest.skip("needs root: many users make the requests")
    source, hung = make_source(place), [far(f"hung{i}") for i in range(4)]
    for i in range(20):
        os.makedirs(source.path(f"links/{i}"))
        os.symlink(hung[i % 4].path, source.path(f"links/{i}/link"))
    m = mount(source.root, "-o", "allow_other", limit=190)
    for i in range(20):
        os.stat(m / f"merged/links/{i}/link/dir")
    for one in hung:
        one.hang()
    group = callers()
    for i in range(1000):
        view = ("tensors", "merged", "shards", "npy")[i % 4]
        group.add(stat_as, 20000 + i % 40, m / f"{view}/links/{i // 4 % 20}/link/dir")
    assert eventually(lambda: group.count() == (1000, 0), LIMIT), group.count()
    child(read_neighbours, m.path, source, "below", seconds=LIMIT)
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    child(read_neighbours, m.path, source, "below", seconds=LIMIT)


def open_as(uid, path):
    os.setresuid(uid, uid, uid)
    os.open(path, os.O_RDONLY)


def list_as(uid, path):
    os.setresuid(uid, uid, uid)
    return os.listdir(path)


@pytest.mark.limit(200)
def test_open_beside_a_shard_that_hangs(mount, place, callers):
    """An open of a local shard reads the headers of all shards of its checkpoint, of which one is
    behind a link to storage that hangs. Opens in many such directories do not use up the threads of
    the local file system, also for the same user."""
    if os.geteuid() != 0:
        pytest.skip("needs root: another user makes the requests")
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source, real, rules = make_source(place), trees.Source(place / "real"), place / "faults"
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    for i in range(150):
        real.add(f"d{i}", "model", trees.small_tensors(f"{i}."), shards=2)
        os.makedirs(source.path(f"d{i}"))
        shutil.copy(real.path(f"d{i}", first), source.path(f"d{i}", first))
        os.symlink(f"../../far/d{i}/{second}", source.path(f"d{i}", second))
    os.mkdir(place / "far")
    mount(real.root, "-o", f"valid=0,age=60,faults={rules},allow_other", binary=SLOWFS,
          mountpoint=place / "far", limit=190)
    set_rules(rules, "read * hang")
    m = mount(source.root, "-o", "allow_other", limit=190)
    group = callers()
    for i in range(600):
        group.add(open_as, 20000, m / f"shards/d{i % 150}/{first}")
    assert eventually(lambda: group.count() == (600, 0), LIMIT), group.count()
    waiting = lambda: sum(child(m.status)["kernel"]["requests"][k] for k in ("running", "queued"))
    assert eventually(lambda: waiting() >= 600, LIMIT), waiting()
    for view in ("shards", "merged", "tensors", "npy"):
        assert child(list_as, 20000, m / f"{view}/below", seconds=LIMIT)
    child(read_neighbours, m.path, source, "below", seconds=LIMIT)
    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    rules.unlink()
    assert eventually(lambda: waiting() == 0, LIMIT), waiting()
    for name in (first, second):
        assert oracle.read_all(m / f"shards/d7/{name}") == oracle.read_all(real.path("d7", name))
    assert m.unmount() == 0


# --- indexes ---


@pytest.mark.limit(120)
def test_index_behind_a_link(mount, place, far):
    """The shards of an index that is on other storage stay one checkpoint while that hangs. A new
    version of the index shows when it answers."""
    source, other = trees.Source(place / "s"), far()
    source.add_side("config.json", b"{}\n")
    other.real.add("", "set", [trees.tensor(f"t{i}", "U8", (1000 + i,)) for i in range(4)],
                   shards=2, names=["a.safetensors", "b.safetensors"],
                   index="set.safetensors.index.json")
    for name in ("a.safetensors", "b.safetensors", "set.safetensors.index.json"):
        os.symlink(f"../far/{name}", source.path(name))
    m = mount(source.root, limit=110)
    assert eventually(lambda: "set.safetensors" in os.listdir(m / "merged"), LIMIT)
    data = oracle.read_all(m / "merged/set.safetensors")
    other.hang()
    source.add_side("new.json", b"{}\n")
    assert eventually(lambda: "new.json" in child(os.listdir, m / "merged", seconds=LIMIT), LIMIT)
    names = child(os.listdir, m / "merged", seconds=LIMIT)
    assert "set.safetensors" in names and "a.safetensors" not in names
    other.answer()
    assert eventually(lambda: oracle.read_all(m / "merged/set.safetensors") == data, LIMIT)
    os.unlink(other.real.path("set.safetensors.index.json"))
    assert eventually(lambda: "a.safetensors" in os.listdir(m / "merged"), LIMIT)
    assert m.unmount() == 0


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def error_of_open(path):
    """0 if it can be opened."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as e:
        return e.errno
    return 0


@pytest.mark.limit(120)
def test_index_that_leads_to_no_file(mount, place, far):
    """Its checkpoint fails, also once the storage of the index hangs and the directory changes."""
    source, other = trees.Source(place / "s"), far()
    source.add("", "model", trees.small_tensors(), shards=2)
    os.remove(source.path("model.safetensors.index.json"))
    os.symlink("../far/absent", source.path("model.safetensors.index.json"))
    m = mount(source.root, limit=110)
    merged = m / f"merged/{MODEL}"
    assert eventually(lambda: child(error_of_open, merged, seconds=LIMIT) == errno.EIO, LIMIT)
    other.hang()
    source.add_side("new.json", b"{}\n")
    assert eventually(lambda: "new.json" in child(os.listdir, m / "merged", seconds=LIMIT), LIMIT)
    assert child(error_of_open, merged, seconds=LIMIT) == errno.EIO
    other.answer()
    os.unlink(source.path("model.safetensors.index.json"))
    assert eventually(lambda: child(error_of_open, merged, seconds=LIMIT) == 0, LIMIT)
    assert m.unmount() == 0


@pytest.mark.limit(120)
def test_link_that_now_leads_to_storage_that_hangs(mount, place, far):
    """It stays listed as before."""
    source, other = trees.Source(place / "s"), far()
    shutil.copy(other.real.path(FAR), place / FAR)
    os.symlink(f"../{FAR}", source.path(FAR))
    m = mount(source.root, limit=110)
    assert FAR in os.listdir(m / "shards")
    other.hang()
    os.symlink(f"../far/{FAR}", source.path("new"))
    os.rename(source.path("new"), source.path(FAR))
    time.sleep(1)  # at least 0.5 s: a listing that is not yet checked again would look the link up
    assert eventually(lambda: SILENT in problems(m), LIMIT)
    assert FAR in child(os.listdir, m / "shards", seconds=LIMIT)
    other.answer()
    assert eventually(lambda: check_links(m.path, "", {FAR: other.real.path(FAR)}), LIMIT)
    assert m.unmount() == 0


# the file of another checkpoint, the shards of the checkpoint, those of them that are links
PLACES = {
    "PyTorch": ("pytorch_model.bin", [MODEL], [MODEL]),
    "suffix": ("model.sft", [MODEL], [MODEL]),
    "one shard": (MODEL, SHARDS, SHARDS[1:]),
    "all shards": (MODEL, SHARDS, SHARDS),
}


def tensors_shown(mountpoint):
    """The names of the tensors of merged/model.safetensors and of tensors/model, if they are listed."""
    merged = tensors = None
    if MODEL in os.listdir(os.path.join(mountpoint, "merged")):
        entries, _, _ = oracle.read_header(os.path.join(mountpoint, "merged", MODEL))
        merged = {entry.name for entry in entries}
    if "model" in os.listdir(os.path.join(mountpoint, "tensors")):
        tensors = set(os.listdir(os.path.join(mountpoint, "tensors/model")))
    return merged, tensors


@pytest.mark.limit(120)
@pytest.mark.parametrize("where", PLACES)
def test_no_other_checkpoint_in_its_place(mount, place, far, where):
    """Storage that links lead to hangs before the mount begins: a local checkpoint does not get the
    name that theirs will have."""
    other, shards, links = PLACES[where]
    source, hung = trees.Source(place / "s"), far()
    tensors = [trees.tensor(name, "U8", (5,)) for name in ("far1", "far2")]
    hung.real.add("", "model", tensors, names=shards, index=False)
    if other == "pytorch_model.bin":
        torchfiles.save(Path(source.path(other)), torchfiles.weights(1, {"other": (5,)}))
    else:
        source.add("", "other", [trees.tensor("other", "U8", (5,))], names=[other])
    for name in shards:
        if name in links:
            os.symlink(f"../far/{name}", source.path(name))
        else:
            shutil.copy(hung.real.path(name), source.path(name))
    hung.hang()
    m = mount(source.root, limit=110)
    for _ in range(2):
        merged, found = child(tensors_shown, m.path, seconds=LIMIT)
        assert merged is None
        assert found == ({"far1"} if where == "one shard" else None)
        assert other == MODEL or other in child(os.listdir, m / "merged", seconds=LIMIT)
        assert SILENT in problems(m)
    hung.answer()
    expected = {"far1", "far2"}
    assert eventually(lambda: child(tensors_shown, m.path, seconds=LIMIT) == (expected, expected), LIMIT)
    assert m.unmount() == 0


# --- the end of the mount ---


@pytest.mark.limit(120)
@pytest.mark.parametrize("end", ["SIGTERM", "umount"])
def test_end(mount, place, far, who, end):
    """The mount ends, and soon the daemon, although queries of the storage are not answered."""
    source, hung = make_source(place), far()
    links = add_links(source.path(""), hung)
    hung.hang()
    m = mount(source.root, limit=110, **who)
    names = child(read_neighbours, m.path, source, "", user=m.user, seconds=LIMIT)
    assert not names["shards"] & set(links)
    assert "left out" in problems(m)
    if end == "SIGTERM":
        m.signal(signal.SIGTERM)
    else:
        subprocess.run([*as_user(m.user), "fusermount3", "-u", m.path], check=True)
    assert eventually(lambda: not mounted_at(m.path), 10)
    assert m.wait(LIMIT) == 0
