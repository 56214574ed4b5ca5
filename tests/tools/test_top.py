# SPDX-License-Identifier: Apache-2.0
"""fstfs-top: its reports to terminals, pipes and programs, and how it ends."""

import ctypes
import fcntl
import json
import mmap
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import xml.etree.ElementTree
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BUILD, ROOT, SANITIZER, SLOW, as_user, child, eventually
from corpus import trees

TOP = BUILD / "fstfs-top"
SLOWFS = BUILD / "tests/slowfs/slowfs"
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
SIZE = 3_000_000


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("llama", "model", [trees.tensor("w", "U8", (SIZE,))])
    return made


class Top:
    """A running fstfs-top."""

    def __init__(self, *args, **streams):
        self.process = subprocess.Popen(
            [TOP, *map(str, args)], stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | streams)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def lines(self):
        """Yields its JSON objects."""
        for line in self.process.stdout:
            yield json.loads(line)

    def ends(self, status):
        """Waits for its end and returns its standard error."""
        _, err = self.process.communicate(timeout=20 * SLOW)
        assert not any(sign in (err or "") for sign in SANITIZER), err
        assert self.process.returncode == status, (self.process.returncode, err)
        return err


def run(*args, status=0, **more):
    done = subprocess.run([TOP, *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=30 * SLOW, **more)
    assert not any(sign in done.stderr for sign in SANITIZER), done.stderr
    assert done.returncode == status, (done.returncode, done.stderr)
    return done


def test_own_reads_are_not_counted(mount, source):
    m = mount(source.root)
    with Top("--json", "--interval=0.1", m.path) as top:
        lines = top.lines()
        assert [next(lines)["read_bytes"] for _ in range(3)] == [0, 0, 0]
        data = m.read("tensors/llama/model/w")
        seen = []
        while sum(line["read_bytes"] for line in seen) < len(data) and len(seen) < 600:
            seen.append(next(lines))
        assert sum(line["read_bytes"] for line in seen) == len(data) == SIZE
        assert sum(line["storage_read_bytes"] for line in seen) >= SIZE
        for line in seen:
            if line["state"] == "stuck":  # an interval of a busy machine in which no read completed
                assert line["read_bytes"] == 0 and line["reads_in_flight"] > 0
            else:
                assert line["state"] in ("idle", "reader", "storage")
        assert any(line["state"] == "idle" for line, _ in zip(lines, range(600)))
        assert seen[0]["pid"] == m.status()["pid"]


def users_of(lines, wanted):
    """Whether one of the next 600 reports has these users."""
    return any({(u["pid"], f) for u in line["users"] for f in u["files"]} == wanted
               for line, _ in zip(lines, range(600)))


def test_open_and_mapped_files(mount, source):
    m = mount(source.root)
    with Top("--json", "--interval=0.1", f"{m.path}/merged/llama") as top:
        lines, me = top.lines(), os.getpid()
        file = open(m / "merged/llama/model.safetensors", "rb")
        assert users_of(lines, {(me, "merged/llama/model.safetensors")})
        with file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
            file.close()
            assert users_of(lines, {(me, "merged/llama/model.safetensors")})
        assert users_of(lines, set())


def test_mount_of_one_view(mount, source):
    m = mount(source.root, "--view=merged")
    assert json.loads(run("--once", "--json", "--interval=0.1", m.path).stdout)["state"] == "idle"


def test_lines_without_terminal(mount, source):
    m = mount(source.root)
    output = run("--once", "--interval=0.1", m.path).stdout
    assert output.count("\n") == 1 and "\x1b" not in output and "idle" in output
    source.add("bad", "model", [trees.tensor("w", "U8", (9,))])
    os.truncate(source.path("bad/model.safetensors"), 20)
    os.listdir(m / "tensors/bad")
    output = json.loads(run("--once", "--json", "--interval=0.1", m.path).stdout)
    assert output["problems"] == len(m.problems()) > 0


def test_read_errors(mount, source):
    m = mount(source.root)
    with open(m / "merged/llama/model.safetensors", "rb", buffering=0) as f:
        f.read(10)
        with Top("--json", "--interval=0.1", m.path) as top:
            lines = top.lines()
            assert next(lines)["read_errors"] == 0
            time.sleep(0.05)  # so that the time stamp changes
            os.truncate(source.path("llama/model.safetensors"), 5000)
            with pytest.raises(OSError):
                os.pread(f.fileno(), 4096, SIZE - 4096)
            line = next(line for line, _ in zip(lines, range(600)) if line["read_errors"])
            assert line["state"] == "errors" and line["stale_reads"] <= line["read_errors"]


def test_storage_that_does_not_respond(mount, source, place):
    """The state is "stuck" while reads wait and none completes."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    rules = place / "faults"
    storage = mount(source.root, "-o", f"faults={rules}", binary=SLOWFS)
    m = mount(storage.path)
    os.stat(m / "tensors/llama/model/w")  # its header has been read
    rules.write_text("read llama/model.safetensors hang\n")
    with Top("--json", "--interval=0.1", m.path) as top, ThreadPoolExecutor() as pool:
        lines = top.lines()
        next(lines)
        data = pool.submit(m.read, "tensors/llama/model/w")
        try:
            line = next(line for line, _ in zip(lines, range(600)) if line["state"] == "stuck")
            assert line["reads_in_flight"] > 0 and line["read_bytes"] == 0
            output = run("--once", "--interval=0.1", m.path).stdout
            assert "stuck: reads wait for storage, and none completed" in output
            screen = Screen(m.path, 24, 120)
            with screen.top:
                shown, = screen.frames(1)
            os.close(screen.ours)
            assert "=> stuck: reads wait for storage, and none completed" in shown
        finally:
            rules.with_suffix(".new").write_text("")
            os.rename(rules.with_suffix(".new"), rules)
        assert len(data.result()) == SIZE
        assert any(line["state"] == "idle" for line, _ in zip(lines, range(600)))


# ---- the mount ends, or does not respond ----

def test_unmount_ends_it(mount, source):
    m = mount(source.root)
    with Top("--json", "--interval=0.1", m.path) as top:
        next(top.lines())
        # busy while a sample is taken
        assert eventually(lambda: subprocess.run(["fusermount3", "-u", m.path],
                                                 capture_output=True).returncode == 0)
        assert "not mounted any more" in top.ends(1)


def test_death_of_the_daemon_ends_it(mount, source):
    m = mount(source.root, died=True)
    with Top("--json", "--interval=0.1", m.path) as top:
        next(top.lines())
        m.signal(signal.SIGKILL)
        assert "its daemon has died; remove the mount with fusermount3 -u" in top.ends(1)
    assert "its daemon has died; remove the mount with fusermount3 -u" in run(m.path, status=1).stderr
    m.kill()


@pytest.mark.parametrize("is_continued", [True, False])
def test_daemon_that_does_not_respond(mount, source, is_continued):
    """Its silence is reported; fstfs-top can be interrupted, or continues with the daemon."""
    m = mount(source.root)
    with Top("--json", "--interval=0.1", m.path) as top:
        lines = top.lines()
        next(lines)
        m.stop()
        try:
            output = top.process.stderr.readline()
            assert "no reply for" in output, output
            if not is_continued:
                top.process.send_signal(signal.SIGINT)
                top.ends(128 + signal.SIGINT)
        finally:
            m.signal(signal.SIGCONT)
        if is_continued:
            assert all(next(lines)["state"] for _ in range(20))


# ---- terminals ----

class Screen:
    def __init__(self, path, rows, columns, term="xterm"):
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.top = Top("--interval=0.1", path, stdout=theirs, stderr=theirs, text=False,
                       env={**os.environ, "TERM": term})
        os.close(theirs)
        self.output = b""

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def more(self):
        if select.select([self.ours], [], [], 20 * SLOW)[0]:
            try:
                self.output += os.read(self.ours, 65536)
                return True
            except OSError:  # EIO: the other end is closed
                pass
        return False

    def frames(self, count):
        """Returns the next `count` complete screens, each a list of lines."""
        self.output = b""
        while self.output.count(b"\x1b[J") <= count and self.more():
            pass
        found = [frame.split(b"\x1b[H", 1)[-1] for frame in self.output.split(b"\x1b[J")]
        return [frame.replace(b"\x1b[K", b"").decode().split("\r\n")
                for frame in found[1:count + 1]]

    def rest(self):
        while self.more():
            pass
        os.close(self.ours)
        return self.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_screen_fits_and_is_restored(mount, source, number):
    m = mount(source.root)
    screen = Screen(m.path, 6, 30)
    with screen.top as top:
        small, = screen.frames(1)
        assert len(small) == 6 and max(map(len, small)) == 30
        screen.resize(40, 200)
        assert any(len(frame) > 9 and max(map(len, frame)) > 60
                   for _ in range(50) for frame in screen.frames(1))
        assert ENTER not in screen.output  # the alternate screen stayed active
        top.process.send_signal(number)
        top.ends(128 + number)
        assert screen.rest().endswith(LEAVE)


def test_manual_has_each_line_of_the_screen(mount, source):
    page = (ROOT / "man/fstfs-top.1").read_text()
    page = page[page.index(".SS Lines of the screen"):page.index(".SH OPTIONS")]
    documented = re.findall(r"^\.TP\n\.B (.*)$", page, re.MULTILINE)
    m = mount(source.root, "--direct=off")
    screen = Screen(m.path, 24, 120)
    with screen.top:
        shown, = screen.frames(1)
    os.close(screen.ours)
    labels = [line[:10].strip() for line in shown if re.match("[A-Z]", line)]
    assert labels == documented
    assert {"idle", "reader", "storage", "stuck", "errors"} <= set(
        re.findall(r"^\.BR? (\w+)", page, re.MULTILINE))


def test_screen_is_restored_when_the_mount_ends(mount, source):
    m = mount(source.root, died=True)
    screen = Screen(m.path, 24, 80)
    with screen.top as top:
        screen.frames(1)
        m.signal(signal.SIGKILL)
        top.ends(1)
        assert re.search(rb"\x1b\[\?1049lfstfs-top: .*: its daemon has died.*\n$", screen.rest())
    m.kill()


def test_stopped_and_continued_on_a_terminal(mount, source):
    m = mount(source.root)
    screen = Screen(m.path, 24, 80)
    with screen.top as top:
        screen.frames(1)
        top.process.send_signal(signal.SIGTSTP)
        while not screen.output.endswith(LEAVE):
            assert screen.more()
        # It stops itself after LEAVE; a SIGCONT before that would have no effect.
        assert eventually(lambda: os.waitid(os.P_PID, top.process.pid,
                                            os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
        screen.output = b""
        top.process.send_signal(signal.SIGCONT)
        while ENTER not in screen.output:
            assert screen.more()
        top.process.send_signal(signal.SIGINT)
        top.ends(128 + signal.SIGINT)
        assert screen.rest().endswith(LEAVE)


def test_dumb_terminal(mount, source):
    m = mount(source.root)
    screen = Screen(m.path, 24, 80, term="dumb")
    with screen.top as top:
        while b"idle" not in screen.output:
            assert screen.more()
        top.process.send_signal(signal.SIGINT)
        top.ends(128 + signal.SIGINT)
        assert b"\x1b" not in screen.rest()


def test_output_cannot_be_written(mount, source):
    m = mount(source.root)
    with open("/dev/full", "w") as full:
        top = Top("--once", "--interval=0.1", m.path, stdout=full)
        assert "cannot write: No space left" in top.ends(1)


# ---- the command line ----

@pytest.mark.parametrize("args", [[], ["a", "b"], ["--nothing", "a"], ["--interval=0", "a"],
                                  ["--interval=x", "a"], ["--interval=nan", "a"]])
def test_wrong_command_lines(args):
    assert "fstfs-top: " in run(*args, status=2).stderr


def test_path_that_is_not_in_a_mount(place):
    assert "not in a mount of fstfs" in run(place, status=1).stderr
    assert "No such file" in run(place / "none", status=1).stderr


def test_help_and_version():
    output = run("--help").stdout
    assert all(option in output for option in ("--interval", "--once", "--json", "Exit status"))
    assert max(map(len, output.splitlines())) <= 95
    assert run("-V").stdout.startswith("fstfs-top ")


def test_loads(mount, source):
    """The numbers are those of the page."""
    m = mount(source.root)
    assert run("--loads", m.path).stdout.count("\n") == 1  # the head
    m.read("merged/llama/model.safetensors")
    m.read("tensors/llama/model/w")
    m.wait_until_idle()
    loads = [json.loads(line) for line in m.read(".fstfs/loads").splitlines()]
    assert len(loads) == 2
    lines = run("--loads", m.path).stdout.splitlines()
    assert lines[0].split() == ["STARTED", "TIME", "READ", "RATE", "STORAGE", "FSTFS", "READER",
                                "ORDER", "VIEW", "COMMAND", "CHECKPOINT"]
    for load, row, verdict in zip(loads, lines[1::2], lines[2::2]):
        assert row.split()[-1] == "llama/model" and load["view"] in row.split()
        assert f"{load['seconds']:.2f}s" in row
        assert load["command"] in row and "3.00 MB" in row
        more = f"; {load['read_ratio']:.2f} bytes read for each byte requested"
        assert verdict.strip() == f"=> {load['verdict']}" + more * (load["read_ratio"] > 1.05)
    assert run("--loads", "--json", m.path).stdout.encode() == m.read(".fstfs/loads")


def test_picture_of_a_load(mount, place):
    """Of the last load; names are escaped for XML."""
    source = trees.Source(place / "models")
    source.add("<&>", "a", [trees.tensor("w", "U8", (SIZE,))])
    m = mount(source.root)
    assert "there was no load yet" in run("--svg", m.path, status=1).stderr
    m.read("merged/<&>/a.safetensors")
    m.wait_until_idle()
    root = xml.etree.ElementTree.fromstring(run("--svg", m.path).stdout)
    load = json.loads(m.read(".fstfs/loads"))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "<&>/a (merged)" and load["verdict"] in texts
    width = {part: sum(float(rect.get("width")) for rect in root.iter(
        "{http://www.w3.org/2000/svg}rect") if rect.get("class") == part) - 10
        for part in ("storage", "fstfs", "reader")}
    whole = sum(width.values())
    for part, name in (("storage", "storage"), ("fstfs", "daemon"), ("reader", "reader")):
        assert width[part] / whole == pytest.approx(
            load[f"{name}_seconds"] / load["seconds"], abs=0.01)
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect")
            if rect.get("class") == "bytes"]
    assert len(bars) == len(load["slices"])


def read_as_thread(name, path):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
    with open(path, "rb") as file:
        file.read()


def test_names_that_are_not_utf8(mount, place):
    """Of threads, which all readers choose, and of files."""
    source = trees.Source(place / "models")
    source.add(os.fsdecode(b"m\xff\xe9"), "a", [trees.tensor("w", "U8", (SIZE,))])
    m = mount(source.root)
    child(read_as_thread, b"\xff\xfe", m / os.fsdecode(b"merged/m\xff\xe9/a.safetensors"))
    load = json.loads(m.read(".fstfs/loads"))
    assert (load["command"], load["checkpoint"]) == ("\ufffd\ufffd", "m\ufffd\ufffd/a")
    assert "\ufffd\ufffd/a" in run("--loads", m.path).stdout
    texts = [text.text for text in xml.etree.ElementTree.fromstring(
        run("--svg", m.path).stdout).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "m\ufffd\ufffd/a (merged)"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_loads_of_another_user(mount, source, test_user, user_program):
    """They name files and programs that he may not see."""
    m = mount(source.root, "-o", "allow_other")
    done = subprocess.run([*as_user(test_user), user_program(TOP), "--loads", m.path],
                          capture_output=True, text=True)
    assert done.returncode == 1 and ".fstfs/loads: Permission denied" in done.stderr
