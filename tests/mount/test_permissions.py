# SPDX-License-Identifier: Apache-2.0
"""Root's daemon with allow_other: no user can read anything in the mount that they cannot read in
the source. Several unprivileged users try every file in both."""

import concurrent.futures
import ctypes
import errno
import itertools
import os
import pwd
import struct
import subprocess
import tempfile

import oracle
import pytest
from conftest import BUILD, child, eventually
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
ALICE, BOB, CAROL = 20001, 20002, 20003
LEFT, RIGHT, NONE = 30001, 30002, 30003
# {who: (user, group, supplementary groups)}
PEOPLE = {
    "alice": (ALICE, LEFT, []),
    "bob": (BOB, RIGHT, []),
    "bob-with-left": (BOB, RIGHT, [LEFT]),
    "carol": (CAROL, NONE, []),
    "carol-with-both": (CAROL, NONE, [LEFT, RIGHT]),
}
OWNERS = [(ALICE, LEFT), (BOB, LEFT), (0, RIGHT)]
MODES = [0o600, 0o640, 0o644, 0o604, 0o044, 0o060, 0o006, 0o000]
R, X = 4, 1
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
# Access control lists, without the entries of the mode: [(tag, id, bits)]
LISTS = [
    [(USER, BOB, 0), (MASK, None, R)],
    [(USER, BOB, R), (MASK, None, R)],
    [(USER, CAROL, R), (MASK, None, 0)],
    [(GROUP, LEFT, 0), (MASK, None, R)],
    [(GROUP, RIGHT, R), (MASK, None, R)],
    [(USER, ALICE, R), (USER, CAROL, 0), (GROUP, RIGHT, 0), (MASK, None, R)],
    [(USER, BOB, 7), (GROUP, LEFT, 7), (MASK, None, 0)],
    [(MASK, None, 0)],
]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes several users")


def give_list(path, entries):
    """Sets an access control list in addition to the file's mode, or skips."""
    mode = os.stat(path).st_mode
    whole = [(USER_OBJ, None, mode >> 6 & 7), (GROUP_OBJ, None, mode >> 3 & 7),
             (OTHER, None, mode & 7), *entries]
    value = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, bits, 0xffffffff if who is None else who)
        for tag, who, bits in sorted(whole, key=lambda e: (e[0], e[1] or 0)))
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"the file system has no access control lists: {error}")


def become(who):
    user, group, groups = PEOPLE[who]
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def readable(who, paths):
    """In a child: the files that this user can read."""
    become(who)
    return openable(paths)


def openable(paths):
    """The files that can be opened; the others are denied, or, if they are generated from files
    behind a link that may not be followed, do not exist."""
    found = set()
    for path in paths:
        try:
            with open(path, "rb") as f:
                f.read(1)
            found.add(path)
        except (PermissionError, FileNotFoundError):
            pass
    return found


def files_of(m, directory, stem, name="t"):
    """The files of the mount that are made from one file of the source."""
    base = f"{directory}/" if directory else ""
    return [m / f"merged/{base}{stem}.safetensors", m / f"shards/{base}{stem}.safetensors",
            m / f"tensors/{base}{stem}/{name}", m / f"npy/{base}{stem}/{name}.npy",
            m / f"tensors/{base}{stem}.index.json"]


def check(m, pairs):
    """pairs: [(files of the source, files of the mount made of them)]. A user can read a file of
    the mount if and only if they can read all files of the source that it is made of. Returns
    who could read what."""
    sources = sorted({path for ours, _ in pairs for path in ours})
    shown = sorted({path for _, theirs in pairs for path in theirs})
    got = {}
    for who in PEOPLE:
        may = child(readable, who, sources)
        does = got[who] = child(readable, who, shown)
        for ours, theirs in pairs:
            right = all(path in may for path in ours)
            for path in theirs:
                assert right or path not in does, f"{who} reads {path} and not {ours}"
                assert not right or path in does, f"{who} reads {ours}, not {path}"
    return got


@pytest.fixture
def source(place):
    return trees.Source(place / "s")


def add(source, directory, stem):
    source.add(directory, stem, [trees.tensor("t", "U8", (5,), seed=f"{directory}/{stem}")])
    return source.path(directory, f"{stem}.safetensors")


def test_modes_and_owners(mount, source):
    made = []
    for i, ((owner, group), mode) in enumerate(itertools.product(OWNERS, MODES)):
        path = add(source, "", f"f{i}")
        os.chown(path, owner, group)
        os.chmod(path, mode)
        made.append((path, f"f{i}"))
    m = mount(source.root, "-o", "allow_other")
    got = check(m, [([path], files_of(m, "", stem)) for path, stem in made])
    assert all(got.values()) and len({frozenset(g) for g in got.values()}) > 2


def test_shown_modes_of_files_made_of_several(mount, source):
    """Modes grant no more than each part does, because overlayfs checks only modes."""
    names = [f"m-0000{i}-of-00002.safetensors" for i in (1, 2)]
    same = [(0, 0)] * 3
    cases = {"index": (same, (0o644, 0o644, 0o600), 0o400),
             "all": (same, (0o644, 0o644, 0o644), 0o444),
             "owner": ([(0, 0), (ALICE, 0), (0, 0)], (0o644, 0o044, 0o644), 0o400),
             "root": ([(ALICE, 0), (0, 0), (0, 0)], (0o644, 0o044, 0o644), 0o400),
             "owners": ([(0, 0), (ALICE, 0), (0, 0)], (0o644, 0o644, 0o644), 0o444),
             "groups": ([(0, LEFT), (0, RIGHT), (0, 0)], (0o640, 0o640, 0o644), 0o400),
             "group": ([(0, LEFT), (0, RIGHT), (0, 0)], (0o604, 0o644, 0o644), 0o400)}
    for directory, (owners, modes, _) in cases.items():
        source.add(directory, "m", [trees.tensor(n, "U8", (5,)) for n in "ab"], shards=2)
        for name, owner, mode in zip([*names, "m.safetensors.index.json"], owners, modes):
            os.chown(source.path(directory, name), *owner)
            os.chmod(source.path(directory, name), mode)
    m = mount(source.root, "-o", "allow_other")
    for directory, (_, _, mode) in cases.items():
        for path in (f"merged/{directory}/m.safetensors", f"tensors/{directory}/m.index.json"):
            assert os.stat(m / path).st_mode & 0o777 == mode, path


