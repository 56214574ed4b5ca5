# SPDX-License-Identifier: Apache-2.0
""".fstfs/problems lists everything that is wrong in the source, whether or not it was accessed, and
the consequences. If it is incomplete, it states how much was not checked."""

import contextlib
import os
import shutil
import signal
import time

import oracle
import pytest
from conftest import as_user, child, eventually, mounted_at
from corpus import trees
from test_bad import check_problems_form
from test_hang import LIMIT, Hanging, callers  # noqa: F401 (a fixture)


def broken(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"\xff" * 100)


@pytest.fixture
def source(place):
    """Valid models, and one problem of each kind, deep in the tree."""
    source = trees.nested(place / "s", models=3)
    source.add("x/two", "model", trees.small_tensors("t."), shards=3)
    for name in ("model-00002-of-00003.safetensors", "model.safetensors.index.json"):
        os.unlink(source.path("x/two", name))
    broken(place / "s/x/y/z/bad/model.safetensors")
    (place / "s/x/link").symlink_to("nowhere")
    os.mkfifo(place / "s/x/y/fifo")
    return source


EXPECTED = ["x/link: left out: a link that leads nowhere", "x/two/model-00001-of-00003.safetensors: ",
            "x/y/fifo: left out: neither a file nor a directory",
            "x/y/z/bad/model.safetensors: refused: HeaderTooLarge"]


def check_complete(lines):
    check_problems_form(lines)
    assert len(lines) == len(EXPECTED), lines
    for line, start in zip(lines, EXPECTED, strict=True):
        assert line.startswith(start), (line, start)


@pytest.mark.parametrize("options", [[], ["--view=merged"], ["--view=tensors"], ["--shards=2"]],
                         ids=" ".join)
def test_complete_when_read(mount, source, who, options):
    """Nothing was accessed before."""
    m = mount(source.root, *options, **who)
    check_complete(child(m.problems, user=m.user))
    assert child(m.status, user=m.user)["problems"] == len(EXPECTED)
    assert m.unmount() == 0


def test_what_views_leave_out(mount, place):
    """Problems found while listing a view or generating a file."""
    source = trees.Source(place / "s")
    source.add("names", "n" * 240, trees.small_tensors("t."))
    source.add_side("names/" + "n" * 240, b"x")
    source.add("meta", "model", trees.small_tensors("t."), shards=2, metadata={"format": "pt"})
    path = source.path("meta", "model-00002-of-00002.safetensors")
    data = oracle.read_all(path)
    with open(path, "wb") as f:
        f.write(data.replace(b'"format":"pt"', b'"format":"tf"').replace(b'"format": "pt"',
                                                                         b'"format": "tf"'))
    before = mount(source.root)
    fresh = before.problems()
    for view in ("tensors", "merged", "shards", "npy"):
        oracle.walk(before / view)
    assert before.problems() == fresh
    assert any("metadata" in line for line in fresh), fresh


def test_stat_scans_nothing(mount, source):
    m = mount(source.root)
    listings = m.metrics()["fstfs_listings_total"]
    for _ in range(3):
        os.stat(m / ".fstfs/problems")
        os.listdir(m / ".fstfs")
    assert m.metrics()["fstfs_listings_total"] == listings
    check_complete(m.problems())
    assert m.metrics()["fstfs_listings_total"] > listings


def test_unchanged_files_are_not_read_again(mount, source):
    m = mount(source.root)
    check_complete(m.problems())
    headers = m.metrics()["fstfs_headers_total"]
    time.sleep(0.5)  # longer than the catalog trusts its last check
    check_complete(m.problems())
    assert m.metrics()["fstfs_headers_total"] == headers > 0


def test_changes(mount, source, place):
    """Fixed problems disappear and new ones appear, without access to the files."""
    m = mount(source.root)
    check_complete(m.problems())
    os.unlink(place / "s/x/link")
    os.unlink(place / "s/x/y/z/bad/model.safetensors")
    broken(place / "s/new/deep/model.safetensors")

    def now():
        return [line.split(": ")[0] for line in m.problems()]

    want = ["new/deep/model.safetensors", "x/two/model-00001-of-00003.safetensors", "x/y/fifo"]
    assert eventually(lambda: now() == want), now()
    os.rename(place / "s/x", place / "elsewhere")
    assert eventually(lambda: now() == want[:1]), now()
    source.add("x", "again", trees.small_tensors("t."))
    broken(place / "s/x/again.safetensors")
    assert eventually(lambda: now() == want[:1] + ["x/again.safetensors"]), now()


