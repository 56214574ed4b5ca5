# SPDX-License-Identifier: Apache-2.0
"""What the tests of both servers share."""

import importlib
import inspect
import json

import fstfs

MODEL_LOADER = "vllm.model_executor.model_loader"
# The functions of the servers that the stubs have.
SIGNATURES = {
    "vllm": [f"{MODEL_LOADER}:register_model_loader",
             f"{MODEL_LOADER}.default_loader:DefaultModelLoader.__init__",
             f"{MODEL_LOADER}.default_loader:DefaultModelLoader._get_weights_iterator",
             f"{MODEL_LOADER}.default_loader:DefaultModelLoader._prepare_weights",
             f"{MODEL_LOADER}.ep_weight_filter:should_skip_weight",
             f"{MODEL_LOADER}.weight_utils:_natural_sort_key",
             f"{MODEL_LOADER}.weight_utils:enable_tqdm",
             f"{MODEL_LOADER}.weight_utils:safetensors_weights_iterator"],
    "sglang": ["sglang.srt.configs.load_config:LoadConfig._verify_load_format",
               "sglang.srt.model_loader.loader:DefaultModelLoader.__init__",
               "sglang.srt.model_loader.loader:DefaultModelLoader._get_weights_iterator",
               "sglang.srt.model_loader.loader:DefaultModelLoader._prepare_weights",
               "sglang.srt.model_loader.loader:DefaultModelLoader.load_model",
               "sglang.srt.model_loader.loader:DefaultModelLoader.start_checkpoint_prefetch",
               "sglang.srt.model_loader.loader:get_model_loader",
               "sglang.srt.model_loader.weight_utils:safetensors_weights_iterator",
               "sglang.srt.model_loader.weight_utils:"
               "buffered_multi_thread_safetensors_weights_iterator",
               "sglang.srt.plugins.hook_registry:HookRegistry.register"],
}


def contents(tensors):
    """{name: bytes} of an iterator, which must yield each name once."""
    found = {}
    for name, tensor in tensors:
        assert name not in found, name
        found[name] = tensor.numpy().tobytes()
    return found


def by_libfstfs(load):
    """Returns whether libfstfs returned bytes during load(), and its result."""
    before = json.loads(fstfs.status())["bytes"]
    result = load()
    return json.loads(fstfs.status())["bytes"] > before, result


def signatures(names):
    """{name: [[parameter, kind, whether it has a default]]} of functions "module:name"."""
    described = {}
    for name in names:
        module, path = name.split(":")
        function = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        described[name] = [[p.name, p.kind.name, p.default is not p.empty]
                           for p in inspect.signature(function).parameters.values()]
    return described
