# SPDX-License-Identifier: Apache-2.0
"""Fast readers of safetensors files: fastsafetensors, Run:ai Model Streamer, InstantTensor."""

import glob

import pytest

torch = pytest.importorskip("torch")

from .loading import VIEWS, compare, run_silently  # noqa: E402

NAMES = ("decoder", "experts", "encoder", "small-fp32")


def shards(path):
    found = sorted(glob.glob(f"{path}/*.safetensors"))
    assert found
    return found


def fastsafetensors_open(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(shards(path), nogds=True, device="cpu") as f:
        return {name: f.get_tensor(name).clone() for name in f.keys()}


def fastsafetensors_parallel(path):
    """As vLLM calls it."""
    from fastsafetensors import ParallelLoader, SingleGroup

    loader = ParallelLoader(SingleGroup(), shards(path), device="cpu", nogds=True,
                            use_tqdm_on_load=False)
    try:
        return {name: tensor.clone() for name, tensor in loader.iterate_weights()}
    finally:
        loader.close()


def runai(path):
    from runai_model_streamer import SafetensorsStreamer, list_safetensors

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list_safetensors(path))
        return {name: tensor.clone() for name, tensor in streamer.get_tensors()}


LOADERS = {"fastsafetensors": fastsafetensors_open,
           "fastsafetensors_parallel": fastsafetensors_parallel, "runai_model_streamer": runai}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("loader", LOADERS)
def test_load(mount, models, loader, view):
    pytest.importorskip(loader.removesuffix("_parallel"))
    for name in NAMES:
        compare(mount, LOADERS[loader], models / name, *VIEWS[view])


def test_instanttensor(mount, models):
    """InstantTensor reads to CUDA devices only. Reading headers works the same without one."""
    instanttensor = pytest.importorskip("instanttensor._impl")

    def headers(path):
        return [instanttensor.read_safetensors_metadata(shard)[:2] for shard in shards(path)]

    for name in NAMES:
        m = mount(models / name)
        want = run_silently(headers, models / name)
        assert run_silently(headers, m / "shards") == want
        (metadata, merged), = run_silently(headers, m / "merged")
        assert metadata == want[0][0]
        assert merged.keys() == {key for _, tensors in want for key in tensors}
        m.unmount()
