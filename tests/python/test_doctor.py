# SPDX-License-Identifier: Apache-2.0
"""python -m fstfs.doctor: a line for each check, advice for each "no", and the exit status."""

import errno
import functools
import os
import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

from . import files
from .module import fstfs

pytestmark = pytest.mark.usefixtures("fstfs")
NAMES = ["/dev/fuse", "fusermount3", "mount", "io_uring", "O_DIRECT", "passthrough", "cuda:0"]


def parse(text):
    """{name: (yes or no, detail)}; each "no" and no "yes" is followed by advice."""
    first, *lines = text.splitlines()
    assert first.startswith(f"fstfs {fstfs.__version__}, Linux ")
    found = {}
    for line, after in zip(lines, [*lines[1:], ""]):
        if not line.startswith("       -> "):
            answer, name, detail = re.fullmatch(r"(yes|no ) +(\S+) *(.*)", line).groups()
            found[name] = (answer.strip(), detail)
            assert after.startswith("       -> ") == (answer == "no "), line
    return found


def doctor(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "fstfs.doctor", *arguments], text=True,
                          capture_output=True,
                          env={**os.environ, "PYTHONPATH": os.fspath(ROOT / "src/python"),
                               **environment})


@pytest.fixture
def models(place):
    files.write_checkpoint(place / "models", files.tensors_of(("F32",), [(6, 4), (3,)]))
    return place / "models"


@pytest.mark.parametrize("own", [False, True], ids=["sample", "source"])
def test_all(models, own):
    result = doctor(*[models] if own else [])
    assert (result.returncode, result.stderr) == (0, "")
    found = parse(result.stdout)
    assert list(found) == NAMES
    assert found["/dev/fuse"] == ("yes", "") and found["mount"][0] == "yes"
    if own:
        assert found["mount"] == ("yes", os.fspath(models))
    assert "CUDA driver is not installed" in found["cuda:0"][1] or found["cuda:0"][0] == "yes"


@pytest.mark.parametrize("name, shown", [
    (b"a\x1b]0;x\x07\nyes  forged", "a\\x1b]0;x\\x07\\x0ayes  forged"), (b"caf\xe9", "caf\\xe9"),
    (b"\xe2\x80\xaegnp \xc3\xa9", "\\xe2\\x80\\xaegnp é"), (b"a\\x1b", "a\\\\x1b")])
@pytest.mark.parametrize("direct", [True, False])
def test_names(place, monkeypatch, capsys, name, shown, direct):
    """The names of directories, which others may have chosen, are quoted."""
    from fstfs import doctor as module
    directory = place / os.fsdecode(name)
    files.write_checkpoint(directory, files.tensors_of(("F32",), [(6, 4)]), 1)
    if not direct:
        monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY)  # an error of open()
    assert module.main([os.fspath(place)]) == 0
    answer, detail = parse(capsys.readouterr().out)["O_DIRECT"]
    assert detail.startswith(f"{place}/{shown}/model-00001-of-00001.safetensors")
    assert direct or (answer, detail[-17:]) == ("no", ": Not a directory")
    if b"\xe9" not in name:  # tests read the table of mounts, which has the source, as UTF-8
        assert module.main([os.fspath(directory)]) == 0
        assert parse(capsys.readouterr().out)["mount"] == ("yes", f"{place}/{shown}")


def test_no_mount(place):
    result = doctor(place / "none")
    assert result.returncode == 1
    found = parse(result.stdout)
    assert list(found) == NAMES[:3]
    assert found["mount"][0] == "no" and "none: No such file or directory" in found["mount"][1]


@pytest.mark.parametrize("number, advice", [
    (errno.EACCES, "as root: chmod 0666 /dev/fuse;"), (errno.ENOENT, "as root: modprobe fuse;")])
def test_no_device(monkeypatch, capsys, number, advice):
    from fstfs import doctor as module

    def opens(path, *arguments):
        if path == "/dev/fuse":
            raise OSError(number, os.strerror(number), path)
        return fd(path, *arguments)

    fd = os.open
    monkeypatch.setattr(os, "open", opens)
    module.report_device()
    answer, said = capsys.readouterr().out.splitlines()
    assert answer.endswith(f"/dev/fuse: {os.strerror(number)}") and advice in said


def test_no_tensor(place):
    (place / "empty").mkdir()
    result = doctor(place / "empty")
    assert result.returncode == 0
    assert parse(result.stdout)["O_DIRECT"][1].startswith("not tested: ")


def test_refused(models, monkeypatch, capsys):
    from fstfs import doctor as module
    monkeypatch.setattr(fstfs, "mount", functools.partial(fstfs.mount, io="threads"))
    monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY)  # an error of open()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "fusermount3" else "/fstfs")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("fstfs._mount.find_program", lambda name: BUILD / name)
    assert module.main([os.fspath(models)]) == 0
    found = parse(capsys.readouterr().out)
    assert found["io_uring"] == ("no", "not wanted")
    assert found["O_DIRECT"][0] == "no" and "Not a directory" in found["O_DIRECT"][1]
    assert found["fusermount3"] == ("no", "not found in PATH")


def test_gpu(models):
    """On the double of the driver."""
    double = BUILD / "tests/gpu"
    if not (double / "libcuda.so.1").exists():
        pytest.skip("the doubles of NVIDIA's libraries are not built (-Dtests=enabled)")
    result = doctor(models, LD_LIBRARY_PATH=os.fspath(double))
    assert (result.returncode, result.stderr) == (0, "")
    found = parse(result.stdout)
    assert list(found) == [*NAMES, "unified", "cufile"]
    assert found["cuda:0"] == ("yes", "read by the backend ring")
    assert found["unified"] == ("no", "the device has memory of its own")


@pytest.mark.parametrize("error, shown", [
    (OSError(errno.EIO, "no"), "[Errno 5] no"), (fstfs.SafetensorError("invalid"), "invalid"),
    (MemoryError("no memory"), "no memory"), (MemoryError(), "out of memory")])
def test_gpu_that_fails(monkeypatch, capsys, error, shown):
    from fstfs import doctor as module

    def fails(path, device):
        raise error

    monkeypatch.setattr(module, "find_device", lambda name: 1)
    monkeypatch.setattr(module, "read_into_device", fails)
    module.report_gpu("/model")
    answer, said = capsys.readouterr().out.splitlines()
    assert re.fullmatch("no +cuda:0 +(.*)", answer)[1] == shown and "nvidia-smi" in said


def test_an_empty_source():
    result = doctor("")
    assert (result.returncode, result.stderr) == (1, "")
    assert parse(result.stdout)["mount"] == (
        "no", "fstfs: source: expected a directory, found an empty path")


def test_usage():
    assert doctor("--help").stdout == "usage: python -m fstfs.doctor [SOURCE]\n"
    assert doctor("a", "b").returncode == 2
