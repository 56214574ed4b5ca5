# SPDX-License-Identifier: Apache-2.0
"""An index or a shard that cannot be read for a moment. Beside the index is an older set of shards
of the same name, which no file name distinguishes from a checkpoint. No view may show that set,
under the name of the checkpoint, without an error."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, as_user, child, eventually
from corpus import torchfiles, trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
INDEX = "model.safetensors.index.json"
ERRORS = ["EIO", "EACCES", "ESTALE"]


@pytest.fixture
def source(place):
    """The index names three shards; two older ones have the same tensors with other bytes."""
    old = trees.Source(place / "old")
    old.add("m", "model", trees.small_tensors("t.", seed=1), shards=2)
    source = trees.Source(place / "s")
    source.add("m", "model", trees.small_tensors("t.", seed=2), shards=3,
               index_metadata={"note": "kept"})
    for name in os.listdir(old.path("m")):
        if name != INDEX:
            shutil.copy(old.path("m", name), source.path("m", name))
    return source


def tensors_of(path):
    return {entry.name: entry.read() for entry in oracle.read_header(path)[0]}


def error_of(path):
    try:
        Path(path).read_bytes()
    except OSError as error:
        return error.errno
    return None


def source_names(source):
    return [name for name in os.listdir(source.path("m")) if name != INDEX]


class Views:
    """Reads the checkpoint through each view; a view may fail."""

    def __init__(self, m, source):
        self.m = m
        self.want = {t.name: t.data for t in source.checkpoints[0].tensors}

    def errors(self):
        """Checks that what can be read is right. Returns what cannot be read."""
        return [view for view in ("merged", "tensors", "shards") if not self.check(view)]

    def check(self, view):
        directory = Path(self.m.path, view, "m")
        try:
            if view == "tensors":
                got = {name: (directory / "model" / name).read_bytes()[-len(data):]
                       for name, data in self.want.items()}
                assert json.loads((directory / "model.index.json").read_bytes())[
                    "metadata"]["note"] == "kept"
                names = os.listdir(directory / "model")
                assert names, "an empty directory instead of an error"
                if len(names) < len(self.want):
                    return False  # those of a refused shard are missing
            elif view == "merged":
                got = tensors_of(directory / "model.safetensors")
            else:
                got = {}
                index = json.loads((directory / INDEX).read_bytes())
                assert index["metadata"]["note"] == "kept"
                for name in set(index["weight_map"].values()):
                    got |= tensors_of(directory / name)
        except OSError:
            return False
        assert got == self.want, view
        return True


def behind(mount, source, place):
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    rules = place / "faults"
    rules.write_text("")
    return rules, mount(source.root, "-o", f"faults={rules},valid=0,age=60", binary=SLOWFS)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["open", "lookup", "link"])
def test_error_at_the_first_listing(mount, source, place, call, error):
    """`link`: the index is a link, as in a Hugging Face cache, and its target is not found out."""
    rules, below = behind(mount, source, place)
    name = f"m/{INDEX}"
    if call == "link":
        os.makedirs(source.path("blobs"))
        os.rename(source.path(name), source.path("blobs/b"))
        os.symlink("../blobs/b", source.path(name))
    rule = "open" if call == "open" else "lookup"
    rules.write_text(f"{rule} {'blobs/b' if call == 'link' else name} error={error}\n")
    m = mount(below.path)
    views = Views(m, source)
    assert views.errors() == ["merged", "tensors", "shards"]
    for name in source_names(source):  # the shards themselves, for a loader that has the index
        assert oracle.read_all(m / f"shards/m/{name}") == oracle.read_all(source.path("m", name))
    for path in (f"shards/m/{INDEX}", "merged/m/model.safetensors", "tensors/m/model.index.json"):
        with pytest.raises(OSError) as caught:
            open(m / path, "rb")
        assert caught.value.errno != errno.ENOENT, path
    assert any(INDEX in line and "cannot be opened" in line for line in m.problems())
    rules.write_text("")
    assert eventually(lambda: views.errors() == [] and INDEX not in "".join(m.problems()))


def break_link(source, kind):
    """Replaces the index by a link that leads to no file. Returns what repairs it."""
    index, blob = source.path("m", INDEX), source.path("blob")
    targets = {"nothing": "../elsewhere", "loop": INDEX, "fifo": "../fifo"}
    os.mkfifo(source.path("fifo"))
    os.rename(index, blob)
    os.symlink(targets[kind], index)

    def repair():
        if kind == "nothing":
            os.rename(blob, source.path("elsewhere"))
            return
        os.symlink("../blob", index + ".new")
        os.rename(index + ".new", index)

    return repair


@pytest.mark.parametrize("kind", ["nothing", "loop", "fifo"])
@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_link_that_leads_to_no_file(mount, source, place, kind, when):
    """The index is a link, as in a cache of Hugging Face, and its target was removed."""
    if when == "later":
        m = mount(source.root)
        assert Views(m, source).errors() == []
    repair = break_link(source, kind)
    if when != "later":
        m = mount(source.root)
    views = Views(m, source)
    assert eventually(lambda: views.errors() == ["merged", "tensors", "shards"])
    assert error_of(m / "merged/m/model.safetensors") == errno.EIO
    for name in source_names(source):  # the shards themselves, for a loader that needs no index
        assert oracle.read_all(m / f"shards/m/{name}") == oracle.read_all(source.path("m", name))
    assert os.listdir(m / "merged/m") == ["model.safetensors"]
    assert INDEX in os.listdir(m / "shards/m")
    for view in ("merged", "shards"):  # which could take the shards by their names
        done = subprocess.run([BUILD / "fstfs-pack", f"{m.path}/{view}/m", place / "packed.safetensors"], capture_output=True)
        assert done.returncode == 1, view
    assert any(INDEX in line and "cannot be opened" in line for line in m.problems())
    repair()
    assert eventually(lambda: views.errors() == [] and INDEX not in "".join(m.problems()))


def test_link_to_another_file_system_that_leads_to_no_file(mount, source, place):
    """A thread of the daemon resolves such a link."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    (place / "other").mkdir()
    far = mount(place / "other", "-o", "valid=0", binary=SLOWFS)
    os.rename(source.path("m", INDEX), place / "index")
    os.symlink(f"{far.path}/index", source.path("m", INDEX))
    m = mount(source.root)
    views = Views(m, source)
    assert views.errors() == ["merged", "tensors", "shards"]
    os.rename(place / "index", place / "other/index")
    assert eventually(lambda: views.errors() == [] and INDEX not in "".join(m.problems()))
    os.rename(place / "other/index", place / "index")
    assert eventually(lambda: views.errors() == ["merged", "tensors", "shards"])


