# SPDX-License-Identifier: Apache-2.0
"""fstfs-check: its findings, messages and exit status."""

import hashlib
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import oracle
import pytest
from conftest import BUILD, INSTRUMENTED, SANITIZER, SLOW, as_user
from corpus import headers, indexes, trees

CHECK = BUILD / "fstfs-check"
DESCRIPTION = Path(__file__).resolve().parents[3] / "shared/data/qwen3.5-25b-a3b.json"
ML_DTYPES = oracle.ml_dtypes

if not CHECK.exists():
    pytest.fail(f"{CHECK} does not exist: build first, or set FSTFS_BUILD", pytrace=False)


def run(*args, status=0, user=None, program=CHECK):
    """Returns (lines of standard output, standard error)."""
    done = subprocess.run([*as_user(user), program, *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=50 * SLOW)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert not any(sign in err for sign in SANITIZER), err
    assert done.returncode == status, (done.returncode, out, err)
    return out.splitlines(), err


def run_any(program, path):
    """Returns (exit status, lines of standard output)."""
    done = subprocess.run([program, path], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=50 * SLOW)
    return done.returncode, done.stdout.splitlines()


def can_hash():
    done = subprocess.run([CHECK, "--hashes=/dev/null/none", "/dev/null"], capture_output=True)
    return b"built without" not in done.stderr


needs_hashes = pytest.mark.skipif(not can_hash(), reason="fstfs-check is built without libcrypto")


def aligned(prefix="", seed=0):
    """Tensors that are aligned for PyTorch in this order."""
    return [trees.tensor(f"{prefix}a", "F32", (3, 64), seed=seed),
            trees.tensor(f"{prefix}b", "BF16", (4096,), seed=seed),
            trees.tensor(f"{prefix}c", "U8", (77,), seed=seed)]


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("llama", "model", aligned("x.") + aligned("y."), shards=2, metadata={"format": "pt"})
    made.add("llama", "adapter", aligned("z."))
    made.add_side("llama/config.json")
    return made


def only(found, path, *words):
    """Asserts that there is one finding, of this path, with these words."""
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: "), found
    for word in words:
        assert str(word) in found[0], found


# ---- valid trees, and paths ----

@pytest.mark.parametrize("name", ["x.sft", "x.SFT", "x.SafeTensors"])
def test_files_of_other_suffixes(place, name):
    source = trees.Source(place / "models")
    source.add("m", "x", aligned(), names=[name], metadata={"format": "pt"})
    assert run(source.root)[0] == []
    assert run(source.path("m", "x"))[0] == []
    path = Path(source.path("m", name))
    path.write_bytes(path.read_bytes()[:-1])
    for what in (source.root, source.path("m"), path):
        only(run(what, status=1)[0], path, "MetadataIncompleteBuffer")


@needs_hashes
def test_hashes_of_files_with_the_same_stem(place):
    source = trees.Source(place / "models")
    for name in ("x.safetensors", "x.sft"):
        source.add("", "x", aligned(seed=name), names=[name])
    run("--deep", f"--hashes={place / 'hashes'}", source.root)
    run("--deep", f"--hashes={place / 'hashes'}", source.root)
    Path(source.path("x.sft")).write_bytes(trees.file_bytes(aligned(seed="other")))
    found, _ = run("--deep", f"--hashes={place / 'hashes'}", source.root, status=1)
    assert found and all("x.sft" in line for line in found), found


def test_valid_tree(source):
    out, err = run(source.root)
    assert out == []
    assert err.startswith("sound: 2 checkpoints, 3 files, 9 tensors, ")


@pytest.mark.parametrize("name, files", [
    ("llama", 3), ("llama/", 3), ("llama/model", 2), ("llama/model.safetensors.index.json", 2),
    ("llama/model-00002-of-00002.safetensors", 1), ("llama/adapter", 1),
    ("llama/adapter.safetensors", 1)])
def test_paths(source, name, files):
    out, err = run(f"{source.root}/{name}")
    assert out == [] and f" {files} file" in err


def test_findings_begin_with_the_given_path(source):
    os.truncate(source.path("llama/adapter.safetensors"), 500)
    for at, given, shown in [(source.root, ".", "./llama/adapter.safetensors"),
                             (source.root, "llama/", "llama/adapter.safetensors"),
                             (source.path("llama"), "adapter.safetensors", "adapter.safetensors"),
                             (source.path("llama"), "adapter", "adapter.safetensors")]:
        done = subprocess.run([CHECK, given], cwd=at, capture_output=True, text=True)
        assert done.returncode == 1
        only(done.stdout.splitlines(), shown, "MetadataIncompleteBuffer")


def test_findings_of_another_checkpoint_are_omitted(source):
    os.remove(source.path("llama/model-00001-of-00002.safetensors"))
    run(source.path("llama"), status=1)
    run(source.path("llama/adapter"))
    out, _ = run(source.path("llama/model"), status=1)
    assert any("model-00001-of-00002.safetensors" in line for line in out)


def test_trees(place):
    for name, sound in (("names", True), ("adapters", False), ("sharded_without_index", True)):
        made = getattr(trees, name)(place / name)
        out, err = run(made.root, status=0 if sound else 1)
        assert all("are not at a multiple" in line for line in out), out
        assert f"{len(made.checkpoints)} checkpoint" in err


def test_many_small_files(place):
    trees.many_small(place / "many", 3000)
    assert run(place / "many")[0] == []


# ---- memory for headers ----

def write_header(path, header):
    path.write_bytes(struct.pack("<Q", len(header)) + header)


# Numbers of headers that need more than 1 GiB of memory after they are parsed.
LARGE = {"tensor": 7, "metadata": 16}


def large_header(kind):
    if kind == "tensor":
        return b'{"a":["U8",[%s0],[0,0]]}' % (b"0," * 20_000_000)
    return b'{"__metadata__":{%s}}' % b",".join(b'"%d":""' % i for i in range(3_000_000))


@pytest.mark.skipif(INSTRUMENTED, reason="large headers take too long")
@pytest.mark.parametrize("kind", LARGE)
def test_large_headers_in_one_directory(place, kind):
    """The headers of the files do not fit into memory together, but each file alone is sound."""
    header = large_header(kind)
    for i in range(LARGE[kind]):
        write_header(place / f"{i}.safetensors", header)
    (place / "bad.safetensors").write_bytes(b"short")
    assert run(place / "6.safetensors")[0] == []
    for options in ((), ("--deep",)):
        only(run(*options, place, status=1)[0], place / "bad.safetensors", "HeaderTooSmall")


@pytest.mark.skipif(INSTRUMENTED, reason="large headers take too long")
def test_checkpoint_whose_headers_do_not_fit(place):
    """Not checked, which is no finding about the file. The message names no option of the mount."""
    header = large_header("tensor")
    names = [f"m-{i + 1:05}-of-00008.safetensors" for i in range(8)]
    for name in names:
        write_header(place / name, header.replace(b'"a"', b'"%s"' % name[2:7].encode()))
    for path in (place, place / "m"):
        out, _ = run(path, status=2)
        refused = [line for line in out if "NoMemoryForHeaders" in line]
        assert 0 < len(refused) < 8 and not any("--memory" in line for line in out), out
        assert all(": cannot be checked: NoMemoryForHeaders: its header needs" in line for line in refused)


# ---- everything that the mount refuses ----

@pytest.mark.parametrize("case", indexes.CASES, ids=lambda c: c.__name__)
def test_every_problem_of_a_tree(place, case):
    source = trees.Source(place / "models")
    source.add("good", "model", aligned("g."), shards=2)
    source.add("bad", "neighbour", aligned("n."))
    (place / "outside").mkdir()
    expect = case(source, place / "outside")
    if expect is None:
        pytest.skip("needs root: a device is created")
    done = subprocess.run([CHECK, source.root], capture_output=True, timeout=50 * SLOW)
    lines = done.stdout.decode().splitlines()
    for path, words in expect.problems:
        assert any((path is None or line.startswith(f"{source.root}/{path}")) and
                   all(word in line for word in words) for line in lines), (path, words, lines)
    assert done.returncode in ((1, 2) if expect.problems else (0, 1)), lines
    if expect.silent:
        assert [line for line in lines if "are not at a multiple" not in line] == []
    assert not [line for line in lines if line.startswith(f"{source.root}/good/")]


@pytest.mark.limit(120)
def test_every_rule_of_a_header(place):
    folder = place / "headers"
    folder.mkdir()
    for name, content, _, _ in headers.CASES:
        path = folder / f"{name}.safetensors"
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)
    out, _ = run(folder, status=1)
    for name, _, rule, _ in headers.CASES:
        path = folder / f"{name}.safetensors"
        refused = [line for line in out if line.startswith(f"{path}: refused: ")]
        assert bool(refused) == (rule is not None), (name, rule, refused)
        if rule:
            only(refused, path, rule)


