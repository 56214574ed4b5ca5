# SPDX-License-Identifier: Apache-2.0
"""Forwards all functions except load_file() to safetensors, if it is installed."""

import importlib
from collections.abc import Callable
from typing import Any


def forward_to(name: str) -> Callable[[str], Any]:
    """Returns the __getattr__ of fstfs.NAME, which forwards to safetensors.NAME."""

    def get_attribute(attribute: str) -> Any:
        if not attribute.startswith("__"):
            try:
                return getattr(importlib.import_module(f"safetensors.{name}"), attribute)
            except (AttributeError, ImportError):
                pass
        raise AttributeError(f"module 'fstfs.{name}' has no attribute '{attribute}'")

    return get_attribute