@pytest.mark.parametrize("error", ERRORS)
def test_error_at_a_later_listing(mount, source, place, error):
    rules, below = behind(mount, source, place)
    m = mount(below.path)
    views = Views(m, source)
    assert views.errors() == []
    rules.write_text(f"open m/{INDEX} error={error}\n")
    source.add_side("m/new.txt")
    assert eventually(lambda: "new.txt" in os.listdir(m / "merged/m"))
    assert views.errors() == []
    assert any(INDEX in line and "listed as before" in line for line in m.problems())
    rules.write_text("")
    assert eventually(lambda: INDEX not in "".join(m.problems()))
    assert views.errors() == []


def test_error_of_a_new_version(mount, source, place):
    """The index now names the older shards. Until it can be read, no view shows either of them as the
    checkpoint."""
    rules, below = behind(mount, source, place)
    m = mount(below.path)
    views = Views(m, source)
    assert views.errors() == []
    rules.write_text(f"open m/{INDEX} error=EIO\n")
    shutil.copy(place / "old/m" / INDEX, source.path("m", "new"))
    os.rename(source.path("m", "new"), source.path("m", INDEX))
    assert eventually(lambda: views.errors() == ["merged", "tensors", "shards"])
    assert error_of(m / "merged/m/model.safetensors") == errno.EIO
    rules.write_text("")
    old = {t.name: t.data for t in trees.small_tensors("t.", seed=1)}
    assert eventually(lambda: error_of(m / "merged/m/model.safetensors") is None)
    assert tensors_of(m / "merged/m/model.safetensors") == old


