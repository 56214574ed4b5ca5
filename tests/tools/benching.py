# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of fstfs-bench: models, running it, and the rows to expect."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import BUILD, SLOW, as_user, eventually, mounted_at

BENCH = BUILD / "fstfs-bench"
MIB = 1 << 20
READERS = ["direct", "read", "mmap", "names"]
LOADERS = ["load_file", "safe_open", "fastsafetensors", "runai", "transformers", "diffusers",
           "fstfs"]


def header(sizes):
    entries, at = {}, 0
    for name, size in sizes.items():
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def write_shard(path, sizes, seed):
    block = bytes((seed + i * i) % 251 for i in range(65537))
    with open(path, "wb") as f:
        f.write(header(sizes))
        for size in sizes.values():
            f.write((block * (size // len(block) + 1))[:size])
        f.flush()
        os.fsync(f.fileno())


def write_sparse(path, size):
    with open(path, "wb") as f:
        f.write(header({"one": size}))
        f.truncate(f.tell() + size)


def write_model(directory, seed=1):
    """112 MiB in two shards of odd sizes; name order is not file order."""
    directory.mkdir()
    shards = {
        "model-00001-of-00002.safetensors": {"b": 40 * MIB + 5, "a": 4097, "empty": 0, "z": MIB},
        "model-00002-of-00002.safetensors": {"c": 71 * MIB, "B": 1},
    }
    for name, sizes in shards.items():
        write_shard(directory / name, sizes, seed)
    with open(directory / "model.safetensors.index.json", "w") as f:
        json.dump({"weight_map": {t: s for s, names in shards.items() for t in names}}, f)
    return directory


class Bench:
    """Runs fstfs-bench with a private directory for its mount points."""

    def __init__(self, place):
        self.folder = Path(tempfile.mkdtemp(prefix="points-", dir=place))
        self.folder.chmod(0o1777)
        self.program = BENCH
        self.environment = {**os.environ, "TMPDIR": str(self.folder)}

    def start(self, *args, user=None, **options):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen([*as_user(user), self.program, *map(str, args)],
                                stdin=subprocess.DEVNULL, text=True, env=self.environment,
                                **streams)

    def run(self, *args, status=0, **options):
        process = self.start(*args, **options)
        out, err = process.communicate(timeout=110 * SLOW)
        assert process.returncode == status, (process.returncode, out, err)
        self.assert_nothing_left()
        return out, err

    def json(self, *args, **options):
        out, err = self.run("--json", *args, **options)
        assert err == ""
        return json.loads(out)["models"][0]

    def points(self):
        """Its mount points; Python packages may leave other directories in TMPDIR."""
        return list(self.folder.glob("fstfs-bench.*"))

    def assert_nothing_left(self):
        assert eventually(lambda: not mounted_at(self.folder) and not self.points(), 20), (
            mounted_at(self.folder), self.points())


@pytest.fixture
def bench(place):
    if not BENCH.exists():
        pytest.fail(f"{BENCH} does not exist: build first, or set FSTFS_BUILD", pytrace=False)
    return Bench(place)


@pytest.fixture
def alone(bench, place):
    """fstfs-bench in a directory of its own, without fstfs there or in PATH."""
    folder = place / "alone"
    folder.mkdir()
    shutil.copy(BENCH, folder)
    bench.program = folder / "fstfs-bench"
    bench.environment["PATH"] = f"{folder}:/usr/bin:/bin"
    return bench


@pytest.fixture(scope="module")
def model(shared_place):
    return write_model(Path(tempfile.mkdtemp(dir=shared_place)) / "model & <co>")


def program(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def row_names(rows):
    return {(row["method"], row["place"], row["state"]) for row in rows}


def every_row(methods=READERS, places=("bare", "mounted")):
    return {(method, where, state) for method in methods for where in places
            for state in ("cold", "warm") if (method, state) != ("direct", "warm")}


def can_be_cold(found):
    """False on tmpfs."""
    return not found["storage"].startswith("tmpfs")


def on_tmpfs(path):
    done = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True,
                          check=True)
    return done.stdout.strip() == "tmpfs"


def expected(found, **options):
    states = ("cold", "warm") if can_be_cold(found) else ("warm",)
    return {row for row in every_row(**options) if row[2] in states}


FAKE = """
cat >/dev/null
if [ "$2" = list ]; then
    echo '{"loaders": [{"name": "load_file", "text": "load_file, st 1", "missing": null}]}'
    exit
fi
"""
