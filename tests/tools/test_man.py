# SPDX-License-Identifier: Apache-2.0
"""The man pages compared with --help, the header of the library, and a mount."""

import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT
from corpus import trees

MAN = ROOT / "man"
PAGES = sorted(page.name for page in MAN.iterdir())
PROGRAMS = ["fstfs", "fstfs-bench", "fstfs-cache", "fstfs-check", "fstfs-pack",
            "fstfs-top"]


def test_page_for_each_program():
    assert set(PAGES) >= {f"{name}.1" for name in PROGRAMS} | {"fstfs.5", "libfstfs.3"}
    installed = re.findall(r"'man/([^']+)'", (ROOT / "meson.build").read_text())
    assert sorted(installed) == PAGES


def plain(page):
    """Returns the page without font macros and quotes."""
    text = re.sub(r"^\.(BR|BI|IB|IR|RI|RB|B|I) ", "", page, flags=re.MULTILINE)
    return re.sub(r"\\f[BIR]|\"", "", text).replace("\\-", "-")


def options_of_page(name):
    """Returns {option: whether it takes a value} of the option lists (.TP)."""
    page = plain((MAN / f"{name}.1").read_text())
    section = page[page.index(".SH OPTIONS"):page.index(".SH EXIT STATUS")]
    heads = re.findall(r"^\.TP\n(-.*)$", section, re.MULTILINE)
    return {option: bool(value) for head in heads
            for option, value in re.findall(r"(?<![\w-])(--?[A-Za-z][a-z-]*)(=?)", head)}


def options_of_help(name):
    output = subprocess.run([BUILD / name, "--help"], capture_output=True, text=True,
                            check=True).stdout
    found = {}
    # all text is searched; examples contain no other options
    for option, value in re.findall(r"(?<![\w-])(--?[A-Za-z][a-z-]*)(=?)", output):
        found[option] = found.get(option, False) or bool(value)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_options(name):
    page, usage = options_of_page(name), options_of_help(name)
    usage.pop("-u", None)  # fusermount3's
    assert page == usage


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples(name):
    output = subprocess.run([BUILD / name, "--help"], capture_output=True, text=True,
                            check=True).stdout
    shown = output.partition("Examples:\n")[2].splitlines()
    page = plain((MAN / f"{name}.1").read_text()).replace("\\(aq", "'")
    first = page.index(".EX\n", page.index(".SH EXAMPLES")) + len(".EX\n")
    lines = page[first:page.rindex(".EE")].splitlines()
    assert [line.partition(" # ")[0].strip() for line in shown] in (lines, [])
    assert shown or name == "fstfs"  # without examples in --help


@pytest.mark.parametrize("name", PROGRAMS)
def test_version_and_exit_statuses(name):
    output = subprocess.run([BUILD / name, "-V"], capture_output=True, text=True, check=True).stdout
    page = (MAN / f"{name}.1").read_text()
    assert f'"fstfs {output.split()[1]}"' in page.splitlines()[1]
    assert ".SH EXIT STATUS" in page and ".SH EXAMPLES" in page


def test_functions_of_the_library():
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/fstfs.h").read_text(), flags=re.DOTALL)
    functions = set(re.findall(r"\b(fstfs_\w+)\(", header))
    page = plain((MAN / "libfstfs.3").read_text())
    shown = page[:page.index(".SH DESCRIPTION")]
    assert set(re.findall(r"\b(fstfs_\w+)\(", shown)) == functions
    example = page[page.index(".SH EXAMPLES"):]
    assert set(re.findall(r"\b(fstfs_\w+)\(", example)) <= functions


def test_example_of_the_library(place):
    page = (MAN / "libfstfs.3").read_text()
    code = page[page.index(".EX\n") + 4:page.index(".EE")].replace("\\-", "-")
    declarations, statements = code.split("\n\n", 1)
    (place / "example.c").write_text(
        "#include <err.h>\n#include <fstfs.h>\n#include <stdlib.h>\n"
        f"int main(void)\n{{\n{declarations}\n{statements}return 0;\n}}\n")
    done = subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                           f"-I{ROOT}/include", place / "example.c"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tree_and_status(mount, place):
    source = trees.Source(place / "models")
    source.add("llama", "model", [trees.tensor("w", "F32", (3, 5))], shards=1)
    m = mount(source.root, "--shards=1")
    page = plain((MAN / "fstfs.5").read_text())
    assert set(os.listdir(m.path)) == set(re.findall(r"^(\w+)/DIRECTORY", page, re.MULTILINE)) | {
        ".fstfs"}
    assert set(os.listdir(m / ".fstfs")) == set(re.findall(r"^\.fstfs/(\w+)$", page,
                                                           re.MULTILINE))
    documented = set(re.findall(r"^(user\.\S+)$", page, re.MULTILINE))
    seen = {name for path in ("tensors/llama/model/w", "merged/llama/model.safetensors")
            for name in os.listxattr(m / path)}
    assert seen == documented
    status = page[page.index(".SH STATUS"):page.index(".SH SEE ALSO")]
    keys = set(re.findall(r"^\.TP\n(.*)$", status, re.MULTILINE))
    keys = {key for line in keys for key in line.replace(" ", "").split(",")}
    assert set(m.status()) == keys - {"shard_size"}


@pytest.mark.parametrize("page", PAGES)
def test_page_is_valid(page):
    tools = {"mandoc": ["mandoc", "-T", "lint", "-W", "style"],
             "man": ["man", "--warnings", "-E", "UTF-8", "-l"]}
    if not any(map(shutil.which, tools)):
        pytest.skip("neither mandoc nor man is installed")
    for command in tools.values():
        if shutil.which(command[0]):
            done = subprocess.run([*command, MAN / page], capture_output=True, text=True,
                                  env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
            output = done.stderr + (done.stdout if command[0] == "mandoc" else "")
            assert output == "", output
