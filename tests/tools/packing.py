# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of fstfs-pack: run it, inspect its output, inject failures."""

import hashlib
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, SANITIZER, SLOW, as_user, preload
from corpus import trees

PACK = BUILD / "fstfs-pack"
MIB = 1 << 20

if not PACK.exists():
    pytest.fail(f"{PACK} does not exist: build first, or set FSTFS_BUILD", pytrace=False)


def run(*args, status=0, user=None, program=PACK, **more):
    """Returns its standard error; standard output must be empty."""
    done = subprocess.run([*as_user(user), program, *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=50 * SLOW, **more)
    assert not any(sign in done.stderr for sign in SANITIZER), done.stderr
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" or status == 0
    return done.stderr


def content(path):
    """Returns ({name: (dtype, shape, bytes)}, metadata) of a safetensors file."""
    entries, metadata, _ = oracle.read_header(path)
    return {e.name: (e.dtype, e.shape, e.read()) for e in entries}, metadata


def expected(tensors):
    return {t.name: (t.dtype, t.shape, t.data) for t in tensors}


def hidden(directory):
    return [name for name in os.listdir(directory) if name.startswith(".")]


def plain(count=6, prefix="", seed=0, scale=1):
    return [trees.tensor(f"{prefix}t{i}", "F32", (i + 1, 300 * scale), seed=seed)
            for i in range(count)]


def is_model(directory, tensors, alone=True):
    """Whether the index and its shards are one checkpoint of these tensors and, if `alone`, there
    are no other shards."""
    with open(directory / "model.safetensors.index.json") as f:
        index = json.load(f)
    shards = set(index["weight_map"].values())
    there = {p.name for p in directory.glob("*.safetensors")}
    assert shards == there if alone else shards <= there
    return {k: v for s in shards for k, v in content(directory / s)[0].items()} == tensors


def snapshot(directory):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in Path(directory).iterdir()}


@contextmanager
def tmpfs(place, size):
    point = place / "small"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", point],
                      capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted: not root, or not allowed")
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def misfortune(**settings):
    """Returns an environment that injects these failures (tests/sandbox/misfortune.c)."""
    return {**os.environ, **preload("misfortune", **settings)}


# file systems with all features; without O_TMPFILE; like NFS; like FUSE without rename2
SYSTEMS = {"full": {}, "named": {"NO_TMPFILE": 1}, "nfs": {"NO_TMPFILE": 1, "NO_RENAME_FLAGS": 1},
           "fuse": {"NO_TMPFILE": 1, "NO_RENAME_FLAGS": 1, "NO_LINKS": 1}}