@pytest.mark.limit(240)
def test_single_file(place):
    """Findings for a checkpoint are also found for its file, whatever its name is."""
    dtypes = [(f"foreign-dtype-{i}", headers.file({"a": headers.entry(0, 4, dtype, [4])}, 4), None,
               "") for i, dtype in enumerate(("int8", "f32", "X", "", "F16X"))]
    folder = place / "one"
    for name, content, rule, _ in headers.CASES + dtypes:
        folder.mkdir()
        path, other = folder / "m.safetensors", folder / "blob"
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)
        whole, alone = (run_any(CHECK, of) for of in (folder, path))
        assert alone == whole, name
        path.rename(other)
        status, lines = run_any(CHECK, other)
        renamed = [line.replace(f"{other}: ", f"{path}: ", 1) for line in lines]
        assert (status, renamed) == whole, name
        assert any(f"refused: {rule}: " in line for line in lines) == (rule is not None), name
        if name.startswith("foreign-dtype-"):
            assert status == 1 and "of a dtype this fstfs does not know" in lines[0], lines
        shutil.rmtree(folder)


def test_file_reached_by_other_paths(place, source, test_user, user_program):
    """By a link, a descriptor, and through a directory that is searchable but not readable."""
    path = source.path("llama/adapter.safetensors")
    (place / "link").symlink_to(path)
    for of in (place / "link", "/dev/stdin"):
        with open(path, "rb") as f:
            done = subprocess.run([CHECK, "--deep", of], stdin=f, capture_output=True, text=True,
                                  timeout=50 * SLOW)
        assert (done.returncode, done.stdout) == (0, ""), (of, done.stderr)
        assert "1 file" in done.stderr
    closed = place / "closed"
    closed.mkdir()
    shutil.copy(path, closed / "m.safetensors")
    (closed / "m.safetensors").chmod(0o644)
    closed.chmod(0o111)
    try:
        assert run("--deep", closed / "m.safetensors", user=test_user,
                   program=user_program(CHECK))[0] == []
    finally:
        closed.chmod(0o711)


