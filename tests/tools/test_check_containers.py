# SPDX-License-Identifier: Apache-2.0
"""fstfs-check on files of torch.save() and GGUF files."""

import sys
from pathlib import Path

import pytest
from test_check import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import gguffiles  # noqa: E402
from torchfiles import Call, Global, archive, legacy, storage, tensor  # noqa: E402

ONE = {"w": tensor(storage("0", 2), (2,))}
SOUND = {"pytorch_model.bin": archive(ONE, {"0": b"12345678"}), "old.pt": legacy(ONE, {"0": (2, b"12345678")}),
         "llama.gguf": gguffiles.gguf([gguffiles.W])}


@pytest.mark.parametrize("name", SOUND)
def test_sound(tmp_path, name):
    (tmp_path / name).write_bytes(SOUND[name])
    for path in (tmp_path / name, tmp_path):
        lines, err = run(path)
        assert lines == []
        assert err.startswith("sound: 1 file, 1 tensor, ")


def test_directory_of_all(tmp_path):
    """Files that are no checkpoints are passed over in a directory, and a finding when they are named."""
    for name, content in SOUND.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "scheduler.bin").write_bytes(archive({"step": 3}, {}))
    (tmp_path / "vocab.bin").write_bytes(b"no pickle")
    assert run(tmp_path)[0] == []
    assert run(tmp_path / "scheduler.bin", status=1)[0] == [f"{tmp_path}/scheduler.bin: no checkpoint: NoTensors: there is no tensor in it"]
    [line] = run(tmp_path / "vocab.bin", status=1)[0]
    assert line.startswith(f"{tmp_path}/vocab.bin: no checkpoint: NotTorch: ")


def test_refused(tmp_path):
    cases = [("model.bin", rule, content) for name, rule, content in bad_torch.CASES if name in ("cut-off", "two-ends", "old-cut-storage", "nested-bomb")]
    cases += [("model.gguf", rule, content) for name, rule, content in gguffiles.BAD if name in ("alignment-3", "data-one-byte-short")]
    for name, rule, content in cases:
        (tmp_path / name).write_bytes(content)
        for path in (tmp_path / name, tmp_path):
            [line] = run(path, status=1)[0]
            assert line.startswith(f"{tmp_path}/{name}: refused: {rule}: "), line
        (tmp_path / name).unlink()


def test_tensors_that_cannot_be_safetensors(tmp_path):
    root = ONE | {"t": tensor(storage("1", 6), (2, 3), strides=(1, 2))}
    (tmp_path / "model.bin").write_bytes(archive(root, {"0": b"12345678", "1": bytes(24)}))
    [line] = run(tmp_path, status=1)[0]
    assert line.startswith(f'{tmp_path}/model.bin: 1 of 2 tensors cannot be stored as safetensors; the first is tensor "t": it is not contiguous'), line


def test_imports(tmp_path):
    """What loading would import is a finding, also of a file without tensors, and runs nothing."""
    made = tmp_path / "made"
    evil = Call(Global("os", "system"), f"touch {made}")
    many = [Call(Global("pkg", f"f{i}")) for i in range(12)]
    for root, count in ((ONE | {"x": evil}, 1), ({"x": evil}, 1), (ONE | {"x": many}, 12)):
        (tmp_path / "training_args.bin").write_bytes(archive(root, {"0": b"12345678"}))
        [line] = run(tmp_path, status=1)[0]
        assert "its pickle imports " in line and ("os.system" in line) == (count == 1)
        assert (" and 4 more," in line) == (count == 12)
        assert not made.exists()
