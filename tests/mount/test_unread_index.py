# SPDX-License-Identifier: Apache-2.0
"""An index that cannot be read for a moment. Its directory also has an older set of shards of the
same name, which no file name distinguishes from a checkpoint. No view may show that set, under the
name of the checkpoint, without an error."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, as_user, eventually
from corpus import trees

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


class Views:
    """The tensors of the checkpoint in all views, each of which may have an error instead."""

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
def test_error_at_the_first_listing(mount, source, place, error):
    rules, below = behind(mount, source, place)
    rules.write_text(f"open m/{INDEX} error={error}\n")
    m = mount(below.path)
    views = Views(m, source)
    assert views.errors() == ["merged", "tensors", "shards"]
    assert any(INDEX in line and "its checkpoint is not shown" in line for line in m.problems())
    rules.write_text("")
    assert eventually(lambda: views.errors() == [] and INDEX not in "".join(m.problems()))


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
    """He cannot open what is made from the index and the shards, also if only the shards are known
    at the moment."""
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