def test_missing_bytes(source):
    path = source.path("llama/model-00002-of-00002.safetensors")
    os.truncate(path, os.stat(path).st_size - 777)
    out, _ = run(source.path("llama/model"), status=1)
    assert any(line.startswith(f"{path}: refused: MetadataIncompleteBuffer: ") and
               "777 bytes are missing" in line for line in out), out


def test_trailing_bytes(source):
    with open(source.path("llama/adapter.safetensors"), "ab") as f:
        f.write(b"12345")
    out, _ = run(source.root, status=1)
    only(out, source.path("llama/adapter.safetensors"), "5 bytes too many")


def test_missing_shards(place):
    source = trees.Source(place / "models")
    made = source.add("m", "model", [trees.tensor(f"t{i}", "F32", (i + 1, 4)) for i in range(12)],
                      shards=12)
    gone = [name for name, _ in made.shards[3:9]]
    for name in gone:
        os.remove(source.path("m", name))
    out, _ = run(source.root, status=1)
    lost = sum(t.size for _, part in made.shards[3:9] for t in part)
    assert any(f"{lost} of {sum(t.size for t in made.tensors)} bytes" in line for line in out), out
    assert sum(any(name in line for name in gone) for line in out) == 3
    out, _ = run("--all", source.root, status=1)
    assert all(any(name in line for line in out) for name in gone), out


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_billion_missing_shards(place, options):
    """Consecutive missing shards are one finding, whatever number the file name states."""
    source = trees.Source(place / "models")
    source.add("", "model", [trees.tensor("t", "F32", (4,))],
               names=["model-00003-of-999999999.safetensors"])
    out, _ = run(*options, source.root, status=1)
    assert len(out) == 2
    assert ": shards 1 to 2 of 999999999 of model do not exist" in out[0]
    assert ": shards 4 to 999999999 of 999999999 of model do not exist" in out[1]


