# SPDX-License-Identifier: Apache-2.0
"""The number of threads of the daemon: the bounds in docs/architecture.md."""

import os
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, eventually
from corpus import trees

SLOWFS = BUILD / "tests/slowfs/slowfs"
CHECKPOINTS, SHARDS = 24, 20


def bounds():
    """{name: maximum} of the table in docs/architecture.md, for rows with a number."""
    text = (ROOT / "docs/architecture.md").read_text()
    return {name: int(most) for name, most in re.findall(r"^\| `(fstfs[\w-]*)` \| (\d+)", text,
                                                         re.MULTILINE)}


def threads(pid):
    """The number of threads of each name in that table. Threads that newer versions of libfuse name
    count as `fstfs`."""
    names, found = bounds(), Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            name = (task / "comm").read_text().strip()
            assert name in names or not name.startswith("fstfs-"), f"{name} is not in the table"
            found[name if name in names else "fstfs"] += 1
    return found


class Lister:
    """A process that lists a directory once, and succeeds if all checkpoints are in it."""

    def __init__(self, path):
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                files = [n for n in os.listdir(path) if not n.endswith(".index.json")]
                status = 0 if len(files) == CHECKPOINTS else 2
            finally:
                os._exit(status)

    def end(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("options", [[], ["--io=threads"]], ids=["ring", "threads"])
def test_first_listing_of_many_checkpoints(mount, place, options):
    """The storage of their shards does not answer, so that all threads exist at the same time."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    source = trees.Source(place / "real")
    for i in range(CHECKPOINTS):
        source.add("h", f"m{i:02}", [trees.tensor(f"t{j}", "U8", (j + 1,)) for j in range(SHARDS)],
                   shards=SHARDS, index=None)
    source.add("other", "model", trees.small_tensors())
    faults = place / "faults"
    others = ",allow_other" if os.geteuid() == 0 else ""
    slow = mount(source.root, "-o", f"faults={faults},valid=0,age=60{others}", binary=SLOWFS)
    m = mount(slow.path, *options)
    os.listdir(m / "merged/other")
    pid, most = m.status()["pid"], bounds()
    before = threads(pid).total()
    (place / "new").write_text("read h/*.safetensors hang\n")
    os.rename(place / "new", faults)
    listers = [Lister(m / f"{view}/h") for view in ("merged", "merged", "shards")]
    try:
        assert eventually(lambda: threads(pid).total() >= before + 16, 10)
        m.read(".fstfs/problems")  # starts a survey
        assert threads(pid)["fstfs-survey"] == 1
        for _ in range(20):  # samples, to see threads that start late
            found = threads(pid)
            assert all(count <= most[name] for name, count in found.items()), (found, most)
            assert found.total() - before <= most["fstfs-loop"] + most["fstfs-survey"] + len(listers)
            time.sleep(0.05)
    except BaseException:
        for lister in listers:
            os.kill(lister.pid, signal.SIGKILL)
        raise
    finally:
        (place / "new").write_text("")
        os.rename(place / "new", faults)
        statuses = [lister.end() for lister in listers]
    assert statuses[:2] == [0, 0]
    assert eventually(lambda: threads(pid)["fstfs-loop"] == 0, 30)
