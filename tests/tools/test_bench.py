# SPDX-License-Identifier: Apache-2.0
"""fstfs-bench: what it measures and prints, and that it leaves nothing behind.

No test depends on how fast anything was.
"""

import json
import os
import pty
import random
import signal
import subprocess
import tempfile
import xml.etree.ElementTree
from contextlib import suppress
from pathlib import Path

import pytest
from benching import (BENCH, FAKE, LOADERS, MIB, READERS, alone, bench, can_be_cold, expected,
                      model, on_tmpfs, program, row_names, write_model, write_shard,
                      write_sparse)
from conftest import BINARY, BUILD, SLOW, eventually, mounted_at
from corpus import gguffiles, torchfiles

__all__ = ["alone", "bench", "model"]  # fixtures


# ---- what it measures ----

@pytest.mark.limit(120)
def test_rows(bench, fstfs, model, place):
    svg = place / "chart.svg"
    found = bench.json("--rounds=2", f"--svg={svg}", model)
    size = sum(f.stat().st_size for f in model.glob("*.safetensors"))
    assert (found["bytes"], found["files"], found["tensors"]) == (size, 2, 6)
    assert found["failed"] == []
    assert found["rounds"] == 2 and found["interrupted"] is False
    assert row_names(found["rows"]) == expected(found)
    tensors = 112 * MIB + 5 + 4097 + 1
    for row in found["rows"]:
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        rate = row["bytes_per_second"]
        assert row["bytes"] == (tensors if row["method"] == "names" else size)
        assert rate["least"] <= rate["median"] <= rate["most"]
        assert rate["most"] == pytest.approx(row["bytes"] / min(row["seconds"]))
        assert ("of_bare" in row) == (row["place"] == "mounted")
        assert ("of_best" in row) == can_be_cold(found)
        assert row["reader_memory_bytes"] > 0
        if row["place"] == "mounted":
            assert row["daemon_memory_bytes"] > 0
            if row["state"] == "cold":
                assert row["storage_read_bytes"] >= tensors
        if row["state"] == "warm":
            # the kernel may have evicted some since
            assert row["page_cache_bytes"] >= tensors // 2
        if (row["method"], row["place"]) == ("direct", "bare"):
            assert row["page_cache_bytes"] < size / 50  # other methods had filled it
    bars = xml.etree.ElementTree.parse(svg).findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(bars) == len(found["rows"])


def test_ratios_are_taken_within_a_round(bench, fstfs, model):
    found = bench.json("--rounds=3", "--methods=read,direct", model)
    rows = {(r["method"], r["place"], r["state"]): r for r in found["rows"]}

    def median(row, to):
        values = sorted(b / a for a, b in zip(row["seconds"], to["seconds"], strict=True))
        return values[1]

    for (method, where, state), row in rows.items():
        if where == "mounted":
            assert row["of_bare"]["median"] == pytest.approx(
                median(row, rows[method, "bare", state]))
        if can_be_cold(found):
            assert row["of_best"]["median"] == pytest.approx(
                median(row, rows["direct", "bare", "cold"]))


def test_table(bench, fstfs, model):
    out, err = bench.run("--rounds=1", "--methods=read", model)
    assert err == ""
    assert str(model) in out
    lines = [line for line in out.splitlines() if line.startswith("  buffered read")]
    assert len(lines) in (2, 4)
    assert [line.split()[4] for line in lines][:2] == ["bare", "mounted"]


def test_several_models(bench, fstfs, model, place):
    one = place / "one.safetensors"
    write_shard(one, {"t": 100 * MIB}, 3)
    out, err = bench.run("--json", "--rounds=1", "--methods=read", one, model)
    assert err == ""
    assert [m["files"] for m in json.loads(out)["models"]] == [1, 2]


@pytest.mark.parametrize("name, files", [("model.safetensors.index.json", 2), ("model", 2),
                                         ("model-00002-of-00002.safetensors", 1)])
def test_path_forms(bench, fstfs, model, name, files):
    found = bench.json("--rounds=1", "--methods=names", model / name)
    assert found["files"] == files and found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["names"])


