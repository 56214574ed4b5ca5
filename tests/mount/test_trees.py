# SPDX-License-Identifier: Apache-2.0
"""Source trees, each in every view: names, listings, links."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess

import oracle
import pytest
from conftest import child, eventually
from corpus import trees

VIEWS = ("tensors", "merged", "shards", "npy")
MAKERS = [trees.in_root, trees.nested, trees.diffusers, trees.adapters, trees.hub_cache,
          trees.together, trees.sharded_without_index, trees.names]


@pytest.fixture(scope="session")
def sources(shared_place):
    made = {}

    def get(maker):
        if maker not in made:
            made[maker] = maker(shared_place / maker.__name__)
        return made[maker]

    return get


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("options", [(), ("--shards=2",), ("--shards=1",), ("--shard-size=5K",)],
                         ids=["as-source", "recut", "recut-to-one", "recut-by-size"])
def test_tree(mount, sources, maker, options):
    source = sources(maker)
    m = mount(source.root, *options)
    assert sorted(os.listdir(m.path)) == [".fstfs", "merged", "npy", "shards", "tensors"]
    oracle.check_source(m.path, source, options)
    assert m.problems() == []


def test_linked_model_directory(mount, place):
    source = trees.linked_model(place / "s", place / "elsewhere")
    m = mount(source.root)
    oracle.check_source(m.path, source)
    for view in VIEWS:
        assert stat.S_ISDIR(os.lstat(m / f"{view}/linked").st_mode)
    assert m.problems() == []


def test_source_is_a_link(mount, place):
    source = trees.in_root(place / "s")
    os.symlink("s", place / "link")
    m = mount(place / "link")
    oracle.check_source(m.path, source)


def test_recut_of_diffusers_keeps_index_spelling(mount, sources):
    source = sources(trees.diffusers)
    m = mount(source.root, "--shards=3")
    assert sorted(n for n in os.listdir(m / "shards/pipeline/unet")) == [
        "diffusion_pytorch_model.fp16-00001-of-00003.safetensors",
        "diffusion_pytorch_model.fp16-00002-of-00003.safetensors",
        "diffusion_pytorch_model.fp16-00003-of-00003.safetensors",
        "diffusion_pytorch_model.safetensors.index.fp16.json"]
    assert "model.safetensors.index.json" in os.listdir(m / "shards/pipeline/text_encoder_2")
    assert "model.safetensors.index.fp16.json" in os.listdir(m / "shards/pipeline/text_encoder_2")


def test_recut_of_names_that_look_like_shards(mount, place):
    """Depending on its neighbours, a file with such a name is a single file or a shard."""
    source = trees.Source(place / "s")
    source.add("beyond", "o-00009-of-00002", trees.small_tensors("o.", count=1))
    source.add("indexed", "o-00001-of-00002", trees.small_tensors("i.", count=1),
               names=["a.safetensors"], index="o-00001-of-00002.safetensors.index.json")
    source.add("cut", "o-00009-of-00002", trees.small_tensors("b.", count=4))
    options = ["--shard-size=4104"]
    m = mount(source.root, *options)
    for directory, names in (
            ("beyond", ["o-00009-of-00002.safetensors"]),
            ("indexed", ["o-00001-of-00002.safetensors"]),
            ("cut", ["o-00009-of-00002-00001-of-00002.safetensors",
                     "o-00009-of-00002-00002-of-00002.safetensors",
                     "o-00009-of-00002.safetensors.index.json"])):
        assert sorted(os.listdir(m / f"shards/{directory}")) == names
    oracle.check_source(m.path, source, options)
    with pytest.raises(FileNotFoundError):
        os.lstat(m / "shards/cut/o-00009-of-00002.safetensors")


def of(stem, count):
    return [f"{stem}-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


# The files of trees.together in shards/ with an option, besides those as in the source.
RECUT_TOGETHER = {
    "--shards=2": {
        "mistral": of("model", 2) + ["model.safetensors.index.json"],
        "unnamed": [],
        "variants": of("diffusion_pytorch_model", 2) + of("diffusion_pytorch_model.fp16", 2) +
                    ["diffusion_pytorch_model.safetensors.index.json",
                     "diffusion_pytorch_model.safetensors.index.fp16.json"],
        "legacy": of("diffusion_pytorch_model.fp16", 2) +
                  ["diffusion_pytorch_model.safetensors.fp16.index.json"],
        "indexed": [], "indexed-beside": [], "singles": []},
    # one file, next to others: it keeps its index
    "--shards=1": {
        "mistral": ["model.safetensors", "model.safetensors.index.json"],
        "unnamed": [],
        "variants": ["diffusion_pytorch_model.safetensors",
                     "diffusion_pytorch_model.fp16.safetensors",
                     "diffusion_pytorch_model.safetensors.index.json",
                     "diffusion_pytorch_model.safetensors.index.fp16.json"],
        "legacy": ["diffusion_pytorch_model.fp16.safetensors",
                   "diffusion_pytorch_model.safetensors.fp16.index.json"],
        "indexed": [], "indexed-beside": [], "singles": []},
    # single files over 5000 bytes are cut, unless another checkpoint has an index
    "--shard-size=5000": {
        "mistral": of("model", 4) + ["model.safetensors.index.json"],
        "unnamed": [],
        "variants": of("diffusion_pytorch_model", 2) + of("diffusion_pytorch_model.fp16", 2) +
                    ["diffusion_pytorch_model.safetensors.index.json",
                     "diffusion_pytorch_model.safetensors.index.fp16.json"],
        "legacy": of("diffusion_pytorch_model.fp16", 2) +
                  ["diffusion_pytorch_model.safetensors.fp16.index.json"],
        "indexed": ["model.safetensors"],
        "indexed-beside": ["model.safetensors", "model.safetensors.index.json"],
        "singles": of("model.fp16", 2) + ["model.safetensors.index.fp16.json"]},
}


@pytest.mark.parametrize("option", RECUT_TOGETHER)
def test_recut_next_to_others(mount, sources, option):
    """Files that loaders open by name stay unchanged, and so does what needs an index that would hide
    other files from vLLM and SGLang. If the source has one index, shards/ has one."""
    source = sources(trees.together)
    m = mount(source.root, option)
    for directory, made in RECUT_TOGETHER[option].items():
        stems = {re.sub(r"-\d{5}-of-\d{5}|\.safetensors.*", "", name) for name in made
                 if name.endswith(".safetensors")}
        others = [c for c in source.checkpoints
                  if c.directory == directory and c.stem not in stems]
        kept = [name for c in others for name, _ in c.shards]
        kept += [c.index for c in others if c.index]
        kept += ["config.json"] if directory == "mistral" else []
        assert sorted(os.listdir(m / f"shards/{directory}")) == sorted(made + kept), directory
        for name in kept:
            assert m.read(f"shards/{directory}/{name}") == \
                oracle.read_all(source.path(directory, name)), name
    assert m.problems() == []


def test_index_of_a_merged_file_next_to_others(mount, place):
    """It appears and disappears with the other checkpoint, and with the merged file."""
    source = trees.Source(place / "s")
    c = source.add("m", "model", trees.small_tensors(count=6), shards=2)
    m = mount(source.root)
    assert os.listdir(m / "merged/m") == ["model.safetensors"]
    source.place("m/adapter_model.safetensors", trees.file_bytes(trees.small_tensors("a.")))
    both = ["adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json"]
    assert eventually(lambda: os.listdir(m / "merged/m") == both)
    oracle.check_merged(m / "merged", c, keeps_index=True)
    os.rename(source.path("m", c.shards[0][0]), source.path("away"))
    assert eventually(lambda: os.listdir(m / "merged/m") == ["adapter_model.safetensors"])
    assert eventually(lambda: not os.path.lexists(m / "merged/m/model.safetensors.index.json"))
    os.rename(source.path("away"), source.path("m", c.shards[0][0]))
    assert eventually(lambda: os.listdir(m / "merged/m") == both)
    os.unlink(source.path("m/adapter_model.safetensors"))
    assert eventually(lambda: os.listdir(m / "merged/m") == ["model.safetensors"])
    assert eventually(lambda: not os.path.lexists(m / "merged/m/model.safetensors.index.json"))


@pytest.mark.parametrize("metadata", [
    b'{}', b'[1]', b'7', b'null', b'{"total_size": "wrong", "total_size\\u0000": 1}',
    b'{"total\\u005fsize": 5, "a": {"b": [1.50, -0e1, "\\u00e9"]}}', b'{"x": "' + b"y" * 70000 + b'"}'])
def test_metadata_of_the_index(mount, place, metadata):
    """Further entries of the source's index are in the indexes made from it."""
    source = trees.Source(place / "s")
    c = source.add("m", "model", trees.small_tensors(count=4), shards=2, index=False)
    source.add("m", "other", trees.small_tensors(count=2))
    text = trees.index_bytes({t.name: name for name, tensors in c.shards for t in tensors})
    source.place("m/model.safetensors.index.json", text.replace(b'"metadata": {}',
                                                                b'"metadata": ' + metadata))
    given = json.loads(metadata)
    want = dict(given) if isinstance(given, dict) and len(metadata) < 65536 else {}
    want["total_size"] = sum(t.size for t in c.tensors)
    m = mount(source.root, "--shards=3")
    for path in ("merged/m/model.safetensors.index.json", "shards/m/model.safetensors.index.json",
                 "tensors/m/model.index.json"):
        assert json.loads(m.read(path))["metadata"] == want, path