def test_access_control_lists(mount, source):
    made = []
    for i, ((owner, group), mode, entries) in enumerate(
            itertools.product(OWNERS, (0o640, 0o644, 0o604, 0o000), LISTS)):
        path = add(source, "", f"f{i}")
        os.chown(path, owner, group)
        os.chmod(path, mode)
        give_list(path, entries)
        made.append((path, f"f{i}"))
    m = mount(source.root, "-o", "allow_other")
    got = check(m, [([path], files_of(m, "", stem)) for path, stem in made])
    assert got["bob"] and got["alice"]


def test_directories(mount, source):
    made = []
    for i, ((owner, group), mode, entries) in enumerate(itertools.product(
            OWNERS, (0o700, 0o750, 0o755, 0o711, 0o705),
            [None, [(USER, BOB, 0), (MASK, None, R | X)], [(GROUP, LEFT, 0), (MASK, None, R | X)],
             [(USER, CAROL, R | X), (MASK, None, R)]])):
        path = add(source, f"d{i}", "m")
        os.chmod(path, 0o644)
        os.chown(source.path(f"d{i}"), owner, group)
        os.chmod(source.path(f"d{i}"), mode)
        if entries:
            give_list(source.path(f"d{i}"), entries)
        made.append((path, f"d{i}"))
    m = mount(source.root, "-o", "allow_other")
    check(m, [([path], files_of(m, stem, "m")) for path, stem in made])


def test_root_of_the_source(mount, source):
    """The mode of the root applies to each view."""
    path = add(source, "", "m")
    os.chown(source.root, 0, LEFT)
    os.chmod(source.root, 0o750)
    m = mount(source.root, "-o", "allow_other")
    got = check(m, [([path], files_of(m, "", "m"))])
    assert got["alice"] and not got["bob"]


@pytest.mark.parametrize("mode", [0o744, 0o741, 0o745, 0o740], ids=oct)
@pytest.mark.parametrize("directory", ["", "d"], ids=["root", "below"])
@pytest.mark.parametrize("options", [[], ["--view=merged"]], ids=["all", "one-view"])
def test_directory_is_readable_or_searchable(mount, source, options, directory, mode):
    """Listing a directory needs read permission, and looking up names in it search permission, as in
    the source. This includes SOURCE itself."""
    os.chmod(add(source, directory, "m"), 0o644)
    os.chmod(source.path(directory), mode)
    m = mount(source.root, "-o", "allow_other", *options)
    views = ["."] if options else ["merged", "shards", "tensors"]

    def attempt(call, path):
        try:
            call(path)
            return 0
        except OSError as error:
            return error.errno

    def compare():
        become("carol")
        for view in views:
            for call, name in ((os.listdir, ""), (os.stat, "m.safetensors"), (os.stat, "missing")):
                expected = attempt(call, source.path(directory, name))
                if (view, name) == ("tensors", "m.safetensors"):
                    name = "m"
                assert attempt(call, m / os.path.join(view, directory, name)) == expected, (view, name)

    child(compare)


def test_files_of_several_shards(mount, source):
    """A merged file is readable by users who can read all of its shards."""
    made = []
    rights = [(ALICE, LEFT, 0o640), (BOB, LEFT, 0o640), (BOB, RIGHT, 0o640), (0, 0, 0o644),
              (0, 0, 0o600), (ALICE, LEFT, 0o604)]
    for i, pair in enumerate(itertools.combinations(rights, 2)):
        c = source.add(f"d{i}", "model", trees.small_tensors(count=2), shards=2)
        paths = [source.path(f"d{i}", name) for name, _ in c.shards]
        for path, (owner, group, mode) in zip(paths, pair):
            os.chown(path, owner, group)
            os.chmod(path, mode)
        made.append((f"d{i}", paths))
    m = mount(source.root, "-o", "allow_other")
    whole = ("merged/{}/model.safetensors", "tensors/{}/model.index.json")
    got = check(m, [(paths, [m / path.format(d) for path in whole]) for d, paths in made])
    assert got["alice"]
    check(m, [([path], [m / f"shards/{d}/{os.path.basename(path)}"])
              for d, paths in made for path in paths])


def what_bob_sees(m, guess):
    """Names and attributes, whether or not they are listed, sizes of pages, and metrics."""
    become("bob")
    names = ["m.safetensors", "m.safetensors.index.json", "m", "m.index.json", f"m/{guess}",
             f"m/{guess}.npy", "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"]
    seen = {}

    def attempt(*key, call):
        try:
            seen[key] = call()
        except OSError as error:
            seen[key] = error.errno

    def stat_of(path):
        st = os.stat(path)
        return st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink

    for view in ("merged", "shards", "tensors", "npy"):
        attempt(view, call=lambda: sorted(os.listdir(m / view)))
        for name in names:
            path = m / f"{view}/{name}"
            key = name.replace(guess, "GUESS")
            attempt(view, key, call=lambda: stat_of(path))
            attempt(view, key, "open", call=lambda: os.close(os.open(path, os.O_RDONLY)))
            attempt(view, key, "xattrs", call=lambda: os.listxattr(path))
    seen["problems"] = os.stat(m / ".fstfs/problems").st_size
    seen["metrics"] = set(m.metrics())
    seen["status"] = set(m.status())
    return seen


