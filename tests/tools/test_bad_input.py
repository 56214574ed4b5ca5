# SPDX-License-Identifier: Apache-2.0
"""Invalid input for every program: one message that names it, the documented exit status, and no
lost or incomplete files. Tests of a single program are in its own file."""

import os
import signal
import subprocess
from contextlib import contextmanager

import pytest
from conftest import BUILD, SANITIZER, SLOW, as_user, disk_image, eventually, mounted_at
from corpus import trees

MIB = 1 << 20
# arguments with the invalid path, and the exit status
PROGRAMS = {
    "fstfs": (lambda path, place: [path, place / "mnt"], 1),
    "fstfs-cache": (lambda path, place: ["--warm", path], 1),
    "fstfs-check": (lambda path, place: [path], 2),
    "fstfs-pack": (lambda path, place: [path, place / "out.safetensors"], 1),
    "fstfs-bench": (lambda path, place: [path], 1),
    "fstfs-top": (lambda path, place: [path], 1),
}
TOOLS = sorted(set(PROGRAMS) - {"fstfs"})


@pytest.fixture(autouse=True)
def mountpoint(place):
    (place / "mnt").mkdir()


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("", "model", [trees.tensor("w", "U8", (9 * MIB,))])
    return made


@pytest.fixture
def large(place):
    """Sparse, and large enough for fstfs-bench to measure."""
    (place / "large").mkdir()
    trees.write_sparse(place / "large/model.safetensors", [("t", "U8", [1 << 30], 1 << 30)])
    return place / "large"


def run(name, *args, status, folder=BUILD, **more):
    user = more.pop("user", None)
    done = subprocess.run([*as_user(user), folder / name, *map(str, args)],
                          stdin=subprocess.DEVNULL, timeout=60 * SLOW, text=True,
                          **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more))
    assert not any(sign in done.stderr for sign in SANITIZER), done.stderr
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    # fstfs-check prints findings, also errors, to standard output
    return f"{name}: {done.stdout}" if name == "fstfs-check" and done.stdout else done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("option", ["--nothing", "--nothing=1", "-x"])