def test_one_coherent_checkpoint_per_directory(mount, sources):
    """No directory has files that loaders would read twice or reject."""
    source = sources(trees.nested)
    m = mount(source.root)
    for path in oracle.walk(m / "merged"):
        assert b".safetensors.index." not in path and b"-of-" not in path
    for c in source.checkpoints:
        here = os.listdir(m / f"shards/{c.directory}")
        assert ("model.safetensors" in here) != ("model.safetensors.index.json" in here)
        assert sum(n.endswith(".index.json") for n in here) == (len(c.shards) > 1)


@pytest.mark.limit(120)
def test_many_small_files(mount, place):
    source = trees.many_small(place / "s", 2000)
    m = mount(source.root)
    for view in VIEWS:
        expected = oracle.Expected(source, view).paths()
        assert oracle.walk(m / view) == expected, view
    for c in source.checkpoints[::67]:
        oracle.check_tensors(m / "tensors", c)
        oracle.check_npy(m / "npy", c)
        oracle.check_merged(m / "merged", c)
        oracle.check_shards_as_source(m / "shards", source, c)
    assert m.problems() == []


def raw_listing(path):
    """Names in the order of the mount's listing."""
    with os.scandir(os.fsencode(path)) as entries:
        return [e.name for e in entries]


@pytest.mark.parametrize("maker", [trees.nested, trees.names, trees.diffusers],
                         ids=lambda m: m.__name__)
