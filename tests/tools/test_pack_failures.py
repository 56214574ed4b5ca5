# SPDX-License-Identifier: Apache-2.0
"""fstfs-pack that fails, is killed, or shares its directory with other programs: old or new files are
complete after any failure, and other programs' files are not lost."""

import hashlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import INSTRUMENTED, SANITIZER, SLOW
from corpus import trees
from packing import (MIB, PACK, SYSTEMS, content, expected, hidden, is_model, misfortune, plain, run,
                     snapshot, tmpfs)

# ---- failures ----

def test_a_full_disk(place):
    source = trees.Source(place / "models")
    source.add("", "model", plain(scale=1000), metadata={"format": "pt"})  # 25 MB
    with tmpfs(place, "16M") as small:
        (small / "out.safetensors").write_bytes(b"old")
        assert "No space left" in run("--force", source.root, small / "out.safetensors", status=1)
        assert "No space left" in run("--shards=3", source.root, small / "out", status=1)
        (small / "kept").mkdir()
        (small / "kept/model.safetensors").write_bytes(b"old")
        assert "No space left" in run("--shards=3", "--force", source.root, small / "kept",
                                      status=1)
        assert snapshot(small / "kept") == {"model.safetensors": hashlib.sha256(b"old").hexdigest()}
        assert sorted(os.listdir(small)) == ["kept", "out.safetensors"]
        assert (small / "out.safetensors").read_bytes() == b"old"
        assert os.statvfs(small).f_bfree * 4096 > 15 * MIB


def test_directory_without_write_permission(place, test_user, user_program):
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    program = user_program(PACK)
    shut = place / "shut"
    shut.mkdir(mode=0o555)
    for args in ([source.root, shut / "x.safetensors"], ["--shards=2", source.root, shut / "x"]):
        assert "Permission denied" in run(*args, status=1, user=test_user, program=program)
    assert os.listdir(shut) == []
    assert "No such file" in run(source.root, place / "no/where.safetensors", status=1)


def all_bytes(directory):
    """The contents of all files of a directory, without their names."""
    return {p.read_bytes() for p in Path(directory).iterdir() if p.is_file()}


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", ["file", "shards", "other shards"])
@pytest.mark.parametrize("replace", [True, False], ids=["replace", "new"])
def test_killed_at_every_step(place, replace, kind, system):
    """Before each call that changes something: the old or nothing, or the new; never half. Where
    shards are replaced by shards of the same names there may be no index, but never shards of
    both, and the old ones are there under hidden names."""
    old, new = plain(), plain(seed=1)
    source = trees.Source(place / "models")
    source.add("old", "model", old)
    source.add("new", "model", new)
    folder = place / "to"
    out = folder / ("out.safetensors" if kind == "file" else "out")
    cut = [] if kind == "file" else ["--shards=2"]
    first = [] if kind == "file" else ["--shards=2" if kind == "shards" else "--shards=3"]
    force = ["--force"] if replace else []
    index = out / "model.safetensors.index.json"
    states = []
    for step in range(1, 300):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        before = set()
        if replace:
            run(*first, source.path("old"), out)
            if cut:
                (out / "config.json").write_bytes(b"{}")
                before = all_bytes(out)
        done = subprocess.run([PACK, *cut, *force, source.path("new"), out], text=True,
                              env=misfortune(KILL_AT=step, **SYSTEMS[system]), capture_output=True)
        if not out.exists() and not (replace and system in ("nfs", "fuse")):
            assert not replace
            state = None
        elif not cut:
            if out.exists():
                state = content(out)[0] == expected(new)
                assert state or (replace and content(out)[0] == expected(old))
            else:  # without exchange of names it has another name for a moment
                kept, = (p for p in folder.iterdir() if p.name.endswith(".swap")
                         and content(p)[0] == expected(old))
                state = None
        elif index.exists():
            state = is_model(out, expected(new), alone=False)
            assert state or (replace and is_model(out, expected(old), alone=False))
        else:
            assert replace and (kind == "shards" or system in ("nfs", "fuse"))
            for number in (2, 3):
                shards = [content(p)[0] for p in out.glob(f"*-of-0000{number}.safetensors")]
                assert all(s.items() <= expected(new).items() for s in shards) or all(
                    s.items() <= expected(old).items() for s in shards)
            assert before <= all_bytes(out)
            state = None
        assert not (replace and cut) or (out / "config.json").read_bytes() == b"{}"
        states.append(state)
        assert len(hidden(folder)) <= (2 if kind == "file" else 1)
        inside = hidden(out) if cut and out.exists() else []
        assert all(re.fullmatch(r"\..+\.[0-9a-f]{8}\.(fstfs-tmp|swap)", name)
                   for name in hidden(folder) + inside)
        if done.returncode == 0:
            assert hidden(folder) + inside == []
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        err = run("--force", *cut, source.path("new"), out)
        assert all(name in err for name in hidden(folder) + (hidden(out) if cut else []))
        assert all(name.endswith(".swap") for name in hidden(folder) +
                   (hidden(out) if cut else []))  # the next run removes unfinished output
        assert is_model(out, expected(new)) if cut else content(out)[0] == expected(new)
    else:
        pytest.fail("killed at 300 steps without completing")
    assert states[0] is (False if replace else None) and states[-1] is True
    assert len(states) > 3
    gaps = [i for i, state in enumerate(states) if state is None]
    if replace and system in ("full", "named") and kind != "shards":
        assert gaps == []


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", ["new", "existing", "same names", "other names"])
def test_a_failure_at_every_step(place, existing, system):
    """Each call that changes something fails once with ENOSPC: the old files are restored, or the new
    ones are complete; status 0 only for the latter."""
    source = trees.Source(place / "models")
    source.add("old", "model", plain())
    source.add("new", "model", plain(seed=1))
    out, template, failed = place / "out", place / "template", 0
    template.mkdir()
    (template / "config.json").write_bytes(b"{}")
    if existing != "existing":
        run(f"--shards={2 if existing == 'same names' else 3}", source.path("old"), template)
    for step in range(1, 300):
        shutil.rmtree(out, ignore_errors=True)
        before = {}
        if existing != "new":
            shutil.copytree(template, out)
            before = snapshot(out)
        done = subprocess.run([PACK, "--shards=2", "--force", source.path("new"), out], text=True,
                              env=misfortune(FAIL_AT=step, **SYSTEMS[system]), capture_output=True)
        after = snapshot(out) if out.exists() else {}
        if after != before:
            assert is_model(out, expected(plain(seed=1)), alone=False), done.stderr
            assert existing == "new" or after["config.json"] == before["config.json"]
        assert done.returncode == 0 or "No space left" in done.stderr, done.stderr
        assert done.returncode or after != before
        failed += done.returncode
    assert failed > 8


