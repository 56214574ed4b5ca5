# SPDX-License-Identifier: Apache-2.0
"""The load format fstfs of vLLM, on stubs with the signatures of vLLM."""

import importlib
import logging
import os
import re
import sys

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
import files  # noqa: E402
from python.module import fstfs  # noqa: E402, F401

from .loading import by_libfstfs, contents  # noqa: E402

pytestmark = pytest.mark.usefixtures("stubs")


def registered():
    import fstfs.vllm

    fstfs.vllm.register()
    fstfs.vllm.register()  # vLLM may call it again
    from vllm.model_executor import model_loader

    return model_loader._LOAD_FORMAT_TO_MODEL_LOADER.get("fstfs")


def make_loader(**options):
    assert registered()
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    return get_model_loader(LoadConfig(load_format="fstfs", **options))


def load(loader, path, **source):
    return by_libfstfs(lambda: contents(
        loader._get_weights_iterator(loader.Source(os.fspath(path), None, **source))))


def test_load(model):
    path, tensors = model
    assert load(make_loader(), path) == (True, tensors)


def test_a_mount(model, mount):
    path, tensors = model
    view = mount(path, "--shards=3") / "shards"
    assert load(make_loader(), view) == (True, tensors)


def test_the_files_are_in_natural_order(place):
    """vLLM's own loader uses this order, in which a later tensor replaces one of the same name."""
    os.mkdir(place / "model")
    for i in (10, 2, 1):
        files.write(place / f"model/part{i}.safetensors", files.tensors_of(["U8"], [(i,)]))
    loader = make_loader()
    names = [name for name, _ in loader._get_weights_iterator(
        loader.Source(os.fspath(place / "model"), None))]
    assert names == ["U8.1", "U8.2", "U8.10"]


def test_prefix_revision_and_subfolder(place, model):
    path, tensors = model
    os.makedirs(place / "repository/main")
    os.rename(path, place / "repository/main/text")
    loader = make_loader()
    found = contents(loader._get_weights_iterator(loader.Source(
        os.fspath(place / "repository"), "main", "text", prefix="model.")))
    assert found == {f"model.{name}": data for name, data in tensors.items()}


def test_only_local_experts_are_read(model):
    path, tensors = model
    loader = make_loader()
    loader.local_expert_ids = {1}
    assert load(loader, path) == (True, {
        name: data for name, data in tensors.items() if "experts.0" not in name})


def test_unused_shards_are_not_read(model):
    path, tensors = model
    wanted = {name: data for name, data in tensors.items() if not name.startswith("layers.0.norm")}
    unused = (set(tensors) - set(wanted)).union(
        name for name in tensors if name.startswith("layers.3.norm"))  # in the same shard
    found = load(make_loader(), path, is_unused_weight=unused.__contains__)[1]
    assert found == {name: data for name, data in tensors.items() if name not in unused}


def test_other_formats_are_left_to_vllm(place):
    os.mkdir(place / "model")
    torch.save({"a": torch.arange(7)}, place / "model/pytorch_model.bin")
    used, found = load(make_loader(), place / "model")
    assert not used and found == {"a": torch.arange(7).numpy().tobytes()}


def own_arguments(path, **options):
    """Loads, and returns the arguments of vLLM's own iterator, which must provide the result."""
    from vllm.model_executor.model_loader import weight_utils

    weight_utils.used.clear()
    loader = make_loader(**options)
    loader.local_expert_ids = {0, 1}
    result = load(loader, path)
    return weight_utils.used, result


@pytest.mark.parametrize("strategy", ["torchao", "another"])
def test_strategies_that_change_tensors_are_left_to_vllm(model, strategy):
    path, tensors = model
    used, result = own_arguments(path, safetensors_load_strategy=strategy)
    assert [arguments[1:] for arguments in used] == [(strategy, {0, 1}, 3)]
    assert result == (False, tensors)


@pytest.mark.parametrize("strategy", [None, "lazy", "eager", "prefetch"])
def test_strategies_that_do_not_change_tensors(model, strategy):
    path, tensors = model
    assert own_arguments(path, safetensors_load_strategy=strategy) == ([], (True, tensors))


def test_cached_files_are_left_to_vllm(model, caplog):
    path, tensors = model
    files.remember(path)
    with caplog.at_level(logging.INFO):
        used, result = own_arguments(path)
    assert len(used) == 1 and result == (False, tensors)
    assert "the files are in the page cache" in caplog.text


def test_one_file_is_not_cached(model):
    path, tensors = model
    files.remember(path)
    files.forget(path / "model-00005-of-00012.safetensors")
    assert own_arguments(path) == ([], (True, tensors))


def test_a_few_pages_are_not_cached(model):
    """The kernel may have reclaimed them. Reading all files again would take longer."""
    path, tensors = model
    made = files.tensors_of(["U8"], [(5,)])
    files.write(path / "small.safetensors", made)
    files.remember(path)
    files.forget(path / "small.safetensors")
    used, (by_us, found) = own_arguments(path)
    assert len(used) == 1 and not by_us and len(found) == len(tensors) + 1


def test_a_file_that_libfstfs_refuses_is_left_to_vllm(place, model, caplog):
    """vLLM then reports the error, or loads the file."""
    path, _ = model
    with open(path / "model-00003-of-00012.safetensors", "r+b") as file:
        file.truncate(9)
    with pytest.raises(Exception, match="header"), caplog.at_level(logging.WARNING):
        load(make_loader(), path)
    assert "the server's own loader reads the files" in caplog.text