def test_listings_are_sorted_and_complete(mount, sources, maker):
    source = sources(maker)
    m = mount(source.root)
    for view in VIEWS:
        root = os.fsencode(m / view)
        directories = [root] + [os.path.join(root, p) for p, kind in oracle.walk(root).items()
                                if kind == "d"]
        for directory in directories:
            names = raw_listing(directory)
            assert names == sorted(names), directory
            assert len(set(names)) == len(names)
            with os.scandir(directory) as entries:
                for e in entries:
                    found = os.lstat(e.path)
                    assert found.st_ino == e.inode(), e.path
                    assert stat.S_ISDIR(found.st_mode) == e.is_dir(follow_symlinks=False)


def test_listing_with_another_reader_in_between(mount, place):
    """The start of a directory is read, then all of it by another reader, then the rest."""
    source = trees.many_small(place / "s", 700)
    m = mount(source.root)
    fd = os.open(m / "merged/latents", os.O_RDONLY | os.O_DIRECTORY)
    with os.scandir(fd) as first:
        begun = [next(first).name for _ in range(100)]
        with os.scandir(m / "merged/latents") as second:
            whole = [e.name for e in second]
        begun += [e.name for e in first]
    os.close(fd)
    assert begun == whole and len(whole) == 700


def everything(root):
    """{(view, path): (inode, mode, size, owner, group, mtime)} of a mount."""
    found = {}
    for view in VIEWS:
        base = os.fsencode(os.path.join(root, view))
        for path in [b""] + sorted(oracle.walk(base)):
            st = os.lstat(os.path.join(base, path))
            found[view, path] = (st.st_ino, st.st_mode, st.st_size, st.st_uid, st.st_gid,
                                 st.st_mtime_ns)
    return found