def test_total_size(source):
    path = source.path("llama/model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    index["metadata"]["total_size"] += 1
    with open(path, "w") as f:
        json.dump(index, f)
    out, _ = run(source.root, status=1)
    total = index["metadata"]["total_size"]
    only(out, path, f"found {total}, expected {total - 1}")


def test_unaligned_tensors(place):
    path = place / "odd.safetensors"
    path.write_bytes(trees.file_bytes([trees.tensor("one", "U8", (3,)),
                                       trees.tensor("w", "F32", (5,)),
                                       trees.tensor("none", "F64", (0,))]))
    out, _ = run(path, status=1)
    only(out, path, "1 of 3 tensors", "the first is w, F32")


def test_unknown_format(place):
    good, odd = place / "good.safetensors", place / "odd.safetensors"
    good.write_bytes(trees.file_bytes(aligned(), {"format": "pt", "any": "thing"}))
    odd.write_bytes(trees.file_bytes(aligned(), {"format": "torch\n"}))
    run(good)
    out, _ = run(odd, status=1)
    only(out, odd, 'found "torch\\x0a"')


def test_metadata_differs_between_shards(place):
    source = trees.Source(place / "models")
    source.add("", "model", aligned("x.") + aligned("y."), shards=2,
               metadata=[{"format": "pt", "n": "1"}, {"format": "pt", "n": "2"}])
    out, _ = run(source.root, status=1)
    only(out, source.path("model-00001-of-00002.safetensors"), "key n differs")


# ---- Hugging Face caches ----

def make_cache(root):
    """A cache with two revisions that share a blob."""
    repository = root / "models--org--name"
    blobs = repository / "blobs"
    blobs.mkdir(parents=True)
    for revision, seeds in (("a" * 40, (1, 2)), ("b" * 40, (1, 3))):
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for i, seed in enumerate(seeds):
            data = trees.file_bytes(aligned(f"{i}.", seed))
            blob = blobs / hashlib.sha256(data).hexdigest()
            blob.write_bytes(data)
            (snapshot / f"model-{i + 1:05}-of-00002.safetensors").symlink_to(
                f"../../blobs/{blob.name}")
        (blobs / ("c" * 40)).write_bytes(b"{}")
        (snapshot / "config.json").symlink_to(f"../../blobs/{'c' * 40}")
    return repository


@needs_hashes
def test_hub_cache(place):
    repository = make_cache(place)
    out, err = run("--deep", place)
    assert out == [] and "2 checkpoints, 4 files" in err
    assert "3 compared with the hub's SHA-256" in err  # one is shared
    blob = max((repository / "blobs").iterdir(), key=lambda p: len(p.name))
    with open(blob, "r+b") as f:
        f.seek(-5, os.SEEK_END)
        f.write(b"!")
    out, _ = run("--deep", place, status=1)
    assert len(out) == 1 and blob.name in out[0] and "snapshots" in out[0].split(":")[0]
    run(place)


@needs_hashes
@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                  "training_args.bin", "blob-without-suffix"])
def test_every_file_of_a_hub_cache_is_compared(place, name):
    """Each file whose blob is named by its SHA-256, whatever it is, also if it is refused."""
    snapshot = make_cache(place) / "snapshots" / ("a" * 40)
    shards = sorted(snapshot.glob("*.safetensors"))
    if name == shards[0].name:
        link, compared = shards[0], 3
        blob = link.resolve()
        blob.rename(blob.parent / hashlib.sha256(b"other").hexdigest())
        blob = blob.parent / hashlib.sha256(b"other").hexdigest()
        content = blob.read_bytes()[:-1]
        for other in place.glob("*/snapshots/*/model-00001*"):
            other.unlink()
            other.symlink_to(f"../../blobs/{blob.name}")
    else:
        link, compared = snapshot / name, 4
        good = json.dumps({"weight_map": {f"{i}.{t}": shard.name for i, shard in enumerate(shards) for t in "abc"}}).encode()
        blob = snapshot.parent.parent / "blobs" / hashlib.sha256(good).hexdigest()
        blob.write_bytes(good)
        link.symlink_to(f"../../blobs/{blob.name}")
        content = good.replace(b"{", b" {", 1)
        assert "4 compared with the hub's SHA-256" in run("--deep", place)[1]
    blob.write_bytes(content)
    out, err = run("--deep", place, status=1)
    [line] = [line for line in out if "SHA-256" in line]
    assert line == (f"{link}: not the published file: wrong SHA-256 (found {hashlib.sha256(content).hexdigest()}, "
                    f"expected {blob.name}, the hub's)")
    assert f"{compared} compared with the hub's SHA-256" in err
    assert not [line for line in run_any(CHECK, place)[1] if "SHA-256" in line]