# ---- other programs in the same directory ----

class Stopped:
    """A run that stops before its Nth call that changes a file system."""

    def __init__(self, step, *args, **settings):
        self.process = subprocess.Popen([PACK, *map(str, args)], env=misfortune(
            STOP_AT=step, **settings), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        self.over = not os.WIFSTOPPED(status)
        if self.over:
            self.process.returncode = os.waitstatus_to_exitcode(status)

    def go_on(self):
        """Continues the run and returns (exit status, standard error)."""
        if not self.over:
            os.kill(self.process.pid, signal.SIGCONT)
        err = self.process.communicate(timeout=50 * SLOW)[1]
        assert not any(sign in err for sign in SANITIZER), err
        return self.process.returncode, err


def at_every_step(begin, meddle, check):
    """Stops a run before each of its changes, calls meddle(), and continues it."""
    statuses = []
    for step in range(1, 300):
        run_of_it = begin(step)
        if run_of_it.over:
            assert run_of_it.go_on()[0] == 0
            return statuses
        try:
            known = meddle()
        finally:
            status, err = run_of_it.go_on()
        check(status, err, known)
        statuses.append(status)
    return pytest.fail("not completed after 300 steps")


def fill(out, source, existing):
    shutil.rmtree(out, ignore_errors=True)
    if existing:
        shutil.copytree(source.path("template"), out)
        if existing != "old":
            for path in out.glob("model*"):
                path.unlink()


@pytest.fixture
def pair_of_models(place):
    source = trees.Source(place / "models")
    source.add("old", "model", plain(prefix="old"))
    source.add("new", "model", plain(prefix="new", seed=1))
    source.add("other", "model", plain(prefix="other", seed=2))
    source.add_side("template/config.json", b"{}")
    run("--shards=2", source.path("old"), source.path("template"))
    return source


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", [False, True, "old"], ids=["new", "existing", "replace"])
@pytest.mark.parametrize("stem", ["model", "second"])
def test_a_second_run_into_the_directory(place, pair_of_models, stem, existing, system):
    """Exactly one run exits with 0, and its output is complete."""
    source, out = pair_of_models, place / "out"

    def begin(step):
        fill(out, source, existing)
        return Stopped(step, "--shards=2", "--force", source.path("new"), out, **SYSTEMS[system])

    def meddle():
        done = subprocess.run([PACK, "--shards=3", "--force", f"--stem={stem}",
                               source.path("other"), out], capture_output=True, text=True,
                              env=misfortune(**SYSTEMS[system]))
        if done.returncode:
            assert done.returncode == 1 and "locked by another program (process " in done.stderr
            assert str(out) in done.stderr
        return done.returncode

    def check(status, err, second):
        assert (status == 0) != (second == 0), (status, second, err)
        tensors = [set(content(p)[0]) for p in out.glob("*.safetensors")]
        names = set().union(*tensors)
        assert status or {f"newt{i}" for i in range(6)} <= names
        assert second or {f"othert{i}" for i in range(6)} <= names
        assert not existing or (out / "config.json").read_bytes() == b"{}"
        assert hidden(place) == hidden(out) == []

    statuses = at_every_step(begin, meddle, check)
    assert statuses.count(0) > 8


def replace_directory(out):
    """Returns the name of a file that must still exist afterwards."""
    if out.exists():
        shutil.rmtree(f"{out}-moved", ignore_errors=True)
        out.rename(f"{out}-moved")
    out.mkdir()
    (out / "thesis.txt").write_bytes(b"precious")
    return "thesis.txt"


def make_file(out):
    (out if out.exists() else out.parent).joinpath("notes.txt").write_bytes(b"precious")
    return "notes.txt" if out.exists() else "../notes.txt"


def renamed_over(name):
    def put(out):
        if not out.exists():
            out.mkdir()
        (out / ".saving").write_bytes(b"precious")
        (out / ".saving").rename(out / name)
        return name

    return put


def appended(name):
    def append(out):
        if not (out / name).exists():
            return renamed_over(name)(out)
        with open(out / name, "ab") as f:
            f.write(b"precious")
        return name

    return append


MEDDLERS = {"directory": replace_directory, "file": make_file,
            "config": renamed_over("config.json"), "index": renamed_over(
                "model.safetensors.index.json"),
            "shard": renamed_over("model-00002-of-00002.safetensors"),
            "appended config": appended("config.json"),
            "appended index": appended("model.safetensors.index.json"),
            "other shard": renamed_over("model-00003-of-00003.safetensors")}


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("existing", [False, True, "old"], ids=["new", "existing", "replace"])
@pytest.mark.parametrize("what", MEDDLERS)
def test_files_of_other_programs_are_kept(place, pair_of_models, what, existing, system):
    """At every step: the file is kept, and so are all old files, or the new ones have status 0."""
    source, out = pair_of_models, place / "out"
    # without flags and links there is a gap between checking and giving a name
    unsafe = system == "fuse" and what in ("index", "shard", "appended index")
    is_changed = what in ("index", "shard", "config") or what.startswith("appended")
    before = set()

    def begin(step):
        fill(out, source, existing)
        before.clear()
        before.update(all_bytes(out) if existing else ())
        return Stopped(step, "--shards=2", "--force", source.path("new"), out, **SYSTEMS[system])

    def check(status, err, name):
        moved = Path(f"{out}-moved")
        where = moved if what == "directory" and moved.exists() else out
        if not unsafe:
            there = (out / name).read_bytes()
            assert there.endswith(b"precious"), (status, err)
            assert there == b"precious" or what.startswith("appended"), (status, err)
        if status == 0:
            tensors = set().union(*(content(p)[0] for p in where.glob("*-of-00002.safetensors")
                                    if p.read_bytes() != b"precious"))
            assert {f"newt{i}" for i in range(6)} <= tensors or what in ("index", "shard")
        else:
            assert status == 1 and err.count("\n") >= 1
            if existing and not is_changed:
                assert before <= all_bytes(where)

    statuses = at_every_step(begin, lambda: MEDDLERS[what](out), check)
    if what in ("directory", "index", "shard") or (existing is False and what != "file"):
        assert statuses.count(1) > 3


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("what", ["file", "new directory", "temporary directory", "directory"])
def test_output_is_moved(place, pair_of_models, what, system):
    """At every step: the run fails if no output is at its path, and the old files are kept."""
    source, above, moved = pair_of_models, place / "above", place / "moved"
    out = above / ("out.safetensors" if what == "file" else "out")

    def begin(step):
        for directory in (above, moved):
            shutil.rmtree(directory, ignore_errors=True)
        above.mkdir()
        if what == "directory":
            shutil.copytree(source.path("template"), out)
        cut = [] if what == "file" else ["--shards=2"]
        return Stopped(step, *cut, "--force", source.path("new"), out, **SYSTEMS[system])

    def move():
        path = {"directory": out, "temporary directory": above / next(iter(hidden(above)), "-")}.get(what, above)
        if path.exists():
            path.rename(moved)
            path.mkdir()

    def check(status, err, _):
        if what == "directory":  # the path is not checked again while the old files are removed
            assert is_model(moved, expected(old if status else new))
        elif moved.exists():
            assert status == 1 and "moved or replaced" in err
            assert os.listdir(moved) == []
        else:
            assert status == 0 and is_model(out, expected(new))

    old, new = plain(prefix="old"), plain(prefix="new", seed=1)
    statuses = at_every_step(begin, move, check)
    assert statuses.count(1) > 1
    assert statuses.count(0) < len(statuses) / 4


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
def test_an_old_shard_is_changed(place, pair_of_models, system):
    """The changed shard is kept at every step. The index names only old or only new shards."""
    source, out = pair_of_models, place / "out"
    old = "model-00002-of-00002.safetensors"
    completed = []

    def begin(step):
        fill(out, source, "old")
        return Stopped(step, "--shards=3", "--force", source.path("new"), out, **SYSTEMS[system])

    def check(status, err, name):
        there = (out / name).read_bytes()
        assert there.endswith(b"precious") and (status, err.count(name)) in [(0, 0), (1, 1)], err
        index = json.loads((out / "model.safetensors.index.json").read_bytes())["weight_map"]
        assert len(set(index.values())) == (3 if "newt0" in index else 2)
        if "newt0" in index:
            completed.append(status)
            tensors = [set(content(out / shard)[0]) for shard in set(index.values())]
            assert set().union(*tensors) == set(index) == {f"newt{i}" for i in range(6)}
        else:
            assert status == 1 and set(index) == {f"oldt{i}" for i in range(6)}
            assert len(list(out.glob("*.safetensors"))) == 2
        assert hidden(place) == hidden(out) == []

    statuses = at_every_step(begin, lambda: appended(old)(out), check)
    assert statuses.count(1) > 8 and 1 in completed


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
def test_an_old_index_is_changed(place, pair_of_models, system):
    """No new file has its name. If it is kept, so are the shards that it names."""
    source, out = pair_of_models, place / "out"
    index = out / "model.safetensors.index.json"

    def begin(step):
        fill(out, source, "old")
        return Stopped(step, "--shards=1", "--force", source.path("new"), out, **SYSTEMS[system])

    def append():
        with open(index, "ab") if index.exists() else open(os.devnull, "wb") as f:
            f.write(b" ")

    def check(status, err, _):
        if index.exists():
            assert status == 1
            assert is_model(out, expected(plain(prefix="old")), alone=False)

    statuses = at_every_step(begin, append, check)
    assert statuses.count(1) > 8


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", ["full", "nfs", "fuse"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"])
@pytest.mark.parametrize("cut", [2, 3])
def test_an_old_file_is_open_for_writing(place, pair_of_models, cut, name, system):
    """What is written into it at any step, whatever its name then is, is kept; except between the last comparison and
    the removal, which no call does at once."""
    source, out = pair_of_models, place / "out"
    source.add_side("new/config.json", b"new")
    writer, lost = None, []

    def begin(step):
        nonlocal writer
        fill(out, source, "old")
        writer = open(out / name, "ab", buffering=0)
        return Stopped(step, f"--shards={cut}", "--force", source.path("new"), out, **SYSTEMS[system])

    def write():
        writer.write(b"precious")
        has_name = os.fstat(writer.fileno()).st_nlink > 0
        writer.close()
        return has_name

    def check(status, err, has_name):
        kept = any(path.read_bytes().endswith(b"precious") for path in out.iterdir())
        if has_name and not kept:
            lost.append(status)
        assert status == (1 if kept else 0)

    statuses = at_every_step(begin, write, check)
    assert statuses.count(1) > 8 and len(lost) <= 1