@pytest.mark.parametrize("name", [".", "pytorch_model-00002-of-00002.bin"])
def test_pytorch_files(bench, fstfs, place, name):
    """The mount shows safetensors files in their place, with the same tensors."""
    for i, part in enumerate("ab"):
        tensors = torchfiles.weights(i, {f"{part}{n}": (9 << 20,) for n in range(2)})
        torchfiles.save(place / f"m/pytorch_model-{i + 1:05}-of-00002.bin", tensors)
    found = bench.json("--rounds=1", "--methods=read,names", place / "m" / name)
    assert found["failed"] == [] and found["tensors"] == (4 if name == "." else 2)
    assert row_names(found["rows"]) == expected(found, methods=["read", "names"])


@pytest.mark.parametrize("name, count", [(".", 4), ("llama-00002-of-00002.gguf", 2)])
def test_gguf_files(bench, fstfs, place, name, count):
    """The mount shows the parts of a model as one file."""
    (place / "m").mkdir()
    blocks = 48 << 15  # a file of less than 100 MB may be too small to time
    tensors = [(f"blk.{i}.weight", (32, blocks), 8, random.Random(i).randbytes(34 * blocks))
               for i in range(4)]
    for i, part in enumerate(gguffiles.split(tensors, [gguffiles.pair("general.architecture", gguffiles.STRING, "llama")], (2, 2))):
        (place / f"m/llama-{i + 1:05}-of-00002.gguf").write_bytes(part)
    found = bench.json("--rounds=1", "--methods=read,names", place / "m" / name)
    assert found["failed"] == [] and found["tensors"] == count
    assert row_names(found["rows"]) == expected(found, methods=["read", "names"])


def test_tmpfs_has_no_cold_rows(bench, fstfs):
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        write_shard(Path(folder) / "m.safetensors", {"t": 100 * MIB}, 3)
        found = bench.json("--rounds=1", folder)
    assert {row["state"] for row in found["rows"]} == {"warm"}
    assert found["skipped"] and all("page cache" in s["why"] for s in found["skipped"])
    assert not found["dropped_whole_page_cache"]  # it would not help


# ---- mounts ----

@pytest.mark.parametrize("path", ["shards/m", "merged/m", "merged/m/model.safetensors",
                                  "shards/m/model-00001-of-00002.safetensors"])
def test_path_on_a_mount(bench, mount, place, path):
    source = place / "source"
    source.mkdir()
    write_model(source / "m")
    mounted = mount(source)
    found = bench.json("--rounds=1", "--methods=direct,names", mounted / path)
    assert found["mount"] == "found"
    assert found["source"] == str(source / "m")
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["direct", "names"])
    assert mounted.status()["pid"]  # still mounted


def test_path_on_a_mount_of_one_view(bench, mount, place):
    source = place / "source"
    source.mkdir()
    write_model(source / "m")
    mounted = mount(source, "--view=merged")
    found = bench.json("--rounds=1", "--methods=read", mounted / "m")
    assert found["source"] == str(source / "m") and found["failed"] == []


def test_path_in_another_view(bench, mount, model):
    mounted = mount(model)
    _, err = bench.run(mounted / "tensors", status=1)
    assert "give a checkpoint in shards/ or merged/" in err


def test_without_fstfs(alone, model):
    found = alone.json("--rounds=1", "--methods=read", model)
    assert row_names(found["rows"]) == expected(found, methods=["read"], places=["bare"])
    assert {s["why"] for s in found["skipped"] if s["place"] == "mounted"} == {
        "fstfs was found neither next to this program nor in PATH"}


def test_fstfs_fails_to_mount(alone, model):
    program(alone.program.parent / "fstfs", "echo 'fstfs: no luck' >&2; exit 1")
    found = alone.json("--rounds=1", "--methods=read", model, status=1)
    assert row_names(found["rows"]) == expected(found, methods=["read"], places=["bare"])
    assert {f["why"] for f in found["failed"]} == {"fstfs: no luck"}


def test_wrong_bytes_are_detected(alone, fstfs, model, place):
    other = write_model(place / "other", seed=2)
    program(alone.program.parent / "fstfs", f"exec '{BINARY}' \"$1\" '{other}' \"$3\"")
    found = alone.json("--rounds=1", "--methods=read,names", model, status=1)
    assert row_names(found["failed"]) == expected(found, methods=["read", "names"], places=["mounted"])
    assert all("other bytes" in f["why"] for f in found["failed"])