def own(source, name, who, mode):
    user, group, _ = PEOPLE[who]
    os.chown(source.path(name), user, group)
    os.chmod(source.path(name), mode)


def guess_by_index(source, guess):
    """Bob's index names a file that only Alice may read."""
    source.add("", "m", [trees.tensor("hidden", "U8", (5,)), trees.tensor("mine", "U8", (5,))],
               names=["a.safetensors", "b.safetensors"], index=False)
    source.place("m.safetensors.index.json", trees.index_bytes(
        {guess: "a.safetensors", "mine": "b.safetensors"}, 10))
    own(source, "a.safetensors", "alice", 0o600)
    own(source, "b.safetensors", "bob", 0o644)
    own(source, "m.safetensors.index.json", "bob", 0o644)


def guess_by_shard(source, guess):
    """Bob's shard has a tensor that Alice's shard also has."""
    source.add("", "m", [trees.tensor(guess, "U8", (5,)), trees.tensor("hidden", "U8", (5,))],
               shards=2, index=False)
    own(source, "m-00001-of-00002.safetensors", "bob", 0o644)
    own(source, "m-00002-of-00002.safetensors", "alice", 0o600)


def guess_of_index(source, guess):
    """Alice's index names the tensor of a shard that did not exist before Bob made it."""
    source.add("", "m", [trees.tensor("first", "U8", (5,)), trees.tensor(guess, "U8", (5,))],
               shards=2, index=False)
    source.place("m.safetensors.index.json", trees.index_bytes(
        {"first": "m-00001-of-00002.safetensors", "hidden": "m-00002-of-00002.safetensors"}, 10))
    own(source, "m-00001-of-00002.safetensors", "alice", 0o644)
    own(source, "m-00002-of-00002.safetensors", "bob", 0o644)
    own(source, "m.safetensors.index.json", "alice", 0o600)


def guess_by_equal_modes(source, guess):
    """The other shard is a file of Alice's, too. They differ only in their access control lists."""
    guess_by_shard(source, guess)
    for name, bits in (("m-00001-of-00002.safetensors", R), ("m-00002-of-00002.safetensors", 0)):
        own(source, name, "alice", 0o640)
        give_list(source.path(name), [(USER, BOB, bits), (MASK, None, R)])


def link_of_bob(source, name, target):
    os.symlink(target, source.path(name))
    os.lchown(source.path(name), BOB, RIGHT)


def guess_by_link(source, guess):
    """Bob's link makes a file of root that everyone may read a shard."""
    guess_by_shard(source, guess)
    source.add("public", "m", [trees.tensor(guess, "U8", (5,))])
    os.unlink(source.path("m-00001-of-00002.safetensors"))
    link_of_bob(source, "m-00001-of-00002.safetensors", "public/m.safetensors")


def guess_by_link_to_an_index(source, guess):
    guess_by_index(source, guess)
    os.rename(source.path("m.safetensors.index.json"), source.path("other.json"))
    os.chown(source.path("other.json"), 0, 0)
    link_of_bob(source, "m.safetensors.index.json", "other.json")


@pytest.mark.parametrize("options", [[], ["--shards=2"], ["--shard-size=4K"]],
                         ids=["plain", "shards", "size"])
@pytest.mark.parametrize("plant", [guess_by_index, guess_by_shard, guess_of_index, guess_by_link,
                                   guess_by_link_to_an_index, guess_by_equal_modes])
def test_guesses_of_tensor_names(mount, place, plant, options):
    """Whoever adds a file to a checkpoint learns nothing about the names in files that they may not
    read, whether or not root has listed them before. Root sees the difference."""
    seen, shown = [], []
    for guess in ("hidden", "absent"):
        source = trees.Source(place / f"s-{guess}")
        plant(source, guess)
        m = mount(source.root, "-o", "allow_other", *options)
        before = child(what_bob_sees, m, guess)
        shown.append([*(os.listdir(m / view) for view in ("merged", "shards")), m.problems()])
        for view in ("tensors", "npy"):
            os.listdir(m / f"{view}/m")
        seen.append((before, child(what_bob_sees, m, guess)))
    assert seen[0] == seen[1] and shown[0] != shown[1]


@pytest.mark.parametrize("options", [[], ["--shards=2"], ["--shard-size=4K"]],
                         ids=["plain", "shards", "size"])
def test_listing_of_a_closed_shard_on_another_file_system(mount, place, options):
    """A shard is a link to it. Its tensors determine whether the merged file exists, and the number of
    re-cut shards: root sees that, and bob does not."""
    contents = [[trees.tensor("a", "U8", (20000,))],
                [trees.tensor(name, "U8", (5000,)) for name in "abcd"],
                [trees.tensor("t3.weight", "U8", (20000,))]]
    seen, shown = [], []
    for i, content in enumerate(contents):
        source = trees.Source(place / f"s{i}")
        source.add("", "m", [trees.tensor("open", "U8", (4000,)), *trees.small_tensors()],
                   shards=2, index=False)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            os.chmod(directory, 0o755)
            assert os.stat(directory).st_dev != os.stat(source.root).st_dev
            link = source.path("m-00001-of-00002.safetensors")
            target = os.path.join(directory, "closed")
            os.unlink(link)
            os.symlink(target, link)
            with open(target, "wb") as f:
                f.write(trees.file_bytes(content))
            os.chmod(target, 0o600)
            m = mount(source.root, "-o", "allow_other", *options)

            def attempt():
                become("bob")
                return [sorted(os.listdir(m / view)) for view in ("merged", "shards")]

            shown.append([sorted(os.listdir(m / view)) for view in ("merged", "shards")])
            seen.append(child(attempt))
            assert m.unmount() == 0
    assert seen[0] == seen[1] == seen[2]
    assert "m.safetensors" in seen[0][0]
    assert shown[0] != shown[2] and (shown[0] != shown[1]) == (options == ["--shard-size=4K"])