@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_index_of_pytorch(mount, source, place, when):
    """A checkpoint of PyTorch with an index."""
    directory, name = Path(source.path("torch")), "pytorch_model.bin.index.json"
    shards = {tensor: f"pytorch_model-0000{i}-of-00002.bin" for i, tensor in enumerate("ab", 1)}
    for tensor, shard in shards.items():
        torchfiles.save(directory / shard, torchfiles.weights(tensor, {tensor: (5,)}))
    (directory / name).write_text(json.dumps({"weight_map": shards}))
    rules, below = behind(mount, source, place)
    rule = f"open torch/{name} error=EIO\n"
    if when != "later":
        rules.write_text(rule)
    m = mount(below.path)
    merged = m / "merged/torch/model.safetensors"
    if when == "later":
        before = oracle.read_all(merged)
        rules.write_text(rule)
        source.add_side("torch/new.txt")
        assert eventually(lambda: "new.txt" in os.listdir(m / "merged/torch"))
        assert oracle.read_all(merged) == before
    else:
        assert error_of(merged) == errno.EIO and os.path.isfile(merged)
        assert error_of(m / f"merged/torch/{shards['a']}") == errno.EIO
    rules.write_text("")
    assert eventually(lambda: error_of(merged) is None)
    assert set(tensors_of(merged)) == {"a", "b"}


def test_version_changes_while_it_is_read(mount, source, place):
    """As by chown(1): it is read again."""
    rules, below = behind(mount, source, place)
    rules.write_text(f"read m/{INDEX} error=ESTALE x3\n")
    m = mount(below.path)
    assert Views(m, source).errors() == []
    assert INDEX not in m.log_text()


@pytest.mark.parametrize("content", [b"<html>", b'{"weight_map": {}}', b'{"weight_map": {"a": "sub/a.safetensors"}}'])
@pytest.mark.parametrize("options", [[], ["--shards=2"]])
def test_invalid_index_without_shards(mount, place, options, content):
    """As after a download that stored an error page. Loaders find the same files as on the bare directory, where
    they read the index, and not other weights under the name of its checkpoint."""
    directory = place / "s/d"
    torchfiles.save(directory / "pytorch_model.bin", torchfiles.weights(3))
    (directory / INDEX).write_bytes(content)
    m = mount(place / "s", *options)
    for view in ("merged", "shards"):
        assert sorted(os.listdir(m / f"{view}/d")) == [INDEX, "pytorch_model.bin"]
        for name in (INDEX, "pytorch_model.bin"):
            assert m.read(f"{view}/d/{name}") == (directory / name).read_bytes()
    assert any(INDEX in line for line in m.problems())
    os.remove(directory / INDEX)
    assert eventually(lambda: error_of(m / "merged/d/model.safetensors") is None)
    assert set(tensors_of(m / "merged/d/model.safetensors")) == set(torchfiles.weights(3))


@pytest.mark.parametrize("name", ["model.fp16.safetensors.index.json", "model.safetensors.index.fp16.json",
                                  "other.safetensors.index.json", "model.sft.index.json"])
def test_invalid_index_beside_a_checkpoint(mount, source, name):
    """The checkpoint is shown as without it."""
    source.add("m", "model.fp16", trees.small_tensors("h."), shards=2)
    with open(source.path("m", name), "w" if not os.path.exists(source.path("m", name)) else "a") as f:
        f.write("{")
    with open(source.path("m", "model.safetensors.fp16.index.json"), "w") as f:
        f.write("{")
    m = mount(source.root)
    assert Views(m, source).errors() == []
    assert set(tensors_of(m / "merged/m/model.fp16.safetensors")) == {t.name for t in trees.small_tensors("h.")}


def test_index_is_open_for_writing(mount, source):
    with open(source.path("m", INDEX), "r+b"):
        m = mount(source.root)
        views = Views(m, source)
        assert views.errors() == ["merged", "tensors", "shards"]
        assert error_of(m / "merged/m/model.safetensors") == errno.ETXTBSY
    assert eventually(lambda: views.errors() == [])