def test_inodes_are_stable_across_mounts(mount, sources):
    for maker in (trees.nested, trees.diffusers, trees.names):
        source = sources(maker)
        first = mount(source.root)
        seen = everything(first.path)
        first.unmount()
        inodes = [v[0] for v in seen.values()]
        assert len(set(inodes)) == len(inodes)
        second = mount(source.root)
        # in another order: a deep file first, then everything
        some = sorted(p for p in seen if p[0] == "npy" and p[1])[-1]
        os.lstat(os.path.join(os.fsencode(second / some[0]), some[1]))
        assert everything(second.path) == seen


def test_attributes_by_lookup_and_by_listing_agree(mount, sources):
    source = sources(trees.nested)
    listed = mount(source.root)
    seen = everything(listed.path)
    looked = mount(source.root)
    for (view, path), attributes in seen.items():
        st = os.lstat(os.path.join(os.fsencode(looked / view), path))
        assert (st.st_ino, st.st_mode, st.st_size, st.st_uid, st.st_gid, st.st_mtime_ns) \
            == attributes, (view, path)


def test_lookup_of_missing_names(mount, sources):
    m = mount(sources(trees.nested).root)
    for path in ("nothing", "tensors/nothing", "tensors/org0/nothing",
                 "tensors/org0/family0/model000/model.safetensors",
                 "tensors/org0/family0/model000/model/nothing",
                 "tensors/org0/family0/model000/config.json",
                 "npy/org0/family0/model000/model.index.json",
                 "npy/org0/family0/model000/model/m0.t0.weight",
                 "npy/org0/family0/model000/model/.npy",
                 "merged/org1/family1/model001/model-00001-of-00002.safetensors",
                 "merged/org1/family1/model001/model.safetensors.index.json",
                 "shards/org1/family1/model001/model.safetensors",
                 "merged/README.md/x", ".fstfs/nothing", "x" * 255):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            os.lstat(m / path)
    with pytest.raises(OSError) as raised:
        os.lstat(m / ("tensors/" + "x" * 256))
    assert raised.value.errno == errno.ENAMETOOLONG
    assert m.problems() == []


def test_escaped_names_are_canonical(mount, sources):
    source = sources(trees.names)
    c, = source.checkpoints
    m = mount(source.root)
    index = oracle.check_merged_index(m / "tensors", c)
    assert set(index["weight_map"]) == set(trees.HARD_NAMES)
    for view, npy in (("tensors", False), ("npy", True)):
        files = {oracle.tensor_file(m / view, c, t, npy) for t in c.tensors}
        assert len(files) == len(c.tensors)
        assert len(os.listdir(m / f"{view}/names/model")) == len(c.tensors)
    for t in c.tensors:
        path = oracle.tensor_file(m / "tensors", c, t)
        assert os.getxattr(path, "user.safetensors.name") == t.name.encode()
    # A name that is spelled differently than listed does not exist.
    for wrong in ("a/b", "%2f", "a%2fb", ".hidden", "%41"):
        assert not os.path.exists(m / f"tensors/names/model/{wrong}")


def test_cut_names_are_the_same_in_all_views(mount, sources):
    source = sources(trees.names)
    listings = []
    for _ in range(2):
        m = mount(source.root)
        listings.append((os.listdir(os.fsencode(m / "tensors/names/model")),
                         os.listdir(os.fsencode(m / "npy/names/model"))))
        m.unmount()
    assert listings[0] == listings[1]