GONE = {
    "unlink": lambda s: [os.unlink(s / "d/sub" / name) for name in BROKEN],
    "rename": lambda s: [os.rename(s / "d/sub" / name, s / f"d/sub/{name}.txt") for name in BROKEN],
    "become-directories": lambda s: [(os.unlink(s / "d/sub" / name), os.mkdir(s / "d/sub" / name))
                                     for name in BROKEN],
    "move-directory": lambda s: os.rename(s / "d", s / "e"),
    "move-out": lambda s: os.rename(s / "d", s.parent / "e"),
    "remove-directory": lambda s: shutil.rmtree(s / "d"),
    "replace-directory": lambda s: (shutil.rmtree(s / "d"), (s / "d").mkdir()),
}
BROKEN = ["x.gguf", "model.safetensors"]


@pytest.mark.parametrize("change", GONE)
def test_no_problem_outlives_its_file(mount, place, change):
    """Problems of files that no longer exist are neither listed nor counted, with and without a
    survey, although the kernel still caches the names."""
    for name in BROKEN:
        broken(place / "s/d/sub" / name)
    (place / "s/d/sub/link").symlink_to("nowhere")
    m = mount(place / "s")
    (place / "s/d/more").mkdir()

    def walk():
        with contextlib.suppress(FileNotFoundError):  # names that the kernel still knows
            oracle.walk(m.path)

    def check(want):
        def counted():
            walk()
            return m.status()["problems"] == m.metric("problems") == len(want)

        def listed():
            walk()
            return sorted(line.split(": ")[0] for line in m.problems()) == want

        assert eventually(counted), (m.status()["problems"], want)
        assert eventually(listed), (m.problems(), want)

    names = sorted([*BROKEN, "link"])
    check([f"d/sub/{name}" for name in names])
    GONE[change](place / "s")
    if change == "move-directory":
        check([f"e/sub/{name}" for name in names])
    elif "directory" in change or change == "move-out":
        check([])
    else:
        check(["d/sub/link"])
    assert m.metric("nodes") > 10  # the kernel still knows the names that are gone


def test_memory_of_directories_that_are_gone(mount, place):
    """The memory is freed when the kernel drops the names, here because they are looked up again."""
    (place / "s/d").mkdir(parents=True)
    m = mount(place / "s")
    gone = []

    def forgotten():
        return not any(os.path.exists(path) for path in gone) and m.metric("nodes") <= before

    for view in ("tensors", "merged"):
        os.listdir(m / f"{view}/d")
    before = m.metric("nodes")
    for i in range(50):
        broken(place / f"s/d/{i}/bad.gguf")
        os.listdir(m / f"tensors/d/{i}/bad")
        os.stat(m / f"merged/d/{i}/bad.gguf")
        shutil.rmtree(place / f"s/d/{i}")
        gone += [m / f"tensors/d/{i}", m / f"merged/d/{i}"]
    assert m.metric("nodes") >= before + 4 * 50
    assert eventually(forgotten), m.metric("nodes")
    assert eventually(lambda: m.metric("checkpoints") == 0), m.metrics()


def test_directory_that_cannot_be_listed(mount, source, test_user, user_binary, place):
    if not as_user(test_user):
        pytest.skip("needs root: a directory of another user")
    (place / "s/x/y").chmod(0)
    m = mount(source.root, user=test_user, binary=user_binary)
    lines = child(m.problems, user=test_user)
    assert any(line.startswith("x/y: cannot be listed: Permission denied: ") for line in lines), lines
    assert not any("z/bad" in line for line in lines)
    (place / "s/x/y").chmod(0o755)
    assert eventually(lambda: check_is_complete(child(m.problems, user=test_user)))
    (place / "s/x/y").chmod(0)
    assert eventually(lambda: child(m.problems, user=test_user) == lines)
    os.rename(place / "s/x/y", place / "y")

    def count():
        """The number of problems once the directory above is listed."""
        os.listdir(m / "merged/x")
        return m.status()["problems"]

    assert eventually(lambda: child(count, user=test_user) == 2)


