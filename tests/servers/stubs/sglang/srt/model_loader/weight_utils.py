# SPDX-License-Identifier: Apache-2.0
from safetensors import safe_open

BAR_FORMAT = "{desc}: {n_fmt}/{total_fmt}\n"
used = []  # the iterators that were used


class tqdm:
    """A progress bar that records."""

    made = []

    def __init__(self, **named):
        self.named, self.done, self.closed = named, 0, False
        tqdm.made.append(self)

    @classmethod
    def _get_free_pos(cls):
        return 0

    def update(self, count):
        self.done += count

    def close(self):
        self.closed = True


def _tensors(files):
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def safetensors_weights_iterator(
    hf_weights_files: list[str],
    disable_mmap: bool = False,
    prefetch: bool = False,
    prefetch_num_threads: int = 4,
    drop_cache_after_load: bool = False,
):
    used.append("one thread")
    yield from _tensors(hf_weights_files)


def buffered_multi_thread_safetensors_weights_iterator(
    hf_weights_files: list[str],
    max_workers: int,
    disable_mmap: bool = False,
    prefetch: bool = False,
    prefetch_num_threads: int = 4,
    drop_cache_after_load: bool = False,
):
    used.append("threads")
    yield from _tensors(hf_weights_files)
