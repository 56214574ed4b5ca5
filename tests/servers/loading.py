# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of both servers share."""

import importlib
import inspect
import json

import fstfs


def contents(tensors):
    """{name: bytes} of an iterator, which must yield each name once."""
    found = {}
    for name, tensor in tensors:
        assert name not in found, name
        found[name] = tensor.numpy().tobytes()
    return found


def by_libfstfs(load):
    """Returns whether libfstfs returned bytes during load(), and its result."""
    before = json.loads(fstfs.status())["bytes"]
    result = load()
    return json.loads(fstfs.status())["bytes"] > before, result


def signatures(names):
    """{name: [[parameter, kind, whether it has a default]]} of functions "module:name"."""
    described = {}
    for name in names:
        module, path = name.split(":")
        function = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        described[name] = [[p.name, p.kind.name, p.default is not p.empty]
                           for p in inspect.signature(function).parameters.values()]
    return described
