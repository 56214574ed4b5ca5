# SPDX-License-Identifier: Apache-2.0
"""The plugin for SGLang. It has two parts:

- a load format: `--load-format fstfs`;
- hooks, with which libfstfs reads safetensors files on a mount of fstfs, whatever the load format
  is. With FSTFS_SGLANG=1 in the environment it reads all safetensors files, with FSTFS_SGLANG=0
  none. Files that SGLang prefetches during startup (--startup-weight-load-mode overlap) are not
  read twice.

SGLang calls register() in each of its processes (entry point group sglang.srt.plugins).
docs/loaders.md documents both parts.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import glob
import logging
import os
import types
from typing import Any, Iterator

from ._servers import (IncompatibleServer, Options, check_attributes, check_parameters, iterate,
                       on_mount, with_globals)

log = logging.getLogger("sglang.fstfs")

# The iterators over safetensors files that SGLang's default loader chooses from, and the parameters
# that only some of them have. IGNORED has those that all may have. They affect how files are read,
# not what is loaded.
ITERATORS = {
    "safetensors_weights_iterator": (),
    "buffered_multi_thread_safetensors_weights_iterator": ("max_workers",),
}
IGNORED = ("disable_mmap", "prefetch", "prefetch_num_threads", "drop_cache_after_load")


def _read(options: Options, original: Any, hf_weights_files: list[str], *args: Any,
          **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Replaces `original`, one of ITERATORS."""
    import torch
    from sglang.srt.model_loader import weight_utils

    bar = weight_utils.tqdm
    return iterate(
        list(hf_weights_files), functools.partial(original, hf_weights_files, *args, **kwargs),
        options, log, lambda count: bar(
            total=count, desc="Loading safetensors checkpoint shards",
            disable=torch.distributed.is_initialized() and torch.distributed.get_rank() != 0,
            bar_format=weight_utils.BAR_FORMAT, position=bar._get_free_pos()))


_prefetched: set[str] = set()  # files on a mount of fstfs that SGLang prefetches during startup


def _around_iterator(original: Any, hf_weights_files: list[str], *args: Any, **kwargs: Any) -> Any:
    wanted = os.environ.get("FSTFS_SGLANG", "")
    if wanted != "1":
        prefetched = _prefetched.intersection(hf_weights_files)
        _prefetched.difference_update(prefetched)  # later loads of these files are not prefetched
        if wanted == "0" or prefetched or not on_mount(hf_weights_files):
            return original(hf_weights_files, *args, **kwargs)
    return _read(Options(), original, hf_weights_files, *args, **kwargs)


def _around_prefetch(original: Any, resolved_sources: Any, **kwargs: Any) -> Any:
    """Wraps DefaultModelLoader.start_checkpoint_prefetch(), which reads the files into the page
    cache while CUDA graphs are captured. libfstfs bypasses the page cache and would read them from
    storage again. So with FSTFS_SGLANG=1 nothing is prefetched, and without it SGLang's own
    iterators read the files that it prefetches from a mount."""
    wanted = os.environ.get("FSTFS_SGLANG", "")
    if wanted == "1":
        log.info("fstfs: SGLang's prefetch during startup is off, because libfstfs reads the files")
        resolved_sources = tuple(dataclasses.replace(source, weight_files=())
                                 for source in resolved_sources)
    elif wanted != "0":
        files = [path for source in resolved_sources for path in source.weight_files]
        if on_mount(files):
            log.info("fstfs: SGLang prefetches from the mount during startup; its own loader reads "
                     "the files")
            _prefetched.update(files)
    return original(resolved_sources, **kwargs)