def test_listing_of_many_shards_on_slow_storage(mount, place):
    """It is complete, although the check of all of them takes several seconds."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    real, source = trees.Source(place / "real"), trees.Source(place / "s")
    real.add("", "m", trees.small_tensors(count=60), shards=60)
    (place / "far").mkdir()
    mount(real.root, "-o", "delay=20000,allow_other", binary=SLOWFS, mountpoint=place / "far")
    for name in os.listdir(real.root):
        os.symlink(place / "far" / name, source.path(name))
    m = mount(source.root, "-o", "allow_other", "--shards=2")

    def listed():
        become("bob")
        return sorted(os.listdir(m / "shards"))

    names = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors", "m.safetensors.index.json"]
    assert child(listed) == sorted(os.listdir(m / "shards")) == names


def test_held_directory_of_tensors(mount, place):
    """A directory is closed through which a link leads to a shard with the same owner and mode."""
    seen = []
    for guess in ("hidden", "absent"):
        source, closed = trees.Source(place / f"s-{guess}"), place / f"closed-{guess}"
        guess_by_shard(source, guess)
        for name in ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"):
            own(source, name, "alice", 0o644)
        closed.mkdir()
        os.rename(source.path("m-00002-of-00002.safetensors"), closed / "m")
        os.symlink(closed / "m", source.path("m-00002-of-00002.safetensors"))
        m = mount(source.root, "-o", "allow_other")

        def hold():
            become("bob")
            return os.open(m / "tensors/m", os.O_PATH)

        def look(held):
            return errors_of([lambda: os.stat(guess, dir_fd=held), lambda: os.stat("hidden", dir_fd=held)])

        seen.append(around(hold, lambda: closed.chmod(0o700), look))
    assert seen[0] == seen[1]


def test_sizes_of_recut_shards(mount, source):
    """They show the sizes of tensors. Without read permission, the file has its size in the source."""
    source.add("", "m", [trees.tensor(n, "U8", (5000,)) for n in "ab"])
    os.chmod(source.path("m.safetensors"), 0o600)
    m = mount(source.root, "-o", "allow_other", "--shard-size=4K")
    names = os.listdir(m / "shards")
    assert "m-00001-of-00002.safetensors" in names

    def attempt():
        become("bob")
        for name in names:
            with pytest.raises(PermissionError):
                os.stat(m / f"shards/{name}")
        with pytest.raises(PermissionError):
            open(m / "shards/m.safetensors")
        return os.listdir(m / "shards"), os.stat(m / "shards/m.safetensors").st_size

    assert child(attempt) == (["m.safetensors"], os.stat(source.path("m.safetensors")).st_size)


@pytest.mark.parametrize("closed", ["model-00001-of-00002.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("options", [[], ["--shards=3"], ["--shard-size=5K"]])
def test_closed_file_beside_other_weights(mount, source, options, closed):
    """A loader gets an error, as in the source, and does not take the file for missing."""
    source.add("", "model", trees.small_tensors(), shards=2)
    source.add("", "adapter_model", trees.small_tensors("a."))
    os.chmod(source.path(closed), 0o600)
    m = mount(source.root, "-o", "allow_other", *options)

    def attempt():
        become("bob")
        for path in ["merged/model.safetensors", *(["shards/model.safetensors.index.json"] if options else [])]:
            assert os.path.basename(path) in os.listdir(os.path.dirname(m / path)) and os.path.isfile(m / path)
            with pytest.raises(PermissionError):
                open(m / path)
        assert "adapter_model.safetensors" in os.listdir(m / "merged")

    child(attempt)


def test_files_of_several_owners(mount, source):
    """The rights to the files decide who may read what is made of them, whoever owns them."""
    for directory in ("d", "e"):
        source.add(directory, "m", [trees.tensor(n, "U8", (5,)) for n in "ab"], shards=2)
    for name, who, mode in (("d/m-00001-of-00002.safetensors", "alice", 0o640),
                            ("d/m-00002-of-00002.safetensors", "bob", 0o644),
                            ("e/m-00001-of-00002.safetensors", "alice", 0o600),
                            ("e/m-00002-of-00002.safetensors", "alice", 0o600),
                            ("e/m.safetensors.index.json", "alice", 0o600)):
        own(source, name, who, mode)
    m = mount(source.root, "-o", "allow_other")
    assert m.problems() == []
    for directory in "de":
        whole = m / f"merged/{directory}/m.safetensors"
        assert child(readable, "alice", [whole]) and not child(readable, "bob", [whole])
        assert os.stat(whole).st_uid == (0 if directory == "d" else ALICE)


@pytest.mark.parametrize("options", [[], ["--shards=3"]])
def test_index_of_the_source(mount, source, options):
    """What is made of an index, its metadata included, is readable by users who can read it."""
    made = []
    for i, (owner, group, mode) in enumerate([(0, 0, 0o600), (0, LEFT, 0o640), (BOB, RIGHT, 0o604),
                                              (0, 0, 0o644)]):
        c = source.add(f"d{i}", "model", trees.small_tensors(count=4), shards=2,
                       index_metadata={"note": f"private {i}"})
        add(source, f"d{i}", "adapter_model")
        paths = [source.path(f"d{i}", name) for name in [c.index, *(n for n, _ in c.shards)]]
        for path in paths:
            os.chmod(path, 0o644)
        os.chown(paths[0], owner, group)
        os.chmod(paths[0], mode)
        made.append((paths, f"d{i}"))
    m = mount(source.root, "-o", "allow_other", *options)
    whole = ("merged/{}/model.safetensors", "merged/{}/model.safetensors.index.json",
             "tensors/{}/model.index.json", "shards/{}/model.safetensors.index.json")
    got = check(m, [(paths, [m / path.format(d) for path in whole]) for paths, d in made])
    assert got["alice"] and got["carol"] and got["alice"] != got["carol"]


def test_links(mount, place, source):
    """The target of a link is accessible to users who can traverse its whole path."""
    made = []
    for i, (mode, entries) in enumerate(itertools.product(
            (0o700, 0o750, 0o755, 0o711), [None, [(USER, BOB, 0), (MASK, None, R | X)]])):
        other = trees.Source(place / f"way{i}/on")
        path = add(other, "", "far")
        os.chmod(path, 0o644)
        os.chown(place / f"way{i}", ALICE, LEFT)
        os.chmod(place / f"way{i}", mode)
        if entries:
            give_list(place / f"way{i}", entries)
        os.symlink(path, source.path(f"near{i}.safetensors"))
        os.symlink(other.root, source.path(f"dir{i}"))
        made += [(path, "", f"near{i}"), (path, f"dir{i}", "far")]
    m = mount(source.root, "-o", "allow_other")
    got = check(m, [([path], files_of(m, directory, stem))
                    for path, directory, stem in made])
    assert got["alice"] and got["carol"]


def test_side_files(mount, source):
    made = []
    for i, ((owner, group), mode) in enumerate(itertools.product(OWNERS, MODES)):
        name = f"side{i}.txt"
        source.add_side(name, b"secret")
        os.chown(source.path(name), owner, group)
        os.chmod(source.path(name), mode)
        made.append((source.path(name), [f"merged/{name}", f"shards/{name}"]))
    m = mount(source.root, "-o", "allow_other")
    check(m, [([ours], [m / path for path in theirs]) for ours, theirs in made])


def test_names_and_attributes(mount, source):
    """A user who cannot read a checkpoint cannot see its contents."""
    path = add(source, "", "m")
    os.chmod(path, 0o600)
    m = mount(source.root, "-o", "allow_other")
    tensor = m / "tensors/m/t"
    assert oracle.read_all(tensor)

    def attempt():
        become("bob")
        for call in (lambda: os.listdir(m / "tensors/m"), lambda: os.stat(tensor),
                     lambda: os.getxattr(tensor, "user.fstfs.extents"),
                     lambda: os.getxattr(m / "shards/m.safetensors", "user.fstfs.extents"),
                     lambda: open(m / ".fstfs/problems", "rb")):
            with pytest.raises(PermissionError):
                call()
        return True

    assert child(attempt)


def test_permission_revoked(mount, source):
    """Revoking takes effect for a mode, and for an access control list that does not change the mode."""
    for stem in ("mode", "list"):
        os.chmod(add(source, "", stem), 0o644)
    give_list(source.path("list.safetensors"), [(USER, BOB, R), (MASK, None, R)])
    m = mount(source.root, "-o", "allow_other")
    shown = [path for stem in ("mode", "list") for path in files_of(m, "", stem)]
    assert child(readable, "bob", shown) == set(shown)
    os.chmod(source.path("mode.safetensors"), 0o600)
    give_list(source.path("list.safetensors"), [(USER, BOB, 0), (MASK, None, R)])
    assert eventually(lambda: child(readable, "bob", shown) == set()), child(readable, "bob", shown)


def test_path_permission_revoked(mount, place, source):
    """Search permission for the path of a link's target is revoked and granted again; the file is
    unchanged."""
    other = trees.Source(place / "way/on")
    path = add(other, "", "far")
    os.chmod(path, 0o644)
    os.symlink(path, source.path("near.safetensors"))
    m = mount(source.root, "-o", "allow_other")
    shown = files_of(m, "", "near")
    assert child(readable, "bob", shown) == set(shown)
    os.chmod(place / "way", 0o700)
    assert eventually(lambda: child(readable, "bob", shown) == set()), child(readable, "bob", shown)
    os.chmod(place / "way", 0o755)
    assert eventually(lambda: child(readable, "bob", shown) == set(shown))


def listed(who, directory):
    """In a child."""
    become(who)
    return set(os.listdir(directory))


@pytest.mark.parametrize("view", ["merged", "shards"])
def test_directory_opened_after_a_removal(mount, source, view):
    """A user who may list a directory now does not see what was removed before."""
    directory = source.path("late")
    source.add_side("late/kept")
    os.chmod(directory, 0o700)
    m = mount(source.root, "-o", "allow_other")
    for i in range(5):
        source.add_side(f"late/secret-{i}")
        assert eventually(lambda: f"secret-{i}" in os.listdir(m / f"{view}/late"))
        os.unlink(source.path(f"late/secret-{i}"))
        os.chmod(directory, 0o755)
        assert child(listed, "bob", m / f"{view}/late") == {"kept"}
        os.chmod(directory, 0o700)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_links_that_climb_out_of_the_source(mount, place, closed):
    """A relative link leads to a sibling of the source. Users can open it only if they can search the
    directories above the source, as for an absolute link, and for the same link in the source. Links
    that stay in the source do not depend on the directories above it."""
    above = place / "home"
    source = trees.Source(above / "cache/hub")
    source.add("model/blobs", "blob", [trees.tensor("t", "U8", (8,))])
    beside = trees.Source(above / "cache/beside")
    beside.add("", "far", [trees.tensor("t", "U8", (8,), fill=7)])
    snapshot = source.path("model/snapshots/main")
    os.makedirs(snapshot)
    links = {"stays.safetensors": "../../blobs/blob.safetensors",
             "far.safetensors": "../../../../beside/far.safetensors",
             "detour.safetensors": "../../../../hub/model/blobs/blob.safetensors",
             "chain.safetensors": "far.safetensors",
             "absolute.safetensors": beside.path("far.safetensors"), "beside": "../../../../beside"}
    for name, target in links.items():
        os.symlink(target, os.path.join(snapshot, name))
    for directory, _, files in os.walk(above):
        os.chmod(directory, 0o755)
        for name in files:
            if not os.path.islink(os.path.join(directory, name)):
                os.chmod(os.path.join(directory, name), 0o644)
    os.chmod(above, 0o700 if closed else 0o755)
    m = mount(source.root, "-o", "allow_other")
    shown = m / "shards/model/snapshots/main"
    paths = {name: os.path.join(shown, name) for name in links if name != "beside"}
    paths["beside"] = os.path.join(shown, "beside/far.safetensors")
    expected = {"stays.safetensors"} if closed else set(links)
    found = child(readable, "bob", paths.values())
    assert {name for name, path in paths.items() if path in found} == expected
    listed = child(lambda: (become("bob"), errors_of([lambda: os.listdir(f"{shown}/beside")]))[1])
    assert listed == [errno.EACCES if closed else 0]
    assert child(openable, paths.values()) == set(paths.values())


def test_directory_becomes_a_link(mount, place, source):
    """An open directory of the mount cannot be used to bypass a link that is now above it."""
    for directory in (place / "s/a/sub", place / "way/x/sub"):
        other = trees.Source(directory)
        other.add("", "m", [trees.tensor("t", "U8", (8,), seed=str(directory))])
        os.chmod(other.path("m.safetensors"), 0o644)
    os.chmod(place / "way", 0o700)
    near, far = (oracle.read_all(place / d / "sub/m.safetensors")[-8:] for d in ("s/a", "way/x"))
    m = mount(source.root, "-o", "allow_other")
    held = os.open(m / "tensors/a/sub", os.O_RDONLY | os.O_DIRECTORY)
    os.rename(source.path("a"), source.path("b"))
    os.symlink(place / "way/x", source.path("a"))

    def attempt():
        become("bob")
        try:
            with open(os.open("m/t", os.O_RDONLY, dir_fd=held), "rb") as f:
                return f.read()
        except OSError as error:
            return error.errno

    def refused():
        got = child(attempt)
        assert got != far
        return got == errno.ESTALE

    assert near != far
    try:
        assert eventually(refused)
    finally:
        os.close(held)


# --- replaced files and directories: the permissions of the new one apply ---


def exchange(one, other):
    """Exchanges two paths atomically (RENAME_EXCHANGE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        pytest.skip(f"RENAME_EXCHANGE: {os.strerror(ctypes.get_errno())}")


def seen_by(who, directory, paths):
    """In a child: the names in a directory and the contents of files that this user can see."""
    become(who)
    found = []
    for look, path in ((os.listdir, directory), *((oracle.read_all, path) for path in paths)):
        try:
            found.append(look(path))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOENT, errno.ESTALE):
                raise
            found.append(None)
    return found