def test_unprivileged_user(bench, test_user, user_program, user_binary, place):
    folder = write_model(place / "model")
    bench.program = user_program(bench.program)  # with the fstfs that it runs in the same directory
    assert user_binary.parent == bench.program.parent
    found = bench.json("--rounds=1", "--methods=read", folder, user=test_user)
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["read"])
    if os.geteuid() == 0:  # the file is not the user's: mincore() reveals nothing
        assert found["cold_is_verified"] is False
        assert not any("page_cache_bytes" in row for row in found["rows"])


# ---- signals ----

def readers_of(pid):
    found = []
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        for child in f.read().split():
            try:
                with open(f"/proc/{child}/comm") as name:
                    if name.read().strip() == "bench-reader":
                        found.append(int(child))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number, send", [
    (signal.SIGINT, os.killpg),  # as a terminal does: also to the readers
    (signal.SIGINT, os.kill),
    (signal.SIGTERM, os.kill),
])
def test_signal(bench, fstfs, model, number, send):
    process = bench.start("--json", "--rounds=1000", "--methods=read", model, start_new_session=True)
    assert eventually(lambda: readers_of(process.pid) and mounted_at(bench.folder), 30, 0.001)
    send(process.pid, number)
    out, _ = process.communicate(timeout=40 * SLOW)
    assert process.returncode == 128 + number
    assert not mounted_at(bench.folder)  # unmounted before it exits
    bench.assert_nothing_left()
    found = json.loads(out)["models"][0]
    assert found["interrupted"] is True and found["failed"] == []


def test_killed(bench, fstfs, model):
    process = bench.start("--rounds=1000", "--methods=read", model)
    assert eventually(lambda: mounted_at(bench.folder), 30)
    process.kill()
    process.communicate(timeout=40 * SLOW)
    bench.assert_nothing_left()


@pytest.mark.limit(120)
def test_killed_reader(bench, fstfs, place):
    """Every reader is killed, until all rows have failed."""
    path = place / "model" / "sparse.safetensors"
    path.parent.mkdir()  # mount points may not be inside the source
    write_sparse(path, 600 * MIB)  # so large that check_model_size() runs no reader
    out = place / "out.json"
    with open(out, "w") as f:
        process = bench.start("--json", "--rounds=1000", "--methods=read", path, stdout=f)
        while process.poll() is None:
            for reader in readers_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(reader, signal.SIGKILL)
    assert process.wait() == 1
    bench.assert_nothing_left()
    found = json.loads(out.read_text())["models"][0]
    assert found["rows"] == []
    assert row_names(found["failed"]) == expected(found, methods=["read"])
    assert all("signal 9" in f["why"] for f in found["failed"])


# ---- errors ----

@pytest.mark.parametrize("args, status, message", [
    ([], 2, "FILE or CHECKPOINT is missing"),
    (["--rounds=0", "x"], 2, "--rounds: invalid value (found 0, expected a number from 1 to 1000)"),
    (["--rounds=2x", "x"], 2, "--rounds: invalid value (found 2x"),
    (["--nonsense", "x"], 2, "unrecognized option"),
    (["--device=gpu", "x"], 2, "--device: gpu is not a device (expected cuda:N, such as cuda:0)"),
    (["--device=cuda:", "x"], 2, "--device: cuda: is not a device"),
    (["--device=cuda:0x", "x"], 2, "--device: cuda:0x is not a device"),
    (["--device=cuda:99", "x"], 1, "--device: cuda:99: the "),
    (["--svg=/nonexistent/chart.svg", "x"], 1, "/nonexistent/chart.svg: No such file"),
    (["/nonexistent"], 1, "no such file or checkpoint"),
    (["/proc/self/status"], 1, "not a checkpoint"),
])
def test_errors(bench, args, status, message):
    _, err = bench.run(*args, status=status)
    assert message in err


def test_help_lists_all_methods(bench):
    out, err = bench.run("--help")
    assert err == "" and all(f"\n  {method} " in out for method in READERS)
    assert all(loader in out for loader in LOADERS)


