#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers and diffusers do for themselves in a load: processor seconds, by part.

own_work.py [MIB]: makes a model of that size for each (512) and loads it from the page cache, each
time in a fresh process, whose first load it is, as users' loads are. Needs a python3 with both
packages (that of tools/test --torch: ~/.cache/fstfs/venv-torch/bin/python).
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
    """Processor seconds of this thread in functions, by what they are for."""

    def __init__(self):
        self.seconds = {}

    def take(self, owner, name, what):
        """Has a function of a module or class counted."""
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
    parts.take(conversion_mapping, "_build_checkpoint_conversion_mapping", "table of renamings")
    parts.take(transformers.PreTrainedModel, "_load_pretrained_model", "tensors into it")
    parts.take(model, "__init__", "empty model")
    return lambda: model.from_pretrained(path, dtype="auto")


def diffuser(path, parts):
    import diffusers

    diffusers.utils.logging.disable_progress_bar()
    model = diffusers.SD3Transformer2DModel
    parts.take(diffusers.ModelMixin, "_load_pretrained_model", "tensors into it")
    parts.take(model, "__init__", "empty model")
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