@pytest.mark.parametrize("below", ["", "sub"])
@pytest.mark.parametrize("view", ["tensors", "merged", "shards", "npy"])
def test_directories_exchanged(mount, source, below, view):
    """A user who has just accessed one directory has no access to the other, which is closed."""
    for directory, stems, mode in (("d", ["m"], 0o755), ("closed", ["m", "n"], 0o700)):
        os.makedirs(source.path(directory, below), exist_ok=True)
        for stem in stems:
            os.chmod(add(source, os.path.join(directory, below), stem), 0o644)
        os.chmod(source.path(directory), mode)
    m = mount(source.root, "-o", "allow_other")
    directory = os.path.join(m.path, view, "d", below)
    shown = [path for stem in "mn" for path in files_of(m, os.path.join("d", below), stem)
             if f"/{view}/" in path]
    before = child(seen_by, "carol", directory, shown)
    assert before[0] and before[1] and before[-1] is None

    def denied():
        found = child(seen_by, "carol", directory, shown)
        assert all(now in (None, then) for now, then in zip(found, before)), "she sees another"
        return found == [None] * len(found)

    for _ in range(3):
        exchange(source.path("d"), source.path("closed"))
        assert eventually(denied)
        exchange(source.path("d"), source.path("closed"))
        assert eventually(lambda: child(seen_by, "carol", directory, shown) == before)


