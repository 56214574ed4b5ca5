#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what transformers and diffusers do besides reading: processor seconds, by part.

own_work.py [MIB]: creates a model of that size for each (512 MiB) and loads it from the page cache,
each time in a new process, as the first load. Needs a python3 with both packages, such as
~/.cache/fstfs/venv-torch/bin/python of tools/test --torch.
"""

import functools
import subprocess
import sys
import tempfile
import time

import models
import torch

ROUNDS = 5


class Parts:
    """Processor seconds of this thread in functions, by purpose."""

    def __init__(self):
        self.seconds = {}

    def measure(self, owner, name, what):
        """Measures a function of a module or class."""
        own = vars(owner)[name]
        function = own.__func__ if isinstance(own, classmethod) else own

        @functools.wraps(function)
        def counted(*args, **more):
            begin = time.thread_time()
            try:
                return function(*args, **more)
            finally:
                spent = time.thread_time() - begin
                self.seconds[what] = self.seconds.get(what, 0) + spent

        setattr(owner, name, classmethod(counted) if isinstance(own, classmethod) else counted)


def llama(path, parts):
    import transformers
    from transformers import conversion_mapping

    transformers.logging.disable_progress_bar()
    transformers.AutoConfig.from_pretrained(path)
    model = transformers.LlamaForCausalLM
    parts.measure(conversion_mapping, "_build_checkpoint_conversion_mapping", "table of renamings")
    parts.measure(transformers.PreTrainedModel, "_load_pretrained_model", "tensors into it")
    parts.measure(model, "__init__", "empty model")
    return lambda: model.from_pretrained(path, dtype="auto")


def diffuser(path, parts):
    import diffusers

    diffusers.utils.logging.disable_progress_bar()
    model = diffusers.SD3Transformer2DModel
    parts.measure(diffusers.ModelMixin, "_load_pretrained_model", "tensors into it")
    parts.measure(model, "__init__", "empty model")
    return lambda: model.from_pretrained(path, torch_dtype=torch.bfloat16)


LOADS = {"llama": llama, "diffuser": diffuser}


def load(name, path):
    parts = Parts()
    work = LOADS[name](path, parts)
    begin, processor, thread = time.monotonic(), time.process_time(), time.thread_time()
    loaded = work()
    spent = {"all": time.monotonic() - begin, "processor": time.process_time() - processor,
             "main thread": time.thread_time() - thread}
    assert next(loaded.parameters()).numel()
    print(f"{name}: " + ", ".join(f"{what} {seconds:.3f} s"
                                  for what, seconds in (spent | parts.seconds).items()))


def main():
    if sys.argv[1:2] == ["load"]:
        load(*sys.argv[2:4])
        return
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        models.Models(LOADS, size << 20).write(folder)
        for _ in range(ROUNDS):
            for name in LOADS:
                subprocess.run([sys.executable, __file__, "load", name, f"{folder}/{name}"],
                               check=True)


if __name__ == "__main__":
    main()
