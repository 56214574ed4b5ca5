# SPDX-License-Identifier: Apache-2.0
"""The loading code of vLLM and SGLang, without the rest of them.

The packages require their own kernels and torch, and a GPU at import. The code that selects and
reads files does not. It is imported from the installed packages, and all their other modules are
replaced by stubs.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
import types
from unittest.mock import MagicMock

from safetensors.torch import load_file

REAL = {
    "vllm": ("vllm.config.load", "vllm.config.utils", "vllm.envs",
             "vllm.model_executor.model_loader.base_loader",
             "vllm.model_executor.model_loader.default_loader",
             "vllm.model_executor.model_loader.ep_weight_filter",
             "vllm.model_executor.model_loader.runai_streamer_loader",
             "vllm.model_executor.model_loader.weight_utils",
             "vllm.transformers_utils.repo_utils", "vllm.transformers_utils.runai_utils",
             "vllm.utils.cpu_resource_utils"),
    "sglang": ("sglang.srt.configs.load_config", "sglang.srt.environ",
               "sglang.srt.model_loader.loader", "sglang.srt.model_loader.weight_utils"),
}


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        real = REAL[self.package]
        if name.split(".")[0] != self.package or name in real:
            return None
        if any(below.startswith(name + ".") for below in real):
            folder = importlib.machinery.PathFinder.find_spec(name, path)
            if folder is None:
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folder.submodule_search_locations
            return spec  # the directory, without running its __init__
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def without_the_rest_of(package):
    """From now on, imports of the package in this process only find the modules above."""
    sys.meta_path.insert(0, Finder(package))


class Logger(logging.LoggerAdapter):
    """vLLM's logging through Python's logging, including warning_once()."""

    def __getattr__(self, name):
        if not name.endswith("_once"):
            raise AttributeError(name)
        return getattr(self, name.removesuffix("_once"))


def vllm_loader(load_format, loader="default_loader.DefaultModelLoader", **options):
    without_the_rest_of("vllm")
    import vllm.logger

    vllm.logger.init_logger = lambda name: Logger(logging.getLogger(name))
    from vllm.config.load import LoadConfig

    module, name = loader.split(".")
    module = importlib.import_module(f"vllm.model_executor.model_loader.{module}")
    return getattr(module, name)(LoadConfig(load_format=load_format, use_tqdm_on_load=False,
                                            **options))


def vllm(path, load_format="auto", **options):
    """{name: tensor} that vLLM's loader for this format passes to a model."""
    made = vllm_loader(load_format, **options)
    if hasattr(made, "Source"):
        tensors = made._get_weights_iterator(made.Source(path, None))
    else:
        tensors = made._get_weights_iterator(path, None)
    return once(tensors)


def vllm_files(path, load_format):
    """{name: tensor} of the files that vLLM selects for a format that it only reads to GPUs."""
    return read_all(vllm_loader(load_format)._prepare_weights(path, None, None, False, None))


def sglang_loader(load_format, disable_mmap=False, prefetch=False, **options):
    without_the_rest_of("sglang")
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader, weight_utils

    weight_utils.BAR_FORMAT = " "
    loader.get_bool_env_var.return_value = False
    loader.get_server_args.return_value = None
    settings = loader.get_model.return_value
    settings.weight_loader_disable_mmap = disable_mmap
    settings.weight_loader_prefetch_checkpoints = prefetch
    settings.weight_loader_prefetch_num_threads = 4
    settings.weight_loader_drop_cache_after_load = False
    return loader.DefaultModelLoader(LoadConfig(load_format=load_format, **options))


def sglang(path, load_format="auto", **options):
    """{name: tensor} that SGLang's loader for this format passes to a model."""
    made = sglang_loader(load_format, **options)
    return once(made._get_weights_iterator(made.Source(path, None)))


def sglang_files(path, load_format):
    """{name: tensor} of the files that SGLang selects for a format that it only reads to GPUs."""
    return read_all(sglang_loader(load_format)._prepare_weights(path, None, False))


def read_all(picked):
    """The list of files in the result of _prepare_weights()."""
    files, = (part for part in picked if isinstance(part, list))
    return once(pair for path in files for pair in load_file(path).items())


def once(pairs):
    tensors = {}
    for name, tensor in pairs:
        assert name not in tensors, f"{name} is loaded twice"
        tensors[name] = tensor.clone()
    return tensors
