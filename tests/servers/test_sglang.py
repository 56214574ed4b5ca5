# SPDX-License-Identifier: Apache-2.0
"""The plugin for SGLang, on stubs with the signatures of SGLang."""

import logging
import os
import types

import pytest

torch = pytest.importorskip("torch")
import files  # noqa: E402
from python.module import fstfs  # noqa: E402, F401

from .loading import by_libfstfs, contents  # noqa: E402
from .test_vllm import replace  # noqa: E402

pytestmark = pytest.mark.usefixtures("stubs")


def register():
    import fstfs.sglang

    fstfs.sglang.register()
    fstfs.sglang.register()  # SGLang may call it again
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.apply_hooks()
    return HookRegistry._hooks


def make_loader(load_format, model_config=None, **extra):
    register()
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    config = LoadConfig(load_format, model_loader_extra_config=extra)
    return loader.get_model_loader(config, model_config)


def load(loader, path, **source):
    return by_libfstfs(lambda: contents(
        loader._get_weights_iterator(loader.Source(os.fspath(path), None, **source))))


def used():
    """The iterators of SGLang that were used."""
    from sglang.srt.model_loader import weight_utils

    return weight_utils.used


def test_load_format(model):
    path, tensors = model
    loader = make_loader("fstfs", memory=4096)
    assert load(loader, path, prefix="a.") == (
        True, {f"a.{name}": data for name, data in tensors.items()})
    assert used() == []
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES

    assert LOAD_FORMAT_CHOICES == ["auto", "safetensors", "fstfs"]


def test_load_format_by_load_model(model):
    config = types.SimpleNamespace(model_path=os.fspath(model[0]), quantization="fp8")
    loader = make_loader("fstfs", config)
    found = loader.load_model(model_config=config, device_config=None)
    assert contents(found.items()) == model[1]


def test_a_quantization_that_needs_another_loader(model):
    config = types.SimpleNamespace(model_path=os.fspath(model[0]), quantization="modelopt_fp8")
    loader = make_loader("fstfs", config)
    with pytest.raises(ValueError, match="quantization modelopt_fp8. with its ModelOptModelLoader, "
                       "which this format would bypass. Use --load-format auto"):
        loader.load_model(model_config=config, device_config=None)


def test_mistrals_own_format(model):
    path, _ = model
    (path / "params.json").write_text("{}")
    assert load(make_loader("fstfs"), path)[0]  # not such a checkpoint yet
    files.write(path / "consolidated.safetensors", files.tensors_of(["U8"], [(3,)]))
    with pytest.raises(ValueError, match="Mistral's own format"):
        load(make_loader("fstfs"), path)


@pytest.mark.parametrize("extra, message", [
    ({"num_threads": 4}, "unknown key 'num_threads'"),
    ({"memory": -1}, "memory: expected a positive number of bytes, found -1"),
    ({"device": "nvme"}, "device: device nvme is invalid"),
])
def test_wrong_options(extra, message):
    with pytest.raises(ValueError, match=f"load format fstfs: {message}"):
        make_loader("fstfs", **extra)


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("where, setting, by_us", [
    ("plain", "", False), ("plain", "1", True), ("plain", "0", False),
    ("mount", "", True), ("mount", "1", True), ("mount", "0", False)])
def test_hook(model, mount, monkeypatch, where, setting, by_us, threads):
    path, tensors = model
    if where == "mount":
        path = mount(path, "--shards=3") / "shards"
    if setting:
        monkeypatch.setenv("FSTFS_SGLANG", setting)
    loader = make_loader("auto", enable_multithread_load=threads)
    assert load(loader, path) == (by_us, tensors)
    assert used() == ([] if by_us else ["threads" if threads else "one thread"])


@pytest.mark.parametrize("where, setting, prefetched, by_us", [
    ("plain", "", True, False), ("plain", "1", False, True), ("plain", "0", True, False),
    ("mount", "", True, False), ("mount", "1", False, True), ("mount", "0", True, False)])
