# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM, a load format: `vllm serve MODEL --load-format fstfs`.

vLLM calls register() in each of its processes (entry point group vllm.general_plugins).
docs/loaders.md documents the format.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
from typing import Any, Iterator

from ._servers import (IncompatibleServer, Options, check_attributes, check_parameters, iterate,
                       with_globals)

log = logging.getLogger("vllm.fstfs")

# Values of safetensors_load_strategy with which vLLM yields the tensors unchanged.
PLAIN_STRATEGIES = (None, "lazy", "eager", "prefetch")


def _make_loader() -> type:
    """Returns the loader class. Raises IncompatibleServer or ImportError unless vLLM's code is what
    the class relies on."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import default_loader, ep_weight_filter, weight_utils

    default = default_loader.DefaultModelLoader
    check_parameters(default.__init__, ("self", "load_config"))
    check_parameters(default._get_weights_iterator, ("self", "source"))
    with_globals(default._get_weights_iterator, safetensors_weights_iterator=None)
    check_parameters(
        weight_utils.safetensors_weights_iterator,
        ("hf_weights_files", "use_tqdm_on_load", "safetensors_load_strategy", "local_expert_ids"),
        ("safetensors_prefetch_num_threads", "safetensors_prefetch_block_size"))
    check_parameters(weight_utils.enable_tqdm, ("use_tqdm_on_load",))
    check_parameters(weight_utils._natural_sort_key, ("filepath",))
    check_attributes(weight_utils, "tqdm", "_BAR_FORMAT")
    check_parameters(ep_weight_filter.should_skip_weight, ("weight_name", "local_expert_ids"))
    fields = {field.name for field in dataclasses.fields(LoadConfig)}
    if not fields.issuperset(("load_format", "model_loader_extra_config")):
        raise IncompatibleServer("LoadConfig has no load_format or no model_loader_extra_config")

    def iterator(options: Options, original: Any, hf_weights_files: list[str],
                 use_tqdm_on_load: bool, safetensors_load_strategy: Any = None,
                 local_expert_ids: Any = None, **prefetch: Any) -> Iterator[tuple[str, Any]]:
        """Replaces `original`, vLLM's safetensors_weights_iterator()."""
        original = functools.partial(original, hf_weights_files, use_tqdm_on_load,
                                     safetensors_load_strategy, local_expert_ids, **prefetch)
        if safetensors_load_strategy not in PLAIN_STRATEGIES:
            log.info("fstfs: vLLM's own loader reads files with safetensors_load_strategy=%s",
                     safetensors_load_strategy)
            return original()
        return iterate(
            sorted(hf_weights_files, key=weight_utils._natural_sort_key), original, options, log,
            lambda count: weight_utils.tqdm(
                total=count, desc="Loading safetensors checkpoint shards",
                disable=not weight_utils.enable_tqdm(use_tqdm_on_load),
                bar_format=weight_utils._BAR_FORMAT),
            lambda name: not ep_weight_filter.should_skip_weight(name, local_expert_ids))

    class FstfsModelLoader(default):  # type: ignore[misc, valid-type]
        """Selects files, and filters and renames tensors, as load format auto does, but reads with
        libfstfs."""

        def __init__(self, load_config: Any):
            self.fstfs_options = Options(load_config.model_loader_extra_config)
            load_config = copy.copy(load_config)
            load_config.load_format = "auto"
            load_config.model_loader_extra_config = {}
            super().__init__(load_config)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            function = default._get_weights_iterator
            original = function.__globals__["safetensors_weights_iterator"]
            replaced = with_globals(function, safetensors_weights_iterator=functools.partial(
                iterator, self.fstfs_options, original))
            return replaced(self, source)

    return FstfsModelLoader


def register() -> None:
    """Registers the load format. Idempotent. Never raises: if this vLLM is not supported, logs one
    line, and the load format remains unknown to vLLM."""
    try:
        from vllm.model_executor import model_loader

        check_parameters(model_loader.register_model_loader, ("load_format",))
        check_attributes(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER")
        if "fstfs" not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            model_loader.register_model_loader("fstfs")(_make_loader())
    except IncompatibleServer as reason:
        log.warning("fstfs: load format fstfs is not available: this vLLM is not supported by this "
                    "version of fstfs: %s", reason)
    except Exception as error:  # the server must start even if the plugin fails
        log.warning("fstfs: load format fstfs is not available: %s: %s", type(error).__name__,
                    error)
