# SPDX-License-Identifier: Apache-2.0
"""What links lead to changes, while the directory that holds the links stays as it is: its times do
not change, so nothing but the targets shows it."""

import errno
import itertools
import os
import shutil
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, child, eventually
from corpus import torchfiles, trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
INDEX = "model.safetensors.index.json"
ERRORS = (errno.EIO, errno.ESTALE, errno.EACCES)
MODEL = "model.safetensors"
ANOTHER = "nobody"  # a user


@pytest.fixture
def source(place):
    """Two directories of links into place/blobs, and the files for the blobs in place/files. m/ has
    two sets of shards; an index tells which are the checkpoint."""
    source = trees.Source(place / "s")
    source.add("m", "model", trees.small_tensors("old."), shards=2)
    os.remove(source.path("m", INDEX))
    files = trees.Source(place / "files")
    files.add("", "w", trees.small_tensors("w."))
    files.add_side("config.json", b"{}")
    new = files.add("new", "model", trees.small_tensors("new."), shards=3)
    for name, _ in new.shards:
        os.rename(files.path("new", name), source.path("m", name))
    os.rename(files.path("new", INDEX), files.path(INDEX))
    os.mkdir(source.path("w"))
    for link, blob in ((f"m/{INDEX}", INDEX), (f"w/{MODEL}", "w.safetensors"), ("w/config.json", "config.json")):
        os.symlink(f"../../blobs/{blob}", source.path(link))
    (place / "blobs").mkdir()
    return source


def be_directories(place):
    for blob in (INDEX, "w.safetensors", "config.json"):
        (place / "blobs" / blob).unlink(missing_ok=True)
        (place / "blobs" / blob).mkdir()


def be_files(place):
    for blob in (INDEX, "w.safetensors", "config.json"):
        if (place / "blobs" / blob).is_dir():
            (place / "blobs" / blob).rmdir()
        shutil.copy(place / "files" / blob, place / "blobs" / blob)


def be_nothing(place):
    be_files(place)
    for blob in (INDEX, "w.safetensors", "config.json"):
        (place / "blobs" / blob).unlink()


CHANGES = {"directories": be_directories, "files": be_files, "nothing": be_nothing}


def shown(m):
    """What a mount shows: {path: names of a directory, tensors or bytes of a file, or the error}."""
    found = {}
    for view in ("merged", "shards", "tensors"):
        for directory in "mw":
            at = m / f"{view}/{directory}"
            found[at[len(str(m.path)):]] = names = sorted(os.listdir(at))
            for name in names:
                try:
                    read = os.listdir(f"{at}/{name}") if os.path.isdir(f"{at}/{name}") else \
                        oracle.read_all(f"{at}/{name}")
                except OSError as error:
                    read = error.errno
                found[f"{view}/{directory}/{name}"] = read
    return found


@pytest.mark.parametrize("options", [(), ("-o", "allow_other")], ids=["private", "allow_other"])
@pytest.mark.parametrize("before, after", list(itertools.permutations(CHANGES, 2)))
def test_kind_of_target_changes(mount, place, source, before, after, options):
    if options and os.geteuid() != 0:
        pytest.skip("needs root, or user_allow_other")
    CHANGES[before](place)
    m = mount(source.root, *options)
    shown(m)
    CHANGES[after](place)
    fresh = shown(mount(source.root, *options))
    assert eventually(lambda: shown(m) == fresh), (shown(m), fresh)
    assert (fresh.get(f"merged/w/{MODEL}") == oracle.read_all(place / "files/w.safetensors")) == (
        after == "files")


@pytest.mark.parametrize("before, after", [("directories", "files"), ("files", "directories"),
                                           ("nothing", "directories")])