@pytest.mark.parametrize("view", ["tensors", "merged", "shards", "npy"])
def test_open_directory_exchanged(mount, source, view):
    """A user who has the directory open and, as owner of the parent directory, exchanges the two,
    has no access to the closed one either."""
    for directory, mode in (("d", 0o755), ("closed", 0o700)):
        for stem in "mn":
            source.add_side(f"{directory}/{stem}.txt", directory.encode())
            os.chmod(source.path(f"{directory}/{stem}.txt"), 0o644)
            os.chmod(add(source, directory, stem), 0o644)
        os.chmod(source.path(directory), mode)
    os.chown(source.root, CAROL, -1)
    for _ in range(2):  # skips here if that is unsupported
        exchange(source.path("d"), source.path("closed"))
    m = mount(source.root, "-o", "allow_other")
    shown = [path for stem in "mn" for path in files_of(m, "d", stem) if f"/{view}/" in path]
    if view in ("merged", "shards"):
        shown += [m / f"{view}/d/{stem}.txt" for stem in "mn"]
    directory = m / f"{view}/d"
    right = {os.path.relpath(path, directory): oracle.read_all(path) for path in shown}

    def attempt():
        become("carol")
        held = os.open(directory, os.O_RDONLY)
        exchange(source.path("d"), source.path("closed"))
        try:
            os.listdir(held)  # the names as of the open
        except OSError as error:  # the attributes have expired
            assert error.errno == errno.ESTALE
        for name, want in right.items():
            try:
                with open(os.open(name, os.O_RDONLY, dir_fd=held), "rb") as file:
                    assert file.read() == want, "she reads another"
            except OSError as error:
                assert error.errno in (errno.EACCES, errno.ESTALE), error
        os.close(held)

    for _ in range(5):
        assert eventually(
            lambda: child(seen_by, "carol", directory, shown)[1:] == [*right.values()])
        child(attempt)
        exchange(source.path("d"), source.path("closed"))