@pytest.mark.parametrize("error", [AttributeError("no such dtype"), RuntimeError("no driver")])
def test_a_stream_that_torch_refuses_is_left_to_vllm(model, monkeypatch, caplog, error):
    def fails(*_):
        raise error

    path, tensors = model
    monkeypatch.setattr("fstfs._servers.Options.stream", fails)
    with caplog.at_level(logging.WARNING):
        used, result = own_arguments(path)
    assert len(used) == 1 and result == (False, tensors)
    assert f"fstfs: {error}; the server's own loader reads the files" in caplog.text


def test_an_error_after_the_first_tensor_is_raised(model, monkeypatch):
    """The server has used the first tensor, and must not load it again."""
    loader = make_loader()
    tensors = loader._get_weights_iterator(loader.Source(os.fspath(model[0]), None))
    next(tensors)

    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("fstfs._stream.Stream._finish", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        next(tensors)
    from vllm.model_executor.model_loader import weight_utils

    assert weight_utils.used == []


def test_options(model):
    path, tensors = model
    config = {"memory": 4096, "device": "cpu"}
    assert load(make_loader(model_loader_extra_config=config), path) == (True, tensors)
    assert config == {"memory": 4096, "device": "cpu"}


@pytest.mark.parametrize("extra, message", [
    ({"threads": 4}, "unknown key 'threads' .expected: device, memory."),
    ({"enable_multithread_load": True, "memory": 1}, "unknown key 'enable_multithread_load'"),
    ({"memory": "1G"}, "memory: expected a positive number of bytes, found '1G'"),
    ({"memory": 0}, "memory: expected a positive"),
    ({"memory": True}, "memory: expected a positive"),
    ({"device": "gpu"}, "device: device gpu is invalid"),
    ([], "expected an object, found list"),
])
def test_wrong_options(extra, message):
    with pytest.raises(ValueError, match=f"load format fstfs: {message}"):
        make_loader(model_loader_extra_config=extra)


def test_the_configuration_of_the_server_is_unchanged():
    from vllm.config.load import LoadConfig

    config = LoadConfig(load_format="fstfs", model_loader_extra_config={"memory": 1})
    registered()(config)
    assert (config.load_format, config.model_loader_extra_config) == ("fstfs", {"memory": 1})


def test_progress_bar(model):
    path, _ = model
    loader = make_loader(use_tqdm_on_load=False)
    load(loader, path)
    from vllm.model_executor.model_loader.weight_utils import _BAR_FORMAT, tqdm

    bar, = tqdm.made
    assert bar.named == {"total": 12, "desc": "Loading safetensors checkpoint shards",
                         "disable": True, "bar_format": _BAR_FORMAT}
    assert bar.done == 12 and bar.closed


def test_a_server_that_stops_early(model):
    loader = make_loader()
    tensors = loader._get_weights_iterator(loader.Source(os.fspath(model[0]), None))
    next(tensors)
    del tensors
    from vllm.model_executor.model_loader.weight_utils import tqdm

    assert tqdm.made[0].closed and tqdm.made[0].done < 12


def replace(module, name, text):
    """Replaces a function of a stub by one with these parameters and body."""
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    scope = {}
    exec(f"def {last}{text}", vars(importlib.import_module(module)), scope)
    setattr(owner, last, scope[last])


LOADER = "vllm.model_executor.model_loader"
CHANGES = {
    "another parameter": (
        f"{LOADER}.weight_utils", "safetensors_weights_iterator",
        "(hf_weights_files, use_tqdm_on_load, safetensors_load_strategy, local_expert_ids, ranks):"
        " pass", "safetensors_weights_iterator.. has an unknown parameter ranks"),
    "a parameter less": (
        f"{LOADER}.weight_utils", "safetensors_weights_iterator",
        "(hf_weights_files, use_tqdm_on_load, safetensors_load_strategy): pass",
        "has no parameter local_expert_ids"),
    "another iterator": (
        f"{LOADER}.default_loader", "DefaultModelLoader._get_weights_iterator",
        "(self, source): return stream(source)", "does not use safetensors_weights_iterator"),
    "another source": (
        f"{LOADER}.default_loader", "DefaultModelLoader._get_weights_iterator",
        "(self, sources): return safetensors_weights_iterator(sources)",
        "has no parameter source and an unknown parameter sources"),
    "another filter": (f"{LOADER}.ep_weight_filter", "should_skip_weight", "(name): pass",
                       "should_skip_weight"),
    "another registry": (LOADER, "register_model_loader", "(name, cls): pass",
                         "has no parameter load_format"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_server(change, caplog):
    """One line is logged, the format is not registered, and other formats work."""
    module, name, text, message = CHANGES[change]
    replace(module, name, text)
    with caplog.at_level(logging.WARNING):
        assert registered() is None
    lines = {record.getMessage() for record in caplog.records}
    assert len(lines) == 1
    assert re.search(message, lines.pop())


@pytest.mark.parametrize("missing", ["_BAR_FORMAT", "tqdm", "enable_tqdm", "_natural_sort_key"])
def test_a_removed_name(missing, caplog):
    from vllm.model_executor.model_loader import weight_utils

    delattr(weight_utils, missing)
    with caplog.at_level(logging.WARNING):
        assert registered() is None
    assert missing in caplog.text


def test_without_vllm(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm.model_executor", None)
    import fstfs.vllm

    with caplog.at_level(logging.WARNING):
        fstfs.vllm.register()
    assert "load format fstfs is not available" in caplog.text


def test_entry_points():
    """pyproject.toml names the functions that the servers call."""
    text = (ROOT / "pyproject.toml").read_text()
    found = dict(re.findall(r'\[project\.entry-points\."(.+)"\]\nfstfs = "(.+)"\n', text))
    assert found == {"vllm.general_plugins": "fstfs.vllm:register",
                     "sglang.srt.plugins": "fstfs.sglang:register"}
    for target in found.values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))
