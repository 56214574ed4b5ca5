# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face hub cache and its own tools: through the mount, its links are files."""

import hashlib
import os
import shutil

import oracle
import pytest
from corpus import trees

hub = pytest.importorskip("huggingface_hub")

REVISIONS = ("a" * 40, "b" * 40)


@pytest.fixture
def cache(place):
    """org/one: one file shared by two revisions; org/two: two shards. Blobs are named by their
    hashes, as in the hub."""
    source = trees.Source(place / "cache")

    def add(repository, revision, name, data):
        base = f"models--org--{repository}"
        blob = source.path(base, "blobs", hashlib.sha256(data).hexdigest())
        link = source.path(base, "snapshots", revision, name)
        for path in (blob, link, source.path(base, "refs/main")):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(blob, "wb") as f:
            f.write(data)
        os.symlink(os.path.relpath(blob, os.path.dirname(link)), link)
        with open(source.path(base, "refs/main"), "w") as f:
            f.write(REVISIONS[0])

    tensors = trees.small_tensors(count=6)
    for revision in REVISIONS:
        add("one", revision, "model.safetensors", trees.file_bytes(tensors, {"format": "pt"}))
        add("one", revision, "config.json", b"{}")
    names = [f"model-{i + 1:05}-of-00002.safetensors" for i in range(2)]
    for name, part in zip(names, (tensors[:3], tensors[3:])):
        add("two", REVISIONS[0], name, trees.file_bytes(part))
    add("two", REVISIONS[0], "model.safetensors.index.json", trees.index_bytes(
        {t.name: n for n, part in zip(names, (tensors[:3], tensors[3:])) for t in part}))
    return source


def revisions(path):
    """{(repository, revision): (bytes, {file name: bytes}, refs)}; asserts that nothing is corrupt."""
    info = hub.scan_cache_dir(path)
    assert info.warnings == []
    return {(repo.repo_id, r.commit_hash):
            (r.size_on_disk, {f.file_name: f.size_on_disk for f in r.files}, r.refs)
            for repo in info.repos for r in repo.revisions}


@pytest.mark.parametrize("view", ["merged", "shards"])
def test_scan_cache_dir(mount, cache, view):
    m = mount(cache.root)
    bare, found = revisions(cache.root), revisions(m / view)
    assert found.keys() == bare.keys() and len(found) == 3
    for revision in REVISIONS:
        assert found["org/one", revision] == bare["org/one", revision]
    if view == "shards":
        assert found == bare
    else:
        assert found["org/two", REVISIONS[0]][1].keys() == {"model.safetensors"}


@pytest.mark.parametrize("view", ["merged", "shards"])
def test_snapshot_has_the_hashes_of_the_hub(mount, cache, view):
    m = mount(cache.root)
    for revision in REVISIONS:
        path = hub.snapshot_download("org/one", revision=revision, cache_dir=m / view,
                                     local_files_only=True)
        assert path.startswith(m / view)
        assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]
        for name in os.listdir(path):
            bare = cache.path("models--org--one/snapshots", revision, name)
            assert hashlib.sha256(oracle.read_all(os.path.join(path, name))).hexdigest() == \
                os.path.basename(os.path.realpath(bare))
    assert hub.try_to_load_from_cache("org/one", "model.safetensors", cache_dir=m / view) == \
        os.path.join(m / view, "models--org--one/snapshots", REVISIONS[0], "model.safetensors")


def test_copy_of_a_snapshot_is_independent(mount, cache, place):
    m = mount(cache.root)
    shutil.copytree(m / f"merged/models--org--one/snapshots/{REVISIONS[0]}", place / "copy",
                    symlinks=True)
    assert oracle.read_all(place / "copy/model.safetensors") == oracle.read_all(
        cache.path("models--org--one/snapshots", REVISIONS[0], "model.safetensors"))
