# SPDX-License-Identifier: Apache-2.0
"""SGLang with its plugins loaded and without a server's settings, in this process."""

import os
import types

os.environ.pop("FSTFS_SGLANG", None)

from sglang.srt import plugins  # noqa: E402

for _ in range(2):  # as SGLang may do
    plugins._plugins_loaded = False
    plugins.load_plugins()

from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.model_loader import loader  # noqa: E402

# Settings of a running server.
get_model = loader.get_model
loader.get_server_args = lambda: None
loader.get_model = lambda: types.SimpleNamespace(
    weight_loader_disable_mmap=False, weight_loader_prefetch_checkpoints=False,
    weight_loader_prefetch_num_threads=4, weight_loader_drop_cache_after_load=False,
    model_checksum=None)


def make_loader(load_format, model_config=None, **extra):
    return loader.get_model_loader(LoadConfig(load_format, model_loader_extra_config=extra),
                                   model_config)


def weights(load_format, path, **extra):
    """The tensors of a directory, as pairs of name and tensor."""
    made = make_loader(load_format, **extra)
    return made._get_weights_iterator(made.Source(path, None, prefix="model."))