def index_entries(index):
    """The tensors of a merged index: {name: entry}, whatever the key that holds them."""
    for key, value in index.items():
        if key not in ("metadata", "weight_map") and isinstance(value, dict):
            return value
        if key not in ("metadata", "weight_map") and isinstance(value, list):
            return {e["name"]: e for e in value}
    raise AssertionError(f"nothing per tensor in the index: {list(index)}")


def test_merged_index_is_complete(mount, sources):
    for maker in (trees.names, trees.nested):
        source = sources(maker)
        m = mount(source.root)
        for c in source.checkpoints[:10]:
            index = oracle.check_merged_index(m / "tensors", c)
            entries = index_entries(index)
            assert set(entries) == {t.name for t in c.tensors}
            for shard, tensors in c.shards:
                table, _, _ = oracle.read_header(source.path(c.directory, shard))
                where = {e.name: e for e in table}
                for t in tensors:
                    e = entries[t.name]
                    assert e["dtype"] == t.dtype and e["shape"] == t.shape
                    assert e["bytes"] == t.size and e["shard"] == shard
                    assert e["offset"] == where[t.name].offset
                    path = oracle.tensor_file(m / "tensors", c, t)
                    assert os.fsencode(e["file"]) in (
                        os.path.basename(path),
                        os.path.join(os.fsencode(c.stem), os.path.basename(path)))


def indexed_files(m, directory):
    """{name: {tensor: file}} of the indexes of a directory in tensors/."""
    found = {}
    for name in os.listdir(m / f"tensors/{directory}"):
        if name.endswith(".index.json"):
            with open(m / f"tensors/{directory}/{name}") as file:
                entries = index_entries(json.load(file))
            found[name] = {tensor: e["file"] for tensor, e in entries.items()}
    return found


def check_indexed_files(m, directory, expected):
    """Exactly these indexes exist, and the files that they name have the tensors."""
    assert eventually(lambda: indexed_files(m, directory) == expected), indexed_files(m, directory)
    for files in expected.values():
        for tensor, file in files.items():
            name = os.getxattr(m / f"tensors/{directory}/{file}", "user.safetensors.name")
            assert name == tensor.encode()


def in_directory(directory, tensors):
    return {t.name: f"{directory}/{t.name}" for t in tensors}


def test_index_of_a_checkpoint_whose_name_is_taken(mount, place):
    """Its tensors are in another directory, which the index names, also when the name is taken and
    freed again while mounted."""
    source = trees.Source(place / "s")
    tensors = trees.small_tensors("m.", count=2)
    source.add("m", "model", tensors)
    m = mount(source.root)
    check_indexed_files(m, "m", {"model.index.json": in_directory("model", tensors)})
    for _ in range(2):
        source.add("m/model", "other", trees.small_tensors("o.", count=2))
        check_indexed_files(m, "m",
                            {"model.index.json": in_directory("model.safetensors", tensors)})
        shutil.rmtree(source.path("m/model"))
        check_indexed_files(m, "m", {"model.index.json": in_directory("model", tensors)})


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("options", [["--shards=1"], ["--shard-size=4K"], ["--shard-size=1M"]])
def test_directory_with_the_name_of_a_recut_file(mount, place, name, options):
    """The directory keeps its name, which is listed once."""
    source = trees.Source(place / "s")
    source.add(f"m/{name}", "inside", trees.small_tensors())
    source.add("m", "model", trees.small_tensors(), names=["model-00001-of-00001.safetensors"], index=False)
    m = mount(source.root, *options)
    listed = os.listdir(m / "shards/m")
    assert listed.count(name) == 1 and os.path.isdir(m / f"shards/m/{name}")
    for other in listed:
        os.stat(m / f"shards/m/{other}")


def test_no_index_of_omitted_tensors(mount, place):
    """Both possible names of a checkpoint's directory are taken."""
    source = trees.Source(place / "s")
    source.add("m", "a", trees.small_tensors("x.", count=1))
    other = source.add("m", "a.safetensors", trees.small_tensors("y.", count=1))
    source.add("m/a", "model", trees.small_tensors("z.", count=1))
    m = mount(source.root)
    check_indexed_files(m, "m", {
        "a.safetensors.index.json": in_directory("a.safetensors", other.tensors)})
    assert any("left out of a view" in p for p in m.problems())