@pytest.mark.parametrize("args, message", [
    (["--methods=read,load_file"], "--methods: load_file needs --loaders"),
    (["--methods=gpu"], "--methods: gpu needs --device"),
    (["--methods=read,"], '--methods: unknown method ""; known: direct, read, mmap, names; gpu'),
    (["--methods=READ"], '--methods: unknown method "READ"; known: direct, '),
    (["--methods=readx", "--loaders"], '--methods: unknown method "readx"; known: direct, '),
    (["--methods=gpu"], "--methods: gpu needs --device"),
])
def test_unavailable_method(bench, args, message):
    """Refused before anything is read: the model does not exist."""
    _, err = bench.run(*args, "/nonexistent", status=2)
    assert message in err and err.count("\n") == 1
    assert "known:" not in message or all(name in err for name in [*READERS, "gpu", *LOADERS])


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_output_cannot_be_written(bench, fstfs, model, json):
    with open("/dev/full", "w") as full:
        process = bench.start(*json, "--rounds=1", "--methods=direct", model, stdout=full)
        _, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == 1
    assert err == "fstfs-bench: standard output: No space left on device\n"
    bench.assert_nothing_left()


def test_chart_cannot_be_written(bench, fstfs, model):
    _, err = bench.run("--rounds=1", "--methods=direct", "--svg=/dev/full", model, status=1)
    assert err == "fstfs-bench: /dev/full: No space left on device\n"


def test_chart_does_not_replace_another_file(bench, place):
    """A model, if the name of the chart was forgotten."""
    path = place / "model.safetensors"
    write_shard(path, {"t": 10000}, 1)
    before = path.read_bytes()
    _, err = bench.run("--rounds=1", "--methods=read", "--svg", path, path, status=1)
    assert err == f"fstfs-bench: --svg={path}: exists and is not an SVG file; it is kept\n"
    assert path.read_bytes() == before


def test_too_small(bench, place):
    path = place / "small.safetensors"
    write_shard(path, {"t": 10000}, 1)
    _, err = bench.run(path, status=1)
    assert "small.safetensors: too small to time" in err


def test_refused_shard(bench, place):
    folder = write_model(place / "broken")
    shard = folder / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    for path in folder, shard:
        _, err = bench.run(path, status=1)
        assert str(path) in err and "refused" in err or "MetadataIncompleteBuffer" in err, err


def test_several_checkpoints(bench, place):
    for name in "one", "two":
        write_shard(place / f"{name}.safetensors", {"t": 10}, 1)
    _, err = bench.run(place, status=1)
    assert "contains 2 checkpoints, among them one and two; name one of them" in err


# ---- a GPU, simulated by the test doubles in tests/gpu ----

@pytest.fixture
def device(bench):
    """fstfs-bench with the test double of libcuda.so.1."""
    if not (BUILD / "tests/gpu/libcuda.so.1").exists():
        pytest.skip("the test double of libcuda.so.1 is not built")
    bench.environment["LD_LIBRARY_PATH"] = str(BUILD / "tests/gpu")
    return bench


@pytest.mark.parametrize("profile, failing, backend, why_not", [
    ("h200", "", "ring", {"unified": "memory of its own", "cufile": ""}),
    ("gb10", "", "unified", {}),
    ("hmm", "cuMemHostRegister_v2,cuMemHostAlloc", "pageable",
     {"unified": "memory of its own", "cufile": "no GPUDirect", "ring": "cuMemHostRegister"}),
])
def test_device(device, fstfs, model, place, profile, failing, backend, why_not):
    device.environment |= {"DOUBLE_CUDA_PROFILE": profile, "DOUBLE_CUDA_FAIL": failing}
    svg = place / "chart.svg"
    out, err = device.run("--json", "--rounds=1", "--methods=gpu,names", "--device=cuda:0",
                          f"--svg={svg}", model)
    assert err == ""
    output = json.loads(out)
    assert output["device"]["name"] == "cuda:0"
    assert output["device"]["model"] == f"a double of {profile}"
    found, = output["models"]
    assert found["failed"] == []  # so the bytes in the device are those of `names`
    assert row_names(found["rows"]) == expected(found, methods=["gpu", "names"])
    for row in found["rows"]:
        assert ("storage" in row) == (row["method"] == "gpu")
        if row["method"] != "gpu":
            continue
        assert row["bytes"] == 112 * MIB + 5 + 4097 + 1
        storage, = row["storage"]
        assert storage["backend"] == backend
        assert why_not.keys() == storage.keys() - {"backend", "number", "path"}
        assert all(why in storage[name] for name, why in why_not.items())
        # bypassing the mount, it would be the source's path
        assert storage["path"].startswith(str(model)) == (row["place"] == "bare")
        assert ("of_pinned" in row) == ("pinned_bytes_per_second" in row) == (not failing)
    assert svg.read_text().count("libfstfs into cuda:0") == len(found["rows"]) // 2


