# SPDX-License-Identifier: Apache-2.0
"""vLLM on its CPU platform, with its plugins loaded, in this process."""

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

# A wheel for GPUs finds no platform here.
vllm.platforms._current_platform = CpuPlatform()

from vllm import plugins  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.model_executor import model_loader  # noqa: E402

for _ in range(2):  # as vLLM may do
    plugins.plugins_loaded = False
    plugins.load_general_plugins()


def make_loader(load_format, **options):
    return model_loader.get_model_loader(LoadConfig(load_format=load_format, **options))


def weights(load_format, path):
    """The tensors of a directory, as pairs of name and tensor."""
    loader = make_loader(load_format, use_tqdm_on_load=False)
    return loader._get_weights_iterator(loader.Source(path, None))
