# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the documentation.

A block of code whose first word is a command has a mark above it, an invisible comment:

    <!-- run -->                  run by the shell; if lines begin with "$ ", only those, and the
                                  others are their output, of which names are compared
    <!-- run: OPTION -->          with that option at the end of each line
    <!-- run as Python -->
    <!-- run by FILE -->          run by that script (tests/package/recipe)
    <!-- not run: WHY -->         skipped, with this reason

A page may have one mark for all blocks: <!-- commands of this page are not run: WHY -->. Paths are
replaced: /models contains a small model, a sparse one for fstfs-bench, or a Hugging Face cache, like
~/.cache; /mnt/tensors is mounted if a block uses it and does not mount it.

The examples of man pages have a mark as a comment (.\\" run) and are run one at a time.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILD, ROOT, SLOW, eventually, mounted_at
from corpus import trees

COMMANDS = re.compile(r"(\$ )?(sudo |python3? |pip |git |cc |meson |ninja |tools/|tests/|fstfs"
                      r"|libfstfs|fusermount3|mount |umount |systemctl |getfattr |vllm |apt|dpkg"
                      r"|docker |podman |kubectl |cp |cat |ls )")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md",
         *sorted((ROOT / "docs").glob("*.md"))]
REVISION = "0123456789" * 4
MANUAL = sorted(page for page in (ROOT / "man").iterdir() if page.suffix in (".1", ".8"))


# Imports of the examples in Python, and checks of their results.
IMPORTS = {"ml_dtypes": "import ml_dtypes", "np": "import numpy as np",
           "snapshot_download": "from huggingface_hub import snapshot_download"}
CHECKS = {"weight": "assert weight.size == 96 * 64",
          "path": "assert open(f'{path}/model.safetensors', 'rb').read(8)"}


class Block:
    def __init__(self, page, number, lines, mark):
        self.page, self.lines, self.mark = page, lines, mark
        self.name = f"{page.name}:{number}"


def blocks_of(page):
    """Returns the blocks of commands, each with its mark or None."""
    lines = page.read_text().splitlines()
    everywhere = re.search(r"^<!-- commands of this page are (not run: .*) -->$",
                           "\n".join(lines[:5]), re.MULTILINE)
    mark, block = None, None
    for number, line in enumerate([*lines, ""], 1):
        inside = line.startswith("    ") and (block or not lines[number - 2].strip())
        if inside:
            block = block or Block(page, number, [], mark)
            block.lines.append(line[4:])
        elif block:
            if COMMANDS.match(block.lines[0]) or block.mark:
                block.mark = block.mark or (everywhere and everywhere[1])
                yield block
            mark = block = None
        if found := re.fullmatch(r"<!-- ((?:not )?run\b.*) -->", line):
            mark = found[1]
        elif line.strip() and not inside:
            mark = None


def examples_of(page):
    """Returns the lines of the examples, each as a block."""
    lines = page.read_text().splitlines()
    first, last = lines.index(".EX", lines.index(".SH EXAMPLES")) + 1, lines.index(".EE")
    found = re.fullmatch(r'\.\\" ((?:not )?run\b.*)', lines[first - 2])
    for number, line in enumerate(lines[first:last], first + 1):
        plain = line.replace("\\-", "-").replace("\\(aq", "'")
        yield Block(page, number, [plain], found and found[1])


BLOCKS = [block for page in PAGES if page.exists() for block in blocks_of(page)]
BLOCKS += [block for page in MANUAL for block in examples_of(page)]


def test_every_block_has_a_mark():
    assert [block.name for block in BLOCKS if not block.mark] == []
    assert sum(block.mark.startswith("run") for block in BLOCKS) >= 5


def make_models(root):
    source = trees.Source(root)
    tensors = [trees.tensor("lm_head.weight", "BF16", (96, 64)),
               trees.tensor("norm", "BF16", (2048,))]
    source.add("llama", "model", tensors, shards=2, metadata={"format": "pt"})
    source.add_side("llama/config.json", b"{}")
    source.add("llava", "model", [*tensors, trees.tensor("vision_tower.w", "BF16", (9,))])


def make_cached_model(cache):
    """org/llama with the layout of huggingface_hub."""
    model = cache / "models--org--llama"
    source = trees.Source(model / f"snapshots/{REVISION}")
    source.add("", "model", [trees.tensor("w", "BF16", (96,))], metadata={"format": "pt"})
    source.add_side("config.json", b"{}")
    (model / "refs").mkdir()
    (model / "refs/main").write_text(REVISION)


def make_large_models(root):
    (root / "llama").mkdir(parents=True)
    trees.write_sparse(root / "llama/model.safetensors", [("t", "U8", [256 << 20], 256 << 20)])


def test_scripts_run_commands_of_the_pages():
    for block in BLOCKS:
        if found := re.fullmatch("run by (.*)", block.mark or ""):
            calls = re.findall(r"recipe\"? (\S+) '([^']+)'", (ROOT / found[1]).read_text())
            assert any(ROOT / page == block.page and words in "\n".join(block.lines)
                       for page, words in calls), block.name


