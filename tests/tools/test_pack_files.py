# SPDX-License-Identifier: Apache-2.0
"""fstfs-pack: side files, inputs that are never replaced, and free space."""

import filecmp
import os
import re
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import disk_image, eventually
from corpus import trees
from packing import (MIB, PACK, SYSTEMS, content, expected, hidden, misfortune, plain, run,
                     snapshot, tmpfs)

SIDE = {"config.json": b'{"model_type": "llama"}\n', "tokenizer.json": b"{}",
        "tokenizer.model": b"\0", "chat_template.jinja": b"{{ x }}", "modeling_x.py": b"pass\n",
        "merges.txt": b"", "LICENSE": b"L"}
WEIGHTS = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.gguf",
           "tf_model.h5", "flax_model.msgpack", "model.onnx", "a.npy", "x.safetensors.incomplete",
           "tokenizer2.json.aria2"]


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("m", "model", plain(), shards=2, metadata={"format": "pt"})
    for name, data in SIDE.items():
        made.add_side(f"m/{name}", data)
    for name in WEIGHTS:
        made.add_side(f"m/{name}", b"other weights")
    made.add_side("m/.hidden", b"hidden")
    made.add_side("m/1_Pooling/config.json", b"{}")
    return made


def side_files(directory):
    return {p.name: p.read_bytes() for p in Path(directory).iterdir()
            if not re.match(r"model.*\.safetensors", p.name)}


# ---- side files ----

@pytest.mark.parametrize("path", ["m", "m/", "m/model", "m/model.safetensors.index.json"])
def test_side_files_are_copied(place, source, path):
    err = run("--verify", "--shards=3", source.path(path), place / "out")
    assert side_files(place / "out") == SIDE
    assert f"; {len(SIDE)} other files" in err
    assert "directories not copied: 1_Pooling" in err


def modes(directory):
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in Path(directory).iterdir()}


@pytest.mark.parametrize("system", ["full", "named"])
def test_modes(place, source, system):
    """An output file has at most the permissions that all of its inputs have, less the umask's."""
    shards = sorted(Path(source.path("m")).glob("*.safetensors"))
    Path(source.path("m/config.json")).chmod(0o600)
    Path(source.path("m/LICENSE")).chmod(0o777)
    Path(source.path("m/merges.txt")).chmod(0o444)
    shards[0].chmod(0o660)
    shards[1].chmod(0o604)
    run("--shards=2", source.path("m/model"), place / "out", umask=0o022, env=misfortune(**SYSTEMS[system]))
    run(source.path("m/model"), place / "one.safetensors", umask=0o022, env=misfortune(**SYSTEMS[system]))
    found = modes(place / "out")
    assert {name: found.pop(name) for name in ("config.json", "LICENSE", "merges.txt")} == {
        "config.json": 0o600, "LICENSE": 0o644, "merges.txt": 0o444}
    assert {mode for name, mode in found.items() if "safetensors" in name} == {0o600}
    assert {mode for name, mode in found.items() if "safetensors" not in name} == {0o644}
    assert modes(place)["one.safetensors"] == 0o600
    run("--shards=2", source.path("m/model"), place / "closed", umask=0o077)
    assert set(modes(place / "closed").values()) == {0o600, 0o400}


@pytest.mark.parametrize("view", [None, "shards", "merged"])
def test_modes_of_a_closed_index(mount, place, source, view):
    """Its metadata is copied."""
    os.chmod(source.path("m/model.safetensors.index.json"), 0o600)
    given = mount(source.root) / f"{view}/m" if view else source.path("m/model")
    run("--shards=2", given, place / "out", umask=0o022)
    run(given, place / "one.safetensors", umask=0o022)
    made = {**modes(place / "out"), **modes(place)}
    assert {mode & 0o077 for name, mode in made.items() if "safetensors" in name} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("system", ["full", "named"])
@pytest.mark.parametrize("mode, expected", [(0o640, 0o600), (0o644, 0o644), (0o604, 0o600),
                                            (0o664, 0o644)])
