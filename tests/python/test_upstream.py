# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of safetensors with the loading functions of fstfs. The tests are in the source
package of the installed version, which is fetched from PyPI and kept in the cache of tools/test."""

import hashlib
import html
import importlib.util
import http.client
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import safetensors

from conftest import HERE, SLOW

from . import module  # noqa: F401

pytest.importorskip("torch")

INDEX = "https://pypi.org/simple/safetensors/"
TESTS = ("test_simple.py", "test_pt_comparison.py", "test_pt_model.py", "test_multithreaded.py",
         "test_pread_backend.py")
# (framework, its module, its test file, least number of passed tests); those of mlx need a Mac
OTHERS = (("flax", "jax", "test_flax_comparison.py", 4),
          ("tensorflow", "tensorflow", "test_tf_comparison.py", 4),
          ("paddle", "paddle", "test_paddle_comparison.py", 6))


def get(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read()


@pytest.fixture(scope="session")
def source():
    """The folder with the tests of the Python bindings."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fstfs")
    name = f"safetensors-{safetensors.__version__}"
    archive = cache / f"{name}.tar.gz"
    if not archive.exists():
        try:
            found = re.search(
                rf'href="([^"]*/{re.escape(name)}\.tar\.gz)#sha256=([0-9a-f]{{64}})"',
                get(INDEX).decode())
            if not found:
                pytest.skip(f"PyPI has no source of {name}")
            data = get(urllib.parse.urljoin(INDEX, html.unescape(found[1])))
            assert hashlib.sha256(data).hexdigest() == found[2]
        except (OSError, http.client.HTTPException) as error:
            pytest.skip(f"the source of {name} cannot be had from PyPI: {error}")
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{name}.part"
        part.write_bytes(data)
        part.rename(archive)
    return archive, name


def run_tests(source, place, tests, least, framework=""):
    archive, name = source
    (place / "tests").mkdir()
    with tarfile.open(archive) as tar:
        for test in tests:
            with tar.extractfile(f"{name}/bindings/python/tests/{test}") as file:
                (place / "tests" / test).write_bytes(file.read())
    (place / "work/tests/data").mkdir(parents=True)  # the tests write there
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "swapped", "-q", "-rs",
         *(("-k", "not gpu") if framework else ()), place / "tests"],
        cwd=place / "work", capture_output=True, text=True, timeout=170 * SLOW,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, f"{HERE}/python"]),
             "SWAPPED_FRAMEWORK": framework})
    assert done.returncode == 0, done.stdout[-8000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


@pytest.mark.limit(180)
def test_of_safetensors(source, place):
    run_tests(source, place, TESTS, 31)


@pytest.mark.limit(180)
@pytest.mark.parametrize("framework, module, test, least", OTHERS, ids=lambda value: str(value))
def test_of_safetensors_with(source, place, framework, module, test, least):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    run_tests(source, place, [test], least, framework)
