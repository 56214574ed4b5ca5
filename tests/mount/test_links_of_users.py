# SPDX-License-Identifier: Apache-2.0
"""Links of users with allow_other: no name, attribute or content in the mount depends on what such
a link leads to if its owner cannot reach or read that."""

import contextlib
import errno
import os
import stat
import subprocess
import zlib

import oracle
import pytest
from conftest import child, eventually
from corpus import gguffiles, torchfiles, trees
from test_hang import set_rules
from test_permissions import (
    ALICE, BOB, CAROL, LEFT, MASK, RIGHT, USER, R, become, give_list)
from test_permissions_fuse import SLOWFS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users"),
    pytest.mark.skipif(not SLOWFS.exists(), reason="tests/slowfs/slowfs is not built"),
]

VIEWS = ("tensors", "merged", "shards", "npy")
LONG_AGO = 10**9  # the time of all files, which the mount shows
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
TORCH = torchfiles.torch_file(torchfiles.weights(1))


def own_files(*names):
    """Files of one tensor, which has the name of its file."""
    return {name: trees.file_bytes([trees.tensor(name, "U8", (8,))]) for name in names}


def index(*files):
    """An index of own_files()."""
    return trees.index_bytes({name: name for name in files}, 8 * len(files))


CHECKPOINT = own_files("secret")["secret"]

# What a link leads to: a function that makes it, or the content of a file.
KINDS = {
    "nothing": lambda path: None, "checkpoint": CHECKPOINT, "text": b"text", "directory": os.mkdir,
    "index": index("a.safetensors", "b.safetensors"), "index-of-one": index("a.safetensors"),
    "index-of-shards": index(*SHARDS), "torch": TORCH,
    "gguf": gguffiles.gguf([("secret", (4,), 0, bytes(16))]), "fifo": os.mkfifo,
    "loop": lambda path: os.symlink(path, path)}

# {layout: (Bob's files, the name of his link, what such a name usually leads to)}
X = own_files("x.safetensors")
LAYOUTS = {
    "side": (X, "x", "text"),
    "one-shard": (own_files("model-00001-of-00001.safetensors"), "model.safetensors", "checkpoint"),
    "another": ({**own_files(*SHARDS), INDEX: index(*SHARDS)}, "other.safetensors", "checkpoint"),
    "second-shard": (own_files(SHARDS[0]), SHARDS[1], "checkpoint"),
    "index": (own_files(*(f"{name}.safetensors" for name in "abc")), INDEX, "index"),
    "index-of-shards": (own_files(*SHARDS), INDEX, "index-of-shards"),
    "index-of-tensors": (X, "x.index.json", "text"),
    "beside-torch": ({"x.bin": TORCH}, "x.safetensors", "checkpoint"),
    "torch": ({"config.json": b"{}"}, "z.bin", "torch"),
    "gguf": ({"config.json": b"{}"}, "z.gguf", "gguf"),
}
SUFFIXES = ("", ".safetensors", ".index.json", ".safetensors.index.json", *(n[5:] for n in SHARDS))


def make(path, kind):
    KINDS[kind](path) if callable(KINDS[kind]) else path.write_bytes(KINDS[kind])


