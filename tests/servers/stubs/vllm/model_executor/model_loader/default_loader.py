# SPDX-License-Identifier: Apache-2.0
import dataclasses
import glob
import os
from collections.abc import Callable

from safetensors import safe_open

from .weight_utils import pt_weights_iterator, safetensors_weights_iterator


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: Callable[[str], bool] | None = None

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        unexpected = set(load_config.model_loader_extra_config) - {"enable_multithread_load"}
        if unexpected:
            raise ValueError(f"Unexpected extra config keys: {unexpected}")

    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt,
                         allow_patterns_overrides):
        if self.load_config.load_format != "auto":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = os.path.join(model_name_or_path, revision or "", subfolder or "")
        for pattern in ("*.safetensors", "*.bin"):
            files = glob.glob(os.path.join(folder, pattern))
            if files:
                return folder, files, pattern == "*.safetensors"
        raise RuntimeError("Cannot find any model weights")

    def _get_weights_iterator(self, source):
        _, files, use_safetensors = self._prepare_weights(
            source.model_or_path, source.subfolder, source.revision, source.fall_back_to_pt,
            source.allow_patterns_overrides)
        if not use_safetensors:
            return pt_weights_iterator(files)
        if source.is_unused_weight is not None:
            kept = []
            for file in files:
                with safe_open(file, framework="pt") as opened:
                    if not all(map(source.is_unused_weight, opened.keys())):
                        kept.append(file)
            files = kept
        iterator = safetensors_weights_iterator(
            files, self.load_config.use_tqdm_on_load, self.load_config.safetensors_load_strategy,
            local_expert_ids=self.local_expert_ids, safetensors_prefetch_num_threads=3)
        return ((source.prefix + name, tensor) for name, tensor in iterator)