@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_user_who_may_not_read_the_index(mount, source, place, test_user, when):
    """A user without a right to the index cannot open files that are made with it, even while the
    index cannot be read."""
    paths = ["merged/m/model.safetensors", f"shards/m/{INDEX}", "tensors/m/model.index.json"]
    os.chmod(source.path("m", INDEX), 0o600)
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    if os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    rules = place / "faults"
    rules.write_text(f"open m/{INDEX} error=EIO\n" if when != "later" else "")
    below = mount(source.root, "-o", f"faults={rules},valid=0,age=60,allow_other", binary=SLOWFS)
    m = mount(below.path, "-o", "allow_other")
    if when == "later":
        assert Views(m, source).errors() == []
        rules.write_text(f"open m/{INDEX} error=EIO\n")
        source.add_side("m/new.txt")
        assert eventually(lambda: "new.txt" in os.listdir(m / "merged/m"))
    for path in paths:
        done = subprocess.run([*as_user(test_user), "cat", m / path], capture_output=True)
        assert done.returncode == 1 and done.stdout == b"", path
    rules.write_text("")
    assert eventually(lambda: Views(m, source).errors() == [])


@pytest.mark.parametrize("name", [INDEX, "model-00002-of-00003.safetensors"])
@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_control_file_of_aria2(mount, source, name, when):
    """The index, or a shard, whose download is not finished. An index that was read before is kept."""
    control = source.path(f"m/{name}.aria2")
    if when == "later":
        m = mount(source.root)
        assert Views(m, source).errors() == []
    with open(control, "wb") as f:
        f.write(b"\0\1")
    if when != "later":
        m = mount(source.root)
    views = Views(m, source)
    assert eventually(lambda: any(name in line and "UnfinishedDownload" in line
                                  for line in m.problems()))
    if name == INDEX and when == "later":
        assert views.errors() == []
    else:
        assert eventually(lambda: error_of(m / "merged/m/model.safetensors") == errno.ETXTBSY)
        assert "model.safetensors" in os.listdir(m / "merged/m")
        assert os.path.isfile(m / "merged/m/model.safetensors")
    os.remove(control)
    assert eventually(lambda: views.errors() == [] and "aria2" not in "".join(m.problems()))


def look(m, *paths):
    """Which paths are listed, and {path: (size, error of reading it)}."""
    names = [f"{view}/d/{name}" for view in ("merged", "shards") for name in os.listdir(m / f"{view}/d")]
    return names, {path: (os.stat(m / path).st_size, error_of(m / path)) for path in paths}


def wait_for(m, user, listed, expected):
    """Waits until a user of the mount finds these files."""
    found = []

    def is_found():
        try:
            found.append(child(look, m, *expected, user=user))
        except OSError as error:  # the version before has just ended
            found.append(error)
            return False
        return listed <= set(found[-1][0]) and found[-1][1] == expected

    assert eventually(is_found), found[-1]


@pytest.fixture(params=["alone", "shared"])
def user(request):
    """Another user, if the mount is shared."""
    if request.param == "alone":
        return None
    if os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    return "nobody"


def options_of(user):
    return ["-o", "allow_other"] if user else []


needs_slowfs = pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built")
FAULTS = {"open": "EIO", "read": "EIO", "lookup": "EIO", "open ": "EACCES"}


