# SPDX-License-Identifier: Apache-2.0
"""What goes into the wheel. tools/fresh --wheel builds one, installs it and uses it."""

import ast
import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAMS = ["fstfs", "fstfs-bench", "fstfs-cache", "fstfs-check", "fstfs-pack",
            "fstfs-top"]
SOURCES = sorted((ROOT / "src/python/fstfs").iterdir())


def test_files(place):
    """The files that meson installs with the tag of pyproject.toml: the package, with the programs
    and the library."""
    if not shutil.which("meson"):
        pytest.skip("meson is not installed")
    arguments = re.search(r"^\[tool\.meson-python\.args\]\nsetup = (.*)\ninstall = (.*)",
                          (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    setup, install = map(ast.literal_eval, arguments.groups())
    assert "--tags=wheel" in install
    native = place / "native.ini"  # meson-python writes one, too
    native.write_text(f"[binaries]\npython = '{sys.executable}'\n")
    subprocess.run(["meson", "setup", place / "build", ROOT, "--native-file", native,
                    "-Dwheel=true", "-Dtests=disabled"], check=True, capture_output=True)
    assert "-Dwheel=true" in setup
    plan = json.loads((place / "build/meson-info/intro-install_plan.json").read_text())
    found = {entry["destination"] for kind in plan.values() for entry in kind.values()
             if entry["tag"] == "wheel"}
    package = "{py_platlib}/fstfs"
    assert found == {*(f"{package}/bin/{name}" for name in PROGRAMS),
                     f"{package}/libfstfs.so.0",
                     *(f"{package}/{path.name}" for path in SOURCES if path.is_file())}


@pytest.mark.parametrize("path", [path for path in SOURCES if path.suffix == ".py"],
                         ids=lambda path: path.name)
def test_oldest_python(path):
    """Each module has only the syntax of Python 3.9, the oldest that pyproject.toml allows."""
    assert 'requires-python = ">= 3.9"' in (ROOT / "pyproject.toml").read_text()
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_commands():
    """Each program is a console command."""
    project = (ROOT / "pyproject.toml").read_text()
    for name in PROGRAMS:
        assert f'\n{name} = "fstfs._programs:{name.replace("-", "_")}"\n' in project
