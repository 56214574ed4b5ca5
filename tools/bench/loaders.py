# SPDX-License-Identifier: Apache-2.0
"""The Python loaders of fstfs-bench --loaders, which pipes this script to python3.

python3 - list                         lists the loaders as a JSON object
python3 - run NAME DIRECTORY FILE...   loads once: {"seconds", "bytes", "sum"}

Importing packages is not timed. A load ends when a byte of each page of each tensor has
been read; `sum` is the checksum of these bytes, see struct reader_result in readers.h.
"""

import sys

# `python3 -` imports from the current directory first, which may be a downloaded model.
if sys.path[:1] == [""]:
    del sys.path[0]

import importlib
import importlib.metadata
import importlib.util
import json
import os
import time

PAGE = 4096


def version_of(package):
    """The version of a package; "" if unknown; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec(package.replace("-", "_"))
        return "" if spec and spec.origin else None


def is_installed(package):
    return version_of(package) is not None


# safetensors loads NumPy arrays if torch is not installed.
ARRAYS = "torch" if is_installed("torch") else "numpy"


def load_file(directory, files):
    load_file = importlib.import_module(f"safetensors.{ARRAYS}").load_file

    return lambda: (t for f in files for t in load_file(f).values())


def safe_open(directory, files):
    from safetensors import safe_open

    framework = {"torch": "pt", "numpy": "np"}[ARRAYS]

    def tensors():
        for path in files:
            with safe_open(path, framework=framework) as f:
                for name in sorted(f.keys()):
                    yield f.get_tensor(name)

    return tensors


def fstfs(directory, files):
    import fstfs

    names = [name for name in os.listdir(directory) if name.endswith(".safetensors")]
    if len(names) == len(files):  # the whole checkpoint in one call
        return lambda: iter(fstfs.load_checkpoint(directory).values())
    return lambda: (t for f in files for t in fstfs.load_file(f).values())


def fastsafetensors(directory, files):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def tensors():
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        for name in loader.get_keys():
            yield buffers.get_tensor(name)
        buffers.close()
        loader.close()

    return tensors


def runai(directory, files):
    from runai_model_streamer import SafetensorsStreamer

    def tensors():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files)
            for _, tensor in streamer.get_tensors():
                yield tensor

    return tensors


def transformers(directory, files):
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(directory)
    model_class = getattr(transformers, (config.architectures or ["AutoModel"])[0])

    def tensors():
        model = model_class.from_pretrained(directory, dtype="auto")
        yield from model.state_dict(keep_vars=False).values()

    return tensors


def diffusers(directory, files):
    import diffusers
    import torch
    from safetensors import safe_open

    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    with open(os.path.join(directory, "config.json")) as f:
        name = json.load(f).get("_class_name")
    if name is None:
        raise ValueError("config.json has no _class_name")
    model_class = getattr(diffusers, name)
    with safe_open(files[0], framework="pt") as f:
        kind = f.get_slice(next(iter(f.keys()))).get_dtype()
    # The default would cast to float32, and there is no "auto".
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)

    def tensors():
        model = model_class.from_pretrained(directory, torch_dtype=dtype)
        yield from model.state_dict(keep_vars=False).values()

    return tensors


# Name: (loader, its package, other packages it needs). A loader does its imports and returns
# a function that yields all tensors, which is timed.
LOADERS = {
    "load_file": (load_file, "safetensors", [ARRAYS]),
    "safe_open": (safe_open, "safetensors", [ARRAYS]),
    "fastsafetensors": (fastsafetensors, "fastsafetensors", ["torch"]),
    "runai": (runai, "runai-model-streamer", ["torch", "numpy"]),
    "transformers": (transformers, "transformers", ["torch", "safetensors"]),
    "diffusers": (diffusers, "diffusers", ["torch", "safetensors", "accelerate"]),
    "fstfs": (fstfs, "fstfs", ["torch"]),
}


def missing(packages):
    """Why a loader is unavailable; None if it is available."""
    for package in packages:
        if not is_installed(package):
            also = "torch and no " if package == "numpy" and ARRAYS == "numpy" else ""
            return f"{sys.executable} has no {also}{package}"
    return None


def listed(name):
    _, package, others = LOADERS[name]
    why = missing([package, *others])
    text = name
    if why is None:
        text = f"{name} (NumPy)" if ARRAYS in others and ARRAYS == "numpy" else name
        version = f"{package} {version_of(package)}".rstrip()
        text = version if text == package else f"{text}, {version}"
    return {"name": name, "text": text, "missing": why}


def touched(tensor):
    """(checksum, bytes) of one tensor."""
    if ARRAYS == "numpy":
        flat = tensor.reshape(-1).view("u1")
        one = flat[::PAGE].sum(dtype="i8")
    else:
        import torch

        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        one = flat[::PAGE].sum(dtype=torch.int64)
    return (int(one) + int(flat[-1]), len(flat)) if len(flat) else (0, 0)


def run(name, directory, files):
    """Loads once. `sum` is None for models, which may cast or tie tensors."""
    importlib.import_module(ARRAYS)  # otherwise imported while the clock runs
    if ARRAYS == "numpy" and is_installed("ml_dtypes"):
        importlib.import_module("ml_dtypes")  # adds bfloat16 and float8 to NumPy
    tensors = LOADERS[name][0](directory, files)
    total = size = 0
    held = []  # keeps the model in memory, as a user of it does
    begin = time.monotonic()
    for tensor in tensors():
        one, length = touched(tensor)
        total += one
        size += length
        if name != "runai":  # which reuses the buffer of its tensors
            held.append(tensor)
    seconds = time.monotonic() - begin
    is_model = name in ("transformers", "diffusers")
    return {"seconds": seconds, "bytes": size, "sum": None if is_model else total}


def main():
    if sys.argv[1] == "list":
        answer = {"python": sys.executable, "loaders": [listed(name) for name in LOADERS]}
    else:
        answer = run(sys.argv[2], sys.argv[3], sys.argv[4:])
    # Packages may have printed an unfinished line.
    print("\n" + json.dumps(answer), flush=True)


try:
    main()
except Exception as error:
    print("\n!" + f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
    os._exit(1)
os._exit(0)  # skips freeing the model