def test_unknown_options(place, name, option):
    err = run(name, option, *PROGRAMS[name][0](place, place), status=2)
    assert option.split("=")[0].strip("-") in err and err.count("\n") == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_arguments(name):
    err = run(name, status=2)
    assert err.startswith(f"{name}: ") and (f"see {name} --help" in err or f"{name} -h" in err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("path", ["gone", "no/such/folder", "x\n\x1b[31mred", "", "a" * 300])
def test_missing_files(place, name, path):
    arguments, status = PROGRAMS[name]
    err = run(name, *arguments(place / path if path else "", place), status=status)
    assert err.startswith(f"{name}: ") and err.count("\n") == 1 and "\x1b" not in err
    assert sorted(os.listdir(place)) == ["mnt"] and os.listdir(place / "mnt") == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_permission_denied(place, source, name, test_user, user_program):
    programs = user_program(BUILD / name).parent
    (place / "mnt").chmod(0o777)
    arguments, status = PROGRAMS[name]
    os.chmod(source.root, 0)
    try:
        err = run(name, *arguments(os.path.join(source.root, "model.safetensors"), place),
                  status=status, user=test_user, folder=programs)
        assert "ermission denied" in err
        if name != "fstfs-top":  # not a mount, whatever its permissions
            err = run(name, *arguments(source.root, place), status=status, user=test_user,
                      folder=programs)
            assert "ermission denied" in err
    finally:
        os.chmod(source.root, 0o755)


@pytest.mark.parametrize("name", ["fstfs-bench", "fstfs-pack"])
def test_truncated_shard(place, name):
    """One line names the shard and the reason."""
    source = trees.Source(place / "models")
    source.add("m", "model", [trees.tensor(n, "U8", (9 * MIB,)) for n in "ab"], shards=2)
    os.truncate(source.path("m/model-00002-of-00002.safetensors"), 1000)
    err = run(name, *PROGRAMS[name][0](source.path("m"), place), status=1)
    assert err.startswith(f"{name}: {source.path('m')}: model-00002-of-00002.safetensors: "
                          "MetadataIncompleteBuffer: ") and err.count("\n") == 1


@pytest.mark.parametrize("name, args", [("fstfs-check", ["--json"]), ("fstfs-check", ["--deep"]),
                                        ("fstfs-bench", ["--rounds=1", "--methods=read", "--json"])])
def test_output_cannot_be_written(fstfs, source, large, name, args):
    if name == "fstfs-check":  # prints a finding
        os.truncate(source.path("model.safetensors"), 1000)
    with open("/dev/full", "w") as full:
        if name == "fstfs-check":
            run(name, *args, source.root, status=2, stdout=full)
        else:
            err = run(name, *args, large, status=1, stdout=full)
            assert "too small" not in err


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_cannot_be_written(name, option):
    with open("/dev/full", "w") as full:
        err = run(name, option, status=1, stdout=full)
    assert "standard output: No space left on device" in err and err.count("\n") == 1


@contextmanager
def small_disk(place, size=24 * MIB):
    with disk_image(place, size, "mkfs.ext4", "-q", "-m", "0") as point:
        os.rmdir(point / "lost+found")
        yield point


def fill(folder):
    with open(folder / "full", "wb", buffering=0) as f:
        for size in (MIB, 4096, 512):
            try:
                while f.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


def test_a_full_disk(fstfs, place, source, large):
    """On a full disk the old file is kept, and no part of a new one remains."""
    big = trees.Source(place / "big")
    big.add("", "model", [trees.tensor(f"t{i}", "U8", (5 * MIB,)) for i in range(6)])
    with small_disk(place) as disk:
        old = {}
        for name in ("out.safetensors", "chart.svg"):
            old[name] = b"<svg>" + b"old " * 100
            (disk / name).write_bytes(old[name])
        err = run("fstfs-pack", "--force", big.root, disk / "out.safetensors", status=1)
        assert "No space left on device" in err and "too little free space" in err
        err = run("fstfs-pack", "--shards=3", big.root, disk / "out", status=1)
        assert "No space left on device" in err
        fill(disk)
        err = run("fstfs-check", f"--hashes={disk}/hashes", source.root, status=2)
        if "built without" not in err:
            assert "No space left on device" in err
        err = run("fstfs-bench", "--rounds=1", "--methods=read", f"--svg={disk}/chart.svg",
                  large, status=1)
        assert "No space left on device" in err
        os.unlink(disk / "full")
        assert {p.name: p.read_bytes() for p in disk.iterdir()} == old


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_existing_chart(fstfs, large, place, number):
    """An interrupted fstfs-bench writes a chart of the rounds so far; a killed one keeps the old."""
    chart = place / "chart.svg"
    chart.write_text("<svg>old</svg>")
    process = subprocess.Popen([BUILD / "fstfs-bench", "--rounds=1000", "--methods=read",
                                f"--svg={chart}", large], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(place)})
    assert eventually(lambda: mounted_at(place), 60)  # after the bare files were read
    process.send_signal(number)
    process.communicate(timeout=60 * SLOW)
    # a helper unmounts after a kill
    assert eventually(lambda: not mounted_at(place) and not list(place.glob("fstfs-bench.*")), 60)
    text = chart.read_text()
    if number == signal.SIGKILL:
        assert process.returncode == -number and text == "<svg>old</svg>"
    else:
        assert process.returncode == 128 + number
        assert text.rstrip().endswith("</svg>") and ", bare<" in text and "GB/s" in text


def test_chart_without_measurements(fstfs, place):
    """The old chart is kept if there is no such model, or if it is too small."""
    source = trees.Source(place / "models")
    source.add("", "model", [trees.tensor("w", "U8", (9,))])  # on any machine
    chart = place / "chart.svg"
    chart.write_text("<svg>old</svg>")
    for model in (place / "none", source.root):
        run("fstfs-bench", f"--svg={chart}", model, status=1)
        assert chart.read_text() == "<svg>old</svg>"
    run("fstfs-bench", f"--svg={place}/new.svg", source.root, status=1)
    assert not (place / "new.svg").exists()


@pytest.mark.parametrize("name", TOOLS)
def test_closed_output(mount, source, large, name):
    """As with `| head`: the program ends by SIGPIPE or with an error."""
    m = mount(source.root)
    args = {"fstfs-top": ["--json", "--interval=0.1", m.path],
            "fstfs-cache": ["--json", source.root],
            "fstfs-check": ["--json", source.root],
            "fstfs-bench": ["--rounds=1", "--methods=read", large],
            "fstfs-pack": ["--help"]}[name]
    out, into = os.pipe()
    os.close(out)
    done = subprocess.run([BUILD / name, *args], stdout=into, stderr=subprocess.PIPE,
                          timeout=60 * SLOW, restore_signals=True)
    os.close(into)
    assert done.returncode in (-signal.SIGPIPE, 1, 2)