@needs_slowfs
@pytest.mark.parametrize("when", ["before the mount", "later"])
@pytest.mark.parametrize("operation", FAULTS)
@pytest.mark.parametrize("options", [[], ["--shards=3"]], ids=["shards", "re-cut"])
@pytest.mark.parametrize("what", ["shard", "index"])
def test_unread_file(mount, place, what, options, operation, when, user):
    """A shard or the index cannot be read: the merged file and the index can still be found with
    stat(2), by which programs choose the weights to load, and cannot be opened. Tensors of other
    shards can be read."""
    error = getattr(errno, FAULTS[operation])
    source = trees.Source(place / "s")
    want = source.add("d", "model", trees.small_tensors("t."), shards=2)
    torchfiles.save(Path(source.path("d/pytorch_model.bin")), torchfiles.weights(1, {"other": (5,)}))
    merged, index = "merged/d/model.safetensors", f"shards/d/{INDEX}"
    lost = want.shards[0][0] if what == "shard" else INDEX
    sizes = {name: os.stat(source.path("d", name)).st_size for name in os.listdir(source.path("d"))}
    size = sum(sizes[name] for name, _ in want.shards if operation != "lookup" or name != lost)
    rules = place / "faults"
    fault = f"{operation} d/{lost} error={FAULTS[operation]}\n"
    rules.write_text(fault if when == "before the mount" else "")
    below = mount(source.root, "-o", f"faults={rules},valid=0", *options_of(user), binary=SLOWFS)
    m = mount(below.path, *options, *options_of(user))
    if when == "later":
        assert error_of(m / merged) is None
        os.utime(source.path("d", lost))
        rules.write_text(fault)
    expected = {merged: (size, error)}
    if options:
        expected[index] = (size, error)
    elif what == "shard":
        expected[index] = (sizes[INDEX], None)
    elif operation != "lookup":
        expected[index] = (sizes[INDEX], error)
    wait_for(m, user, {merged, index}, expected)
    if options:
        assert eventually(lambda: error_of(m / "shards/d/model-00001-of-00003.safetensors") == error)
    if what == "shard":
        assert error_of(m / f"tensors/d/model/{want.shards[0][1][0].name}") == error
        assert {tensor.name for tensor in want.shards[1][1]} == set(
            child(os.listdir, m / "tensors/d/model", user=user))
        for tensor in want.shards[1][1]:
            assert eventually(lambda: error_of(m / f"tensors/d/model/{tensor.name}") is None)
    rules.write_text("")
    assert eventually(lambda: error_of(m / merged) is None)
    assert tensors_of(m / merged) == {tensor.name: tensor.data for tensor in want.tensors}
    assert os.stat(m / merged).st_size == len(oracle.read_all(m / merged))


@needs_slowfs
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("operation", ["open", "lookup"])
def test_unread_shard_without_an_index(mount, place, operation, shards, user):
    """The size of what has none is not 0: tar does not open an empty file, and stores it."""
    source = trees.Source(place / "s")
    want = source.add("d", "model", trees.small_tensors("t."), shards=shards)
    if shards > 1:
        os.remove(source.path("d", INDEX))
    rules = place / "faults"
    rules.write_text(f"{operation} d/model* error=EIO\n")
    below = mount(source.root, "-o", f"faults={rules},valid=0", *options_of(user), binary=SLOWFS)
    m = mount(below.path, *options_of(user))
    size = sum(os.stat(source.path("d", name)).st_size for name, _ in want.shards)
    paths = ["merged/d/model.safetensors"] + [f"shards/d/{INDEX}"] * (shards > 1)
    wait_for(m, user, set(paths), {path: (size if operation == "open" else 1, errno.EIO) for path in paths})
    before = os.stat(m / paths[0])
    archive = place / "archive.tar"
    assert subprocess.run(["tar", "cf", archive, "-C", m / "merged", "d"], capture_output=True).returncode != 0
    assert operation == "lookup" or before.st_mtime > 0
    rules.write_text("")
    assert eventually(lambda: error_of(m / paths[0]) is None)
    assert tensors_of(m / paths[0]) == {tensor.name: tensor.data for tensor in want.tensors}
    assert os.stat(m / paths[0]).st_ctime_ns != before.st_ctime_ns


