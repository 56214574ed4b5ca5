# SPDX-License-Identifier: Apache-2.0
"""Checks the plugin with vLLM's own code, on vLLM's CPU platform: program_vllm.py SETTINGS.json.
Prints {check: "ok" or what was wrong} as the last line. tests/servers/test_real.py runs it."""

import json
import sys

from real import by_libfstfs, checks, contents, forget, run, signatures
from setup_vllm import make_loader, model_loader
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

with open(sys.argv[1]) as file:
    settings = json.load(file)

def parsed(path, *more):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return EngineArgs.from_cli_args(parser.parse_args(["--model", path, *more]))


@checks
def the_plugin_is_registered():
    """vLLM finds it by its entry point, and calls it again in each process."""
    assert model_loader._LOAD_FORMAT_TO_MODEL_LOADER["fstfs"].__module__ == "fstfs.vllm"


@checks
def the_stubs_agree():
    assert signatures(settings["signatures"]) == settings["signatures"]


@checks
def arguments():
    config = parsed(settings["checkpoint"], "--load-format", "fstfs", "--model-loader-extra-config",
                    '{"memory": 4096, "device": "cpu"}').create_load_config()
    loader = model_loader.get_model_loader(config)
    assert type(loader).__name__ == "FstfsModelLoader"
    assert (loader.fstfs_options.memory, loader.fstfs_options.device) == (4096, "cpu")


@checks
def wrong_arguments():
    config = parsed(settings["checkpoint"], "--load-format", "fstfs", "--model-loader-extra-config",
                    '{"num_threads": 4}').create_load_config()
    try:
        model_loader.get_model_loader(config)
    except ValueError as error:
        assert "unknown key 'num_threads'" in str(error), error
    else:
        raise AssertionError("accepted")


def compare(path, experts=None, may_be_cached=False, **source):
    found = []
    for load_format in ("auto", "fstfs"):
        loader = make_loader(load_format, use_tqdm_on_load=load_format == "fstfs")
        loader.local_expert_ids = experts
        known = {name: value for name, value in source.items()
                 if name in loader.Source.__dataclass_fields__}
        forget(path, known.get("subfolder", ""))
        found.append(by_libfstfs(lambda loader=loader, known=known: contents(
            loader._get_weights_iterator(loader.Source(path, None, **known)))))
    (used, own), (our_used, ours) = found
    assert not used and (our_used or may_be_cached), (used, our_used)
    assert own and ours == own


@checks
def tensors():
    compare(settings["checkpoint"], prefix="model.")


@checks
def tensors_on_a_mount():
    compare(settings["mount"])


@checks
def tensors_in_a_subfolder():
    folder, _, name = settings["checkpoint"].rpartition("/")
    compare(folder, subfolder=name)


@checks
def local_experts():
    compare(settings["checkpoint"], experts={1})


@checks
def unused_shards():  # vLLM 0.31 does not have it
    # Reading the headers, to find these shards, may cache all of such small files.
    compare(settings["checkpoint"], may_be_cached=True,
            is_unused_weight=lambda name: "norm" in name)


@checks
def a_model():
    """A model on the CPU, loaded by the server's own loader and by this one."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    config = parsed(settings["model"], "--load-format", "fstfs", "--max-model-len", "128",
                    "--enforce-eager", "--dtype", "bfloat16").create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{settings['rendezvous']}", 0, "gloo")
        initialize_model_parallel(1, 1)

        def load(load_format):
            forget(settings["model"])
            config.load_config.load_format = load_format
            config.compilation_config.static_forward_context.clear()
            return by_libfstfs(lambda: model_loader.get_model(vllm_config=config).state_dict())

        (used, own), (our_used, ours) = load("auto"), load("fstfs")
    assert not used and our_used
    assert len(own) > 20 and own.keys() == ours.keys()
    assert all(torch.equal(own[name], ours[name]) for name in own)


run()