def test_device_in_the_table(device, fstfs, model):
    out, err = device.run("--rounds=1", "--methods=gpu", "--device=cuda:1", model)
    assert err == "" and "\ncuda:1: a double of h200, 1 GB of memory\n" in out
    lines = [line for line in out.splitlines() if line.startswith("  gpu, ")]
    assert len(lines) in (2, 4)
    for line in lines:
        assert " of plain copies from pinned memory (" in line
        assert '; by "ring" from ' in line and '; not "unified": the device has memory' in line


@pytest.mark.parametrize("name", ["one", "two.safetensors.index.json"])
def test_device_path_forms(device, fstfs, place, name):
    """libfstfs opens what the other methods read: `names` has the same checksum."""
    (place / "models").mkdir()
    write_shard(place / "models/one.safetensors", {"t": 100 * MIB}, 3)
    for i in (1, 2):
        write_shard(place / f"models/two-0000{i}-of-00002.safetensors", {f"t{i}": 90 * MIB}, i)
    (place / "models/two.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {f"t{i}": f"two-0000{i}-of-00002.safetensors" for i in (1, 2)}}))
    found = device.json("--rounds=1", "--methods=gpu,names", "--device=cuda:0",
                        place / "models" / name)
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["gpu", "names"])


def test_device_and_shards_without_an_index(device, fstfs, place):
    (place / "models").mkdir()
    for stem in "one", "two":
        for i in (1, 2):
            write_shard(place / f"models/{stem}-0000{i}-of-00002.safetensors",
                        {f"t{i}": 60 * MIB}, i)
    found = device.json("--rounds=1", "--methods=gpu", "--device=cuda:0", place / "models/two",
                        status=1)
    assert found["rows"] == found["failed"] == []
    assert {s["why"] for s in found["skipped"]} == {
        "libfstfs opens shards without an index only in a directory of their own"}


def test_device_on_an_existing_mount(device, mount, place):
    (place / "source").mkdir()
    write_model(place / "source/m")
    mounted = mount(place / "source")
    found = device.json("--rounds=1", "--methods=gpu,names", "--device=cuda:0", mounted / "merged/m")
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["gpu", "names"])


def test_device_without_enough_memory(device, model, place):
    path = place / "huge.safetensors"
    write_sparse(path, 2 << 30)
    found = device.json("--rounds=1", "--methods=gpu", "--device=cuda:0", path, status=1)
    assert found["rows"] == found["failed"] == []
    assert len(found["skipped"]) == 4
    assert {s["why"] for s in found["skipped"]} == {
        "not enough memory on cuda:0: needs 2.1 GB, 1.1 of 1.1 GB are free"}
    # The driver may have less than it reported.
    device.environment["DOUBLE_CUDA_FAIL"] = "cuMemAlloc_v2"
    found = device.json("--rounds=1", "--methods=gpu", "--device=cuda:0", model, status=1)
    assert found["rows"] == found["failed"] == []
    assert all(s["why"].startswith("not enough memory on cuda:0: needs 0.1 GB")
               for s in found["skipped"] if "page cache" not in s["why"])


@pytest.mark.parametrize("environment, number, message", [
    ({"LD_LIBRARY_PATH": ""}, 0, "the CUDA driver is not installed: "),
    ({"DOUBLE_CUDA_PROFILE": "none"}, 0, "the CUDA driver does not work: cuInit: "),
    ({"DOUBLE_CUDA_FAIL": "cuDevicePrimaryCtxRetain"}, 0, "cuDevicePrimaryCtxRetain: "),
    ({}, 2, "the driver has 2 devices"),
])
def test_unusable_device(device, model, environment, number, message):
    if "LD_LIBRARY_PATH" in environment and os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a driver")
    device.environment |= environment
    out, err = device.run(f"--device=cuda:{number}", model, status=1)
    assert out == "" and err.startswith(f"fstfs-bench: --device: cuda:{number}: {message}")