def test_modes_in_another_group(place, source, mode, expected, system):
    """The output gets the group of its directory. What the inputs give to their group is not given
    to that one, and what they deny to their group is not given to others."""
    OURS, THEIRS = 60001, 60002
    inputs = [p for p in Path(source.path("m")).iterdir() if p.is_file()]
    for path in inputs:
        os.chown(path, 0, OURS)
        path.chmod(mode)
    for name, group in (("same", OURS), ("other", THEIRS)):
        (place / name).mkdir()
        os.chown(place / name, 0, group)
        (place / name).chmod(0o2755)
        run("--shards=2", source.path("m/model"), place / name / "out", umask=0o022,
            env=misfortune(**SYSTEMS[system]))
        made = [p.stat() for p in (place / name / "out").iterdir()]
        assert {st.st_gid for st in made} == {group}
        assert {stat.S_IMODE(st.st_mode) for st in made} == {
            mode & ~0o022 if group == OURS else expected}
    os.chown(sorted(Path(source.path("m")).glob("*.safetensors"))[0], 0, THEIRS)
    run(source.path("m/model"), place / "same/mixed.safetensors", umask=0o022)
    assert modes(place / "same")["mixed.safetensors"] == expected


def acl(*entries):
    """The value of system.posix_acl_access (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def give_acl(path):
    nobody = 0xffffffff
    try:
        os.setxattr(path, "system.posix_acl_access", acl(
            (1, 6, nobody), (2, 0, 60001), (4, 4, nobody), (16, 4, nobody), (32, 4, nobody)))
    except OSError as error:
        pytest.skip(f"no ACLs for {path}: {error}")


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
@pytest.mark.parametrize("view", [None, "shards", "merged"])
def test_modes_of_inputs_with_acl(mount, place, source, name, view):
    """The group bits of a file with an ACL are its mask, and a user may be denied what others may.
    A mount does not show the ACL."""
    give_acl(source.path("m", name))
    given = mount(source.root) / f"{view}/m" if view else source.path("m/model")
    run("--shards=2", given, place / "out", umask=0o022)
    made = {file for file in modes(place / "out")
            if file == name or "safetensors" in file and "safetensors" in name}
    assert len(made) == (3 if "safetensors" in name else 1)
    assert {file for file, mode in modes(place / "out").items() if not mode & 0o077} == made


@pytest.mark.parametrize("given", ["shards/m", "merged/m", "merged/m/model.safetensors", "tensors/m/model",
                                   "npy/m/model/t1.npy", "shards/m/model-00001-of-00002.safetensors"])
def test_modes_if_an_acl_cannot_be_found_out(mount, place, source, given):
    """As in a container that has the mount, but not its source."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a directory is mounted elsewhere")
    m = mount(source.root)
    (place / "x").mkdir()
    output = place / "out" if os.path.isdir(m / given) and "tensors" not in given else place / "x/o.safetensors"
    script = f'umask 022; mount -t tmpfs none {source.root} && exec "$@"'
    subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", PACK, *["--shards=2"] * (output.name == "out"),
                    m / given, output], check=True)
    made = modes(output if output.is_dir() else place / "x")
    assert {mode & 0o077 for mode in made.values()} == {0}


def test_modes_of_two_links_to_a_file_with_acl(mount, place, source):
    """The second one is also restricted. The source of the mount has the ACL."""
    give_acl(source.path("m/config.json"))
    m = mount(source.root)
    (place / "in").mkdir()
    for i in (1, 2):
        name = f"model-0000{i}-of-00002.safetensors"
        shutil.copyfile(source.path("m", name), place / "in" / name)
    for name in ("config.json", "generation_config.json"):
        os.symlink(m / "shards/m/config.json", place / "in" / name)
    run("--shards=2", place / "in", place / "out", umask=0o022)
    found = modes(place / "out")
    assert {name: found[name] & 0o077 for name in os.listdir(place / "in")
            if name.endswith(".json")} == {"config.json": 0, "generation_config.json": 0}


def test_side_file_that_is_being_written(place, source):
    """A log, for instance, may be open for writing all the time."""
    with open(source.path("m/config.json"), "ab"):
        run("--shards=2", source.path("m/model"), place / "out")
    assert filecmp.cmp(source.path("m/config.json"), place / "out/config.json", shallow=False)


def test_side_files_of_save_pretrained(place):
    """The files of save_pretrained() of transformers and its tokenizers, without weights."""
    source = trees.Source(place / "models")
    source.add("m", "model", plain())
    saved = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
             "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
             "merges.txt", "spiece.model", "tokenizer.model", "qwen.tiktoken", "preprocessor_config.json",
             "processor_config.json", "chat_template.jinja", "chat_template.json",
             "adapter_config.json", "quantize_config.json", "configuration_x.py", "model_index.json", "modules.json"]
    for name in saved:
        source.add_side(f"m/{name}", name.encode())
    run("--shards=2", source.path("m/model"), place / "out")
    assert side_files(place / "out") == {name: name.encode() for name in saved}


