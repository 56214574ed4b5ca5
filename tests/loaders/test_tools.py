# SPDX-License-Identifier: Apache-2.0
"""Standard tools on the views: their output and copies are compared with the oracle."""

import hashlib
import os
import random
import shutil
import subprocess

import oracle
import pytest
from conftest import SLOW
from corpus import trees

# Each copies the mount $1 to the directory $2.
# Only root can write into the copies of directories, which are read-only like the originals.
RSYNC = "rsync -aX" if os.geteuid() == 0 else "rsync -aX --chmod=u+w"
COPIES = {
    "cp": 'cp -r "$1/." "$2"',
    "cp-attributes": 'cp -a --sparse=always "$1/." "$2"',
    "rsync": f'{RSYNC} "$1/" "$2"',
    "tar": 'tar -C "$1" -cf - . | tar -C "$2" -xf -',
    "find-dd": 'cd "$1" && find . -type d -exec sh -c \'mkdir -p "$0/$1"\' "$2" {} \\; && '
               'find . -type f -exec sh -c \'dd if="$1" of="$0/$1" bs=1M status=none\' "$2" {} \\;',
    "find-dd-direct": 'cd "$1" && find . -type d -exec sh -c \'mkdir -p "$0/$1"\' "$2" {} \\; && '
                      'find . -path ./.fstfs -prune -o -type f -exec sh -c '
                      '\'dd if="$1" of="$0/$1" bs=64K iflag=direct status=none\' "$2" {} \\;',
}
OPTIONS = {"as-source": (), "recut": ("--shards=2",)}


@pytest.fixture(scope="module")
def source(shared_place):
    made = trees.nested(shared_place / "tools", models=9)
    made.add("large", "model", [trees.tensor(f"layer.{i}", "F32", (700, 431), seed=i)
                                for i in range(6)], shards=3, metadata={"format": "pt"})
    made.add_side("large/tokenizer.model", random.Random(3).randbytes(300_001))
    return made


def run(script, *arguments):
    """The output of a script that succeeds and prints nothing to stderr."""
    if "rsync" in script and not shutil.which("rsync"):
        pytest.skip("rsync is not installed")
    done = subprocess.run(["sh", "-ec", script, "sh", *map(os.fspath, arguments)],
                          capture_output=True, timeout=50 * SLOW)
    assert (done.returncode, done.stderr) == (0, b""), script
    return done.stdout


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("how", COPIES)
def test_copy(mount, source, place, how, options):
    m = mount(source.root, *OPTIONS[options])
    copy = place / "copy"
    copy.mkdir()
    run(COPIES[how], m.path, copy)
    oracle.check_source(copy, source, OPTIONS[options])


def test_rsync_finds_nothing_to_do(mount, source, place):
    """A second run with checksums copies nothing: sizes, times, modes and attributes are stable,
    also across mounts."""
    m = mount(source.root)
    (place / "copy").mkdir()
    for view in ("tensors", "merged", "shards", "npy"):
        assert run(f'{RSYNC} -i "$1/$3" "$2"', m.path, place / "copy", view)
    m.unmount()
    m = mount(source.root)
    for view in ("tensors", "merged", "shards", "npy"):
        assert run(f'{RSYNC} -i --checksum --delete "$1/$3" "$2"', m.path, place / "copy",
                   view) == b""


def test_sha256sum_and_cmp(mount, source):
    """shards/ as in the source has the source's files, except the indexes, which are generated."""
    m = mount(source.root)
    sums = 'cd "$1" && find . -type f ! -name "*.index.json" -print0 | sort -z | xargs -0 sha256sum'
    want = run(sums, source.root)
    assert want.count(b"\n") > 20
    assert run(sums, m / "shards") == want
    for name in ("tokenizer.model", "model-00002-of-00003.safetensors"):
        run('cmp "$1" "$2"', m / f"shards/large/{name}", source.path(f"large/{name}"))
    run('tail -c +4097 "$1" | cmp - "$2" 0 4096', m / "shards/large/tokenizer.model",
        source.path("large/tokenizer.model"))


def test_dd_of_parts(mount, source):
    """Parts of a tensor, in blocks of several sizes."""
    m = mount(source.root)
    data = {t.name: t.data for c in source.checkpoints if c.directory == "large"
            for t in c.tensors}
    for name, want in data.items():
        path = m / f"tensors/large/model/{name}"
        for block, skip, count in ((1, 7, 5), (512, 3, 100), (4096, 0, 9), (4095, 11, 20),
                                   (1 << 20, 0, 1), (1 << 20, 1, 7)):
            got = run('dd if="$1" bs="$2" skip="$3" count="$4" status=none', path, str(block),
                      str(skip), str(count))
            assert got == want[skip * block:(skip + count) * block]
        assert run('sha256sum < "$1"', path).split()[0].decode() == \
            hashlib.sha256(want).hexdigest()


def test_find_and_du(mount, source):
    m = mount(source.root)
    for view in ("tensors", "merged", "shards", "npy"):
        found = oracle.walk(m / view)
        for kind in "df":
            paths = run('cd "$1" && find . -mindepth 1 -type "$2" -print0', m / view, kind)
            assert sorted(paths.split(b"\0")[:-1]) == \
                sorted(b"./" + path for path, what in found.items() if what == kind)
        sizes = sum(os.stat(os.path.join(os.fsencode(m / view), path)).st_size
                    for path, what in found.items() if what == "f")
        total = run('find "$1" -type f -printf "%s\\n"', m / view)
        assert sum(map(int, total.split())) == sizes > 0
        assert run('find "$1" -perm /222', m / view) == b""
