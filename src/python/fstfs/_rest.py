# SPDX-License-Identifier: Apache-2.0
"""What a module of safetensors has beside load_file() is safetensors' own, where it is installed."""

import importlib


def of(name):
    """The __getattr__ of the module that stands for safetensors.NAME."""

    def get(attribute):
        if not attribute.startswith("__"):
            try:
                return getattr(importlib.import_module(f"safetensors.{name}"), attribute)
            except (AttributeError, ImportError):
                pass
        raise AttributeError(f"module 'fstfs.{name}' has no attribute '{attribute}'")

    return get
