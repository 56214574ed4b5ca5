# SPDX-License-Identifier: Apache-2.0
"""The files of `meson install`, and building a program with them."""

import json
import os
import re
import shutil
import stat
import subprocess

import pytest
from conftest import BUILD, ROOT, SANITIZED

PROGRAMS = ["fstfs", "fstfs-bench", "fstfs-cache", "fstfs-check", "fstfs-pack",
            "fstfs-top"]
VERSION = re.search(r"^  version: '([0-9.]+)',$", (ROOT / "meson.build").read_text(), re.MULTILINE)[1]

EXPECTED = {
    *(f"bin/{name}" for name in PROGRAMS),
    *(f"share/bash-completion/completions/{name}" for name in PROGRAMS),
    *(f"share/zsh/site-functions/_{name}" for name in PROGRAMS),
    *(f"share/man/man{page.suffix[1:]}/{page.name}" for page in (ROOT / "man").iterdir()),
    *(f"PYTHON/fstfs/{path.name}" for path in (ROOT / "src/python/fstfs").iterdir()
      if path.is_file()),
    "sbin/mount.fstfs",
    "include/fstfs.h",
    f"LIB/libfstfs.so.{VERSION}", "LIB/libfstfs.so.0", "LIB/libfstfs.so", "LIB/libfstfs.a",
    "LIB/pkgconfig/fstfs.pc",
    "lib/systemd/system/fstfs@.service",
}
EXECUTABLE = ("bin/", "sbin/", f"LIB/libfstfs.so.{VERSION}")


@pytest.fixture(scope="module")
def installed(shared_place):
    """(prefix in a DESTDIR, name of the library folder in it)"""
    if not shutil.which("meson"):
        pytest.skip("meson is not installed")
    done = subprocess.run(["meson", "introspect", "--buildoptions", BUILD], check=True,
                          capture_output=True, text=True)
    options = {option["name"]: option["value"] for option in json.loads(done.stdout)}
    destination = shared_place / "destination"
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", destination],
                   check=True, capture_output=True)
    return destination / options["prefix"].lstrip("/"), options["libdir"]


def test_files(installed):
    prefix, libdir = installed
    found = {}
    for path in prefix.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            name = re.sub(r"^lib/python3[.0-9]*/(site|dist)-packages/", "PYTHON/",
                          str(path.relative_to(prefix)))
            found[name.replace(f"{libdir}/", "LIB/", 1) if name.startswith(libdir) else name] = path
    assert set(found) == EXPECTED
    assert {f"share/man/man1/{name}.1" for name in PROGRAMS} < EXPECTED
    for name, path in found.items():
        if not path.is_symlink():
            mode = 0o755 if name.startswith(EXECUTABLE) else 0o644
            assert stat.S_IMODE(path.stat().st_mode) == mode, name


@pytest.mark.parametrize("options", [[], ["-Dlibdir=lib/elsewhere"]], ids=["default", "explicit"])
def test_libdir_without_dpkg_dev(place, options):
    """The multiarch folder, which the linker searches, unless -Dlibdir is given."""
    for program in ("meson", "cc"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    triplet = subprocess.run(["cc", "-print-multiarch"], capture_output=True,
                             text=True).stdout.strip()
    if not triplet:
        pytest.skip("this system has no multiarch folders")
    (place / "dpkg-architecture").write_text("#!/bin/sh\nexit 127\n")
    (place / "dpkg-architecture").chmod(0o755)
    subprocess.run(["meson", "setup", place / "build", ROOT, *options], check=True,
                   capture_output=True, env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}"})
    done = subprocess.run(["meson", "introspect", "--buildoptions", place / "build"], check=True,
                          capture_output=True, text=True)
    libdir = {option["name"]: option["value"] for option in json.loads(done.stdout)}["libdir"]
    assert libdir == ("lib/elsewhere" if options else f"lib/{triplet}")


def test_paths_in_files(installed):
    """Files name other installed files by their final paths, not in DESTDIR or a build folder."""
    prefix, libdir = installed
    where = "/" + str(prefix).split("/destination/")[1]
    assert f"ExecStart={where}/bin/fstfs -f " in \
        (prefix / "lib/systemd/system/fstfs@.service").read_text()
    assert f'"{where}/bin/fstfs" ' in (prefix / "sbin/mount.fstfs").read_text()
    assert f"prefix={where}\n" in (prefix / libdir / "pkgconfig/fstfs.pc").read_text()


@pytest.mark.skipif(SANITIZED, reason="the program would need the sanitizers' libraries too")
def test_build_a_program(installed, place):
    """pkg-config suffices to build with the shared and the static library."""
    prefix, libdir = installed
    for program in ("pkg-config", "cc"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    (place / "program.c").write_text(
        '#include <fstfs.h>\n#include <stdio.h>\n'
        'int main(void) { puts(fstfs_version()); return 0; }\n')
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/{libdir}/pkgconfig"}
    environment.pop("LD_LIBRARY_PATH", None)
    for how in ([], ["--static"]):
        flags = subprocess.run(
            ["pkg-config", f"--define-variable=prefix={prefix}", *how, "--cflags", "--libs",
             "fstfs"], check=True, capture_output=True, text=True, env=environment).stdout.split()
        if how:
            flags = ["-l:libfstfs.a" if flag == "-lfstfs" else flag for flag in flags]
        subprocess.run(["cc", place / "program.c", "-o", place / "program", *flags], check=True)
        done = subprocess.run([place / "program"], check=True, capture_output=True, text=True,
                              env={**environment, **({} if how else
                                                     {"LD_LIBRARY_PATH": f"{prefix}/{libdir}"})})
        assert done.stdout.strip() == VERSION