@pytest.mark.parametrize("args, output", [
    (["--shards=2", "--tensors-only"], "out"), ([], "out.safetensors")])
def test_side_files_are_not_copied(place, source, args, output):
    (place / "to").mkdir()
    err = run(*args, source.path("m"), place / "to" / output)
    made = place / "to" / output if args else place / "to"
    assert {name for name in os.listdir(made) if name in SIDE} == set()
    assert "other file" not in err and "not copied" not in err


def test_single_shard_has_no_side_files(place, source):
    run("--shards=1", source.path("m/model-00001-of-00002.safetensors"), place / "out")
    assert os.listdir(place / "out") == ["model.safetensors"]


def test_links_are_followed(place):
    """A snapshot of the hub's cache, whose files are all links to blobs."""
    blobs, snap = place / "blobs", place / "snapshots/main"
    blobs.mkdir()
    snap.mkdir(parents=True)
    (blobs / "1").write_bytes(trees.file_bytes(plain()))
    (blobs / "2").write_bytes(b"{}")
    (snap / "model.safetensors").symlink_to("../../blobs/1")
    (snap / "config.json").symlink_to("../../blobs/2")
    run("--shards=1", snap, place / "out")
    assert not (place / "out/config.json").is_symlink()
    assert side_files(place / "out") == {"config.json": b"{}"}


@pytest.mark.parametrize("target", ["../../blobs/gone", "tokenizer.json"])
def test_links_that_lead_nowhere(place, source, target):
    """A tokenizer whose blob is missing is not left out silently."""
    link = Path(source.path("m/tokenizer.json"))
    link.unlink()
    link.symlink_to(target)
    for path in "m", "m/model":
        err = run("--shards=1", source.path(path), place / "out", status=1)
        assert f"tokenizer.json: a link to {target} that cannot be followed: " in err
        assert not (place / "out").exists() and hidden(place) == []
    run("--shards=1", "--tensors-only", source.path("m"), place / "out")
    source.add("first", "model", plain(prefix="first"))
    source.add_side("first/tokenizer.json", b"first")  # this one would be copied
    run("--shards=1", source.path("first"), source.path("m"), place / "both")
    assert (place / "both/tokenizer.json").read_bytes() == b"first"


def test_names_that_are_not_copied_may_lead_nowhere(place, source):
    for name in "old.bin", ".hidden_link":
        os.symlink("gone", source.path(f"m/{name}"))
    run("--shards=1", source.path("m"), place / "out")
    assert side_files(place / "out") == SIDE


def test_special_files_are_named(place, source):
    os.mkfifo(source.path("m/pipe"))
    os.symlink("/dev/null", source.path("m/null.json"))
    err = run("--shards=1", source.path("m"), place / "out")
    assert "m: special files (FIFO, socket, device) not copied: null.json, pipe\n" in err
    assert side_files(place / "out") == SIDE


def test_first_of_several_inputs_is_copied(place, source):
    source.add("other", "model", plain(prefix="other"))
    source.add_side("other/config.json", b"other")
    source.add_side("other/extra.json", b"extra")
    err = run("--shards=1", source.path("m"), source.path("other"), place / "out")
    assert side_files(place / "out") == SIDE | {"extra.json": b"extra"}
    assert (f"{source.path('other')}: files not copied because an earlier INPUT has files "
            "of the same names: config.json\n" in err)


def test_side_file_of_another_input_is_not_replaced(place, source):
    """The output directory is the second input, whose file of the same name is not copied."""
    source.add("other", "model", plain(prefix="other"))
    source.add_side("other/config.json", b"other")
    args = "--shards=2", "--stem=new", source.path("m"), source.path("other"), source.path("other")
    err = run("--force", *args, status=1)
    assert "config.json in it is an input, by the path " in err and "--tensors-only" in err
    assert side_files(source.path("other")) == {"config.json": b"other"}
    run("--force", "--tensors-only", *args)
    with open(source.path("other/config.json"), "rb") as f:
        assert f.read() == b"other"


def test_existing_side_files_are_kept(place, source):
    out = place / "out"
    out.mkdir()
    (out / "config.json").write_bytes(b"mine")
    err = run("--shards=2", source.path("m"), out, status=1)
    assert "config.json" in err and "--force" in err and "--tensors-only" in err
    assert snapshot(out).keys() == {"config.json"} and hidden(out) == []
    run("--shards=2", "--tensors-only", source.path("m"), out)
    assert side_files(out) == {"config.json": b"mine"}
    run("--shards=2", "--force", source.path("m"), out)
    assert side_files(out) == SIDE and hidden(out) == []