def test_index_of_a_shadowed_checkpoint(mount, place):
    source = trees.Source(place / "s")
    sharded = source.add("m", "model", trees.small_tensors("n.", count=4), shards=2)
    single = trees.small_tensors("s.", count=1)
    source.place("m/model.safetensors", trees.file_bytes(single))
    m = mount(source.root)
    check_indexed_files(m, "m", {
        "model.index.json": in_directory("model", sharded.tensors),
        "model.safetensors.index.json": in_directory("model.safetensors", single)})


@pytest.mark.parametrize("options", [[], ["--shards=3"], ["--shard-size=4K"]])
def test_single_file_beside_shards(mount, place, options):
    """transformers prefers the single file; merged/ prefers the shards. shards/ has both, which are not re-cut."""
    source = trees.Source(place / "s")
    source.add("", "model", trees.small_tensors(), shards=2)
    with open(source.path("model.safetensors"), "wb") as f:
        f.write(trees.file_bytes(trees.small_tensors("other.")))
    m = mount(source.root, *options)
    assert sorted(os.listdir(m / "shards")) == sorted(os.listdir(source.root))
    assert oracle.read_all(m / "shards/model.safetensors") == trees.file_bytes(trees.small_tensors("other."))
    assert {e.name for e in oracle.read_header(m / "merged/model.safetensors")[0]} == {t.name for t in trees.small_tensors()}
    assert any("not shown in merged/, and neither is re-cut" in line for line in m.problems())


@pytest.mark.parametrize("view", VIEWS)
def test_view_option(mount, sources, view):
    source = sources(trees.nested)
    m = mount(source.root, f"--view={view}")
    expected = oracle.Expected(source, view)
    assert oracle.walk(m.path) == expected.paths()
    assert ".fstfs" not in os.listdir(m.path)
    assert sorted(os.listdir(m / ".fstfs")) == ["loads", "metrics", "problems", "status"]
    for c in source.checkpoints[:12]:
        if view == "tensors":
            oracle.check_tensors(m.path, c)
        elif view == "npy":
            oracle.check_npy(m.path, c)
        elif view == "merged":
            oracle.check_merged(m.path, c)
        else:
            oracle.check_shards_as_source(m.path, source, c)


def test_view_option_inodes_are_stable(mount, sources):
    source = sources(trees.in_root)
    seen = []
    for _ in range(2):
        m = mount(source.root, "--view=tensors")
        seen.append({p: os.lstat(os.path.join(os.fsencode(m.path), p)).st_ino
                     for p in oracle.walk(m.path)})
        m.unmount()
    assert seen[0] == seen[1]


def test_find_and_cp(mount, sources):
    """Usual tools: `find`, `cp -r` and `diff -r`."""
    source = sources(trees.nested)
    m = mount(source.root)
    for view in VIEWS:
        found = subprocess.run(["find", m / view, "-mindepth", "1"], check=True,
                               capture_output=True).stdout.splitlines()
        root = os.fsencode(m / view)
        assert {p[len(root) + 1:] for p in found} == set(oracle.walk(root))
    subprocess.run(["cp", "-r", m / "merged/org1", m.place / "copy"], check=True)
    same = subprocess.run(["diff", "-r", m / "merged/org1", m.place / "copy"])
    assert same.returncode == 0


# --- .fstfs ---


def test_status_is_json(mount, sources):
    m = mount(sources(trees.nested).root)
    status = m.status()
    assert isinstance(status, dict) and status
    assert str(sources(trees.nested).root) in json.dumps(status)
    st = os.stat(m / ".fstfs/status")
    assert st.st_mode & 0o222 == 0