@pytest.mark.parametrize("view", ["tensors", "npy"])
@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
def test_files_exchanged(mount, source, view, link):
    """A user who has just seen the tensors of one file does not see those of the other, which they
    cannot read."""
    for name, stem, mode in (("t", "m", 0o644), ("secret", "closed", 0o600)):
        source.add("", stem, [trees.tensor(name, "U8", (5,))])
        os.chmod(source.path(f"{stem}.safetensors"), mode)
    if link:
        os.rename(source.path("closed.safetensors"), source.path("elsewhere.bin"))
        os.symlink("elsewhere.bin", source.path("closed.safetensors"))
    m = mount(source.root, "-o", "allow_other")
    suffix = ".npy" if view == "npy" else ""
    directory = m / f"{view}/m"

    before = child(seen_by, "carol", directory, [f"{directory}/t{suffix}"])
    assert before == [[f"t{suffix}"], oracle.read_all(f"{directory}/t{suffix}")]

    def denied():
        names, data, other = child(seen_by, "carol", directory, [
            f"{directory}/t{suffix}", f"{directory}/secret{suffix}"])
        assert names in (None, before[0]) and data in (None, before[1]) and other is None
        assert not child(exists, "carol", f"{directory}/secret{suffix}")
        return names is None

    for _ in range(3):
        exchange(source.path("m.safetensors"), source.path("closed.safetensors"))
        assert eventually(denied)
        exchange(source.path("m.safetensors"), source.path("closed.safetensors"))
        assert eventually(lambda: child(seen_by, "carol", directory, [])[0] == before[0])


def exists(who, path):
    become(who)
    return os.path.exists(path)


# --- each request is checked against the current permissions of the source ---


def enter_user_namespace():
    """Puts the calling process into a user namespace in which it is root, with all capabilities
    over its user's files."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as f:
            f.write(text)


def read_in_user_namespace(who, paths):
    become(who)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: otherwise root owns /proc/self/uid_map
    try:
        enter_user_namespace()
    except OSError as error:
        return error
    return openable(paths)


@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
def test_owner_in_a_user_namespace(mount, place, source, link):
    """The owner of the first shard, who may appear as owner of the merged file, cannot read the
    others through the capabilities of a user namespace."""
    c = source.add("d", "model", trees.small_tensors(count=2), shards=2)
    mine, other = (source.path("d", name) for name, _ in c.shards)
    if link:
        os.mkdir(place / "closed", 0o700)
        os.rename(other, place / "closed/secret")
        os.symlink(place / "closed/secret", other)
    os.chmod(other, 0o600)
    os.chown(mine, ALICE, LEFT)
    os.chown(source.path("d"), ALICE, LEFT)
    m = mount(source.root, "-o", "allow_other", "--shards=1")
    made = [m / path for path in ("merged/d/model.safetensors", "shards/d/model.safetensors",
                                  "tensors/d/model.index.json")]
    assert child(openable, made) == set(made)
    got = child(read_in_user_namespace, "alice", [mine, other, *made])
    if isinstance(got, OSError):
        pytest.skip(f"cannot create a user namespace: {got}")
    assert got == {mine}


def around(before, change, after):
    """Returns after(before()) of a child; change() is called here in between."""
    ready, is_ready = os.pipe()
    proceed, may_proceed = os.pipe()
    ends = (ready, is_ready, proceed, may_proceed)

    def work():
        state = before()
        os.write(is_ready, b"r")
        os.read(proceed, 1)
        return after(state)

    def wait_and_change():
        try:
            os.read(ready, 1)
            change()
        finally:
            os.write(may_proceed, b"p")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        changed = pool.submit(wait_and_change)
        try:
            answer = child(work)
        finally:
            os.write(is_ready, b"r")  # a failed child must not block us
        changed.result()
    for end in ends:
        os.close(end)
    return answer


def errors_of(calls):
    """The errno of each call; 0 if it succeeded."""
    errors = []
    for call in calls:
        try:
            call()
            errors.append(0)
        except OSError as error:
            errors.append(error.errno)
    return errors


def test_working_directory_is_replaced(mount, source):
    """A process whose working directory is replaced by a closed one reads nothing of that."""
    for directory, mode in (("d", 0o755), ("closed", 0o700)):
        source.add_side(f"{directory}/{directory}.txt", directory.encode())
        os.chmod(add(source, directory, "m"), 0o644)
        os.chmod(source.path(directory), mode)
    m = mount(source.root, "-o", "allow_other")

    def enter():
        os.chdir(m / "merged/d")
        become("carol")
        return os.listdir(".")

    def replace():
        os.rename(source.path("d"), source.path("away"))
        os.rename(source.path("closed"), source.path("d"))
        assert eventually(lambda: os.path.exists(m / "merged/d/closed.txt"))

    def look(names):
        assert sorted(names) == ["d.txt", "m.safetensors"]
        return errors_of([lambda: os.listdir("."), lambda: oracle.read_all("closed.txt"),
                          lambda: oracle.read_all("m.safetensors"), lambda: os.stat("closed.txt")])

    assert set(around(enter, replace, look)) <= {errno.EACCES, errno.ESTALE}


def test_descriptor_opened_before(mount, source):
    """An O_PATH descriptor from before a permission was revoked opens nothing."""
    source.add_side("side.txt", b"secret")
    files = [add(source, "", "m"), source.path("side.txt")]
    for path in files:
        os.chmod(path, 0o644)
    m = mount(source.root, "-o", "allow_other")
    shown = [*files_of(m, "", "m"), m / "merged/side.txt"]

    def hold():
        become("bob")
        links = [f"/proc/self/fd/{os.open(path, os.O_PATH)}" for path in shown]
        assert openable(links) == set(links)
        return links

    def close():
        for path in files:
            os.chmod(path, 0o600)

    assert around(hold, close, openable) == set()


def test_name_looked_up_by_another_user(mount, source):
    """A name that one user has just looked up is invisible to another user who cannot search the
    directory."""
    add(source, "closed/sub", "m")
    source.add_side("closed/side.txt", b"secret")
    os.chmod(source.path("closed"), 0o700)
    m = mount(source.root, "-o", "allow_other")
    shown = [m / path for path in (
        "merged/closed/side.txt", "merged/closed/sub", "merged/closed/none",
        "merged/closed/sub/m.safetensors", "tensors/closed/sub/m", "tensors/closed/sub/m/t")]

    def attempt():
        become("bob")
        return errors_of([lambda path=path: os.stat(path) for path in shown])

    for path in shown:
        assert os.path.exists(path) == (not path.endswith("none"))
    assert set(child(attempt)) == {errno.EACCES}


def test_root_without_capabilities(mount, source):
    """User 0 reads other users' files by capabilities, and cannot without them."""
    path = add(source, "", "m")
    os.chown(path, ALICE, LEFT)
    os.chmod(path, 0o600)
    m = mount(source.root, "-o", "allow_other")
    shown = files_of(m, "", "m")
    assert child(openable, shown) == set(shown)
    for file in (path, *shown):
        done = subprocess.run(["setpriv", "--bounding-set=-dac_override,-dac_read_search", "cat", file],
                              capture_output=True, text=True)
        assert done.returncode != 0 and "Permission denied" in done.stderr, file