@needs_slowfs
@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
@pytest.mark.parametrize("options", [[], ["--shards=3"]], ids=["shards", "re-cut"])
def test_storage_fails_only_for_the_check(mount, place, options, error):
    """The daemon knows the headers of an unchanged checkpoint. The size of one that the caller cannot
    open for a moment is not that of the file that he reads later."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    source = trees.Source(place / "s")
    want = source.add("d", "model", trees.small_tensors("t."), shards=2)
    size = sum(os.stat(source.path("d", name)).st_size for name, _ in want.shards)
    rules = place / "faults"
    rules.write_text("")
    below = mount(source.root, "-o", f"faults={rules},valid=0,allow_other", binary=SLOWFS)
    m = mount(below.path, "-o", "allow_other", *options)
    paths = ["merged/d/model.safetensors"] + [f"shards/d/{INDEX}"] * len(options)
    right = [child(oracle.read_all, m / path, user="nobody") for path in paths]
    assert len(right[0]) != size
    for _ in range(3):
        rules.write_text(f"open d/model-00001* error={error}\n")
        wait_for(m, "nobody", set(paths), {path: (size, getattr(errno, error)) for path in paths})
        rules.write_text("")
        for path, content in zip(paths, right):
            assert eventually(lambda: child(error_of, m / path, user="nobody") is None)
            assert child(oracle.read_all, m / path, user="nobody") == content
            assert os.stat(m / path).st_size == len(content)


def write_closed_shard(path, kind):
    """Of one size. The kinds are tensors with some names or with others, and a file that is invalid."""
    tensors = trees.small_tensors("t." if kind == "names" else "t.with.other.names.")
    data = bytearray(trees.file_bytes(tensors, pad=8192))
    if kind == "invalid":
        data[8] = ord("x")
    Path(path).write_bytes(data)


@needs_slowfs
@pytest.mark.parametrize("options", [[], ["--shards=3"]], ids=["shards", "re-cut"])
@pytest.mark.parametrize("failing", [None, "model-00001-of-00002.safetensors", INDEX])
def test_what_a_closed_shard_shows(mount, place, failing, options):
    """The caller may not read the second shard. What he finds does not depend on what is in it, also
    while the storage of the first one, or of the index, fails."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    source = trees.Source(place / "s")
    source.add("d", "model", trees.small_tensors("a."), shards=2)
    closed = source.path("d", "model-00002-of-00002.safetensors")
    if failing == INDEX:
        os.chmod(source.path("d", "model-00001-of-00002.safetensors"), 0o600)
    else:
        os.remove(source.path("d", INDEX))
    if failing:  # a link to another file system
        far, rules = place / "far", place / "faults"
        far.mkdir()
        os.rename(source.path("d", failing), far / failing)
        below = mount(far, "-o", f"faults={rules},valid=0,allow_other", binary=SLOWFS)
        os.symlink(f"{below.path}/{failing}", source.path("d", failing))
    found = {}
    for kind in ("names", "others", "invalid"):
        os.remove(closed)
        write_closed_shard(closed, kind)
        os.chmod(closed, 0o600)
        os.utime(closed, (1, 1))
        for when in ("at once", "later"):  # the daemon knows the headers
            if failing:
                rules.write_text("open model* error=EIO\n" if when == "at once" else "")
            m = mount(source.root, "-o", "allow_other", *options)
            if when == "later" and failing:
                os.listdir(m / "merged/d")
                rules.write_text("open model* error=EIO\n")
            found[when, kind] = child(attributes, m, user="nobody")
            m.unmount()
    for when in ("at once", "later"):
        assert found[when, "names"] == found[when, "others"] == found[when, "invalid"]


def attributes(m):
    """What stat(2) returns for names that may exist: of the re-cut files too, and of tensors."""
    tensors = [name for prefix in ("a.", "t.", "t.with.other.names.")
               for name in (t.name for t in trees.small_tensors(prefix))]
    found = {}
    for view in ("merged", "shards", "tensors", "npy"):
        names = ["model.safetensors", INDEX, "model.index.json", "model"]
        names += [f"model-{i:05}-of-{n:05}.safetensors" for n in (2, 3) for i in (1, 2, 3)]
        names += [f"model/{name}{'.npy' * (view == 'npy')}" for name in tensors]
        for path in (f"{view}/d/{name}" for name in names):
            try:
                st = os.stat(m / path)
                found[path] = oct(st.st_mode), st.st_uid, st.st_size, st.st_mtime
            except OSError as e:
                found[path] = errno.errorcode[e.errno]
    return found
