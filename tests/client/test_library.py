# SPDX-License-Identifier: Apache-2.0
"""libfstfs, through the C program client.c: reads of plain files, of every view of a mount, of a
mount whose source is inaccessible, and of sources that change or fail, compared with the bytes
written."""

import errno
import json
import os
import random
import subprocess

import numpy as np
import oracle
import pytest
from conftest import BUILD, SLOW, as_user, eventually, no_leak_check, preload
from corpus import trees

CLIENT = BUILD / "tests/client/client"
SLOWFS = BUILD / "tests/slowfs/slowfs"
ENGINES = {"uring": (), "threads": ("-u",), "buffered": ("-d",), "little": ("-m", "4194304")}


@pytest.fixture(scope="session", autouse=True)
def built():
    if not CLIENT.exists():
        pytest.fail(f"{CLIENT} does not exist: build first, or set FSTFS_BUILD", pytrace=False)


@pytest.fixture(scope="session")
def rich(shared_place):
    return trees.rich(shared_place / "rich")


class Refused(Exception):
    """(errno, text)"""


def run(*arguments, requests="", wrapper=(), program=CLIENT):
    done = subprocess.run([*wrapper, program, *map(os.fspath, arguments)], input=requests.encode(),
                          capture_output=True, timeout=60 * SLOW)
    if done.returncode == 1:
        number, text = done.stderr.decode().rstrip("\n").split(" ", 1)
        raise Refused(int(number), text)
    assert done.returncode == 0, done.stderr.decode()
    return done


def listing(path, *options, **how):
    return json.loads(os.fsdecode(run(*options, "list", path, **how).stdout))


def read(path, count, *options, wrapper=()):
    """The bytes of all tensors, by name."""
    return run(*options, "read", path, requests="".join(f"{i}\n" for i in range(count)),
               wrapper=wrapper).stdout


def check(path, tensors, *options, wrapper=()):
    """Compares all tensors of a path with those expected; returns the listing."""
    tensors = sorted(tensors, key=lambda t: t.name.encode())
    found = listing(path, *options, wrapper=wrapper)
    assert [(t["name"], t["dtype"], t["shape"], t["size"]) for t in found["tensors"]] == \
        [(t.name, t.dtype, t.shape, t.size) for t in tensors]
    assert read(path, len(tensors), *options, wrapper=wrapper) == b"".join(t.data for t in tensors)
    return found