def test_same_content_is_kept(place, source):
    """The file is not written, even if another user owns it."""
    out = place / "out"
    out.mkdir()
    shutil.copy(source.path("m/config.json"), out)
    os.symlink(source.path("m/LICENSE"), out / "LICENSE")
    inode = os.stat(out / "config.json").st_ino
    err = run("--shards=2", source.path("m"), out)
    assert os.stat(out / "config.json").st_ino == inode and (out / "LICENSE").is_symlink()
    assert side_files(out) == SIDE and f"; {len(SIDE) - 2} other files" in err


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_existing_entry_that_is_not_a_file(place, source, make):
    out = place / "out"
    out.mkdir()
    make(out / "config.json")
    err = run("--shards=2", "--force", source.path("m"), out, status=1)
    assert "config.json exists and is not a file" in err and os.listdir(out) == ["config.json"]


def test_link_is_replaced_and_not_its_target(place, source):
    out, other = place / "out", place / "precious.json"
    out.mkdir()
    other.write_bytes(b"precious")
    os.symlink(other, out / "config.json")
    run("--shards=2", "--force", source.path("m"), out)
    assert side_files(out) == SIDE and not (out / "config.json").is_symlink()
    assert other.read_bytes() == b"precious"


def test_unreadable_side_file(place, source, test_user, user_program):
    os.chmod(source.path("m/config.json"), 0)
    (place / "to").mkdir()
    (place / "to").chmod(0o777)
    err = run("--shards=2", source.path("m/model"), place / "to/out", status=1, user=test_user,
              program=user_program(PACK))
    assert "config.json" in err and "Permission denied" in err
    assert os.listdir(place / "to") == []


@pytest.mark.limit(240)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("setting", ["KILL_AT", "FAIL_AT"])
@pytest.mark.parametrize("existing", ["shards", "other shards"])
def test_no_side_file_is_lost_at_any_step(place, existing, setting, system):
    """Killed or failing before each call that changes something: the old file exists, after a kill
    possibly under a hidden name, or the new one does."""
    source = trees.Source(place / "models")
    for name in "old", "new":
        source.add(name, "model", plain(prefix=name))
        source.add_side(f"{name}/config.json", name.encode())
    template, out = place / "template", place / "out"
    run(f"--shards={2 if existing == 'shards' else 3}", source.path("old"), template)
    (template / "notes.txt").write_bytes(b"notes")
    gaps = done_in_a_row = 0
    for step in range(1, 300):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(template, out)
        before = snapshot(out)
        done = subprocess.run([PACK, "--shards=2", "--force", source.path("new"), out], text=True,
                              env=misfortune(**{setting: step}, **SYSTEMS[system]),
                              capture_output=True)
        after = snapshot(out)
        assert (out / "notes.txt").read_bytes() == b"notes"
        gaps += not (out / "config.json").exists()
        if done.returncode == 0:
            assert (out / "config.json").read_bytes() == b"new"
        elif setting == "FAIL_AT" and "model-00002-of-00002.safetensors" not in after:
            assert after == before, done.stderr
        elif setting == "KILL_AT":
            assert {b"old", b"new"} & {p.read_bytes() for p in out.iterdir()}
            if not (out / "model.safetensors.index.json").exists():
                assert set(before.values()) <= set(after.values())
        done_in_a_row = 0 if done.returncode else done_in_a_row + 1
        if done_in_a_row == (1 if setting == "KILL_AT" else 15):  # some failures are ignored
            break
    else:
        pytest.fail("killed at all steps without completing")
    if system in ("full", "named"):
        assert gaps == 0
    assert step > 5


# ---- inputs ----

def test_an_input_is_not_replaced_by_a_file(place, source):
    only = place / "only.safetensors"
    only.write_bytes(trees.file_bytes(plain()))
    before = only.read_bytes()
    os.symlink(only, place / "link.safetensors")
    os.link(only, place / "hard.safetensors")
    for given, output in [("only", "only"), ("only", "link"), ("link", "only"), ("hard", "only"),
                          ("only", "../{}/only".format(place.name))]:
        for args in [], ["--force"], ["--force", "--drop=t1"]:
            err = run(*args, place / f"{given}.safetensors", f"{place}/{output}.safetensors",
                      status=1)
            assert "is an input, by the path " in err and "another name" in err
    assert only.read_bytes() == before and (place / "link.safetensors").is_symlink()
    assert hidden(place) == []