@pytest.mark.parametrize("what", ["output", "input"])
def test_failing_readdir(place, what):
    """An error in the middle of a directory is not taken for its end."""
    source = trees.Source(place / "models")
    source.add("m", "model", plain(), shards=3)
    (place / "npy").mkdir()
    for name in "abc":
        np.save(place / f"npy/{name}.npy", np.arange(9))
    out, failed = place / "out", []
    for at in range(1, 80):  # more than there are calls
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name in ("config.json", "x.txt", "y.txt"):
            (out / name).write_bytes(b"{}")
        before = snapshot(out)
        args = [source.path("m"), out] if what == "output" else [place / "npy", out]
        done = subprocess.run([PACK, "--force", "--shards=2", *args], capture_output=True,
                              text=True, env=misfortune(READDIR_AT=at))
        if done.returncode:
            assert done.returncode == 1 and "Input/output error" in done.stderr, done.stderr
            assert snapshot(out) == before
        else:
            assert snapshot(out).items() > before.items()
            tensors = {k for p in out.glob("*.safetensors") for k in content(p)[0]}
            assert len(tensors) == (6 if what == "output" else 3)
        failed.append(done.returncode)
    assert sum(failed) > 3 and failed[-10:] == [0] * 10


def test_reader_sees_complete_checkpoints(place):
    """While a checkpoint is replaced repeatedly by one with other shards, there is always an index, and
    all of its shards exist."""
    source = trees.Source(place / "models")
    for seed in range(2):
        source.add(f"m{seed}", "model", plain(seed=seed))
    out = place / "out"
    index = out / "model.safetensors.index.json"
    run("--shards=4", source.path("m1"), out)
    looks = 0
    for i in range(12):
        process = subprocess.Popen([PACK, "--force", f"--shards={2 + i % 3}",
                                    source.path(f"m{i % 2}"), out], stderr=subprocess.DEVNULL)
        while process.poll() is None:
            looks += 1
            text = index.read_bytes()
            wanted, found = set(json.loads(text)["weight_map"].values()), set(os.listdir(out))
            assert wanted <= found or index.read_bytes() != text
        assert process.returncode == 0
    assert looks


