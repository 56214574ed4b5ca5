# SPDX-License-Identifier: Apache-2.0
from .default_loader import BaseModelLoader, DefaultModelLoader

_LOAD_FORMAT_TO_MODEL_LOADER = {"auto": DefaultModelLoader}


def register_model_loader(load_format: str):
    def _wrapper(model_loader_cls):
        assert load_format not in _LOAD_FORMAT_TO_MODEL_LOADER
        assert issubclass(model_loader_cls, BaseModelLoader)
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = model_loader_cls
        return model_loader_cls

    return _wrapper


def get_model_loader(load_config):
    return _LOAD_FORMAT_TO_MODEL_LOADER[load_config.load_format](load_config)