def test_index_on_another_file_system(mount, place, source, before, after):
    """Threads of the daemon resolve such links; only those of indexes are followed again."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    CHANGES[before](place)
    far = mount(place / "blobs", "-o", "valid=0", binary=SLOWFS)
    os.remove(source.path("m", INDEX))
    os.symlink(f"{far.path}/{INDEX}", source.path("m", INDEX))
    m = mount(source.root)
    shown(m)
    CHANGES[after](place)
    fresh = shown(mount(source.root))
    assert eventually(lambda: shown(m) == fresh), (shown(m), fresh)


def test_one_of_many_links(mount, place):
    """Of very many links, some are followed at each check."""
    source = trees.Source(place / "s")
    (place / "blobs").mkdir()
    os.makedirs(source.path("d"))
    for i in range(1300):
        (place / f"blobs/{i}").write_bytes(b"x")
        os.symlink(f"../../blobs/{i}", source.path(f"d/{i}.txt"))
    m = mount(source.root)
    assert len(os.listdir(m / "shards/d")) == 1300
    os.remove(place / "blobs/700")
    assert eventually(lambda: "700.txt" not in os.listdir(m / "shards/d"), seconds=20)
    assert len(os.listdir(m / "shards/d")) == 1299


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES"])
@pytest.mark.parametrize("when", ["before the mount", "later"])
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("user", [None, ANOTHER], ids=["alone", "shared"])
def test_error_instead_of_the_target(mount, place, error, when, where, user):
    """The storage of a link fails for a moment: its name is not left out, and no other file with its
    stem is shown in its place. `outside`: the link leads to another file system. shared: the caller
    is another user."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    if user and os.geteuid() != 0:
        pytest.skip("needs root: it has two users")
    if user and error == "EACCES":
        pytest.skip("the same error as for a caller who may not follow the link")
    shared = ["-o", "allow_other"] if user else []
    source = trees.Source(place / "s")
    source.add("d", "model", trees.small_tensors("link."))
    source.add_side("d/config.json", b"{}")
    os.makedirs(source.path("blobs/directory"))
    torchfiles.save(Path(source.path("d/pytorch_model.bin")), torchfiles.weights(1, {"other": (5,)}))
    rules = place / "faults"
    rules.write_text("")
    blobs = Path(source.path("blobs")) if where == "inside" else place / "blobs"
    shutil.copytree(source.path("blobs"), blobs, dirs_exist_ok=True)
    below = mount(source.root if where == "inside" else blobs, "-o", f"faults={rules},valid=0,age=60",
                  *shared, binary=SLOWFS)
    content = oracle.read_all(source.path("d", MODEL))
    for name in (MODEL, "config.json"):
        os.rename(source.path("d", name), blobs / name)
    prefix = "../blobs" if where == "inside" else below.path
    for name in (MODEL, "config.json", "directory"):
        os.symlink(f"{prefix}/{name}", source.path("d", name))
    rule = "".join(f"lookup {'blobs/' * (where == 'inside')}{name} error={error}\n"
                   for name in (MODEL, "config.json", "directory"))
    if when == "before the mount":
        rules.write_text(rule)
    m = mount(below.path if where == "inside" else source.root, *shared)

    def shown():
        return child(shown_of, m, user=user)

    if when == "later":
        right = shown()
        assert {"config.json", "directory", MODEL} <= right["shards"].keys()
        rules.write_text(rule)
        source.add_side("d/new", b"")
        assert eventually(lambda: "new" in os.listdir(m / "merged/d"))
    for view, names in shown().items():
        assert view == "tensors" or {"config.json", "directory"} <= names.keys(), view
        assert view == "tensors" or names[MODEL] in (*ERRORS, content), view
        assert "other" not in str(names.get("model")), view
    rules.write_text("")
    assert eventually(lambda: shown().get("merged", {}).get(MODEL) == oracle.read_all(blobs / MODEL)), shown()
    if when == "later":
        assert eventually(lambda: {**shown()["shards"], "new": None} == {**right["shards"], "new": None})
    assert eventually(lambda: not any("cannot determine" in line for line in m.problems()))


def shown_of(m):
    """{view: {name in d: bytes of a file, or names in a directory, or the error}}."""
    found = {}
    for view in ("merged", "shards", "tensors"):
        found[view] = {}
        for name in os.listdir(m / f"{view}/d"):
            path = m / f"{view}/d/{name}"
            try:
                found[view][name] = sorted(os.listdir(path)) if os.path.isdir(path) else oracle.read_all(path)
            except OSError as error:
                found[view][name] = error.errno
    return found