# ---- loaders ----

def test_not_enough_memory(bench, place):
    program(place / "python3", FAKE)
    bench.environment["PATH"] = f"{place}:{os.environ['PATH']}"
    path = place / "huge.safetensors"
    write_sparse(path, 8 << 40)
    found = bench.json("--loaders", "--methods=load_file", path, status=1)
    assert found["rows"] == [] and found["failed"] == []
    assert all("not enough memory: needs " in s["why"] for s in found["skipped"])
    assert len(found["skipped"]) == 4


def memory_limit(version, at_root):
    """The file with the memory limit of this process's cgroup, or of the root cgroup."""
    with open("/proc/self/cgroup") as f:
        groups = dict(line.strip().split(":", 2)[1:] for line in f)
    controllers, hierarchy, name = {1: ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                    2: ("", "/sys/fs/cgroup", "memory.max")}[version]
    if controllers not in groups:
        pytest.skip(f"no memory cgroups of version {version}")
    return Path(hierarchy + ("" if at_root else groups[controllers])) / name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount over /sys/fs/cgroup in a mount namespace")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("at_root", [False, True])
def test_cgroup_memory_limit(bench, fstfs, model, place, version, at_root):
    """112 MiB do not fit into a page cache of 100 MB. Cold reads need none."""
    limit = memory_limit(version, at_root)
    if on_tmpfs(model):
        pytest.skip("the model is on tmpfs, where nothing can be read cold")
    bench.program = place / "fstfs-bench-limited"
    program(bench.program, f"""exec unshare --mount sh -c '
        mount -t tmpfs none /sys/fs/cgroup && mkdir -p {limit.parent} &&
        echo 100000000 >{limit} && exec "$0" "$@"' {BENCH} "$@"
    """)
    found = bench.json("--rounds=1", "--methods=read,names", model)
    assert row_names(found["rows"]) == {
        row for row in expected(found, methods=["read", "names"]) if row[2] == "cold"}
    assert found["failed"] == []
    warm = [s["why"] for s in found["skipped"] if s["state"] == "warm"]
    assert len(warm) == 4 and all("not enough memory: needs 0.1 GB" in why for why in warm)


@pytest.mark.parametrize("only_mounted", [False, True])
def test_loader_fails(bench, fstfs, model, place, only_mounted):
    """A loader that fails on the bare files is skipped; only on mounted ones, it has failed."""
    can = "*/shards) ;; *) echo '{\"seconds\": 1, \"bytes\": 9, \"sum\": null}'; exit;;"
    program(place / "python3", f"""{FAKE}
        case $4 in {can if only_mounted else ""} esac
        echo '!ValueError: no luck'; exit 1
    """)
    bench.environment["PATH"] = f"{place}:{os.environ['PATH']}"
    found = bench.json("--loaders", "--rounds=2", "--methods=load_file", model, status=1)
    mounted = expected(found, methods=["load_file"], places=["mounted"])
    bare = expected(found, methods=["load_file"], places=["bare"])
    assert row_names(found["rows"]) == (bare if only_mounted else set())
    assert row_names(found["failed"]) == (mounted if only_mounted else set())
    assert {s["why"] for s in found["skipped"] + found["failed"]
            if "page cache" not in s["why"]} == {"ValueError: no luck"}
    bench.json("--loaders", "--rounds=1", "--methods=direct,load_file", model,
               status=int(only_mounted))


def test_no_python(alone, model):
    alone.environment["PATH"] = str(alone.program.parent)
    _, err = alone.run("--loaders", model, status=1)
    assert "--loaders: python3: No such file" in err


def test_python_prints_no_result(bench, model, place):
    bench.environment["PATH"] = f"{place}:{os.environ['PATH']}"
    for text, message in ("exit 0", "python3 printed no result"), ("echo no luck; exit 3", "no luck"):
        program(place / "python3", text)
        _, err = bench.run("--loaders", model, status=1)
        assert f"--loaders: {message}" in err


@pytest.fixture
def torch_python(bench):
    """A Python with torch and transformers, first in PATH."""
    python = os.environ.get("FSTFS_TORCH_PYTHON")
    if not python:
        pytest.skip("no FSTFS_TORCH_PYTHON: torch and transformers are not installed")
    bench.environment["PATH"] = f"{os.path.dirname(python)}:{os.environ['PATH']}"
    return python