def make_directory(path, layout, target):
    """A directory of Bob's with his files and his link to `target`."""
    files, link, _ = LAYOUTS[layout]
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    os.symlink(target, path / link)
    for at in (*(path / name for name in (*files, link)), path):
        give(at)
        os.utime(at, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def give(path, user=BOB, group=RIGHT):
    os.chown(path, user, group, follow_symlinks=False)


@pytest.fixture
def source(place):
    (place / "s").mkdir(mode=0o755)
    return place / "s"


@pytest.fixture
def closed(place):
    """A directory that only root may search, in the same file system as the source."""
    (place / "closed").mkdir(mode=0o700)
    return place / "closed"


@pytest.fixture
def closed_mount(closed):
    """The same in another file system, whose names the daemon treats as if it could hang."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", closed], check=True)
    yield closed
    subprocess.run(["umount", "-l", closed], check=True)


def shown_at(path):  # with the content of a file, or the error
    try:
        st = os.stat(path)
        content = oracle.read_all(path) if stat.S_ISREG(st.st_mode) else b""
    except OSError as error:
        return errno.errorcode[error.errno]
    return f"{st.st_mode:o} {st.st_uid} {st.st_size} {st.st_mtime:.0f} {zlib.crc32(content):08x}"


def listed_at(path):
    """{directory: its names, those of directories with a slash, or the error}; `path` is "."."""
    found = {}

    def failed(error):
        found[os.path.relpath(error.filename, path)] = errno.errorcode[error.errno]

    for at, directories, files in os.walk(path, onerror=failed):
        found[os.path.relpath(at, path)] = " ".join(sorted([f"{d}/" for d in directories] + files))
    return found


def look(m, directory, layout, user="bob"):
    """{question: answer} of all that a user sees of a directory."""
    def ask():
        become(user)
        files, link, _ = LAYOUTS[layout]
        stems = {name.split(".")[0].split("-0")[0] for name in (next(iter(files)), link)}
        names = {".", *files, link, *(stem + suffix for stem in stems for suffix in SUFFIXES)}
        answers = {}
        for view in VIEWS:
            at = m / f"{view}/{directory}"
            listed = listed_at(at)
            there = {os.path.normpath(f"{d}/{name}") for d in listed for name in listed[d].split()}
            answers.update({f"ls {view}/{below}": found for below, found in listed.items()})
            answers.update({f"{view}/{n}": shown_at(f"{at}/{n}") for n in sorted(names | there)})
        assert any("." in answers[f"ls {view}/."] for view in VIEWS), answers  # Bob's files
        return answers

    return child(ask)


def check(rows):
    """rows: [(where, expected answers, answers)]."""
    report = {}
    for where, expected, answers in rows:
        found = [f"  {question}: {expected.get(question, '-')} -> {answers.get(question, '-')}"
                 for question in dict.fromkeys((*expected, *answers))
                 if answers.get(question) != expected.get(question)]
        if found:
            report.setdefault("\n".join(found), []).append(where)
    lines = [f"nothing -> {', '.join(at)}:\n{found}" for found, at in report.items()]
    assert not report, "visible differences\n" + "\n".join(lines)


def compare(m, kinds, layout, later=lambda: None, like="nothing"):
    """Fails if the directories differ from `like`. later: called after root has read all headers."""
    rows = []
    for who, when in (("bob", "first"), ("bob", "after root"), ("carol", "carol")):
        expected = look(m, like, layout, who)
        rows += [(f"{kind} ({when})", expected, look(m, kind, layout, who)) for kind in kinds]
        if when == "first":
            listed_at(m.path)
            later()
    check(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kind_of_target(mount, source, closed, layout):
    for kind in KINDS:
        make(closed / kind, kind)
        make_directory(source / kind, layout, closed / kind)
    compare(mount(source, "-o", "allow_other"), KINDS, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kind_of_target_on_another_file_system(mount, source, closed_mount, layout):
    test_kind_of_target(mount, source, closed_mount, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_target_cannot_be_read(mount, place, source, layout):
    """Bob can find out the type of such a target, but not its content."""
    (place / "open").mkdir()
    kinds = [kind for kind, content in KINDS.items() if isinstance(content, bytes)]
    for kind in kinds:
        make(place / "open" / kind, kind)
        make_directory(source / kind, layout, place / "open" / kind)
        (place / "open" / kind).chmod(0o600)
    compare(mount(source, "-o", "allow_other"), kinds, layout, like="text")


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_single_file_beside_a_set_of_such_links(mount, source, request, is_remote):
    """Their checkpoint has the name of the file in merged/, but shards/ shows the file itself."""
    target = request.getfixturevalue("closed_mount" if is_remote else "closed") / "checkpoint"
    make(target, "checkpoint")
    (source / "d").mkdir()
    for name in SHARDS:
        os.symlink(target, source / "d" / name)
        give(source / "d" / name)
    for name, content in own_files("a.safetensors", "model.safetensors").items():
        (source / "d" / name).write_bytes(content)
    for options in ((), ("--shards=2",), ("--shard-size=1M",)):
        m = mount(source, "-o", "allow_other", *options)
        for view in VIEWS:
            assert any(name.startswith("a") for name in os.listdir(m / f"{view}/d")), view
        assert "model.safetensors" in os.listdir(m / "shards/d")
        assert m.unmount() == 0


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_no_other_file_takes_the_name(mount, source, request, is_remote):
    """No other file takes the name of a link that is not followed, whether or not it leads to a file. In
    the source, loaders would open the link's target or fail."""
    closed = request.getfixturevalue("closed_mount" if is_remote else "closed")
    target = closed / "checkpoint"
    closed.chmod(0o755)
    make_directory(source / "d", "beside-torch", target)
    m = mount(source, "-o", "allow_other")
    for view in ("merged", "shards"):
        assert os.listdir(m / f"{view}/d") == ["x.bin"]
        assert oracle.read_all(m / f"{view}/d/x.bin") == TORCH
    make(target, "checkpoint")
    target.chmod(0o600)
    assert eventually(lambda: os.listdir(m / "tensors/d") == [])
    for view in ("merged", "shards"):
        assert os.listdir(m / f"{view}/d") == ["x.bin"]
        assert oracle.read_all(m / f"{view}/d/x.bin") == TORCH
    give(source / "d/x.safetensors", 0, 0)
    assert eventually(lambda: "x.safetensors" in os.listdir(m / "merged/d"))
    assert oracle.read_all(m / "merged/d/x.safetensors") == CHECKPOINT


@pytest.mark.parametrize("since", ["mount", "read"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_target_open_for_writing(mount, source, closed, layout, since):
    """Such a file is not read, and causes ETXTBSY for those who may follow the link."""
    kind = LAYOUTS[layout][2]
    make(closed / kind, kind)
    for name in ("nothing", kind):
        make_directory(source / name, layout, closed / name)
    opened = [open(closed / kind, "ab")] if since == "mount" else []
    compare(mount(source, "-o", "allow_other"), [kind], layout,
            later=lambda: opened.append(open(closed / kind, "ab")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_target_changes(mount, source, closed, layout):
    """A change of the target does not show either, at any time."""
    make_directory(source / "bob", layout, closed / "target")
    m = mount(source, "-o", "allow_other")
    expected = look(m, "bob", layout)
    rows = []
    for i, kind in enumerate(KINDS):
        with contextlib.suppress(FileNotFoundError):
            os.rename(closed / "target", closed / f"old{i}")
        make(closed / "target", kind)
        rows.append((f"{kind} (changed)", expected, look(m, "bob", layout)))
        listed_at(m.path)
        rows.append((f"{kind} (seen by root)", expected, look(m, "bob", layout)))
    check(rows)


@pytest.mark.parametrize("kind", ["directory", "text", "checkpoint", "fifo", "nothing"])
def test_link_replaced_after_listing(mount, place, source, closed, kind):
    """The type of a target that Bob could not see does not show after his link leads elsewhere."""
    outside, links = place / "outside", (place / "outside/way", source / "bob/x")
    make(closed / kind, kind)
    for path in (outside, source / "bob"):
        path.mkdir()
        give(path)
    (outside / "own").write_bytes(CHECKPOINT)
    for link, target in zip(links, (closed / kind, links[0]), strict=True):
        link.symlink_to(target)
        give(link)
    m = mount(source, "-o", "allow_other")

    def shown():  # the types of x in all views
        return set(" ".join(listed_at(m / f"{view}/bob")["."] for view in VIEWS).split())

    def attempt():
        become("bob")
        seen = [shown()]
        (outside / "new").symlink_to("own")
        (outside / "new").rename(links[0])
        eventually(lambda: seen.append(shown()) or seen[-1] == {"x"})
        return seen

    shown()  # as root
    seen = child(attempt)
    assert not any("x/" in names for names in seen), "it was shown as a directory"
    assert (seen[0], seen[-1]) == (set(), {"x"})


# {name: (owners of a chain of links and of what the last one leads to, that path, its mode,
#         whether the first link is followed)}
CHAINS = {
    "of-root": ((0, 0), "closed/f", 0o600, True),
    "to-own-file": ((BOB, BOB), "f", 0o600, True),
    "to-public-file": ((BOB, 0), "f", 0o644, True),
    "to-file-of-a-group": ((BOB, 0), "f", 0o640, True),
    "in-directory-of-a-group": ((BOB, 0), "group/f", 0o644, True),
    "all-of-bob": ((BOB, BOB, BOB), "f", 0o600, True),
    "to-private-file": ((BOB, 0), "f", 0o600, False),
    "to-closed-directory": ((BOB, 0), "closed", 0o700, False),
    "to-directory-without-list": ((BOB, 0), "closed", 0o711, False),
    "to-directory": ((BOB, 0), "closed", 0o755, True),
    "in-closed-directory": ((BOB, 0), "closed/f", 0o644, False),
    "own-file-in-closed-directory": ((BOB, BOB), "closed/f", 0o644, False),
    "up-from-closed-directory": ((BOB, BOB), "closed/../f", 0o644, False),
    "through-link-of-root": ((BOB, 0, 0), "closed/f", 0o644, False),
    "root-to-link-of-bob": ((0, BOB, 0), "closed/f", 0o644, False),
    "bob-to-link-of-alice": ((BOB, ALICE, ALICE), "f", 0o600, False),
    "alice-to-link-of-bob": ((ALICE, BOB, ALICE), "f", 0o600, False),
}


def make_chain(first, target, owners):
    """Links, of which `first` leads to the second, and so on; the last one leads to `target`."""
    for i, owner in reversed(list(enumerate(owners))):
        link = first.parents[1] / f"link{i}" if i else first
        link.symlink_to(target)
        give(link, owner)
        target = link


def signs(m, name="x.safetensors"):
    """Whether the link seems to be followed: by a listing, by stat() and by problems."""
    path = m / f"merged/{name}"
    return [os.path.basename(path) in os.listdir(os.path.dirname(path)), os.path.exists(path),
            not any("chown -h" in line for line in m.problems())]


def is_followed(m, name="x.safetensors"):
    """Waits, because a link to another file system may be resolved only after a listing. One that is
    not followed must never have been shown."""
    seen = []

    def agree():
        seen.append(signs(m, name))
        return len(set(seen[-1])) == 1

    assert eventually(agree), m.problems()
    assert seen[-1][0] or not any(listed or exists for listed, exists, _ in seen)
    return seen[-1][0]


@pytest.mark.parametrize("name", CHAINS)
def test_rights_of_the_owners(mount, place, source, closed, name):
    owners, path, mode, expected = CHAINS[name]
    (place / "group").mkdir(mode=0o750)
    target = place / path
    if not target.exists():
        target.write_bytes(CHECKPOINT)
    target.chmod(mode)
    give(target, owners[-1], LEFT)
    make_chain(source / "x.safetensors", target, owners[:-1])
    assert is_followed(mount(source, "-o", "allow_other")) == expected


@pytest.mark.parametrize("target, expected", [("../../f", False), ("../f", False), ("f", True),
                                              ("a/../f", True), ("a/../../s/f", False)])
def test_source_below_a_closed_directory(mount, closed, target, expected):
    """A link that leaves the source needs the right to search what is above it."""
    source = closed / "open/s"
    (source / "a").mkdir(parents=True)
    for file in (closed / "f", closed / "open/f", source / "f"):
        file.write_bytes(CHECKPOINT)
    (source / "x.safetensors").symlink_to(target)
    give(source / "x.safetensors")
    assert is_followed(mount(source, "-o", "allow_other")) == expected


def test_access_control_list(mount, place, source):
    (place / "f").write_bytes(CHECKPOINT)
    (place / "f").chmod(0o600)
    give_list(place / "f", [(USER, BOB, R), (MASK, None, R)])
    make_chain(source / "x.safetensors", place / "f", [BOB])
    assert is_followed(mount(source, "-o", "allow_other"))


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o1755], ids=oct)
def test_sticky_directory(mount, place, source, mode):
    """A link in a sticky directory is followed only if fs.protected_symlinks lets both the caller
    and the daemon follow it."""
    with open("/proc/sys/fs/protected_symlinks") as f:
        protects = f.read().strip() != "0" and mode == 0o1777
    (place / "f").write_bytes(CHECKPOINT)
    directory = source / "d"
    directory.mkdir()
    owners = {"root": 0, "alice": ALICE, "bob": BOB}
    for name, owner in owners.items():
        os.symlink(place / "f", directory / f"{name}.safetensors")
        give(directory / f"{name}.safetensors", owner)
    give(directory, ALICE)
    directory.chmod(mode)
    m = mount(source, "-o", "allow_other")

    def readable(at, caller):
        if caller != "root":
            become(caller)
        return {name for name in owners if os.access(f"{at}/{name}.safetensors", os.R_OK)}

    by_daemon = {"root", "alice"} if protects else set(owners)
    for caller in owners:
        expected = child(readable, directory, caller) & by_daemon
        for view in ("merged", "shards"):
            assert child(readable, m / f"{view}/d", caller) == expected, (caller, view)
    assert protects or child(readable, m / "merged/d", "bob") == set(owners)


@pytest.mark.parametrize("options, expected", [((), False), (("-o", "allow_other"), True)])
def test_fuse(mount, place, source, options, expected):
    """Nobody but its user may access a FUSE file system without allow_other."""
    for name in ("real", "fuse"):
        (place / name).mkdir()
    (place / "real/f").write_bytes(CHECKPOINT)
    mount(place / "real", *options, binary=SLOWFS, mountpoint=place / "fuse")
    make_chain(source / "x.safetensors", place / "fuse/f", [BOB])
    assert is_followed(mount(source, "-o", "allow_other")) == expected


@pytest.mark.parametrize("user", ["root", "bob"])
def test_fuse_shows_links_of_root(mount, place, source, closed, user):
    """bob's file system could show any owner."""
    for path in (place / "real", source / "fuse"):
        path.mkdir()
    (closed / "f").write_bytes(CHECKPOINT)
    (place / "real/x.safetensors").symlink_to(closed / "f")
    server = place / "server"
    ruid = 0 if user == "root" else BOB
    server.write_text(f'#!/bin/sh\nexec setpriv --ruid={ruid} {SLOWFS} "$@"')
    server.chmod(0o755)
    mount(place / "real", "-o", "allow_other", binary=server, mountpoint=source / "fuse")
    m = mount(source, "-o", "allow_other")
    assert is_followed(m, "fuse/x.safetensors") == (user == "root")


def size_of(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def test_file_system_that_returns_estale(mount, place, source, closed):
    """The path is then resolved again, with the same checks. Meanwhile the name may exist, with a size
    that tells nothing of the target."""
    for name in ("real", "fuse"):
        (place / name).mkdir()
    (closed / "f").write_bytes(CHECKPOINT)
    make_chain(source / "x.safetensors", place / "fuse/x", [BOB])
    make_chain(place / "real/x", closed / "f", [BOB])
    mount(place / "real", "-o", f"allow_other,valid=0,faults={place}/faults", binary=SLOWFS,
          mountpoint=place / "fuse")
    m = mount(source, "-o", "allow_other")
    for count in range(0, 60, 12):
        set_rules(place / "faults", f"lookup x error=ESTALE x{count}")
        (source / f"new{count}").touch()
        assert eventually(lambda name=f"new{count}": name in os.listdir(m / "merged"))
        assert size_of(m / "merged/x.safetensors") in (1, None)
        with pytest.raises(OSError):
            open(m / "merged/x.safetensors", "rb")
        assert eventually(lambda: signs(m) == [False] * 3), count


def test_proc(mount, source):
    """/proc decides by more than modes."""
    make_chain(source / "x", "/proc/self/status", [BOB])
    assert not is_followed(mount(source, "-o", "allow_other"), "x")


def test_names_below_a_link(mount, place, source):
    """The owner of a link needs no rights to what is below the directory that it leads to."""
    directory = place / "shared/carol"
    directory.mkdir(parents=True)
    (directory / "x.safetensors").write_bytes(CHECKPOINT)
    (source / "shared").symlink_to(place / "shared")
    for path, mode in ((directory / "x.safetensors", 0o400), (directory, 0o700)):
        give(path, CAROL)
        path.chmod(mode)
    give(source / "shared")
    m = mount(source, "-o", "allow_other")

    def attempt(who):
        become(who)
        return shown_at(m / "merged/shared/carol/x.safetensors")

    assert child(lambda: attempt("bob")) == "EACCES"
    assert child(lambda: attempt("carol")) == shown_at(directory / "x.safetensors")


def test_without_allow_other(mount, source, closed):
    """Then no other user sees the mount, and all links are followed."""
    (closed / "x.safetensors").write_bytes(CHECKPOINT)
    (source / "x.safetensors").symlink_to(closed / "x.safetensors")
    give(source / "x.safetensors")
    assert listed_at(mount(source) / "npy")["."] == "x/"
