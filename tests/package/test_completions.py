# SPDX-License-Identifier: Apache-2.0
"""The completions offer exactly the options of each program's --help."""

import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

PROGRAMS = ["fstfs", "fstfs-bench", "fstfs-cache", "fstfs-check", "fstfs-pack",
            "fstfs-top"]
BASH = ROOT / "data/completions/bash"
ZSH = ROOT / "data/completions/zsh"

# Prints the completions of bash for a line of words, the last of which is incomplete.
ASK_BASH = r"""
source "$1"
shift
compopt() { :; }
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
function=$(complete -p "$1")
function=${function#*-F }
"${function%% *}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def help_of(program):
    text = subprocess.run([BUILD / program, "--help"], capture_output=True, text=True,
                          check=True).stdout
    return "\n".join(line for line in text.splitlines() if "fusermount3" not in line)


def options_in(text):
    """The options in --help; those that take a value end in "="."""
    found = re.findall(r"(?<![\w-])(--[a-z][a-z-]*=?|-[a-zA-Z](?![\w-]))", text)
    return {option for option in found if option + "=" not in found}


def choices_in(text):
    """{option: its alternatives, if --help lists them after "="}."""
    return {option: set(words.split("|"))
            for option, words in
            re.findall(r"^ +(--[a-z-]+)=([a-z]+(?:\|[a-z]+)*)(?=\s)", text, re.MULTILINE)}


def offered_by_bash(program, *words):
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    done = subprocess.run(["bash", "--norc", "-c", ASK_BASH, "bash", BASH / program, program,
                           *words], capture_output=True, text=True, check=True)
    assert not done.stderr
    return set(done.stdout.split())


def specs_of_zsh(program):
    """The specs that the function passes to _arguments, parsed by zsh."""
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    done = subprocess.run(["zsh", "-f", "-c", '_arguments() { print -rl -- "$@" }; source "$1"',
                           "zsh", ZSH / f"_{program}"], capture_output=True, text=True, check=True)
    assert not done.stderr
    first, *specs = done.stdout.splitlines()
    assert first == "-S"
    return specs


@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_options(program):
    assert offered_by_bash(program, "-") == options_in(help_of(program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_options(program):
    found = set()
    for spec in specs_of_zsh(program):
        option = re.match(r"(?:\([^)]*\))?\*?(-[\w-]+?=?)-?\[", spec)
        if option:
            found.add(option[1])
        else:
            assert re.match(r"[12*]:", spec), spec
    assert found == options_in(help_of(program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_choices(program):
    """--io=auto|threads offers both, in both shells, when the = or a space is typed
    and after a letter."""
    zsh = {}
    for spec in specs_of_zsh(program):
        choice = re.match(r"(?:\([^)]*\))?(--[\w-]+)=\[.*:\(([a-z ]+)\)$", spec)
        if choice:
            zsh[choice[1]] = set(choice[2].split())
    choices = choices_in(help_of(program))
    assert program != "fstfs" or len(choices) >= 5
    for option, words in choices.items():
        assert zsh[option] == words
        assert offered_by_bash(program, option, "=") == words
        some = min(words)
        assert some in offered_by_bash(program, option, "=", some[0])
        assert offered_by_bash(program, option, "") == words
        assert some in offered_by_bash(program, option, some[0])


def test_views():
    """The names of views are in the description of --view."""
    line, = [line for line in help_of("fstfs").splitlines() if "--view=" in line]
    views = set(re.split(r", | or ", line.split(": ")[1]))
    assert offered_by_bash("fstfs", "--view", "=") == views
    spec, = [spec for spec in specs_of_zsh("fstfs") if spec.startswith("--view")]
    assert set(re.search(r":\((.*)\)$", spec)[1].split()) == views


def test_methods():
    """All methods of fstfs-bench are offered, also after a comma."""
    methods = offered_by_bash("fstfs-bench", "--methods", "=")
    text = help_of("fstfs-bench")
    assert "direct" in methods and all(re.search(rf"\b{name}\b", text) for name in methods)
    spec, = [spec for spec in specs_of_zsh("fstfs-bench") if spec.startswith("--methods")]
    assert set(spec.split(" method ")[1].split()) == methods
    assert offered_by_bash("fstfs-bench", "--methods", "=", "direct,re") == {"direct,read"}


def test_paths(place, monkeypatch):
    """Directories for fstfs; any file for the other programs, also after --hashes=."""
    (place / "directory").mkdir()
    (place / "file.safetensors").touch()
    monkeypatch.chdir(place)
    everything = {"directory", "file.safetensors"}
    assert offered_by_bash("fstfs", "") == {"directory"}
    assert offered_by_bash("fstfs-check", "") == everything
    assert offered_by_bash("fstfs-cache", "") == everything
    assert offered_by_bash("fstfs-check", "--hashes", "=") == everything
    assert offered_by_bash("fstfs-pack", "f") == {"file.safetensors"}
    assert offered_by_bash("fstfs-pack", "--stem", "=", "f") == set()
    assert offered_by_bash("fstfs-bench", "--svg", "=", "f") == {"file.safetensors"}
    assert offered_by_bash("fstfs-bench", "--rounds", "=") == set()
    assert offered_by_bash("fstfs-top", "") == {"directory"}
    assert offered_by_bash("fstfs-top", "--interval", "=") == set()
    # a number, a size or a name is the next word
    for program, options in {"fstfs": ["--shards", "--shard-size", "--memory", "--queue-depth",
                                       "--threads"],
                             "fstfs-pack": ["--max-shard-size", "--shards", "--stem", "--pick",
                                            "--drop"],
                             "fstfs-bench": ["--rounds"], "fstfs-top": ["--interval"],
                             "fstfs-cache": ["--tensors", "--memory"]}.items():
        for option in options:
            assert offered_by_bash(program, option, "") == set(), option
