# SPDX-License-Identifier: Apache-2.0
"""The version is the same everywhere, and the files for GitHub refer to things that exist."""

import re

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

VERSION = re.search(r"^  version: '([0-9.]+)',$", (ROOT / "meson.build").read_text(), re.MULTILINE)[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_version():
    first = (ROOT / "data/debian/changelog").read_text().split("\n", 1)[0]
    assert first.startswith(f"fstfs ({VERSION}-0fstfs1) ")
    for page in (ROOT / "man").iterdir():
        assert f' "fstfs {VERSION}" ' in page.read_text().splitlines()[1], page.name
    for path in (ROOT / "data/kubernetes").glob("*.yaml"):
        assert set(re.findall(r"image: fstfs:(\S+)", path.read_text())) <= {VERSION}, path.name
    newest = re.search(r"^## (\S+), (not released yet|\d{4}-\d\d-\d\d)$",
                       (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == VERSION


def test_workflow():
    assert all(("run" in step) != ("uses" in step) for step in STEPS)
    commands = " ".join(step.get("run", "") for step in STEPS)
    for tool in re.findall(r"tools/\S+", commands):
        assert (ROOT / tool).exists(), tool
    for tool, option in re.findall(r"(tools/\S+) (--\S+)", commands):
        assert re.search(rf"{option}\b", (ROOT / tool).read_text()), option
    for job in WORKFLOW["jobs"].values():
        assert "timeout-minutes" in job
        needed = job.get("needs")
        assert needed is None or needed in WORKFLOW["jobs"]
    oldest, *_ = pythons = WORKFLOW["jobs"]["install"]["strategy"]["matrix"]["python"]
    assert f'requires-python = ">= {oldest}"' in (ROOT / "pyproject.toml").read_text()
    assert len(pythons) == 6


@pytest.mark.parametrize("name", ["bug", "slow", "feature"])
def test_issue_template(name):
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert form.keys() == {"name", "description", "labels", "body"}
    for element in form["body"]:
        assert element["type"] in ("markdown", "textarea", "input")
        assert ("value" if element["type"] == "markdown" else "label") in element["attributes"]