@pytest.mark.parametrize("system", SYSTEMS)
def test_limit_of_the_file_size(place, system):
    """RLIMIT_FSIZE, for which the kernel sends SIGXFSZ."""
    source = trees.Source(place / "models")
    source.add("", "model", plain(scale=1000), metadata={"format": "pt"})  # 25 MB
    limit = (4 << 20, 4 << 20)
    for args in ["--shards=2", source.root, place / "out"], [source.root, place / "out.safetensors"]:
        assert "File too large" in run(
            *args, status=1, env=misfortune(**SYSTEMS[system]),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert os.listdir(place) == ["models"]


def test_terminal_is_gone(place):
    """Nobody reads the messages, for which the kernel sends SIGPIPE."""
    source = trees.Source(place / "models")
    source.add("", "model", plain())
    theirs, ours = os.pipe()
    os.close(theirs)
    done = subprocess.run([PACK, source.root, place / "out.safetensors"], stderr=ours, timeout=50 * SLOW)
    os.close(ours)
    assert done.returncode == 0
    assert content(place / "out.safetensors")[0] == expected(plain())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_and_memory_limit(place, number):
    """A sparse file of 4 GiB; the signal is sent when the bar has moved."""
    trees.write_sparse(place / "model.safetensors", [("t", "U8", [1 << 32], 1 << 32)])
    for output in (["--shards=1"], place / "out"), ([], place / "out.safetensors"):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PACK, *output[0], place / "model.safetensors", output[1]],
                                   stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        progress = b""
        while not re.search(rb" [1-9]\d?% writing", progress):
            progress += os.read(ours, 65536)
        with open(f"/proc/{process.pid}/status") as f:
            most = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
        process.send_signal(number)
        process.wait(20 * SLOW)
        with suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                progress += piece
        os.close(ours)
        assert process.returncode == 128 + number
        assert b" GB/s" in progress and b"interrupted" in progress
        assert INSTRUMENTED or most < 192 * 1024  # KiB; sanitizers use memory of their own
        assert os.listdir(place) == ["model.safetensors"]


@pytest.mark.parametrize("killed", [False, True])
def test_directory_with_the_name_of_the_temporary_one(place, killed):
    """Whoever may write in the parent directory can give any directory that name. Only that of a
    killed run is emptied."""
    source = trees.Source(place / "s")
    source.add("", "model", plain())
    out = place / "out"
    for step in range(2, 20):
        stopped = Stopped(step, "--shards=2", source.root, out, **SYSTEMS["named"])
        stopped.process.kill()
        stopped.process.communicate()
        name, = hidden(place)
        if os.listdir(place / name):
            break
        os.rmdir(place / name)
    assert os.listdir(place / name)
    if not killed:
        shutil.rmtree(place / name)
        (place / name).mkdir()
        (place / name / "results.txt").write_text("kept")
        err = run("--shards=2", source.root, out, status=1)
        assert name in err and "remove or rename it" in err
        assert (place / name / "results.txt").read_text() == "kept"
        (place / name).rename(place / "results")
    run("--shards=2", source.root, out)
    assert is_model(out, expected(plain())) and hidden(place) == hidden(out) == []
    assert os.listxattr(out) == []
