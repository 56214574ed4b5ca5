# SPDX-License-Identifier: Apache-2.0
"""The registry, without its log and checks."""

import functools
import pkgutil
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class HookSource(NamedTuple):
    plugin_name: str
    dist_name: str | None


class HookType(Enum):
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    _hooks = defaultdict(list)

    @classmethod
    def register(cls, target: str, hook: Callable, hook_type: HookType = HookType.AFTER, *,
                 source: HookSource | None = None):
        assert hook_type == HookType.AROUND
        cls._hooks[target].append(hook)

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls._hooks.items():
            path, name = target.rsplit(".", 1)
            owner = pkgutil.resolve_name(path)
            original = wrapped = getattr(owner, name)
            for hook in hooks:
                wrapped = _around(wrapped, hook)
            is_static = isinstance(vars(owner).get(name), staticmethod)
            setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)
            for module in list(sys.modules.values()):
                if isinstance(module, types.ModuleType):
                    for key, value in list(vars(module).items()):
                        if value is original:
                            setattr(module, key, wrapped)


def _around(original, hook):
    @functools.wraps(original)
    def wrapper(*args, **named):
        return hook(original, *args, **named)

    return wrapper
