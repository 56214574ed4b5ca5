# SPDX-License-Identifier: Apache-2.0
"""The cache of a training run: 10,000 small checkpoints, read by a DataLoader in random order."""

import os

import pytest

torch = pytest.importorskip("torch")
from conftest import SLOW, child  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from .loading import TRIES, evict, load, load_bare  # noqa: E402

COUNT = 10_000


class Latents(torch.utils.data.Dataset):
    def __init__(self, directory):
        self.paths = sorted(entry.path for entry in os.scandir(directory))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return load_file(self.paths[i])


def tensors_of(i):
    return {"latent": torch.arange(16 * 16, dtype=torch.float32).reshape(4, 8, 8) + i,
            "prompt": torch.full((77,), i, dtype=torch.int64)}


def epoch(directory):
    """Sums over all samples, weighted by their index, and their number."""
    torch.manual_seed(5)
    samples = torch.utils.data.DataLoader(Latents(directory), batch_size=50, shuffle=True,
                                          num_workers=4)
    latents, prompts, seen = 0, 0, []
    for batch in samples:
        latents += batch["latent"].double().sum(0)
        prompts += batch["prompt"].sum(0)
        seen.append(batch["prompt"][:, 0])
    seen = torch.cat(seen)
    assert sorted(seen.tolist()) == list(range(COUNT)) and seen[:3].tolist() != [0, 1, 2]
    return {"latents": latents, "prompts": prompts, "order": seen}


@pytest.fixture(scope="module")
def latents(shared_place):
    root = shared_place / "latents"
    (root / "cache").mkdir(parents=True)

    def write():
        torch.set_num_threads(1)
        for i in range(COUNT):
            save_file(tensors_of(i), root / f"cache/latent_{i:05}.safetensors")

    child(write, seconds=100)
    return root


@pytest.mark.limit(200)
@pytest.mark.parametrize("view", ["shards", "merged"])
def test_epoch(mount, latents, view):
    """All samples arrive in the same order as from the source, and each file is read once."""
    want = load_bare(epoch, latents / "cache", seconds=100)
    size = sum(entry.stat().st_size for entry in os.scandir(latents / "cache"))
    seen = []
    # the kernel may evict a page before its use; it is then read again
    while not seen or (seen[-1][0] > COUNT and len(seen) < TRIES):
        evict(latents)
        m = mount(latents, limit=200 * SLOW)
        assert load(epoch, m / f"{view}/cache", seconds=100) == want
        metrics = m.metrics()
        seen.append((metrics["fstfs_storage_reads_total"],
                     metrics["fstfs_storage_read_bytes_total"]))
        m.unmount()
    reads, read = seen[-1]
    assert reads == COUNT, seen
    assert size <= read <= size + COUNT * 4096
