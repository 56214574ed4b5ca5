# SPDX-License-Identifier: Apache-2.0
"""The Python module with each interpreter that pyproject.toml allows and this machine has."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, SANITIZED, SLOW

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]
# Needs nothing that pip would install: NumPy is not installed in most of them.
PROGRAM = """
import json, os, sys
import fstfs, fstfs.doctor, fstfs.sglang, fstfs.vllm
from fstfs._library import Opened

with fstfs.mount(sys.argv[1], options="noexec", shards=1) as mount:
    path = os.path.join(mount.checkpoint(view="merged"), "model.safetensors")
    info, = Opened(path).infos()
    print(json.dumps([sys.version_info[:2], info.name, info.dtype, info.shape]))
assert not os.path.exists(mount.path)
"""


def find(version):
    """The path of an interpreter: in PATH, or the newest that pyenv has. None: there is none. A shim
    of pyenv runs only the versions that are selected, so it is asked."""
    found = shutil.which(f"python{version}")
    more = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for path in [sys.executable, *([found] if found else []), *more]:
        result = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
                                capture_output=True, text=True)
        if result.stdout.strip() == version:
            return path
    return None


@pytest.mark.skipif(SANITIZED, reason="a sanitized library cannot be loaded into Python")
@pytest.mark.parametrize("version", VERSIONS)
def test_interpreter(place, version):
    python = find(version)
    if python is None:
        pytest.skip(f"python{version} is not installed")
    (place / "model").mkdir()
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    (place / "model/model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(12))
    result = subprocess.run(
        [python, "-B", "-W", "error", "-c", PROGRAM, place / "model"], capture_output=True,
        text=True, timeout=60 * SLOW, cwd=place,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT / "src/python"),
             "PATH": f"{BUILD}:{os.environ['PATH']}",
             "FSTFS_LIBRARY": os.fspath(BUILD / "src/client/libfstfs.so.0")})
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found == [list(map(int, version.split("."))), "a", "BF16", [2, 3]]
