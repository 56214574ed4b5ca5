# SPDX-License-Identifier: Apache-2.0
"""with_torch.py FOLDER MODEL [DEVICE]: the part of tests/gpu/run that needs torch.

Loads tensors of all dtypes to the device with the Python module, saves them again, and compares;
the files are in FOLDER. Then measures loads of MODEL, a safetensors file, with the module, safetensors
and fastsafetensors, as far as they are installed, cold and warm. Exits with 1 if bytes differ.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path += [os.fspath(HERE.parent / "python"), os.fspath(HERE.parents[1] / "src/python")]

import files  # noqa: E402  tests/python/files.py
import fstfs  # noqa: E402

ROUNDS = 3


def bytes_of(tensor):
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def round_trip(path, device, tensors):
    """The number of tensors that differ. Raises if torch does not support the dtype."""
    loaded = fstfs.load_file(path, device=device)
    wrong = sum(loaded[name].device.type != torch.device(device).type or
                bytes_of(loaded[name]) != data for name, (_, _, data) in tensors.items())
    with fstfs.safe_open(path, "pt", device=device) as file:
        for name, (_, shape, _) in tensors.items():
            if len(shape) != 2 or 0 in shape:
                continue
            part, whole = file.get_slice(name), loaded[name]
            wrong += bytes_of(part[1:3]) != bytes_of(whole[1:3])
            wrong += bytes_of(part[:, 2]) != bytes_of(whole[:, 2])
    try:
        from safetensors.torch import save_file
        from safetensors.torch import load_file
    except ImportError:
        return wrong
    save_file(loaded, f"{path}.saved")
    saved = load_file(f"{path}.saved")
    return wrong + sum(bytes_of(saved[name]) != data for name, (_, _, data) in tensors.items())


def round_trips(place, device):
    wrong, dtypes, without = 0, [], []
    for dtype in files.BITS:
        if dtype == "F4":  # two elements in a byte: torch cannot slice it
            continue
        tensors = files.tensors_of([dtype], files.SHAPES)
        path = place / f"{dtype}.safetensors"
        files.write(path, tensors)
        try:
            wrong += round_trip(path, device, tensors)
            dtypes.append(dtype)
        except (AttributeError, KeyError, NotImplementedError, RuntimeError,
                fstfs.SafetensorError) as error:
            without.append(f"{dtype} ({type(error).__name__})")
    print(f"torch {torch.__version__}, {device}: to it and back {' '.join(dtypes)}: "
          f"{wrong} tensors differ" + (f"; not: {', '.join(without)}" if without else ""))
    return wrong + (not dtypes)


def by_fstfs(path, device):
    return fstfs.load_file(path, device=device)


def by_safetensors(path, device):
    from safetensors.torch import load_file

    return load_file(path, device=device)


def by_fastsafetensors(path, device):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=True)
    loader.add_filenames({0: [os.fspath(path)]})
    buffers = loader.copy_files_to_device()
    return {name: buffers.get_tensor(name) for name in loader.get_keys()}, buffers, loader


LOADERS = {"fstfs, by its module": by_fstfs, "safetensors": by_safetensors,
           "fastsafetensors (without cuFile)": by_fastsafetensors}


def prepare(path, warm):
    """Reads the file into the page cache, or drops it."""
    with open(path, "rb", buffering=0) as file:
        if not warm:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while warm and file.read(1 << 22):
            continue


def seconds_of(load, path, device):
    start = time.monotonic()
    loaded = load(path, device)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.monotonic() - start
    del loaded
    if device != "cpu":
        torch.cuda.empty_cache()
    return seconds


def compare(path, device):
    loaders = {}
    for name, load in LOADERS.items():
        try:
            load(path, device)  # warm-up: imports and initialization are not timed
            loaders[name] = load
        except Exception as error:  # any error: skip this loader
            print(f"{name}: not measured: {type(error).__name__}: {error}".replace("\n", " "))
    rates = {(name, warm): [] for warm in (False, True) for name in loaders}
    for _ in range(ROUNDS):
        for name, warm in rates:
            prepare(path, warm)
            seconds = seconds_of(loaders[name], path, device)
            rates[name, warm].append(os.path.getsize(path) / seconds / 1e9)
    for (name, warm), found in rates.items():
        print(f"{name}, {'warm' if warm else 'cold'}: {statistics.median(found):.2f} GB/s "
              f"(median of {ROUNDS}; {min(found):.2f} to {max(found):.2f})")


def main():
    place, model = Path(sys.argv[1]), Path(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda:0"
    torch.zeros(1, device=device)
    wrong = round_trips(place, device)
    compare(model, device)
    return 1 if wrong else 0


sys.exit(main())