@pytest.mark.parametrize("given", ["m", "m/model", "m/model-00002-of-00002.safetensors"])
def test_an_input_is_not_replaced_in_its_directory(place, source, given):
    out = source.path("m")
    os.symlink(out, place / "link")
    before = snapshot_files(out)
    for output in out, place / "link/../m":
        for args in [], ["--force"]:
            err = run("--shards=4", "--stem=model", *args, source.path(given), output, status=1)
            assert "is an input, by the path " in err and "another DIRECTORY" in err
    assert snapshot_files(out) == before
    run("--shards=4", "--stem=second", source.path(given), out)  # next to it
    assert snapshot_files(out).items() > before.items()


def snapshot_files(directory):
    return {p.name: p.read_bytes() for p in Path(directory).iterdir() if p.is_file()}


def test_links_to_shards_of_an_input_are_not_replaced(place, source):
    out = place / "out"
    out.mkdir()
    for path in Path(source.path("m")).glob("model-*"):
        os.symlink(path, out / path.name)
    err = run("--shards=2", "--force", source.path("m"), out, status=1)
    assert "is an input, by the path " in err
    assert all(p.is_symlink() for p in out.iterdir())


@pytest.mark.parametrize("given", ["merged/m/model.safetensors", "shards/m", "merged/m",
                                   "tensors/m/model/t1", "npy/m/model"])
def test_an_input_is_not_replaced_through_a_mount(mount, place, source, given):
    """A mount reads from its source, which must therefore be kept."""
    only = source.path("one", "model.safetensors")
    os.mkdir(os.path.dirname(only))
    Path(only).write_bytes(trees.file_bytes(plain()))
    m = mount(source.root)
    before = snapshot_files(source.path("m"))
    err = run("--shards=2", "--stem=model", "--force", m / given, source.path("m"), status=1)
    assert "is an input, by the path " in err and str(m.path) in err
    err = run("--force", m / "merged/one/model.safetensors", only, status=1)
    assert "is an input, by the path " in err and str(m.path) in err
    assert snapshot_files(source.path("m")) == before and content(only)[0] == expected(plain())


@pytest.mark.parametrize("given", ["merged/model.safetensors", "merged", "tensors/model"])
@pytest.mark.parametrize("times", [True, False], ids=["old", "new"])
def test_an_input_is_not_replaced_through_two_mounts(mount, place, given, times):
    """A mount of fstfs shows another one."""
    path = place / "s/model.safetensors"
    os.mkdir(place / "s")
    path.write_bytes(trees.file_bytes(plain()))
    if times:  # the modification time differs from the change time
        os.utime(path, ns=(10**18, 10**18))
    first = mount(place / "s")
    second = mount(first.path)
    shown = second / (f"{given.split('/')[0]}/merged/" + given.partition("/")[2])
    err = run("--force", "--pick=t1", shown, path, status=1)
    assert "is an input, by the path " in err
    assert content(path)[0] == expected(plain())