@needs_hashes
def test_hub_file_that_links_elsewhere(place):
    """Neither a directory, a link to nothing nor a file of a similar name is compared."""
    snapshot = make_cache(place) / "snapshots" / ("a" * 40)
    blobs = snapshot.parent.parent / "blobs"
    for i, name in enumerate(("e" * 63, "E" * 64, "e" * 65, "g" * 64)):
        (blobs / name).write_bytes(b"x")
        (snapshot / f"side{i}").symlink_to(f"../../blobs/{name}")
    (blobs / ("f" * 64)).mkdir()
    (snapshot / "folder").symlink_to(f"../../blobs/{'f' * 64}")
    (snapshot / "nothing").symlink_to(f"../../blobs/{'0' * 64}")
    out, err = run("--deep", place, status=1)
    only(out, snapshot / "nothing", "leads nowhere")
    assert "3 compared with the hub's SHA-256" in err


def test_unfinished_download(place):
    repository = make_cache(place)
    left = repository / "blobs" / ("d" * 64 + ".incomplete")
    left.write_bytes(b"half")
    link = repository / "snapshots" / ("b" * 40) / "model-00002-of-00002.safetensors"
    os.remove(link)
    link.symlink_to(f"../../blobs/{'d' * 64}")
    out, _ = run(place, status=1)
    assert any(line.startswith(f"{left}: ") for line in out)
    assert any(line.startswith(f"{link}: ") and "nowhere" in line for line in out)


@pytest.mark.parametrize("args", [(), ("--deep",)], ids=["headers", "deep"])
def test_file_that_aria2_has_not_completed(place, args):
    """aria2 gives a file its full size first; until it is complete, FILE.aria2 is beside it."""
    source = trees.Source(place)
    source.add("", "model", aligned("t."), shards=2)
    shard = place / "model-00002-of-00002.safetensors"
    size = shard.stat().st_size
    os.truncate(shard, 1000)
    os.truncate(shard, size)
    for name in (shard.name, "tokenizer.json"):
        (place / f"{name}.aria2").write_bytes(b"\0\1")
    out, _ = run(*args, place, status=1)
    only([line for line in out if line.startswith(f"{shard}: ")], shard, "UnfinishedDownload")
    only([line for line in out if "tokenizer" in line], place / "tokenizer.json.aria2",
         "an unfinished download")
    assert f"{shard}.aria2" not in "".join(out)


def test_invalid_index_of_a_named_checkpoint(place):
    trees.Source(place).add("", "model", aligned("t."), shards=2)
    (place / "model.safetensors.index.json").write_text('{"weight_map": {')
    for path in (place, place / "model"):
        out, _ = run(path, status=1)
        only(out, place / "model.safetensors.index.json", "InvalidIndex")


@pytest.mark.parametrize("suffix", ["part", "partial", "crdownload", "opdownload"])
def test_name_of_an_unfinished_download(place, suffix):
    trees.Source(place).add("", "model", aligned("t."))
    (place / f"notes.{suffix}").write_bytes(b"not weights")
    run(place)
    (place / f"other.safetensors.{suffix}").write_bytes(b"half")
    out, _ = run(place, status=1)
    only(out, place / f"other.safetensors.{suffix}", "an unfinished download")


# ---- reading every byte ----

def hash_lines(checkpoint):
    return {t.name: f"{hashlib.sha256(t.data).hexdigest()} {t.dtype} {t.shape}"
            for t in checkpoint.tensors}


@needs_hashes
def test_hashes(place):
    source = trees.rich(place / "models")
    source.add("", "empty", [trees.tensor("nothing", "F32", (0,)), trees.tensor("no", "U8", (0,))])
    hashes = place / "hashes.json"
    _, err = run(f"--hashes={hashes}", source.root, status=1)
    assert f"{hashes}: hashes written" in err
    with open(hashes) as f:
        assert json.load(f) == {"rich/model": hash_lines(source.checkpoints[0]),
                                "empty": hash_lines(source.checkpoints[1])}
    before = hashes.read_bytes()
    out, err = run(f"--hashes={hashes}", source.root, status=1)
    assert "written" not in err and not [line for line in out if "hashes" in line]
    assert hashes.read_bytes() == before