def test_access(mount, source):
    """access(2) and chdir(2) agree with open(2)."""
    for stem, mode in (("open", 0o644), ("closed", 0o600)):
        os.chmod(add(source, stem, "m"), mode)
        source.add_side(f"{stem}/run.sh", b"#!/bin/sh\n")
        os.chmod(source.path(stem, "run.sh"), mode | 0o100)
    m = mount(source.root, "-o", "allow_other")

    def attempt():
        become("carol")
        for view in ("merged", "shards"):
            assert os.access(m / f"{view}/open/m.safetensors", os.R_OK)
            assert not os.access(m / f"{view}/open/m.safetensors", os.X_OK)
            assert not os.access(m / f"{view}/closed/m.safetensors", os.R_OK)
            assert not os.access(m / f"{view}/closed/run.sh", os.X_OK)
            assert not os.access(m / f"{view}/open/run.sh", os.W_OK)
        os.chdir(m / "tensors/open/m")
        with pytest.raises(PermissionError):
            os.chdir(m / "tensors/closed/m")
        for name in ("shards/closed/m.safetensors", "merged/closed/m.safetensors"):
            for xattr in ("user.fstfs.extents", "user.fstfs.source"):
                with pytest.raises(OSError) as refused:
                    os.getxattr(m / name, xattr)
                assert refused.value.errno in (errno.EACCES, errno.ENODATA)

    child(attempt)


def test_daemon_of_an_unprivileged_user(place, source, test_user, user_binary):
    """It cannot ask the kernel on behalf of others. They can read what the modes permit, and
    nothing with an access control list."""
    who = pwd.getpwnam(test_user)
    made = {}
    for name, group, mode, entries in (
            ("all", LEFT, 0o644, None), ("group", LEFT, 0o640, None), ("own", LEFT, 0o600, None),
            ("not-group", LEFT, 0o604, None),
            ("list", LEFT, 0o644, [(USER, BOB, R), (MASK, None, R)])):
        path = made[name] = add(source, name, "m")
        os.chown(path, who.pw_uid, group)
        os.chmod(path, mode)
        if entries:
            give_list(path, entries)
    os.mkdir(source.path("closed"), 0o711)
    mountpoint = place / "mnt"
    mountpoint.mkdir()
    os.chown(mountpoint, who.pw_uid, who.pw_gid)
    conf = place / "fuse.conf"
    conf.write_text("user_allow_other\n")

    def attempt():
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x20000) == 0  # CLONE_NEWNS: the mount ends with this process
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", conf, "/etc/fuse.conf"], check=True)
        subprocess.run(["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups",
                        user_binary, "-o", "allow_other", source.root, mountpoint], check=True)
        got = {}
        paths = {f"{mountpoint}/merged/{name}/m.safetensors": name for name in made}
        for reader in PEOPLE:
            got[reader] = {paths[path] for path in child(readable, reader, list(paths))}
        got["root"] = {paths[path] for path in openable(paths)}
        got["own"] = {paths[path] for path in child(openable, list(paths), user=test_user)}
        for path in ("closed", "closed/name"):
            with pytest.raises(PermissionError):
                child(os.listdir, f"{mountpoint}/merged/{path}", user=test_user)
        subprocess.run(["fusermount3", "-u", mountpoint], check=True)
        return got

    got = child(attempt)
    assert got == {
        "own": set(made), "root": set(made), "alice": {"all", "group"},
        "bob": {"all", "not-group"}, "carol": {"all", "not-group"},
        "bob-with-left": {"all", "group"}, "carol-with-both": {"all", "group"}}