def test_control_files_can_be_read_in_pieces(mount, sources):
    """In small pieces and at offsets; an open file has one content."""
    m = mount(sources(trees.nested).root)
    oracle.walk(m / "tensors")
    for name in ("loads", "metrics", "problems", "status"):
        fd = os.open(m / f".fstfs/{name}", os.O_RDONLY)
        whole = b""
        while part := os.read(fd, 100):
            whole += part
        assert os.pread(fd, len(whole) + 10, 0) == whole  # one version per open file
        assert os.pread(fd, 10, len(whole)) == b""
        if len(whole) > 50:
            assert os.pread(fd, 20, 30) == whole[30:50]
        os.close(fd)
        catted = subprocess.run(["cat", m / f".fstfs/{name}"], check=True, capture_output=True)
        assert bool(catted.stdout) == bool(whole)


def test_problems_belongs_to_the_mounting_user(mount, sources):
    m = mount(sources(trees.in_root).root)
    st = os.stat(m / ".fstfs/problems")
    assert stat.S_IMODE(st.st_mode) == 0o400 and st.st_uid == os.geteuid()


LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="[^"\n]*",?)*\})? '
                  r'(-?[0-9.]+([eE][-+]?[0-9]+)?|NaN|[-+]Inf)$')


def metric_values(text):
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if line and not line.startswith("#")}


def test_metrics(mount, sources):
    source = sources(trees.nested)
    m = mount(source.root)
    before = m.read(".fstfs/metrics").decode()
    oracle.check_tensors(m / "tensors", source.checkpoints[0])
    after = m.read(".fstfs/metrics").decode()
    assert after.endswith("\n")
    typed = set()
    for line in after.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:4]
            assert kind in ("counter", "gauge", "histogram", "summary") and name not in typed
            assert kind != "counter" or name.endswith("_total"), name
            typed.add(name)
        elif not line.startswith("#"):
            assert LINE.match(line), line
            assert re.split(r"[{ ]", line)[0].startswith("fstfs_")
            assert any(re.split(r"[{ ]", line)[0].startswith(t) for t in typed), line
    first, second = metric_values(before), metric_values(after)
    assert first.keys() <= second.keys()
    assert any(second[k] > first[k] for k in first if "bytes" in k), "no bytes were counted"
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool:
        checked = subprocess.run([promtool, "check", "metrics"], input=after, text=True,
                                 capture_output=True)
        assert checked.returncode == 0 and not checked.stderr.strip(), checked.stderr


def test_nothing_is_scanned_before_access(mount, place):
    """200 models: mounting and listing the top directory read no header."""
    source = trees.Source(place / "s")
    for i in range(200):
        source.add(f"m{i:03}", "model", trees.small_tensors(seed=i, count=2), shards=2)
    m = mount(source.root)
    os.listdir(m / "tensors")
    counters = metric_values(m.read(".fstfs/metrics").decode())
    headers = {k: v for k, v in counters.items() if "headers" in k or "header_bytes" in k}
    assert headers and all(v == 0 for v in headers.values()), headers
    oracle.check_tensors(m / "tensors", source.checkpoints[7])
    counters = metric_values(m.read(".fstfs/metrics").decode())
    assert any(0 < v <= 8 for k, v in counters.items() if "headers" in k), counters


