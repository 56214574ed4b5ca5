# SPDX-License-Identifier: Apache-2.0
import re

import torch
from safetensors import safe_open

from .ep_weight_filter import should_skip_weight

_BAR_FORMAT = "{desc}: {n_fmt}/{total_fmt}\n"
used = []  # the arguments of the calls


class tqdm:
    """A progress bar that records."""

    made = []

    def __init__(self, **named):
        self.named, self.done, self.closed = named, 0, False
        tqdm.made.append(self)

    def update(self, count):
        self.done += count

    def close(self):
        self.closed = True


def enable_tqdm(use_tqdm_on_load: bool):
    return use_tqdm_on_load


def _natural_sort_key(filepath: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", filepath)]


def safetensors_weights_iterator(
    hf_weights_files: list[str],
    use_tqdm_on_load: bool,
    safetensors_load_strategy: str | None = None,
    local_expert_ids: set[int] | None = None,
    *,
    safetensors_prefetch_num_threads: int = 8,
    safetensors_prefetch_block_size: int = 16 * 1024 * 1024,
):
    used.append((tuple(hf_weights_files), safetensors_load_strategy, local_expert_ids,
                 safetensors_prefetch_num_threads))
    for file in sorted(hf_weights_files, key=_natural_sort_key):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if not should_skip_weight(name, local_expert_ids):
                    yield name, opened.get_tensor(name)


def pt_weights_iterator(hf_weights_files: list[str]):
    for file in hf_weights_files:
        yield from torch.load(file).items()
