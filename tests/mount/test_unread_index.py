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
from conftest import BUILD, as_user, eventually
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
    with pytest.raises(OSError) as caught:
        os.stat(m / "merged/m/model.safetensors")
    assert caught.value.errno == errno.EIO
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
    with pytest.raises(OSError) as caught:
        os.stat(m / "merged/m/model.safetensors")
    assert caught.value.errno == errno.EIO
    rules.write_text("")
    old = {t.name: t.data for t in trees.small_tensors("t.", seed=1)}
    assert eventually(lambda: os.path.exists(m / "merged/m/model.safetensors"))
    assert tensors_of(m / "merged/m/model.safetensors") == old


@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_index_of_pytorch(mount, source, place, when):
    """A checkpoint of PyTorch with an index, beside a file that is another by its name."""
    directory, name = Path(source.path("torch")), "pytorch_model.bin.index.json"
    torchfiles.save(directory / "pytorch_model.bin", torchfiles.weights(3))
    for tensor in "ab":
        torchfiles.save(directory / f"{tensor}.bin", torchfiles.weights(tensor, {tensor: (5,)}))
    (directory / name).write_text('{"weight_map": {"a": "a.bin", "b": "b.bin"}}')
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
        with pytest.raises(OSError) as caught:
            os.stat(merged)
        assert caught.value.errno == errno.EIO
    rules.write_text("")
    assert eventually(lambda: os.path.exists(merged))
    assert set(tensors_of(merged)) == {"a", "b"}


def test_version_changes_while_it_is_read(mount, source, place):
    """As by chown(1): it is read again."""
    rules, below = behind(mount, source, place)
    rules.write_text(f"read m/{INDEX} error=ESTALE x3\n")
    m = mount(below.path)
    assert Views(m, source).errors() == []
    assert INDEX not in m.log_text()


def test_index_is_open_for_writing(mount, source):
    with open(source.path("m", INDEX), "r+b"):
        m = mount(source.root)
        views = Views(m, source)
        assert views.errors() == ["merged", "tensors", "shards"]
        with pytest.raises(OSError) as caught:
            os.stat(m / "merged/m/model.safetensors")
        assert caught.value.errno == errno.ETXTBSY
    assert eventually(lambda: views.errors() == [])


@pytest.mark.parametrize("when", ["before the mount", "later"])
def test_user_who_may_not_read_the_index(mount, source, place, test_user, when):
    """A user without a right to the index cannot open files that are made with it, even while the
    index cannot be read."""
    paths = ["merged/m/model.safetensors", f"shards/m/{INDEX}", "tensors/m/model.index.json"]
    os.chmod(source.path("m", INDEX), 0o600)
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
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
        assert eventually(lambda: not views.check("merged"))
        with pytest.raises(OSError) as caught:
            os.stat(m / "merged/m/model.safetensors")
        assert caught.value.errno == errno.ETXTBSY
    os.remove(control)
    assert eventually(lambda: views.errors() == [] and "aria2" not in "".join(m.problems()))


def error_of(path):
    try:
        Path(path).read_bytes()
    except OSError as error:
        return error.errno
    return None


@pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built")
@pytest.mark.parametrize("when", ["before the mount", "later"])
@pytest.mark.parametrize("operation", ["open", "read", "lookup"])
@pytest.mark.parametrize("options", [[], ["--shards=3"]], ids=["shards", "re-cut"])
def test_unread_shard(mount, place, options, operation, when):
    """A shard whose storage fails: the merged file and the index stay listed and return the error, so
    that no program takes the weights beside them. Tensors of other shards can be read."""
    source = trees.Source(place / "s")
    want = source.add("d", "model", trees.small_tensors("t."), shards=2)
    torchfiles.save(Path(source.path("d/pytorch_model.bin")), torchfiles.weights(1, {"other": (5,)}))
    rules = place / "faults"
    fault = f"{operation} d/model-00001* error=EIO\n"
    rules.write_text(fault if when == "before the mount" else "")
    below = mount(source.root, "-o", f"faults={rules},valid=0", binary=SLOWFS)
    m = mount(below.path, *options)
    merged, index = m / "merged/d/model.safetensors", m / f"shards/d/{INDEX}"
    if when == "later":
        assert error_of(merged) is None
        os.utime(source.path("d", want.shards[0][0]))
        rules.write_text(fault)
        assert eventually(lambda: error_of(merged) is not None)
    assert "model.safetensors" in os.listdir(m / "merged/d") and error_of(merged) == errno.EIO
    assert INDEX in os.listdir(m / "shards/d") and error_of(index) == (errno.EIO if options else None)
    assert {tensor.name for tensor in want.shards[1][1]} <= set(os.listdir(m / "tensors/d/model"))
    assert error_of(m / f"tensors/d/model/{want.shards[0][1][0].name}") == errno.EIO
    rules.write_text("")
    assert eventually(lambda: error_of(merged) is None)
    assert tensors_of(merged) == {tensor.name: tensor.data for tensor in want.tensors}