@needs_hashes
def test_hashes_of_names_that_are_not_utf8(place):
    source = trees.Source(place / "s")
    for name in (b"\xfe", b"\xff"):
        source.add("", os.fsdecode(name), [trees.tensor("t", "U8", (4,))])
    run(f"--hashes={place / 'h'}", source.root)
    run(f"--hashes={place / 'h'}", source.root)
    (place / "s" / os.fsdecode(b"\xff.safetensors")).write_bytes(
        trees.file_bytes([trees.tensor("t", "U8", (4,), fill=7)]))
    assert len(run(f"--hashes={place / 'h'}", source.root, status=1)[0]) == 1


@needs_hashes
def test_hashes_of_large_tensors(place):
    """Several spans and reads, whose ends are not ends of tensors."""
    rng = np.random.default_rng(1)
    data = {f"t{i}": rng.integers(0, 256, size, np.uint8).tobytes()
            for i, size in enumerate([70 << 20, 0, (66 << 20) + 3, 5, (1 << 20) - 1, 0])}
    made = [trees.Tensor(name, "U8", [len(raw)], raw) for name, raw in data.items()]
    path = place / "big.safetensors"
    path.write_bytes(trees.file_bytes(made))
    run(f"--hashes={place / 'h'}", path)
    with open(place / "h") as f:
        assert json.load(f) == {"big": {
            name: f"{hashlib.sha256(raw).hexdigest()} U8 [{len(raw)}]"
            for name, raw in data.items()}}


@needs_hashes
def test_hashes_do_not_depend_on_shards(place):
    tensors = [trees.tensor(f"t{i}", "F32", (i + 1, 300), seed=i) for i in range(9)]
    hashes = place / "hashes"
    for shards in (1, 2, 3):
        source = trees.Source(place / f"cut{shards}")
        source.add("m", "model", tensors, shards=shards)
        assert run(f"--hashes={hashes}", source.root)[0] == []
    other = trees.Source(place / "other")
    changed = [*tensors[:4], trees.tensor("t4", "F32", (5, 300), seed=9),
               trees.Tensor("t5", "F32", [300, 6], tensors[5].data), *tensors[7:],
               trees.tensor("new", "U8", (4,))]
    other.add("m", "model", changed, shards=2)
    out, _ = run(f"--hashes={hashes}", other.root, status=1)
    assert sorted(out) == ["m/model: tensor new did not exist when the hashes were written",
                           "m/model: tensor t4 has changed since the hashes were written",
                           "m/model: tensor t5 has changed since the hashes were written",
                           "m/model: tensor t6 is missing, but existed when the hashes were written"]


def members_once(pairs):
    assert len(dict(pairs)) == len(pairs), [name for name, _ in pairs]
    return dict(pairs)


@needs_hashes
def test_hashes_contain_each_name_once(place):
    """A file with two names, a tensor in two shards, two checkpoints of one name."""
    source = trees.Source(place / "models")
    a, b = trees.file_bytes(aligned(seed=1)), trees.file_bytes(aligned(seed=2))
    for name, data in {"same/m-00001-of-00002": a, "differ/m-00001-of-00002": a,
                       "differ/m-00002-of-00002": b, "names/m-00001-of-00001": a,
                       "names/m": b, "names/m.safetensors": a}.items():
        source.place(f"{name}.safetensors", data)
    os.link(source.path("same/m-00001-of-00002.safetensors"),
            source.path("same/m-00002-of-00002.safetensors"))
    hashes = place / "hashes"
    run(f"--hashes={hashes}", source.root, status=1)
    with open(hashes) as f:
        found = json.load(f, object_pairs_hook=members_once)

    def lines(*seeds):
        return {t.name: " and ".join(sorted(
            f"{hashlib.sha256(x.data).hexdigest()} {x.dtype} {x.shape}"
            for seed in seeds for x in aligned(seed=seed) if x.name == t.name)) for t in aligned()}

    assert found == {"same/m": lines(1), "differ/m": lines(1, 2), "names/m": lines(1),
                     "names/m.safetensors": lines(1, 2)}
    assert not [line for line in run(f"--hashes={hashes}", source.root, status=1)[0]
                if "hashes" in line]
    twice = place / "twice"  # with duplicate members
    twice.write_text("{" + ", ".join(
        json.dumps(key) + ": {" + ", ".join(f"{json.dumps(name)}: {json.dumps(value)}"
                                            for name, values in of_key.items()
                                            for value in 2 * values.split(" and ")) + "}"
        for key, of_key in found.items()) + "}")
    assert not [line for line in run(f"--hashes={twice}", source.root, status=1)[0]
                if "hashes" in line]
    with open(source.path("differ/m-00002-of-00002.safetensors"), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"!")
    out, _ = run(f"--hashes={hashes}", source.root, status=1)
    assert [line for line in out if "hashes" in line] == [
        "differ/m: tensor c has changed since the hashes were written"]


