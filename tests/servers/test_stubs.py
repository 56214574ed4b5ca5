# SPDX-License-Identifier: Apache-2.0
"""The stubs have the signatures of the servers that are installed beside torch. Their code is parsed,
not imported, because its dependencies are missing. test_real.py compares more releases."""

import ast
import importlib.util
from pathlib import Path

import pytest
from conftest import HERE
from python.module import fstfs  # noqa: F401

from .loading import SIGNATURES


def signature(folder, name):
    """The parameters of a function "module:name", without annotations and values of defaults."""
    module, path = name.split(":")
    place = Path(folder, *module.split("."))
    place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    node = ast.parse(place.read_text())
    for part in path.split("."):
        node = next((child for child in node.body if getattr(child, "name", None) == part), None)
        assert node, f"{place} has no {path}"
    parameters, default = node.args, ast.Constant(...)
    for parameter in ast.walk(parameters):
        if isinstance(parameter, ast.arg):
            parameter.annotation = None
    parameters.defaults = [default for _ in parameters.defaults]
    parameters.kw_defaults = [found and default for found in parameters.kw_defaults]
    return ast.unparse(parameters)


@pytest.mark.parametrize("server", SIGNATURES)
def test_the_stubs_agree(server):
    spec = importlib.util.find_spec(server)
    if spec is None:
        pytest.skip(f"{server} is not installed")
    package = Path(spec.submodule_search_locations[0]).parent
    for name in SIGNATURES[server]:
        assert signature(HERE / "servers/stubs", name) == signature(package, name), name
