# SPDX-License-Identifier: Apache-2.0
"""Forwards all functions but load_file() to safetensors, if that is installed."""

import importlib


def of(name):
    """The __getattr__ of fstfs.NAME: forwards attributes to safetensors.NAME."""

    def get(attribute):
        if not attribute.startswith("__"):
            try:
                return getattr(importlib.import_module(f"safetensors.{name}"), attribute)
            except (AttributeError, ImportError):
                pass
        raise AttributeError(f"module 'fstfs.{name}' has no attribute '{attribute}'")

    return get
