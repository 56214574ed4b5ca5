# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md and the dashboard, compared with .fstfs/status and metrics of real mounts."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, as_user, child, parse_metrics
from corpus import trees

METHOD = {"on", "why"}  # fields of an I/O method


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("llama", "model", [trees.tensor("w", "F32", (30, 5))], shards=1)
    return made


def fields_of(value, path=""):
    """Returns the fields of the page, such as "io.direct"; an I/O method and the counters are one."""
    if path == "counters" or not isinstance(value, dict) or value and set(value) <= METHOD:
        return {path}
    below = {name for key, inner in value.items() if key not in METHOD
             for name in fields_of(inner, f"{path}.{key}" if path else key)}
    return below | ({path} if set(value) & METHOD else set())


def documented(name):
    """Returns ({field}, {optional field}) of a page of .fstfs."""
    page = (ROOT / "docs/metrics.md").read_text()
    page = page.split(f"\n## `.fstfs/{name}`\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page, re.MULTILINE)
    found = [(set(re.findall(r"`([^`]+)`", names)), text) for names, text in rows]
    return (set().union(*(names for names, _ in found)),
            set().union(*(names for names, text in found if text.startswith("sometimes"))))


@pytest.mark.parametrize("options", [(), ("--shards=2",), ("--shard-size=1M", "--view=shards"),
                                     ("--io=threads", "--direct=off", "--prefetch=off"),
                                     ("--readahead=1G",), ("--passthrough=on",),
                                     ("--sandbox=off",)], ids=str)
def test_every_field_is_documented(mount, source, options):
    m = mount(source.root, *options)
    os.listdir(m.path)
    fields = fields_of(m.status())
    everything, sometimes = documented("status")
    assert fields <= everything, fields - everything
    assert everything - sometimes <= fields, everything - sometimes - fields


def test_every_field_of_a_load_is_documented(mount, source):
    m = mount(source.root)
    m.read("merged/llama/model.safetensors")
    assert set(json.loads(m.read(".fstfs/loads"))) == documented("loads")[0]


def test_shared_pages(mount, source, place, test_user):
    """With allow_other, other users do not see what depends on the content of files, not even by the
    kernel's page cache, through which sendfile(2) and mmap(2) read."""
    if not as_user(test_user):
        pytest.skip("needs root: another user looks")
    m = mount(source.root, "-o", "allow_other")
    hidden = {"fstfs_tensors", "fstfs_problems", "fstfs_nodes", "fstfs_header_memory_bytes"}
    subprocess.run(["cp", m / ".fstfs/metrics", m / ".fstfs/status", place], check=True)
    assert hidden <= set(parse_metrics((place / "metrics").read_bytes()))
    assert "problems" in json.loads((place / "status").read_text())
    for page in os.listdir(m / ".fstfs"):
        with open(m / f".fstfs/{page}", "rb") as f, open(place / "sink", "wb") as sink:
            assert os.fstat(f.fileno()).st_size == os.sendfile(sink.fileno(), f.fileno(), 0, 4096) == 0

    def look():
        return set(m.metrics()), set(m.status())

    metrics, status = child(look, user=test_user)
    assert "fstfs_reads_total" in metrics and "io" in status
    assert not hidden & metrics and not {"problems", "headers", "tensors_known"} & status


def test_unavailable_methods_have_a_reason(mount, source):
    status = mount(source.root, "--io=threads", "--direct=off", "--sandbox=off").status()
    for method in (status["io"]["io_uring"], status["io"]["direct"],
                status["kernel"]["passthrough"], status["sandbox"]["landlock"]):
        assert method["on"] is False and method["why"]


def queries():
    with open(ROOT / "data/grafana/fstfs.json") as f:
        board = json.load(f)
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + [
        one["query"]["query"] for one in board["templating"]["list"]
        if isinstance(one["query"], dict)]


def test_dashboard_uses_existing_metrics(mount, source):
    m = mount(source.root)
    there = {name.split("{")[0] for name in parse_metrics(m.read(".fstfs/metrics"))}
    asked = {name for query in queries() for name in re.findall(r"\bfstfs_\w+", query)}
    assert asked <= there and len(asked) > 10, asked - there


def test_dashboard_queries_are_valid(place):
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed: it is in the package of Prometheus")
    rules = "groups:\n- name: fstfs\n  rules:\n"
    for i, query in enumerate(queries()):
        if query.startswith("label_values("):  # of Grafana
            continue
        query = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
        rules += f"  - record: panel:{i}\n    expr: {json.dumps(query)}\n"
    (place / "rules.yml").write_text(rules)
    done = subprocess.run([promtool, "check", "rules", place / "rules.yml"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