@pytest.mark.limit(300)
def test_loaders(bench, fstfs, torch_python, place):
    """The loaders have the readers' checksum, otherwise they would have failed."""
    folder = write_model(place / "model")
    found = bench.json("--loaders", "--rounds=1", "--methods=names,load_file,safe_open,transformers",
                       folder)
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["names", "load_file", "safe_open"])
    assert {s["why"] for s in found["skipped"] if s["method"] == "transformers"} == {
        "transformers needs a config.json next to the checkpoint"}


MAKE_MODEL = """
import sys, torch, transformers
config = transformers.LlamaConfig(
    hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=50000)
model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
model.save_pretrained(sys.argv[1], max_shard_size="60MB")
"""


@pytest.mark.limit(300)
def test_transformers(bench, fstfs, torch_python, place):
    folder = place / "model"
    subprocess.run([torch_python, "-c", MAKE_MODEL, folder], check=True, capture_output=True)
    found = bench.json("--loaders", "--rounds=1", "--methods=transformers", folder)
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["transformers"])
    assert all(row["bytes"] > found["bytes"] * 0.99 for row in found["rows"])


MAKE_DIFFUSER = """
import sys, torch, diffusers
model = diffusers.SD3Transformer2DModel(num_layers=1).to(torch.float16)
model.save_pretrained(sys.argv[1], max_shard_size="60MB")
"""


@pytest.mark.limit(300)
def test_diffusers(bench, fstfs, torch_python, place):
    if subprocess.run([torch_python, "-c", "import diffusers"], capture_output=True).returncode:
        pytest.skip(f"{torch_python} has no diffusers")
    folder = place / "model"
    subprocess.run([torch_python, "-c", MAKE_DIFFUSER, folder], check=True, capture_output=True)
    found = bench.json("--loaders", "--rounds=1", "--methods=diffusers", folder)
    assert found["failed"] == []
    assert row_names(found["rows"]) == expected(found, methods=["diffusers"])
    # Not cast to another dtype. The state includes buffers, but no headers.
    assert all(row["bytes"] == pytest.approx(found["bytes"], rel=0.01) for row in found["rows"])


def test_modules_in_the_current_directory(bench, place):
    """A downloaded model may contain Python modules. None is imported, not even the names of the
    standard library."""
    folder = write_model(place / "model")
    marker = place / "imported"
    for name in ("json", "time", "importlib", "torch", "numpy", "safetensors", "transformers"):
        (folder / f"{name}.py").write_text(
            f"open({str(marker)!r}, 'a').write({name!r} + chr(10))\nraise ImportError({name!r})\n")
    bench.environment.pop("PYTHONPATH", None)
    found = bench.json("--loaders", "--rounds=1", "--methods=read,load_file", ".", cwd=folder)
    assert not marker.exists(), marker.read_text()
    assert "read" in {row["method"] for row in found["rows"]}


def test_loaders_not_installed(bench, fstfs, model, place):
    """A Python without packages."""
    subprocess.run(["python3", "-m", "venv", "--without-pip", place / "venv"], check=True)
    bench.environment["PATH"] = f"{place}/venv/bin:{os.environ['PATH']}"
    bench.environment.pop("PYTHONPATH", None)
    found = bench.json("--loaders", "--rounds=1", model)
    assert row_names(found["rows"]) == expected(found)
    assert {s["method"] for s in found["skipped"]} >= set(LOADERS)
    assert all("venv/bin/python3 has no" in s["why"] for s in found["skipped"]
               if s["method"] in LOADERS)


# ---- the progress bar ----

def test_progress_on_a_terminal_only(bench, fstfs, model):
    ours, theirs = pty.openpty()
    try:
        process = bench.start("--json", "--rounds=1", "--methods=read", model, stderr=theirs)
        os.close(theirs)
        out, _ = process.communicate(timeout=60 * SLOW)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            output += piece
    finally:
        os.close(ours)
    assert process.returncode == 0
    json.loads(out)
    assert b"round 1 of 1: read, bare" in output and b"round 1 of 1: read, mounted" in output
    assert output.endswith(b"\r\x1b[K")