@needs_hashes
@pytest.mark.parametrize("text", [b"", b"[]", b'{"m": 1}', b'{"m": {"t": 1}}', b'{"m": {"t": "x"'])
def test_invalid_file_of_hashes(source, place, text):
    path = place / "hashes"
    path.write_bytes(text)
    _, err = run(f"--hashes={path}", source.root, status=2)
    assert "not a file of hashes" in err
    assert path.read_bytes() == text


@needs_hashes
def test_hashes_cannot_be_written(source, place):
    _, err = run(f"--hashes={place}/none/hashes", source.root, status=2)
    assert "No such file" in err
    run(f"--hashes={place}/h", source.root, source.root, status=2)
    assert not (place / "h").exists()


NAN_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<f4", "BF16": "bfloat16",
              "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
              "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}


@pytest.mark.parametrize("dtype", NAN_DTYPES)
def test_nan_and_infinity(place, dtype):
    """Every bit pattern of small types, random ones of others, at several offsets."""
    name = NAN_DTYPES[dtype]
    if name[0] != "<" and ML_DTYPES is None:
        pytest.skip("there is no ml_dtypes")
    kind = np.dtype(name) if name[0] == "<" else np.dtype(getattr(ML_DTYPES, name))
    if kind.itemsize <= 2:
        raw = np.arange(256 ** kind.itemsize, dtype=f"<u{kind.itemsize}").tobytes() * 9
    else:
        values = np.random.default_rng(2).standard_normal(400_000).astype(kind)
        values[::1001] = np.nan
        values[::1501] = np.inf
        values[::1777] = -np.inf
        raw = values.tobytes()
    values = np.frombuffer(raw, kind).astype(np.float64)
    count = len(raw) * 8 // trees.DTYPE_BITS[dtype]
    clean = bytes(len(raw)) if dtype != "F8_E8M0" else b"\x7f" * len(raw)
    for shift in (0, 3):
        path = place / f"{shift}.safetensors"
        path.write_bytes(trees.file_bytes([
            trees.Tensor("shift", "U8", [shift], b"\xff" * shift),
            trees.Tensor("bad", dtype, [count], raw), trees.Tensor("good", dtype, [count], clean)]))
        out, _ = run("--nan", path, status=1)
        found = [line for line in out if "NaN" in line]
        only(found, path, f"tensor bad ({dtype}) has {int(np.isnan(values).sum())} NaN and "
             f"{int(np.isinf(values).sum())} infinite values")
        assert not [line for line in run("--deep", path, status=1 if shift and
                                         kind.itemsize > 1 else 0)[0] if "NaN" in line]


def test_deep_reads_every_byte(place):
    table = trees.experts(place / "m", tensors=3000, shards=4)
    out, _ = run("--json", "--deep", place)
    found = json.loads("\n".join(out))
    size = sum(f.stat().st_size for f in (place / "m").glob("*.safetensors"))
    assert (found["tensors"], found["bytes"], found["bytes_read"]) == (len(table), size, size)


# ---- headers only: how much is read ----

