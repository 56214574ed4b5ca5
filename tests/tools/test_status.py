# SPDX-License-Identifier: Apache-2.0
"""What docs/metrics.md says of .fstfs/status, and the dashboard of metrics, against real mounts."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, parse_metrics
from corpus import trees

WAY = {"on", "why"}  # of everything that can be off


@pytest.fixture
def source(place):
    made = trees.Source(place / "models")
    made.add("llama", "model", [trees.tensor("w", "F32", (30, 5))], shards=1)
    return made


def fields_of(value, path=""):
    """Every field of the page, as "io.direct"; what is a way, or holds the counters, is one."""
    if path == "counters" or not isinstance(value, dict) or value and set(value) <= WAY:
        return {path}
    below = {name for key, inner in value.items() if key not in WAY
             for name in fields_of(inner, f"{path}.{key}" if path else key)}
    return below | ({path} if set(value) & WAY else set())


def documented():
    """({field}, those of them that are there sometimes only)"""
    page = (ROOT / "docs/metrics.md").read_text()
    page = page[page.index("## `.fstfs/status`"):page.index("## Panels")]
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
    everything, sometimes = documented()
    assert fields <= everything, fields - everything
    assert everything - sometimes <= fields, everything - sometimes - fields


def test_ways_that_are_off_say_why(mount, source):
    status = mount(source.root, "--io=threads", "--direct=off", "--sandbox=off").status()
    for way in (status["io"]["io_uring"], status["io"]["direct"],
                status["kernel"]["passthrough"], status["sandbox"]["landlock"]):
        assert way["on"] is False and way["why"]


def queries():
    with open(ROOT / "data/grafana/fstfs.json") as f:
        board = json.load(f)
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + [
        one["query"]["query"] for one in board["templating"]["list"]
        if isinstance(one["query"], dict)]


def test_the_dashboard_asks_for_metrics_that_are(mount, source):
    m = mount(source.root)
    there = {name.split("{")[0] for name in parse_metrics(m.read(".fstfs/metrics"))}
    asked = {name for query in queries() for name in re.findall(r"\bfstfs_\w+", query)}
    assert asked <= there and len(asked) > 10, asked - there


def test_the_dashboard_asks_as_prometheus_understands(place):
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not there: it is in Prometheus's package")
    rules = "groups:\n- name: fstfs\n  rules:\n"
    for i, query in enumerate(queries()):
        if query.startswith("label_values("):  # Grafana's own
            continue
        query = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
        rules += f"  - record: panel:{i}\n    expr: {json.dumps(query)}\n"
    (place / "rules.yml").write_text(rules)
    done = subprocess.run([promtool, "check", "rules", place / "rules.yml"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