@pytest.fixture
def sandbox(place):
    """Returns ({path in the pages: path here}, environment); models are created by the test."""
    make_cached_model(place / "home/.cache/huggingface/hub")
    (place / "home/models").symlink_to(place / "models")
    for name in ("weight", "bias"):
        np.save(place / f"{name}.npy", np.zeros(9, "f4"))
    (place / "mnt").mkdir()
    mounted = {f"/mnt/{name}": str(place / "mnt") for name in ("tensors", "models")}
    return mounted | {"/models": str(place / "models")}, {
        **os.environ, "HOME": str(place / "home"), "PATH": f"{BUILD}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src/python"),
        "FSTFS_LIBRARY": str(BUILD / "src/client/libfstfs.so.0")}


def moved(text, paths):
    for there, here in paths.items():
        text = re.sub(rf"(?<![\w./~-]){there}(?=[/\s\"']|$)", here, text)
    return text


def may_allow_other():
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        lines = []
    return os.geteuid() == 0 or "user_allow_other" in lines


def run_block(block, paths, environment, place):
    text = moved("\n".join(block.lines), paths)
    if block.mark == "run as Python":
        names = re.findall(r"\b(ml_dtypes|np|snapshot_download)\b", text)
        script = "\n".join([*sorted({IMPORTS[name] for name in names}), text, *(
            check for name, check in CHECKS.items() if re.search(rf"^{name} =", text, re.MULTILINE))])
        command, output = [sys.executable, "-c", script], []
    else:
        lines = text.splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
        output = [line for line in lines if typed is not lines and not line.startswith("$ ")]
        option = block.mark.partition(": ")[2]
        script = "\n".join(re.sub(r"\s+# .*", "", line) + f" {option}" for line in typed)
        command = ["sh", "-euc", script]
    done = subprocess.run(command, cwd=place, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300 * SLOW)
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    for line in output:
        assert re.split("[=:]", line)[0] in done.stdout, (line, done.stdout)


@pytest.mark.limit(300)
@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_commands(fstfs, sandbox, place, block, request):
    if not block.mark or block.mark.startswith("not run: "):
        pytest.skip((block.mark or "not run: no mark")[len("not run: "):])
    if block.mark.startswith("run by "):
        pytest.skip(f"tools/fresh runs it: {block.mark[len('run by '):]}")
    paths, environment = sandbox
    text = "\n".join(block.lines)
    for program in re.findall(r"^(?:\$ )?(\w+)", text, re.MULTILINE):
        if program == "getfattr" and not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if block.mark == "run as Python":
        for module in ("ml_dtypes", "huggingface_hub"):
            pytest.importorskip(module, reason=f"{module} is not installed")
    if "-o allow_other" in text and not may_allow_other():
        pytest.skip("not root, and no user_allow_other in /etc/fuse.conf")
    (make_large_models if "fstfs-bench" in text else make_models)(place / "models")
    if "snapshot_download" in text:
        make_cached_model(place / "models")
    if " llama.safetensors ~/" in text:  # created by the previous example
        trees.Source(place).add("", "llama", [trees.tensor("w", "BF16", (96,))])
    point = paths["/mnt/tensors"]
    try:
        if "/mnt/tensors" in text and not re.search(r"^fstfs ", text, re.MULTILINE):
            subprocess.run([fstfs, paths["/models"], point], check=True)
        run_block(block, paths, environment, place)
    finally:
        if mounted_at(point):
            subprocess.run(["fusermount3", "-u", point], check=True)
        assert eventually(lambda: not mounted_at(point))


def links_of(page):
    return re.findall(r"\]\((?!http)([^)#]+)", page.read_text())


def test_links():
    broken = [f"{page.name}: {link}" for page in PAGES if page.exists()
              for link in links_of(page) if not (page.parent / link).exists()]
    assert broken == []


def test_named_files_exist():
    """`tests/...`, `tools/...` and `src/...` in the text, except build outputs."""
    name_of_file = re.compile(r"`((?:tests|tools|src|data|include)/[\w./-]+)")
    missing = [f"{page.name}: {name}" for page in PAGES if page.exists()
               for name in name_of_file.findall(page.read_text()) if not (ROOT / name).exists()]
    assert missing == []


def test_figure_matches_table():
    drawn = re.findall(r"<title>(.*?): ([\d.]+), ([\d.]+)</title>",
                       (ROOT / "docs/cold-loads.svg").read_text())
    assert len(drawn) == 8
    table = (ROOT / "docs/performance.md").read_text()
    for name, bare, through in drawn:
        assert f"\n| {name} | {bare}, {through} |" in table, name


def test_latency_figure_matches_table():
    """Draws the figure again."""
    drawn = subprocess.run([sys.executable, "-B", ROOT / "tests/bench/chart.py",
                            ROOT / "docs/performance.md"],
                           check=True, capture_output=True, text=True).stdout
    assert drawn.count("<polyline") == 5
    assert drawn == (ROOT / "docs/latency.svg").read_text()