def check_is_complete(lines):
    return [line.split(": ")[0] for line in lines] == [line.split(": ")[0] for line in EXPECTED]


def test_other_users_have_no_access(mount, source, test_user, place):
    """With allow_other, the page still belongs to the mounting user. Another user cannot start a
    scan."""
    if not as_user(test_user):
        pytest.skip("needs root: another user looks")
    (place / "s/x").chmod(0o700)
    m = mount(source.root, "-o", "allow_other")
    listings = m.metrics()["fstfs_listings_total"]

    def look():
        with pytest.raises(PermissionError):
            open(m / ".fstfs/problems", "rb")
        return os.stat(m / ".fstfs/problems").st_size

    assert child(look, user=test_user) == 0
    assert m.metrics()["fstfs_listings_total"] == listings
    check_complete(m.problems())


def test_more_directories_than_the_limit(mount, place):
    """Twenty thousand; links to directories count once per name."""
    for i in range(143):
        (place / f"many/{i}").mkdir(parents=True)
    (place / "s/fan").mkdir(parents=True)
    for i in range(143):
        (place / f"s/fan/{i}").symlink_to(place / "many")
    broken(place / "s/model.safetensors")
    m = mount(place / "s")
    lines = m.problems()
    assert lines[0].startswith("model.safetensors: refused")

    def settled():
        return "are not read: the source has more than 20000" in m.problems()[-1] or None

    # 2 + 143 + 143 * 143 directories; reading waits for a scan that takes several seconds
    assert eventually(settled, 60), m.problems()


def test_log_is_limited(mount, place):
    """A thousand lines per hour, and one that reports the limit; the page lists all problems."""
    (place / "s").mkdir()
    for i in range(1020):
        (place / f"s/{i}.safetensors").write_bytes(b"\xff" * 100)
    m = mount(place / "s")
    assert len(m.problems()) == 1020
    logged = m.log_text().splitlines()
    assert sum(": refused: " in line for line in logged) == 1000
    assert sum("1000 problems were logged within an hour" in line for line in logged) == 1


@pytest.mark.limit(120)
@pytest.mark.parametrize("readers", [1, 60])
def test_hanging_storage(mount, place, callers, who, readers):  # noqa: F811
    """The page is available in time and names what it waits for. Others are served, and the daemon
    can end."""
    h = Hanging(mount, place)
    h.directories(3)
    broken(place / "s/a/model.safetensors")
    m = h.serve(limit=200, **who)
    h.set("* h/d1 hang", "* h/d1/* hang")
    group = callers(m.user)
    for _ in range(readers):
        group.add(m.problems)
    assert eventually(lambda: group.count()[1] >= readers, LIMIT), group.count()
    lines = child(m.problems, user=m.user, seconds=LIMIT)
    assert lines[-1].startswith(".: incomplete: "), lines
    assert any(line.startswith("a/model.safetensors: refused") for line in lines), lines
    assert "reading slow/h" in lines[-1] and "have not" in lines[-1]
    h.others_are_served()
    group.kill()
    assert eventually(group.reap, LIMIT)
    h.set()

    def complete():
        return [line.split(": ")[0] for line in child(m.problems, user=m.user)] == \
            ["a/model.safetensors"]

    assert eventually(complete, LIMIT), child(m.problems, user=m.user)
    assert m.unmount() == 0


@pytest.mark.limit(120)
def test_shutdown_during_a_scan(mount, place, who):
    """SIGTERM while the scan waits for storage that does not answer."""
    h = Hanging(mount, place)
    h.directories(3)
    m = h.serve(limit=200, **who)
    h.set("* h/d1 hang", "* h/d1/* hang")
    assert "incomplete" in child(m.problems, user=m.user, seconds=LIMIT)[-1]
    m.signal(signal.SIGTERM)
    assert eventually(lambda: not mounted_at(m.path), LIMIT)
    h.set()  # a thread that waits for storage may be unkillable
    assert m.wait(LIMIT) == 0