def _check_server() -> None:
    """Raises IncompatibleServer or ImportError unless SGLang's code is what the hooks rely on."""
    from sglang.srt import server_args
    from sglang.srt.configs.load_config import LoadConfig, LoadFormat
    from sglang.srt.model_loader import loader, weight_utils
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check_attributes(HookType, "AROUND")
    check_parameters(HookRegistry.register, ("target", "hook", "hook_type"), ("source",))
    check_attributes(server_args, "add_load_format_choices", "LOAD_FORMAT_CHOICES")
    check_attributes(LoadFormat, "AUTO")
    check_parameters(LoadConfig._verify_load_format, ("self",))
    check_attributes(weight_utils, "tqdm", "BAR_FORMAT")
    for name, more in ITERATORS.items():
        check_attributes(weight_utils, name)
        check_parameters(getattr(weight_utils, name), ("hf_weights_files", *more), IGNORED)
    default = loader.DefaultModelLoader
    check_parameters(default.__init__, ("self", "load_config"))
    check_parameters(default.load_model, ("self", "model_config", "device_config"))
    check_parameters(default._prepare_weights,
                     ("self", "model_name_or_path", "revision", "fall_back_to_pt",
                      "allow_patterns_overrides"))
    check_parameters(default._get_weights_iterator, ("self", "source"),
                     ("resolved_source", "startup_prefetch_started", "startup_prefetch_active"))
    with_globals(default._get_weights_iterator, **dict.fromkeys(ITERATORS))
    check_parameters(default.start_checkpoint_prefetch, ("resolved_sources", "num_threads"))
    if "weight_files" not in {field.name for field in dataclasses.fields(default.ResolvedSource)}:
        raise IncompatibleServer("ResolvedSource has no weight_files")
    check_parameters(loader.get_model_loader, ("load_config", "model_config"))

    class Probe:
        def __init__(self, load_config: Any):
            pass

    if type(loader.get_model_loader(types.SimpleNamespace(load_format=Probe))) is not Probe:
        raise IncompatibleServer("get_model_loader() does not accept a class as load format")


@functools.lru_cache(maxsize=None)
def _loader() -> type:
    """Returns the loader class of load format fstfs."""
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader import loader

    default = loader.DefaultModelLoader

    class FstfsModelLoader(default):  # type: ignore[misc, valid-type]
        """Selects files, and filters and renames tensors, as load format auto does, but reads with
        libfstfs."""

        def __init__(self, load_config: Any):
            self.fstfs_options = Options(load_config.model_loader_extra_config)
            load_config = copy.copy(load_config)
            load_config.load_format = LoadFormat.AUTO
            load_config.model_loader_extra_config = {}
            super().__init__(load_config)

        def load_model(self, *, model_config: Any, device_config: Any) -> Any:
            # SGLang prefers a class given as load format to the loaders that some quantizations
            # need.
            chosen = type(loader.get_model_loader(self.load_config, model_config))
            if chosen is not default:
                quantization = getattr(model_config, "quantization", None)
                raise ValueError(
                    f"load format fstfs: SGLang loads this model (quantization {quantization}) "
                    f"with its {chosen.__name__}, which this format would bypass. Use "
                    "--load-format auto; to read with libfstfs, set FSTFS_SGLANG=1.")
            return super().load_model(model_config=model_config, device_config=device_config)

        def _prepare_weights(self, *args: Any, **kwargs: Any) -> Any:
            prepared = super()._prepare_weights(*args, **kwargs)
            folder = prepared[0]
            if os.path.exists(os.path.join(folder, "params.json")) and \
                    glob.glob(os.path.join(glob.escape(folder), "consolidated*.safetensors")):
                raise ValueError(
                    f"load format fstfs: {folder} has files in Mistral's own format, and SGLang "
                    "handles these only with --load-format auto or mistral. Use one of them; to "
                    "read with libfstfs, set FSTFS_SGLANG=1.")
            return prepared

        def _get_weights_iterator(self, source: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
            function = default._get_weights_iterator
            replaced = with_globals(function, **{
                name: functools.partial(_read, self.fstfs_options, function.__globals__[name])
                for name in ITERATORS})
            return replaced(self, source, **kwargs)

    return FstfsModelLoader


def _around_verify_load_format(original: Any, config: Any) -> None:
    if config.load_format == "fstfs":
        config.load_format = _loader()
    else:
        original(config)


_registered: list[Any] = []  # registries that have the hooks


def register() -> None:
    """Registers the load format and the hooks. Idempotent. Never raises: if this SGLang is not
    supported, logs one line, and SGLang loads as it does without the plugin."""
    try:
        _check_server()
        from sglang.srt import server_args
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        if "fstfs" not in server_args.LOAD_FORMAT_CHOICES:
            server_args.add_load_format_choices(["fstfs"])
        if HookRegistry in _registered:
            return
        for target, hook in (
                ("configs.load_config.LoadConfig._verify_load_format", _around_verify_load_format),
                ("model_loader.loader.DefaultModelLoader.start_checkpoint_prefetch",
                 _around_prefetch),
                *((f"model_loader.weight_utils.{name}", _around_iterator) for name in ITERATORS)):
            HookRegistry.register(f"sglang.srt.{target}", hook, HookType.AROUND)
        _registered.append(HookRegistry)
    except IncompatibleServer as reason:
        log.warning("fstfs: the plugin is off: this SGLang is not supported by this version of "
                    "fstfs: %s", reason)
    except Exception as error:  # the server must start even if the plugin fails
        log.warning("fstfs: the plugin is off: %s: %s", type(error).__name__, error)
