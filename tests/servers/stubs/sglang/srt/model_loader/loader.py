# SPDX-License-Identifier: Apache-2.0
import dataclasses
import glob
import os

from ..configs.load_config import LoadConfig, LoadFormat
from .weight_utils import (buffered_multi_thread_safetensors_weights_iterator,
                           safetensors_weights_iterator)


class BaseModelLoader:
    def __init__(self, load_config: LoadConfig):
        self.load_config = load_config


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None

    @dataclasses.dataclass(frozen=True)
    class ResolvedSource:
        source: "DefaultModelLoader.Source"
        hf_folder: str
        weight_files: tuple[str, ...]
        use_safetensors: bool

    def __init__(self, load_config: LoadConfig):
        super().__init__(load_config)
        unexpected = set(load_config.model_loader_extra_config) - {"enable_multithread_load"}
        if unexpected:
            raise ValueError(f"Unexpected extra config keys: {unexpected}")

    def _prepare_weights(self, model_name_or_path: str, revision: str | None,
                         fall_back_to_pt: bool, allow_patterns_overrides: list[str] | None = None):
        assert self.load_config.load_format == LoadFormat.AUTO
        files = sorted(glob.glob(os.path.join(model_name_or_path, "*.safetensors")))
        return model_name_or_path, files, True

    def _get_weights_iterator(self, source, *, resolved_source=None,
                              startup_prefetch_started: bool = False,
                              startup_prefetch_active: bool = False):
        _, files, _ = self._prepare_weights(source.model_or_path, source.revision,
                                            source.fall_back_to_pt)
        if self.load_config.model_loader_extra_config.get("enable_multithread_load", True):
            iterator = buffered_multi_thread_safetensors_weights_iterator(
                files, max_workers=8, disable_mmap=False, prefetch=False, prefetch_num_threads=4,
                drop_cache_after_load=False)
        else:
            iterator = safetensors_weights_iterator(
                files, disable_mmap=False, prefetch=False, prefetch_num_threads=4,
                drop_cache_after_load=False)
        return ((source.prefix + name, tensor) for name, tensor in iterator)

    @staticmethod
    def start_checkpoint_prefetch(resolved_sources, *, num_threads: int):
        assert num_threads > 0 and all(source.use_safetensors for source in resolved_sources)
        return [path for source in resolved_sources for path in source.weight_files]

    def load_model(self, *, model_config, device_config):
        source = DefaultModelLoader.Source(model_config.model_path, None)
        return dict(self._get_weights_iterator(source))


class ModelOptModelLoader(DefaultModelLoader):
    pass


def get_model_loader(load_config: LoadConfig, model_config=None):
    if load_config.load_format == LoadFormat.DUMMY:
        return BaseModelLoader(load_config)
    if isinstance(load_config.load_format, type):
        return load_config.load_format(load_config)
    if model_config and model_config.quantization == "modelopt_fp8":
        return ModelOptModelLoader(load_config)
    return DefaultModelLoader(load_config)
