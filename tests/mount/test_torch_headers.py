# SPDX-License-Identifier: Apache-2.0
"""What is read of PyTorch files before a tensor is: directory, pickle and local headers."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import torchfiles  # noqa: E402

COUNT, SHAPE = 300, (1024, 4096)  # 8 MiB each


def read_by(pid):
    """Bytes that read(2) and its variants returned to a process."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["rchar"])


def use_names(m):
    for view in ("tensors", "npy", "merged", "shards"):
        for folder, _, names in os.walk(m / view):
            for name in names:
                os.close(os.open(os.path.join(folder, name), os.O_RDONLY))
                os.stat(os.path.join(folder, name))


def test_only_headers_are_read(mount, place):
    """Listing, stat and open of every file of a mount read no tensor."""
    (place / "s").mkdir()
    path = place / "s/pytorch_model.bin"
    torchfiles.write_sparse(path, [(f"layers.{i}.weight", SHAPE) for i in range(COUNT)])
    m = mount(place / "s")
    before = read_by(m.pid)
    use_names(m)
    requests = read_by(m.pid)  # also of /dev/fuse
    assert len(os.listdir(m / "tensors/model")) == COUNT
    assert os.stat(m / "merged/model.safetensors").st_size > COUNT * (8 << 20)
    assert 2 * COUNT < requests - before < 1_000_000
    assert m.metric("storage_read_bytes_total") == 0