def forget(directory):
    """Drops the files of the directory from the page cache."""
    for name in os.listdir(directory):
        fd = os.open(os.path.join(directory, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize("engine", ENGINES)
def test_files(rich, engine):
    c = rich.checkpoints[0]
    directory = rich.path("rich")
    forget(directory)
    found = check(directory, c.tensors, *ENGINES[engine])
    assert found["metadata"] == c.merged_metadata
    assert found["through_mount"] is None
    check(os.path.join(directory, c.index), c.tensors, *ENGINES[engine])
    for (shard, tensors), metadata in zip(c.shards, c.metadata):
        path = os.path.join(directory, shard)
        assert check(path, tensors, *ENGINES[engine])["metadata"] == (metadata or {})
        for t in listing(path)["tensors"]:
            with open(path, "rb") as f:
                f.seek(t["offset"])
                assert f.read(t["size"]) == next(x.data for x in tensors if x.name == t["name"])


def test_metadata_with_nul(place):
    """Keys and values may contain NUL, in one file and when the metadata of shards is merged."""
    source = trees.Source(place)
    nul = {"a\0b": "1", "a\0c": "2", "a": "x\0y", "": "\0"}
    metadata = [nul, {"a\0b": "1", "a\0c": "2\0", "a": "x\0z"}]
    c = source.add("m", "model", trees.small_tensors(), shards=2, metadata=metadata)
    for (shard, _), its_own in zip(c.shards, metadata):
        assert listing(place / "m" / shard)["metadata"] == its_own
    assert listing(place / "m")["metadata"] == {"a\0b": "1", "": "\0"}


def test_any_file_name(place):
    tensors = trees.small_tensors()
    for name in ("model.safetensors", "blob", "a b\nc"):
        (place / name).write_bytes(trees.file_bytes(tensors))
        check(place / name, tensors)
    os.symlink("blob", place / "link.safetensors")
    check(place / "link.safetensors", tensors)
    done = subprocess.run([CLIENT, "list", "blob"], cwd=place, capture_output=True, check=True)
    assert len(json.loads(done.stdout)["tensors"]) == len(tensors)


def test_hub_cache(place):
    source = trees.hub_cache(place / "hub")
    for c in source.checkpoints:
        check(source.path(c.directory), c.tensors)


def slices(rng, shape):
    chosen = []
    for dim in shape:
        start = rng.randint(0, dim)
        chosen.append(slice(start, rng.randint(start, dim), rng.choice((1, 1, 2, 7))))
        if rng.random() < 0.4:
            chosen[-1] = slice(0, dim, 1)
    return tuple(chosen)


@pytest.mark.parametrize("engine", ENGINES)
def test_slices(place, engine):
    """Many slices in one call, several of the same tensor, from several threads."""
    rng = random.Random(1)
    shapes = [(300, 700), (7, 90, 51), (100_000,), (2, 3, 4, 5), (60, 40_000), (), (5, 0, 5)]
    tensors = [trees.tensor(f"t{i}", "U16", shape) for i, shape in enumerate(shapes)]
    trees.Source(place / "m").add("", "model", tensors, shards=2)
    forget(place / "m")
    requests, want = "", b""
    for _ in range(200):
        i = rng.randrange(len(tensors))
        chosen = slices(rng, shapes[i])
        requests += " ".join([str(i), *(f"{s.start}:{s.stop}:{s.step}" for s in chosen)]) + "\n"
        array = np.frombuffer(tensors[i].data, "<u2").reshape(shapes[i])
        want += np.ascontiguousarray(array[chosen]).tobytes()
    for options in ((), ("-a",), ("-t", "3"), ("-A", "-t", "3")):
        assert run(*ENGINES[engine], *options, "read", place / "m", requests=requests).stdout == want


@pytest.mark.parametrize("engine", ENGINES)
def test_aligned_memory_is_read_into_without_a_copy(mount, place, engine):
    """Memory with the alignment of the file is read into directly, without writing outside of it, even
    if the tensor begins or ends within a block."""
    block = 4096
    rng = random.Random(2)
    sizes = [0, 1, block, 3 * block - 1, 131071, 131072 + 2 * block, 1 << 20, (1 << 20) + 7, 5_000_011,
             9_000_000]
    tensors = [trees.tensor(f"t{i}", "U8", (size,)) for i, size in enumerate(sizes)]
    tensors.append(trees.tensor("u", "U16", (3000, 1000)))
    source = trees.Source(place / "s")
    source.add("m", "model", tensors, shards=2)
    m = mount(source.root)
    c, = source.checkpoints
    rows = sorted(rng.sample(range(3001), 2))
    some = "".join(f"{i} {size // 3}:{size}:1\n" for i, size in enumerate(sizes))
    some += f"{len(sizes)} {rows[0]}:{rows[1]}:1 0:1000:1\n"
    want = b"".join(t.data[len(t.data) // 3:] for t in tensors[:-1])
    want += tensors[-1].data[2000 * rows[0]:2000 * rows[1]]
    for options in (("-A",), ("-A", "-t", "3"), ("-A", "-s")):
        path = m / "merged/m" if "-s" in options else source.path("m")
        for warm in (False, True):
            if not warm:
                forget(source.path("m"))
            check(path, c.tensors, *ENGINES[engine], *options)
            assert run(*ENGINES[engine], *options, "read", path, requests=some).stdout == want


def storage_bytes(path, *requests, options=()):
    """The bytes of the requests, the bytes read from storage for them, and those that expired in the
    cache and may have been read again."""
    forget(path)
    done = run("-x", *options, "read", path, requests="".join(r + "\n" for r in requests))
    status = json.loads(done.stderr)
    return len(done.stdout), status["storage_bytes"], status["expired_bytes"]


def test_bytes_read(place):
    """Rows cost their bytes, columns the blocks that contain them, and shared blocks are read once;
    with the engine's buffers and with aligned memory."""
    shape = (1000, 8000)
    tensors = [trees.tensor(f"t{i}", "U8", shape) for i in range(2)]
    trees.Source(place / "m").add("", "model", tensors)
    asked, cost, expired = storage_bytes(place / "m", "0 250:500:1 0:8000:1", "1 0:250:1 0:8000:1")
    assert asked <= cost <= asked * 1.05 + expired
    asked, cost, expired = storage_bytes(place / "m", "0 0:1000:1 2000:2100:1")
    assert asked < cost <= 1000 * 8192 + expired
    for options in ((), ("-A",)):
        asked, cost, expired = storage_bytes(place / "m", "0", "1", options=options)
        assert asked <= cost <= asked + 2 * 4096 + expired
    # All ranks of a split by columns in one call: every block once.
    ranks = [f"0 0:1000:1 {r * 1000}:{r * 1000 + 1000}:1" for r in range(8)]
    asked, cost, expired = storage_bytes(place / "m", *ranks)
    assert asked <= cost <= asked + 2 * 4096 + expired


def view_paths(mount, c, recut):
    """(path, tensors) of all files and directories of a checkpoint in the views that can be opened."""
    paths = [(mount / f"{view}/{c.directory}/{c.stem}", c.tensors) for view in ("tensors", "npy")]
    if any(trees.DTYPE_BITS[t.dtype] < 8 for t in c.tensors):
        paths.pop()  # npy/ lacks some of them
    merged = mount / f"merged/{c.directory}"
    paths += [(merged, c.tensors), (f"{merged}/{c.stem}.safetensors", c.tensors)]
    shards = mount / f"shards/{c.directory}"
    paths += [(shards, c.tensors), (f"{shards}/{c.stem}.safetensors.index.json", c.tensors)]
    if recut:
        for name in sorted(os.listdir(shards)):
            if name.endswith(".safetensors"):
                entries, _, _ = oracle.read_header(f"{shards}/{name}")
                names = {e.name for e in entries}
                paths.append((f"{shards}/{name}", [t for t in c.tensors if t.name in names]))
    else:
        paths += [(f"{shards}/{name}", tensors) for name, tensors in c.shards]
    return paths


@pytest.mark.parametrize("recut", (False, True))
def test_views(mount, rich, recut):
    """Each view, read from the source and through the mount."""
    m = mount(rich.root, *(("--shard-size=2M",) if recut else ()))
    c = rich.checkpoints[0]
    for path, tensors in view_paths(m, c, recut):
        found = check(path, tensors)
        assert found["through_mount"] is None
        assert all(t["file"].startswith(rich.path("rich/")) for t in found["tensors"])
        found = check(path, tensors, "-s")
        assert found["through_mount"] == "disabled by the option no_source"
        assert all(t["file"].startswith(m.path) for t in found["tensors"])


def test_tensor_files(mount, rich):
    m = mount(rich.root)
    c = rich.checkpoints[0]
    for t in c.tensors[::5]:
        for npy in (False, True):
            if npy and trees.DTYPE_BITS[t.dtype] < 8:
                continue
            path = oracle.tensor_file(m / ("npy" if npy else "tensors"), c, t, npy)
            assert check(path, [t])["through_mount"] is None
            assert check(path, [t], "-s")["through_mount"] == "disabled by the option no_source"


def test_mapped(mount, place):
    """fstfs_map() of source files and of every view, also with no_source, and of empty tensors."""
    source = trees.Source(place / "s")
    c = source.add("m", "model", [trees.tensor("full", "U8", (70_001,)),
                                  trees.tensor("none", "F32", (0, 3))])
    m = mount(source.root)
    paths = [(source.path("m"), c.tensors), *view_paths(m, c, False)]
    paths += [(oracle.tensor_file(m / view, c, t, view == "npy"), [t])
              for view in ("tensors", "npy") for t in c.tensors]
    for path, tensors in paths:
        if os.fsencode(path).endswith(b".index.json"):
            continue  # one shard has none
        for options in ((), ("-s",)):
            assert run(*options, "map", path).stdout == \
                b"".join(t.data for t in sorted(tensors, key=lambda t: t.name))


@pytest.mark.parametrize("options", [(), ("-s",)], ids=["source", "mount"])
@pytest.mark.parametrize("how, why", [("invalid", "a shard is refused"),
                                      ("missing", "shards are missing")])
@pytest.mark.parametrize("view", ["tensors", "npy"])
def test_directory_that_lacks_tensors(mount, place, options, how, why, view):
    """Of an invalid or missing shard. It is refused, whether the source or the mount is read."""
    source = trees.Source(place / "s")
    source.add("", "m", trees.small_tensors(), shards=2)
    shard = sorted((place / "s").glob("*.safetensors"))[0]
    if how == "missing":
        os.remove(shard)
    else:
        os.truncate(shard, 20)
    with pytest.raises(Refused, match=f": {why}; .fstfs/problems of the mount has the "):
        run(*options, "list", mount(source.root) / f"{view}/m")


def test_names(mount, place):
    """Tensors whose names are not valid file names."""
    source = trees.names(place / "names")
    m = mount(source.root)
    for c in source.checkpoints:
        names = [t.name for t in c.tensors]
        path = m / f"tensors/{trees.join(c.directory, c.stem)}"
        for options in ((), ("-s",)):
            assert [t["name"] for t in listing(path, *options)["tensors"]] == \
                sorted(names, key=lambda n: n.encode())
            assert read(path, len(names), *options) == \
                b"".join(t.data for t in sorted(c.tensors, key=lambda t: t.name.encode()))


def test_paths_that_are_not_utf8(mount, place):
    """The mount reports them in hexadecimal, and the library opens the source files."""
    source = trees.Source(place / "s")
    c = source.add("m\udcff\udcfe", "st\udce9m", trees.small_tensors())
    m = mount(source.root)
    for path, tensors in view_paths(m, c, False):
        if not os.fspath(path).endswith(".index.json"):  # one shard has none
            assert check(path, tensors)["through_mount"] is None
    t = c.tensors[0]
    assert check(oracle.tensor_file(m / "tensors", c, t), [t])["through_mount"] is None


def without(directory, other=None):
    """A command prefix: for the program, `directory` is empty, or `other` is mounted over it."""
    if os.geteuid() != 0:
        pytest.skip("a mount namespace needs root")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("cannot create a mount namespace")
    over = f"mount --bind '{other}' '{directory}'" if other else f"mount -t tmpfs none '{directory}'"
    return ["unshare", "-m", "sh", "-ec", f'{over}; exec "$@"', "sh"]


def test_inaccessible_source(mount, rich):
    """As in a container that sees only the mount: everything is read through it."""
    m = mount(rich.root)
    c = rich.checkpoints[0]
    wrapper = without(rich.path("rich"))
    paths = view_paths(m, c, False)
    paths.append((oracle.tensor_file(m / "tensors", c, c.tensors[0]), c.tensors[:1]))
    for path, tensors in paths:
        why = check(path, tensors, wrapper=wrapper)["through_mount"]
        assert "No such file" in why or "is not the version that the mount shows" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts as another user")
def test_mount_of_another_user(mount, rich):
    """Its xattrs could name any file as the source, which this process might be able to read."""
    # LeakSanitizer cannot trace a process with another effective user.
    m = mount(rich.root, "-o", "allow_other", wrapper=["setpriv", "--ruid=20001"],
              environment=no_leak_check())
    c = rich.checkpoints[0]
    for path, tensors in [*view_paths(m, c, False), (oracle.tensor_file(m / "tensors", c, c.tensors[0]),
                                                     c.tensors[:1])]:
        assert "mounted by user 20001" in check(path, tensors)["through_mount"]
        # a user namespace in which this process has the same number
        why = check(path, tensors, wrapper=["unshare", "--map-user=20001"])["through_mount"]
        assert "by user 20001, who may be one of another user namespace" in why


def forged(**settings):
    """A command prefix: the program sees forged xattrs (tests/sandbox/forged.c)."""
    return ["env", *(f"{name}={value}" for name, value in preload("forged", **settings).items())]


@pytest.mark.parametrize("recut", (False, True))
def test_no_directory_is_listed(mount, rich, recut):
    """Opening a file on a mount lists neither its directory nor that of the source, so the number of
    other files does not matter."""
    m = mount(rich.root, *(("--shard-size=2M",) if recut else ()))
    files = [(path, tensors) for path, tensors in view_paths(m, rich.checkpoints[0], recut)
             if os.path.isfile(path) and not path.endswith(".json")]
    assert len(files) > 3
    for path, tensors in files:
        assert check(path, tensors, wrapper=forged(NO_LISTING=1))["through_mount"] is None
    with pytest.raises(Refused, match="Permission denied"):
        listing(m / "merged/rich", wrapper=forged(NO_LISTING=1))


def test_more_shards_than_an_xattr_can_name(mount, place):
    """The mount omits the names of the shards; the library lists their directory."""
    source = trees.Source(place / "s")
    tensors = [trees.Tensor(f"t{i:04}", "U8", [1], bytes([i % 251])) for i in range(1500)]
    stem = "x" * 150
    shards = [(f"{stem}-{i + 1:05}-of-01500.safetensors", [t]) for i, t in enumerate(tensors)]
    os.makedirs(place / "s/m")
    for name, held in shards:
        head = json.dumps({held[0].name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
        with open(place / "s/m" / name, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head.encode() + held[0].data)
    m = mount(source.root)
    path = m / f"merged/m/{stem}.safetensors"
    assert "shards" not in json.loads(os.getxattr(path, "user.fstfs.source"))
    assert check(path, tensors)["through_mount"] is None


@pytest.mark.parametrize("value", [
    "[]", "{}", "[1]", '[""]', '[{"file": ""}]', '[{"file": "../m/model.safetensors"}]',
    '[{"file": "."}]', '[{"file": ".."}]', '[{"file_hex": "6"}]', '[{"file": "none.safetensors"}]',
    '[{"file": "B"}, {"file": "B"}]', '[{"file": "B"}, {"file": "A"}]'])
def test_forged_shards(mount, place, value):
    """Shards that are not files of the directory, or of another version, are not opened: the file is
    read through the mount."""
    source = trees.Source(place / "s")
    c = source.add("m", "model", trees.small_tensors())
    os.symlink("model.safetensors", place / "s/m/B")
    m = mount(source.root)
    path = m / "merged/m/model.safetensors"
    origin = json.loads(os.getxattr(path, "user.fstfs.source"))
    origin["shards"] = json.loads(value)
    found = check(path, c.tensors,
                  wrapper=forged(FORGED_XATTR=f"user.fstfs.source={json.dumps(origin)}"))
    assert (found["through_mount"] is None) == (value in ("[]", "{}"))


def with_forged_extent(path, **changes):
    extents = json.loads(os.getxattr(path, "user.fstfs.extents"))
    extents[0].update(changes)
    return forged(FORGED_XATTR=f"user.fstfs.extents={json.dumps(extents)}")


@pytest.fixture
def six(mount, place):
    """(path, [tensor]) of a tensor file of 24 bytes."""
    source = trees.Source(place / "s")
    c = source.add("m", "model", [trees.Tensor("t", "F32", [6], bytes(range(24)))])
    return mount(source.root) / "tensors/m/model/t", c.tensors


@pytest.mark.parametrize("shape", [
    "[1048576]", "[6, 2]", "[5]", "[]", "[0]", "[4611686018427387904, 4]",
    "[18446744073709551615, 18446744073709551615]", "[2147483648, 2147483648, 4, 6]"])
@pytest.mark.parametrize("options", [(), ("-s",)], ids=["source", "mount"])
def test_forged_shape(six, shape, options):
    """Xattrs are untrusted: a tensor whose shape and dtype do not match its size cannot be opened."""
    with pytest.raises(Refused, match="shape and dtype") as refusal:
        listing(six[0], *options, wrapper=forged(FORGED_XATTR=f"user.safetensors.shape={shape}"))
    assert refusal.value.args[0] == errno.EBADMSG


@pytest.mark.parametrize("length", [0, 20, 28, 1 << 20, (1 << 53) - 1])
@pytest.mark.parametrize("options", [(), ("-s",)], ids=["source", "mount"])
def test_forged_length(six, length, options):
    with pytest.raises(Refused) as refusal:
        listing(six[0], *options, wrapper=with_forged_extent(six[0], length=length))
    assert refusal.value.args[0] == errno.EBADMSG


def test_growing_xattr(six):
    """An xattr that is empty when it is first read, and then longer than the buffer allocated for it,
    does not overflow that buffer: the tensor has the name of one of the reads."""
    name = "n" * 5000
    found = listing(six[0], wrapper=forged(FORGED_XATTR=f"user.safetensors.name={name}", GROWING_XATTR=1))
    assert found["tensors"][0]["name"] in ("", name)


@pytest.mark.parametrize("offset", [1 << 12, 1 << 40, (1 << 53) - 1])
def test_forged_offset(six, offset):
    """A tensor outside of its source file is read through the mount."""
    path, tensors = six
    found = check(path, tensors, wrapper=with_forged_extent(path, offset=offset))
    assert "not within" in found["through_mount"]


def test_other_source_with_the_same_attributes(mount, place):
    """Another directory is mounted over the source, with other bytes but the same names, sizes and
    times. The library does not read it."""
    roots = []
    for i in range(2):
        source = trees.Source(place / f"s{i}")
        source.add("m", "model", [trees.tensor(f"t{j}", "U8", (70_000,), seed=i) for j in range(4)],
                   shards=2)
        roots.append(source)
        for name in os.listdir(source.path("m")):
            os.utime(source.path("m", name), ns=(10**18, 10**18))
    m = mount(roots[0].root)
    wrapper = without(roots[0].root, roots[1].root)
    c = roots[0].checkpoints[0]
    paths = view_paths(m, c, False)
    paths.append((oracle.tensor_file(m / "tensors", c, c.tensors[0]), c.tensors[:1]))
    for path, tensors in paths:
        assert "that the mount shows" in check(path, tensors, wrapper=wrapper)["through_mount"]


class Opened:
    """A client that has opened a path and waits for go() to read it."""

    def __init__(self, path, count, *options):
        ready, its_out = os.pipe()
        its_in, self.go_on = os.pipe()
        self.process = subprocess.Popen(
            [CLIENT, "-w", f"{its_out},{its_in}", *options, "read", path], pass_fds=(its_out, its_in),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(its_out)
        os.close(its_in)
        self.count = count
        with open(ready, "rb") as f:
            assert f.read(1) == b"\n", self.process.communicate()[1]

    def go(self):
        os.write(self.go_on, b"\n")
        os.close(self.go_on)
        out, err = self.process.communicate(
            "".join(f"{i}\n" for i in range(self.count)).encode(), timeout=60 * SLOW)
        return self.process.returncode, out, err.decode()


@pytest.mark.parametrize("by", ("file", "source", "mount"))
@pytest.mark.parametrize("how", ("rewritten", "replaced", "truncated", "removed"))
def test_changed(mount, place, how, by):
    """An open checkpoint never returns bytes of another version, also of the same size and times."""
    source = trees.Source(place / "s")
    tensors = [trees.tensor(f"t{i}", "U8", (3_000_000,)) for i in range(3)]
    source.add("m", "model", tensors)
    path = file = source.path("m/model.safetensors")
    if by != "file":
        path = mount(source.root) / "merged/m/model.safetensors"
    times = os.stat(file)
    opened = Opened(path, 3, *(("-s",) if by == "mount" else ()))
    other = trees.file_bytes([trees.tensor(t.name, "U8", t.shape, seed=1) for t in tensors])
    if how == "rewritten":
        with open(file, "r+b") as f:
            f.write(other)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif how == "replaced":
        with open(file + ".new", "wb") as f:
            f.write(other)
        os.utime(file + ".new", ns=(times.st_atime_ns, times.st_mtime_ns))
        os.rename(file + ".new", file)
    elif how == "truncated":
        os.truncate(file, 1_000_000)
    else:
        os.remove(file)
    status, out, err = opened.go()
    if status == 0:
        # The mount has the old file open and may still read it.
        assert how in ("replaced", "removed") and by == "mount"
        assert out == b"".join(t.data for t in tensors)
    else:
        assert int(err.split()[0]) in (errno.ESTALE, errno.EIO, errno.ENOENT), err
        assert "model.safetensors" in err

    def new_bytes():
        try:
            return read(path, 3) == b"".join(
                trees.tensor(t.name, "U8", t.shape, seed=1).data for t in tensors)
        except Refused:
            return False  # a mount may show the old file for a moment

    if how in ("rewritten", "replaced"):
        assert eventually(new_bytes)


@pytest.mark.parametrize("view", ["shards/m/model.safetensors", "merged/m/model.safetensors",
                                  "merged/m/split.safetensors", "tensors/m/model/b"])
@pytest.mark.parametrize("options", [(), ("-s",)], ids=["source", "mount"])
def test_replaced_while_it_is_opened(mount, place, view, options):
    """A file is replaced after the library has read its header, and before it reads from the xattrs
    where the bytes are stored. The new file has the same size and times; its tensors are in another
    order, and have another dtype. Slices are read, whose bytes depend on the dtype: they are those of
    one version."""
    a = trees.tensor("a", "U8", (50_000,))

    def others(seed):
        dtype, shape = ("F32", (22_500,)) if seed else ("U8", (90_000,))
        return [trees.tensor(name, dtype, shape, seed=seed) for name in ("b", "c")]

    def fill(root, seed):
        os.makedirs(root / "m")
        for name, held in (("model", [a, *others(seed)]), ("split-00001-of-00002", [a]),
                           ("split-00002-of-00002", others(seed))):
            path = root / f"m/{name}.safetensors"
            path.write_bytes(trees.file_bytes(held[::-1] if seed else held, pad=1024))
            os.utime(path, ns=(10**18, 10**18))

    fill(place / "s", 0)
    fill(place / "new", 1)
    name = "m/split-00002-of-00002.safetensors" if "split" in view else "m/model.safetensors"
    m = mount(place / "s")
    xattr = "user.fstfs.source" if "split" in view else "user.fstfs.extents"
    wrapper = forged(REPLACE_AT_XATTR=xattr, REPLACE_FROM=place / "new" / name,
                     REPLACE_TO=place / "s" / name)
    size = {"U8": 1, "F32": 4}
    versions = [[t.data[4 * size[t.dtype]:8 * size[t.dtype]] for t in (a, *others(seed))]
                for seed in (0, 1)]
    if view.startswith("tensors"):
        versions = [slices[1:2] for slices in versions]
    requests = "".join(f"{i} 4:8:1\n" for i in range(len(versions[0])))
    try:
        assert run(*options, "read", m / view, requests=requests, wrapper=wrapper).stdout in (
            b"".join(slices) for slices in versions)
    except Refused as refusal:
        assert refusal.args[0] == errno.ESTALE


@pytest.fixture
def faulty(mount, place):
    """(path of a model on storage with injected faults, its tensors, function that sets the rules)"""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "s")
    source.add("m", "model", [trees.tensor(f"t{i}", "U8", (2 << 20,)) for i in range(4)], shards=2)
    faults = place / "faults"
    slow = mount(source.root, "-o", f"faults={faults}", binary=SLOWFS)

    def set_rules(*rules):
        faults.with_suffix(".new").write_text("".join(r + "\n" for r in rules))
        os.rename(faults.with_suffix(".new"), faults)

    return slow / "m", source.checkpoints[0].tensors, set_rules


SHARD = "m/model-00002-of-00002.safetensors"


@pytest.mark.parametrize("engine", ENGINES)
def test_storage_fails(faulty, engine):
    path, tensors, set_rules = faulty
    options = ENGINES[engine]
    set_rules(f"read {SHARD} 3000000+1 error=EIO x2")
    forget(path)
    assert read(path, 4, *options) == b"".join(t.data for t in tensors)
    set_rules(f"read {SHARD} 3000000+1 error=EIO")
    forget(path)
    with pytest.raises(Refused) as refused:
        read(path, 4, *options)
    assert refused.value.args[0] == errno.EIO
    assert os.path.basename(SHARD) in refused.value.args[1]
    # Other tensors can still be read.
    assert run(*options, "read", path, requests="0\n1\n2\n").stdout == \
        b"".join(t.data for t in tensors[:3])


def refused(path, *options):
    with pytest.raises(Refused) as error:
        listing(path, *options)
    return error.value.args


def test_refused(place):
    tensors = trees.small_tensors()
    source = trees.Source(place)
    assert refused(place / "nothing")[0] == errno.ENOENT
    assert refused(place)[0] == errno.ENOENT
    assert refused("/dev/null")[0] == errno.EINVAL
    source.add("bad", "model", tensors)
    data = (place / "bad/model.safetensors").read_bytes()
    (place / "bad/model.safetensors").write_bytes(data[:-1])
    number, text = refused(place / "bad")
    assert number == errno.EBADMSG
    assert "MetadataIncompleteBuffer" in text and "model.safetensors" in text
    assert refused(place / "bad/model.safetensors")[0] == errno.EBADMSG

    source.add("missing", "model", tensors, shards=3)
    os.remove(place / "missing/model-00002-of-00003.safetensors")
    assert refused(place / "missing")[0] == errno.EBADMSG
    assert "missing" in refused(place / "missing")[1]

    source.add("index", "model", tensors, shards=2)
    (place / "index/model.safetensors.index.json").write_text("{")
    assert refused(place / "index/model.safetensors.index.json")[0] == errno.EBADMSG

    source.add("several", "a", tensors)
    source.add("several", "b", tensors)
    (place / "several/optimizer.pt").write_bytes(b"not a checkpoint")
    number, text = refused(place / "several")
    assert number == errno.ENOTUNIQ and "(a, b)" in text
    source.add("several", "model", tensors[:2])
    check(place / "several", tensors[:2])


def test_unreadable_file(place, test_user, user_program):
    (place / "m.safetensors").write_bytes(trees.file_bytes(trees.small_tensors()))
    os.chmod(place / "m.safetensors", 0)
    with pytest.raises(Refused) as error:
        listing(place / "m.safetensors", wrapper=as_user(test_user), program=user_program(CLIENT))
    assert error.value.args[0] == errno.EACCES
    assert "Permission denied" in error.value.args[1]
