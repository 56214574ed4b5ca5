# SPDX-License-Identifier: Apache-2.0
"""Names with terminal escapes, line ends or bidirectional marks, wherever a source can have them:
the mount prints each on one line, in plain characters."""

import json
import os
import re
import signal

import oracle
import pytest
from conftest import child
from corpus import trees

FORGED = "\nforged: refused: no"
EVIL = ["a" + FORGED, "a\rforged: x", "\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\u009b31mred",
        "\u202egnp.x", "\u2066x\u2069", "\u200fx", "\u061cx", "\u2028x", "\u0085x", "\x7f\b\b\b",
        b"\xff\xfe\x9b".decode("utf-8", "surrogateescape"), "back\\x1bslash", "quote\"x"]
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(text):
    found = HIDDEN.search(text)
    assert not found, f"{ascii(text[max(0, found.start() - 80):found.end() + 20])}"


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def shard(name, dtype="U8", metadata=None):
    """A shard with one tensor of this name."""
    entry = {name: {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}
    if metadata:
        entry["__metadata__"] = metadata
    head = json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace")
    return len(head).to_bytes(8, "little") + head + bytes(4)


def fill(root, evil):
    """All kinds of problems of a source, with such names."""
    here = os.path.join(root, "d" + evil)
    os.mkdir(here)

    def path(name):
        return os.path.join(here, name)

    text = evil.encode("utf-8", "replace").decode()
    write(path(f"{evil}.safetensors"), b"garbage")
    write(path(f"{evil}b.safetensors"), shard(text)[:-1])
    write(path(f"{evil}n-00001-of-00003.safetensors"), shard(text))
    write(path(f"{evil}i.safetensors.index.json"), json.dumps(
        {"weight_map": {text: f"{text}-gone.safetensors"}}).encode())
    write(path(f"{evil}j.safetensors.index.json"), json.dumps(
        {"weight_map": {text: f"../{text}.safetensors"}}).encode())
    write(path(f"{evil}k.safetensors.index.json"), json.dumps({"weight_map": {text: 1}}).encode())
    write(path(f"{evil}l.safetensors.index.json"), f'{{"weight_map": {{"{evil}'.encode(
        "utf-8", "surrogateescape"))
    write(path("u.safetensors"), shard(text, dtype=text))
    write(path("w.safetensors"), shard(text, dtype="F64"))
    for i, kind in ((1, "x"), (2, "y")):
        write(path(f"s-0000{i}-of-00002.safetensors"), shard(f"{text}{i}", metadata={text: kind}))
        write(path(f"t-0000{i}-of-00002.safetensors"), shard(text))
        write(path(f"v{i}.safetensors"), shard(f"{text}{i}"))
    write(path("v.safetensors.index.json"), json.dumps({"weight_map": {
        f"{text}1": "v2.safetensors", f"{text}3": "v1.safetensors"}}).encode())
    os.mkfifo(path(f"{evil}.fifo"))
    os.symlink("nowhere", path(f"{evil}.link"))
    os.symlink("..", path(f"{evil}.loop"))
    os.symlink(f"{evil}.self", path(f"{evil}.self"))
    os.mkdir(path(f"{evil}.safetensors.index.json"))
    write(path(f"{'n' * 200}{evil}.json"), b"{}")


def look_at_all(root):
    for view in ("tensors", "merged", "shards", "npy"):
        for path, kind in oracle.walk(os.fsencode(f"{root}/{view}")).items():
            full = os.path.join(os.fsencode(f"{root}/{view}"), path)
            os.listxattr(full)
            if kind == "f":
                try:
                    oracle.read_all(full)
                except OSError:
                    pass


@pytest.mark.parametrize("options", [(), ("--shards=2",), ("-d",)], ids=["plain", "recut", "debug"])
def test_nothing_is_forged(mount, place, options):
    """In problems, status, metrics and the log."""
    root = place / ("s" + EVIL[2] + EVIL[5])
    root.mkdir()
    for evil in EVIL:
        fill(root, evil)
    m = mount(root, *options)
    child(look_at_all, m.path)
    pages = {name: m.read(f".fstfs/{name}").decode() for name in ("problems", "status", "metrics")}
    assert pages["problems"].count("\n") > 10 * len(EVIL)
    for text in pages.values():
        plain(text)
    directories = {line.split("/")[0] for line in pages["problems"].splitlines()}
    assert len(directories) == len(EVIL) and all(d.startswith("d") for d in directories)
    assert json.loads(pages["status"])["source"] == os.fspath(root)
    m.unmount()
    text = m.log.read_bytes().decode()
    plain(text)
    assert "forged" in text and not re.search("^forged", text, re.MULTILINE)
    if options != ("-d",):
        assert all(line.startswith("fstfs: ") for line in text.splitlines())


def test_log_lines_of_reads(mount, place):
    """Lines of the engine: files that change under a reader."""
    for i, evil in enumerate(EVIL):
        (place / "s").mkdir(exist_ok=True)
        trees.Source(place / "s").add("", evil, trees.small_tensors(f"t{i}.", count=2))
    m = mount(place / "s")
    names = sorted(os.listdir(place / "s"))
    held = [open(m / f"shards/{name}", "rb") for name in names]
    for name in names:
        os.truncate(place / "s" / name, 20)
    for f in held:
        with pytest.raises(OSError):
            f.seek(8)
            f.read()
        f.close()
    m.signal(signal.SIGTERM)
    m.wait()
    text = m.log.read_bytes().decode()
    plain(text)
    lines = text.splitlines()
    assert len([line for line in lines if "changed" in line]) == len(EVIL)
    assert all(line.startswith("fstfs: ") for line in lines)