def counted(*args):
    """Runs fstfs-check and returns (bytes read, read calls) of the whole process."""
    process = subprocess.Popen([CHECK, *map(str, args)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{process.pid}/io") as f:
        io = dict(line.split(": ") for line in f.read().splitlines())
    assert process.wait() == 0
    return int(io["rchar"]), int(io["syscr"])


def test_published_checkpoint_reads_headers_only(place):
    if not DESCRIPTION.exists():
        pytest.skip("../shared/data/qwen3.5-25b-a3b.json is not there")
    trees.published(DESCRIPTION, place / "m")
    (place / "empty.safetensors").write_bytes(trees.file_bytes([]))
    needed = (place / "m/model.safetensors.index.json").stat().st_size
    for path in (place / "m").glob("*.safetensors"):
        with open(path, "rb") as f:
            needed += 8 + struct.unpack("<Q", f.read(8))[0]
    # what the loader of the program reads is the same for an empty file
    base_bytes, base_calls = counted(place / "empty.safetensors")
    base_bytes -= (place / "empty.safetensors").stat().st_size
    read_bytes, calls = counted(place / "m")
    # the sanitizers read /proc/self/maps, whose length is never twice the same
    assert needed - 4096 <= read_bytes - base_bytes <= needed + 10 * 65536 + 4096
    assert calls - base_calls < 100


# ---- exit status ----

def test_paths_that_cannot_be_checked(source, place):
    (place / "empty").mkdir()
    out, _ = run(place / "empty", status=2)
    only(out, place / "empty", "no checkpoint")
    os.mkfifo(place / "fifo")
    run(place / "fifo", status=2)
    run("/dev/null", status=2)
    out, _ = run(source.root, place / "none", status=2)
    only(out, place / "none", "no such")


def test_permission_denied(source, test_user, user_program):
    program = user_program(CHECK)
    shard = source.path("llama/model-00001-of-00002.safetensors")
    os.chmod(shard, 0)
    for path in (source.root, shard):
        out, _ = run(path, status=2, user=test_user, program=program)
        assert any(line.startswith(f"{shard}: ") and "Permission denied" in line for line in out)
    os.chmod(shard, 0o644)
    os.chmod(source.path("llama"), 0)
    out, _ = run(source.root, status=2, user=test_user, program=program)
    only(out, source.path("llama"), "Permission denied")


@pytest.mark.parametrize("args", [[], ["--nothing", "."], ["--deep=1", "."], ["--hashes"]])
def test_wrong_command_lines(args):
    out, err = run(*args, status=2)
    assert out == [] and "fstfs-check" in err


def test_help_and_version():
    out, err = run("--help")
    text = "\n".join(out)
    assert err == "" and "Exit status" in text
    for option in ("--deep", "--nan", "--hashes", "--all", "--json"):
        assert option in text
    assert all(len(line) <= 95 for line in out)
    assert run("-V")[0][0].startswith("fstfs-check ")


def test_json(source, place):
    os.truncate(source.path("llama/adapter.safetensors"), 500)
    bad = os.fsencode(source.path("llama/")) + b"\xff.safetensors"
    with open(bad, "wb") as f:
        f.write(b"x")
    found = json.loads("\n".join(run("--json", source.root, place / "none", status=2)[0]))
    assert found["sound"] is False and found["files"] == 4
    paths = {os.fsencode(f["path"]): f for f in found["findings"]}
    assert set(paths) == {os.fsencode(source.path("llama/adapter.safetensors")), bad,
                          os.fsencode(place / "none")}
    assert not paths[os.fsencode(place / "none")]["checked"] and paths[bad]["checked"]


def test_lines_cannot_be_forged(place):
    trees.Source(place / "models").add("", "model", aligned())
    name = "evil\n\x1b[31m\x9b\u202e.safetensors"
    (place / "models" / name).write_bytes(b"no")
    out, err = run(place / "models", status=1)
    assert len(out) == 1 and "\\x0a\\x1b" in out[0] and "\x1b" not in err
    text = "\n".join(run("--json", place / "models", status=1)[0])
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    assert os.path.basename(json.loads(text)["findings"][0]["path"]) == name


def sparse_model(place, size):
    trees.write_sparse(place / "model.safetensors", [("t", "U8", [size], size)])
    return place / "model.safetensors"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_and_memory_limit(place, number):
    """One terabyte, which no test waits for, with progress on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([CHECK, "--nan", sparse_model(place, 1 << 40)],
                               stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    progress = b""
    while not re.search(rb" [1-9]\d?% reading", progress):
        progress += os.read(ours, 65536)
    with open(f"/proc/{process.pid}/status") as f:
        most = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
    process.send_signal(number)
    out, _ = process.communicate(timeout=20 * SLOW)
    with suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(ours, 65536):
            progress += piece
    os.close(ours)
    assert process.returncode == 128 + number
    assert out == b"" and b" GB/s" in progress
    assert progress.endswith(b"\r\x1b[Kfstfs-check: interrupted\r\n")
    assert INSTRUMENTED or most < 128 * 1024  # KiB; sanitizers use memory of their own


def test_no_progress_without_a_terminal(source):
    assert "\x1b" not in run("--deep", source.root)[1]


def test_directory_without_checkpoint_after_another_path(place):
    """It is reported whatever was found in the paths before it."""
    (place / "empty").mkdir()
    for paths in ([place / "none", place / "empty"], [place / "empty", place / "none"]):
        done = subprocess.run([CHECK, *paths], capture_output=True, text=True, timeout=20 * SLOW)
        assert done.returncode != 0
        assert f"{place}/empty: contains no checkpoint" in done.stdout + done.stderr