def test_files_are_not_read_by_sglangs_prefetch_and_by_libfstfs(
        model, mount, monkeypatch, where, setting, prefetched, by_us):
    """SGLang prefetches with --startup-weight-load-mode overlap."""
    path, tensors = model
    if where == "mount":
        path = mount(path, "--shards=3") / "shards"
    if setting:
        monkeypatch.setenv("FSTFS_SGLANG", setting)
    loader = make_loader("auto")
    shards = loader._prepare_weights(os.fspath(path), None, False)[1]
    resolved = loader.ResolvedSource(None, os.fspath(path), tuple(shards), True)
    assert loader.start_checkpoint_prefetch((resolved,), num_threads=4) == \
        (shards if prefetched else [])
    assert load(loader, path) == (by_us, tensors)
    # Without a prefetch, as when weights are updated.
    files.forget(path)
    assert load(loader, path) == (setting == "1" or (where == "mount" and not setting), tensors)


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\rb"])
def test_the_names_of_mounts_are_bytes(place, monkeypatch, name):
    """A mount of any name does not disturb loads of other files."""
    import builtins

    from fstfs._servers import on_mount

    device = os.stat(place).st_dev
    (place / "mountinfo").write_bytes(
        b"30 29 0:99999 / /mnt/%s rw,nosuid - fuse.fstfs /models ro\n"
        b"31 29 %d:%d / /mnt/other rw,nosuid - ext4 /dev/sda1 rw\n"
        % (name, os.major(device), os.minor(device)))
    real = builtins.open
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda file, *rest, **named: real(
            place / "mountinfo" if file == "/proc/self/mountinfo" else file, *rest, **named))
        assert not on_mount([place])
        text = (place / "mountinfo").read_bytes()
        (place / "mountinfo").write_bytes(text.replace(b" ext4 ", b" fuse.fstfs "))
        assert on_mount([place]) and not on_mount([place, "/proc"])
        (place / "mountinfo").unlink()
        assert not on_mount([place])


def test_a_link_into_a_mount(place, model, mount):
    path, tensors = model
    view = mount(path) / "shards"
    os.mkdir(place / "links")
    for name in os.listdir(view):
        os.symlink(f"{view}/{name}", place / "links" / name)
    assert load(make_loader("auto"), place / "links") == (True, tensors)


def test_cached_files_are_left_to_sglang(model, caplog):
    path, tensors = model
    files.remember(path)
    with caplog.at_level(logging.INFO):
        assert load(make_loader("fstfs"), path) == (False, tensors)
    assert used() == ["threads"]
    assert "the files are in the page cache" in caplog.text


def test_a_cached_file_on_a_mount_is_left_to_sglang(model, mount):
    path, tensors = model
    view = mount(path, "--shards=3") / "shards"
    files.remember(view)
    assert load(make_loader("auto"), view) == (False, tensors)


def test_a_file_that_libfstfs_refuses_is_left_to_sglang(model, caplog):
    path, _ = model
    (path / "model-00003-of-00012.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(Exception, match="header"), caplog.at_level(logging.WARNING):
        load(make_loader("fstfs"), path)
    assert "the server's own loader reads the files" in caplog.text


def test_progress_bar(model):
    load(make_loader("fstfs"), model[0])
    from sglang.srt.model_loader.weight_utils import BAR_FORMAT, tqdm

    bar, = tqdm.made
    assert bar.named == {"total": 12, "desc": "Loading safetensors checkpoint shards",
                         "disable": False, "bar_format": BAR_FORMAT, "position": 0}
    assert bar.done == 12 and bar.closed


def test_hooks_are_registered_once():
    assert {len(hooks) for hooks in register().values()} == {1}


MODEL_LOADER = "sglang.srt.model_loader"
CHANGES = {
    "another parameter": (
        f"{MODEL_LOADER}.weight_utils", "safetensors_weights_iterator",
        "(hf_weights_files, experts): pass", "has an unknown parameter experts"),
    "another iterator": (
        f"{MODEL_LOADER}.loader", "DefaultModelLoader._get_weights_iterator",
        "(self, source): return safetensors_weights_iterator(source)",
        "does not use buffered_multi_thread_safetensors_weights_iterator"),
    "classes are not accepted": (
        f"{MODEL_LOADER}.loader", "get_model_loader",
        "(load_config, model_config=None): return None", "does not accept a class"),
    "another prefetch": (
        f"{MODEL_LOADER}.loader", "DefaultModelLoader.start_checkpoint_prefetch",
        "(sources, num_threads): pass", "has no parameter resolved_sources"),
    "another hook": (
        "sglang.srt.plugins.hook_registry", "HookRegistry.register", "(cls, target): pass",
        "has no parameter hook"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_server(change, caplog):
    """One line is logged, and SGLang works as without the plugin."""
    module, name, text, message = CHANGES[change]
    replace(module, name, text)
    import fstfs.sglang

    with caplog.at_level(logging.WARNING):
        fstfs.sglang.register()
    line, = caplog.records
    assert message in line.getMessage()
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES

    assert not HookRegistry._hooks and "fstfs" not in LOAD_FORMAT_CHOICES


def test_a_removed_name(caplog):
    from sglang.srt.model_loader import weight_utils

    del weight_utils.BAR_FORMAT
    import fstfs.sglang

    with caplog.at_level(logging.WARNING):
        fstfs.sglang.register()
    assert "weight_utils has no BAR_FORMAT" in caplog.text
