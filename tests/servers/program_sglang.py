# SPDX-License-Identifier: Apache-2.0
"""Checks the plugin with SGLang's own code, on the CPU: program_sglang.py SETTINGS.json.
Prints {check: "ok" or what was wrong} as the last line. tests/servers/test_real.py runs it."""

import argparse
import json
import os
import sys
import types

from real import by_libfstfs, checks, contents, forget, run, signatures
from setup_sglang import get_model, loader, make_loader, weights
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import weight_utils
from sglang.srt.server_args import LOAD_FORMAT_CHOICES, ServerArgs

with open(sys.argv[1]) as file:
    settings = json.load(file)

@checks
def the_plugin_is_registered():
    """SGLang finds it by its entry point; a second call changes nothing."""
    assert LOAD_FORMAT_CHOICES.count("fstfs") == 1
    assert hasattr(weight_utils.safetensors_weights_iterator, "__wrapped__")
    assert not hasattr(weight_utils.safetensors_weights_iterator.__wrapped__, "__wrapped__")


@checks
def the_stubs_agree():
    assert signatures(settings["signatures"]) == settings["signatures"]


@checks
def arguments():
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found = parser.parse_args(["--model-path", settings["checkpoint"], "--load-format", "fstfs",
                               "--model-loader-extra-config", '{"memory": 4096}'])
    made = loader.get_model_loader(LoadConfig(
        found.load_format, model_loader_extra_config=found.model_loader_extra_config))
    assert issubclass(type(made), loader.DefaultModelLoader)
    assert type(made).__module__ == "fstfs.sglang"
    assert made.fstfs_options.memory == 4096


@checks
def wrong_arguments():
    try:
        make_loader("fstfs", num_threads=4)
    except ValueError as error:
        assert "unknown key 'num_threads'" in str(error), error
    else:
        raise AssertionError("accepted")


def load(load_format, path, **extra):
    forget(path)
    return by_libfstfs(lambda: contents(weights(load_format, path, **extra)))


def own(path, **extra):
    os.environ["FSTFS_SGLANG"] = "0"
    try:
        used, tensors = load("auto", path, **extra)
    finally:
        del os.environ["FSTFS_SGLANG"]
    assert not used and tensors
    return tensors


@checks
def tensors():
    assert load("fstfs", settings["checkpoint"]) == (True, own(settings["checkpoint"]))


@checks
def the_hook_on_a_mount():
    for threads in (True, False):
        extra = {"enable_multithread_load": threads}
        assert load("auto", settings["mount"], **extra) == (True, own(settings["mount"], **extra))


@checks
def the_hook_elsewhere():
    for threads in (True, False):
        extra = {"enable_multithread_load": threads}
        tensors = own(settings["checkpoint"], **extra)
        assert load("auto", settings["checkpoint"], **extra) == (False, tensors)
        os.environ["FSTFS_SGLANG"] = "1"
        assert load("auto", settings["checkpoint"], **extra) == (True, tensors)
        del os.environ["FSTFS_SGLANG"]


class ModelConfig(types.SimpleNamespace):
    def __init__(self, quantization):
        super().__init__(quantization=quantization, model_path=settings["model"], revision=None,
                         modelopt_quant=None)

    def _is_already_quantized(self):
        return True


@checks
def quantizations_that_need_another_loader():
    for quantization in ("modelopt_fp8", "modelopt_fp4", "auto-round-int8"):
        config = ModelConfig(quantization)
        try:
            make_loader("fstfs", config).load_model(model_config=config, device_config=None)
        except ValueError as error:
            assert f"quantization {quantization}) with its " in str(error), error
        else:
            raise AssertionError(f"{quantization} was not refused")


@checks
def a_model():
    """A model on the CPU, loaded by the server's own loader and by this one."""
    import torch
    from sglang.srt import runtime_context
    from sglang.srt.configs import device_config, model_config
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    loader.get_model = get_model
    args = ServerArgs(model_path=settings["model"], device="cpu", dtype="bfloat16",
                      skip_tokenizer_init=True)
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    init_distributed_environment(1, 0, f"file://{settings['rendezvous']}", 0, "gloo")
    initialize_model_parallel()
    initialize_dp_attention(args)
    config = model_config.ModelConfig.from_server_args(args)

    def load_weights(load_format):
        forget(settings["model"])
        return by_libfstfs(lambda: make_loader(load_format, config).load_model(
            model_config=config, device_config=device_config.DeviceConfig("cpu")).state_dict())

    used, own = load_weights("auto")
    assert not used and len(own) > 20
    for load_format, asked in (("fstfs", ""), ("auto", "1")):
        os.environ["FSTFS_SGLANG"] = asked
        our_used, ours = load_weights(load_format)
        del os.environ["FSTFS_SGLANG"]
        assert our_used and own.keys() == ours.keys()
        assert all(torch.equal(own[name], ours[name]) for name in own)


run()