def test_permissions_of_links_for_other_users(mount, place, test_user):
    """A link never gives more access than the permissions of its target and of the path to it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: another user reads")
    other = trees.Source(place / "closed")
    other.add("", "model", trees.small_tensors("c.", count=3))
    other.add("deep", "model", trees.small_tensors("c.", count=3))
    source = trees.in_root(place / "s")
    c, = source.checkpoints
    os.symlink(place / "closed/model.safetensors", place / "s/linked.safetensors")
    os.symlink(place / "closed/deep", place / "s/linked_dir")
    hidden = source.add("hidden", "model", trees.small_tensors("h.", count=3))
    private = source.add("private", "model", trees.small_tensors("p.", count=3))
    os.chmod(place / "closed", 0o700)
    os.chmod(place / "s/hidden", 0o700)
    os.chmod(place / "s/private/model.safetensors", 0o600)
    m = mount(source.root, "-o", "allow_other")

    def attempt(paths):
        refused = []
        for path in paths:
            try:
                if os.path.isdir(path):
                    os.listdir(path)
                else:
                    with open(path, "rb") as f:
                        f.read()
            except (PermissionError, FileNotFoundError):  # the latter: generated from closed files
                refused.append(path)
        return refused

    open_paths = [m / "tensors/model/t0.weight", m / "merged/model.safetensors",
                  m / "shards/model.safetensors", m / "npy/model/t0.weight.npy",
                  m / "tensors/model", m / "tensors/model.index.json"]
    closed = [m / "tensors/linked/c.t0.weight", m / "merged/linked.safetensors",
              m / "shards/linked.safetensors", m / "npy/linked/c.t0.weight.npy",
              m / "tensors/linked.index.json", m / "merged/linked_dir/model.safetensors",
              m / "shards/linked_dir/model.safetensors",
              m / "tensors/linked_dir/model/c.t0.weight",
              m / "tensors/hidden", m / "tensors/hidden/model/h.t0.weight",
              m / "merged/hidden/model.safetensors", m / "shards/hidden/model.safetensors",
              m / "tensors/private/model/p.t0.weight", m / "merged/private/model.safetensors",
              m / "shards/private/model.safetensors", m / "npy/private/model/p.t0.weight.npy",
              m / "tensors/private/model.index.json", m / ".fstfs/problems"]
    assert child(attempt, closed) == []  # root may
    assert child(attempt, open_paths, user=test_user) == []
    assert child(attempt, closed, user=test_user) == closed
    oracle.check_tensors(m / "tensors", hidden)
    oracle.check_tensors(m / "tensors", private)


def test_unreadable_files_as_unprivileged_user(mount, place, test_user, user_binary):
    """Files that the mounting user cannot read exist, fail as in the source, and are listed in
    problems."""
    source = trees.Source(place / "s")
    source.add("good", "model", trees.small_tensors("g.", count=4), shards=2)
    source.add("shut", "model", trees.small_tensors("s.", count=4), shards=2)
    source.add("dir", "model", trees.small_tensors("d.", count=2))
    os.chmod(place / "s/shut/model-00002-of-00002.safetensors", 0)
    os.chmod(place / "s/dir", 0)
    if os.geteuid() != 0 and os.access(place / "s/dir", os.R_OK):
        pytest.skip("this user can read everything")
    m = mount(source.root, user=test_user, binary=user_binary)
    good, shut, _ = source.checkpoints

    def look():
        oracle.check_tensors(m / "tensors", good)
        oracle.check_merged(m / "merged", good)
        there = trees.Checkpoint("shut", "model", shut.shards[:1])
        for t in there.tensors:
            assert oracle.read_all(oracle.tensor_file(m / "tensors", there, t)) == t.data
        assert len(os.listdir(m / "tensors/shut/model")) == len(there.tensors)
        for path in ("merged/shut/model.safetensors", "shards/shut/model-00002-of-00002.safetensors"):
            assert os.path.isfile(m / path)
            with pytest.raises(OSError):
                open(m / path, "rb").read()
        with pytest.raises(PermissionError):
            os.listdir(m / "tensors/dir")
        return m.problems()

    problems = child(look, user=test_user)
    assert any("shut/model-00002-of-00002.safetensors" in p for p in problems), problems


@pytest.mark.parametrize("names, is_shown", [(200, True), (300, False)])
def test_links_with_many_names(mount, place, names, is_shown):
    """At most 256 names of links are resolved for one path, so that links cannot make it slow."""
    source = trees.Source(place / "s")
    source.add("m", "model", trees.small_tensors())
    target = "m"
    for i in range(names // 100):
        link = place / f"s/link{i}"
        link.symlink_to("./" * 99 + target)
        target = link.name
    m = mount(source.root)
    shown = {name for name in os.listdir(m / "merged") if name.startswith("link")}
    assert (link.name in shown) == is_shown
    assert {"link0", "link1"} <= shown
    assert any("Too many levels" in line for line in m.problems()) != is_shown
