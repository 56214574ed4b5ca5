# SPDX-License-Identifier: Apache-2.0
"""transformers, with peft and the Hugging Face cache: from_pretrained on the views."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from conftest import SLOW  # noqa: E402

from .loading import (VIEWS, at_best, check_read, compare, load, load_bare, state,  # noqa: E402
                      output_lines)



def decoder(path):
    return state(transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto"))


def decoder_as_float32(path):
    return state(transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))


def encoder(path):
    return state(transformers.AutoModelForMaskedLM.from_pretrained(path, dtype="auto"))


def headless(path):
    """Without the head: its tensor is in the file and nobody asks for it."""
    return state(transformers.AutoModel.from_pretrained(path, dtype="auto"))


def tied(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    return state(model)


def variant(path):
    return state(transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto",
                                                                   variant="fp16"))


CASES = {"decoder": (decoder, "decoder"), "single": (decoder, "decoder-single"),
         "float32": (decoder_as_float32, "decoder"), "tied": (tied, "tied"),
         "experts": (decoder, "experts"), "encoder": (encoder, "encoder"),
         "variant": (variant, "small-fp16-variant")}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", CASES)
def test_from_pretrained(mount, models, case, view):
    loader, name = CASES[case]
    compare(mount, loader, models / name, *VIEWS[view])


@pytest.mark.parametrize("view", VIEWS)
def test_without_its_head(mount, models, view):
    compare(mount, headless, models / "decoder", *VIEWS[view], whole=False)


@pytest.mark.parametrize("view", VIEWS)
def test_what_the_kernel_counts(mount, models, view):
    """The daemon's own account of what it read is the kernel's: threads read with pread, whose
    bytes /proc/PID/io has, and the requests of FUSE with them."""
    at_best(lambda: count(mount, models, *VIEWS[view]))


def count(mount, models, folder, options):
    m = mount(models / "decoder", *options, "--io=threads", "--direct=off")

    def counted():
        with open(f"/proc/{m.pid}/io") as f:
            return int(f.readline().split()[1])

    before = counted()
    assert load(decoder, m / folder) == load_bare(decoder, models / "decoder")
    read = counted() - before
    check_read(m, folder)
    metrics = m.metrics()
    reported = metrics["fstfs_storage_read_bytes_total"]
    # a header is looked for in the first 64 KiB; 64 KiB more are a thousand requests
    assert reported <= read <= reported + 65536 * (metrics["fstfs_headers_total"] + 1)


@pytest.mark.parametrize("view", VIEWS)
def test_unread_shard(mount, models, place, view):
    """While storage of a shard fails, no other weights in the directory are loaded instead."""
    slowfs = BUILD / "tests/slowfs/slowfs"
    if not slowfs.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    shutil.copytree(models / "decoder", place / "s/decoder")
    torch.save({}, place / "s/decoder/pytorch_model.bin")
    (place / "faults").write_text("open decoder/model-00001-of-* error=EIO\n")
    below = mount(place / "s", "-o", f"faults={place}/faults,valid=0", binary=slowfs)
    folder, options = VIEWS[view]
    m = mount(below.path, *options)
    # safetensors reports each error of open() as a missing file
    with pytest.raises(Exception, match="Input/output error|No such file or directory: .*safetensors"):
        load(decoder, m / f"{folder}/decoder")


@pytest.mark.parametrize("view", VIEWS)
def test_adapter(mount, models, view):
    """A LoRA adapter on its base, both through one mount."""
    peft = pytest.importorskip("peft")

    def loader(path):
        base = transformers.AutoModelForCausalLM.from_pretrained(f"{path}/base", dtype="auto")
        return state(peft.PeftModel.from_pretrained(base, f"{path}/adapter"))

    compare(mount, loader, models / "lora", *VIEWS[view])


LOAD_FROM_CACHE = """
import json, sys, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("org/decoder", dtype="auto")
from loaders.loading import fingerprints, state
print(json.dumps(sorted(fingerprints(state(model)).items())))
"""


def load_from_cache(cache):
    """(tensors, what was output): a fresh process, since HF_HUB_CACHE is read at the import."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", LOAD_FROM_CACHE], capture_output=True, text=True,
        timeout=60 * SLOW, env={**os.environ, "HF_HUB_CACHE": os.fspath(cache),
                                "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), output_lines(done.stderr, cache)


@pytest.fixture(scope="module")
def hub_cache(models, shared_place):
    """A cache as huggingface_hub leaves it: links from a snapshot to blobs."""
    cache = shared_place / "hub-cache"
    repository = cache / "models--org--decoder"
    revision = "0123456789abcdef0123456789abcdef01234567"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(revision)
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for i, path in enumerate(sorted((models / "decoder").iterdir())):
        shutil.copyfile(path, repository / f"blobs/{i:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{i:064x}")
    return cache


@pytest.mark.limit(120)
def test_hub_cache(mount, models, hub_cache):
    want = load_from_cache(hub_cache)
    assert want[0]
    shards = [os.path.basename(os.readlink(path))
              for path in hub_cache.glob("*/snapshots/*/*.safetensors")]

    def once(view, *options):
        m = mount(hub_cache, *options)
        assert load_from_cache(m / view) == want
        check_read(m, view, lambda name: name in shards or name.endswith(".safetensors"))
        m.unmount()

    for view, options in (VIEWS["merged"], VIEWS["shards"], VIEWS["recut"]):
        at_best(lambda: once(view, *options))