@pytest.mark.parametrize("shards", [1, 2, 900])
def test_an_input_is_not_replaced_if_its_source_has_another_path(mount, place, shards):
    """As in a container that has the mount, and its source under another path. The names of 900
    shards do not fit into an xattr."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a directory is mounted elsewhere")
    source = trees.Source(place / "s")
    tensors = plain() if shards < 900 else [trees.tensor(f"t{i}", "U8", (8,)) for i in range(shards)]
    c = source.add("", "model", tensors, shards=shards)
    m = mount(source.root)
    (place / "x").mkdir()
    name = c.shards[0][0]
    script = f"mount --bind {source.root} {place}/x && mount -t tmpfs none {source.root} && exec \"$@\""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", PACK, "--force", "--pick=t1",
         m / "merged/model.safetensors", place / "x" / name], capture_output=True, text=True)
    assert done.returncode == 1 and "is an input, by the path " in done.stderr, done
    assert content(source.path(name))[0] == expected(c.shards[0][1])


@pytest.fixture
def overlay(place):
    """A directory, and a mount of overlayfs that shows its files."""
    for name in "upper", "lower", "work", "overlay":
        (place / name).mkdir()
    point = place / "overlay"
    options = f"lowerdir={place / 'lower'},upperdir={place / 'upper'},workdir={place / 'work'}"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", point],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"overlayfs cannot be mounted in {place}: {done.stderr.strip()}")
    yield place / "upper", point
    subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("through", ["input", "output"])
def test_an_input_is_not_replaced_through_an_overlay(overlay, through):
    """The overlay shows its files with another st_dev."""
    upper, shown = overlay
    trees.Source(upper).add("d", "model", plain())
    before = content(upper / "d/model.safetensors")
    source, out = (shown, upper) if through == "input" else (upper, shown)
    for args, given, output in [(["--pick=t1"], "d", "d/model.safetensors"), (["--shards=1"], "d", "d"),
                                (["--drop=t1"], "d/model.safetensors", "d/model.safetensors")]:
        err = run("--force", *args, source / given, out / output, status=1)
        assert "is an input, by the path " in err
    assert content(upper / "d/model.safetensors") == before
    for _ in range(2):
        run("--force", source / "d/model.safetensors", out / "d/other.safetensors")


def test_other_files_are_replaced_next_to_inputs(place, source):
    other = Path(source.path("m/other.safetensors"))
    other.write_bytes(b"old")
    run("--force", source.path("m/model"), other)
    assert content(other)[0] == expected(plain())


# ---- names ----

@pytest.mark.parametrize("cut", ["--shards=2", "--max-shard-size=1G"])
def test_a_directory_named_as_a_file(place, source, cut):
    err = run(cut, source.path("m"), place / "out.safetensors")
    option = cut.partition("=")[0]
    assert f"warning: {place}/out.safetensors: {option} writes shards into a directory" in err
    assert (place / "out.safetensors").is_dir()
    assert "warning" not in run(cut, source.path("m"), place / "out")


# ---- free space ----

def test_free_space_is_checked_before_writing(place):
    """Each single shard would fit."""
    source = trees.Source(place / "models")
    source.add("", "model", plain(scale=1000), metadata={"format": "pt"})  # 25.2 MB
    with tmpfs(place, "16M") as small:
        err = run("--shards=6", source.root, small / "out", status=1)
        assert re.search(r": the file system at " + re.escape(str(small)) + r" has too little free space "
                         r"\(found 16\.[78] MB, expected 25\.2 MB\); nothing was written", err), err
        assert os.listdir(small) == []


def test_free_space_for_side_files(place):
    source = trees.Source(place / "models")
    source.add("m", "model", plain())
    with open(source.path("m/tokenizer.json"), "wb") as f:
        f.truncate(20 * MIB)
    with tmpfs(place, "16M") as small:
        assert "expected 21.0 MB" in run("--shards=2", source.path("m"), small / "out", status=1)
        run("--shards=2", "--tensors-only", source.path("m"), small / "out")


def test_aligned_blocks_are_shared(place):
    with disk_image(place, 400 * MIB, "mkfs.xfs", "-q", "-m", "reflink=1") as point:
        source = trees.Source(point / "models")
        tensors = plain(scale=1024) + plain(prefix="odd.")
        source.add("m", "model", tensors, shards=2, metadata={"format": "pt"})
        err = run("--verify", source.path("m"), point / "once.safetensors")
        assert "shared" not in err  # the tensors of these shards are not aligned to blocks
        err = run("--verify", "--shards=3", point / "once.safetensors", point / "again")
        assert " GB shared instead of copied" in err
        parts = sorted((point / "again").glob("*.safetensors"))
        assert {k: v for p in parts for k, v in content(p)[0].items()} == expected(tensors)
        before = os.statvfs(point).f_bfree
        run("--verify", point / "once.safetensors", point / "copy.safetensors")
        assert (before - os.statvfs(point).f_bfree) * 4096 < 2 * MIB
        assert filecmp.cmp(point / "once.safetensors", point / "copy.safetensors", shallow=False)


def test_shared_blocks_need_no_space(place):
    with disk_image(place, 400 * MIB, "mkfs.xfs", "-q", "-m", "reflink=1") as point:
        tensors = [trees.tensor("t", "U8", (200 * MIB,))]
        (point / "odd").mkdir()
        (point / "odd/model.safetensors").write_bytes(trees.file_bytes(tensors, pad=8))
        shutil.move(point / "odd", place / "odd")
        # XFS frees the blocks of a removed file in the background
        assert eventually(lambda: shutil.disk_usage(point).free > 220 * MIB)
        run(place / "odd", point / "once.safetensors")
        free = os.statvfs(point).f_bavail * 4096
        assert free < 200 * MIB
        assert "0.21 GB shared" in run(point / "once.safetensors", point / "again.safetensors")
        err = run(place / "odd", point / "not.safetensors", status=1)
        assert "expected 209.7 MB" in err
