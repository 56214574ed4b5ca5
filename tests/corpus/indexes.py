# SPDX-License-Identifier: Apache-2.0
"""Invalid and unusual indexes, shard sets, links and files: each case in a directory `bad`.

A case writes into a Source that already has valid neighbours, and describes what the mount must
show. Invalid headers are in headers.py.
"""

import json
import os
import socket
import stat
from dataclasses import dataclass, field

from corpus import trees


@dataclass
class Expect:
    """What a mount of the case must show."""

    # (path in the source, words) that one line of problems must contain; path None: any
    problems: list = field(default_factory=list)
    # {directory below tensors/bad: exactly the tensors in it}
    tensors: dict = field(default_factory=dict)
    # {file below merged/bad: True (exists and is valid) or False (does not exist)}
    merged: dict = field(default_factory=dict)
    # {file below shards/bad: "same", "EIO" or "absent"}
    shards: dict = field(default_factory=dict)
    # paths below bad that are in no view
    absent: list = field(default_factory=list)
    silent: bool = False  # unusual, but valid: no problem may be listed


CASES = []


def case(function):
    CASES.append(function)
    return function


FIRST = [trees.tensor(f"a{i}", "F32", (2, i + 1), seed=1) for i in range(3)]
SECOND = [trees.tensor(f"b{i}", "F16", (3, i + 1), seed=2) for i in range(3)]
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def pair(source, index):
    """Two valid shards, with these bytes as their index."""
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND))
    if index is not None:
        source.place(f"bad/{INDEX}", index)


def weight_map(**more):
    return {**{t.name: ONE for t in FIRST}, **{t.name: TWO for t in SECOND}, **more}


def refused_index(name, index, words=("InvalidIndex",)):
    """A case in which the index is refused, and the shards are a `-of-` set by their names."""

    def make(source, outside):
        pair(source, index if isinstance(index, bytes) else json.dumps(index).encode())
        return Expect(problems=[(f"bad/{INDEX}", words)], tensors={"model": FIRST + SECOND},
                      merged={"model.safetensors": True}, shards={ONE: "same", TWO: "same"})

    make.__name__ = name
    CASES.append(make)


def named(value):
    return {"metadata": {}, "weight_map": weight_map(extra=value)}


refused_index("index_absolute", named("/etc/x.safetensors"))
refused_index("index_parent", named("../good/model-00001-of-00002.safetensors"))
refused_index("index_parent_itself", named(".."))
refused_index("index_subdirectory", named("sub/model.safetensors"))
refused_index("index_backslash", named("..\\x.safetensors"))
refused_index("index_not_safetensors", named("pytorch_model.bin"))
refused_index("index_bare_extension", named(".safetensors"))
refused_index("index_empty_shard_name", named(""))
refused_index("index_nul_in_shard_name", named("a\0b.safetensors"))
refused_index("index_shard_name_number", named(7))
refused_index("index_shard_name_null", named(None))
refused_index("index_not_json", b"these are not the tensors\n")
refused_index("index_empty", b"")
refused_index("index_truncated", json.dumps(named(ONE)).encode()[:-20])
refused_index("index_trailing_bytes", json.dumps(named(ONE)).encode() + b"x")
refused_index("index_two_objects", json.dumps(named(ONE)).encode() * 2)
refused_index("index_is_a_list", [named(ONE)])
refused_index("index_no_weight_map", {"metadata": {"total_size": 5}})
refused_index("index_weight_map_list", {"weight_map": [ONE, TWO]})
refused_index("index_weight_map_string", {"weight_map": ONE})
refused_index("index_not_utf8", b'{"weight_map": {"\xff": "%s"}}' % ONE.encode())
refused_index("index_metadata_not_utf8",
              b'{"metadata": {"a": "\\udcff"}, "weight_map": {"a0": "%s"}}' % ONE.encode())
refused_index("index_tensor_twice",
              b'{"weight_map": {"a0": "%s", "a0": "%s"}}' % (ONE.encode(), TWO.encode()))
refused_index("index_tensor_twice_escaped",
              b'{"weight_map": {"a0": "%s", "\\u00610": "%s"}}' % (ONE.encode(), TWO.encode()))
refused_index("index_deep", b'{"metadata": ' + b"[" * 100_000)
refused_index("index_newlines_to_forge_lines",
              b'{"weight_map": {"a\\ngood/model: forged": "x/../../y"}}')
refused_index("index_names_no_shard", {"metadata": {"total_size": 0}, "weight_map": {}}, ())


@case
def incomplete_set_beside_a_file(source, outside):
    """As left by an interrupted download of the other form of a checkpoint."""
    source.place("bad/model.safetensors", trees.file_bytes(FIRST))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND))
    return Expect(problems=[(f"bad/{TWO}", ("another checkpoint has the name model",))],
                  tensors={"model": FIRST, TWO: SECOND}, merged={"model.safetensors": True},
                  shards={"model.safetensors": "same"})


@case
def index_names_missing_shard(source, outside):
    pair(source, trees.index_bytes(weight_map(c="model-00003-of-00003.safetensors")))
    return Expect(problems=[(f"bad/{INDEX}", ("model-00003-of-00003.safetensors",))],
                  tensors={"model": FIRST + SECOND}, merged={"model.safetensors": False},
                  shards={ONE: "same", TWO: "same"})


@case
def index_names_only_missing_shards(source, outside):
    source.place(f"bad/{INDEX}", trees.index_bytes(weight_map()))
    return Expect(problems=[(f"bad/{INDEX}", (ONE,))], tensors={"model": []},
                  merged={"model.safetensors": False})


@case
def index_names_a_directory(source, outside):
    pair(source, trees.index_bytes(weight_map(c="folder.safetensors")))
    source.place("bad/folder.safetensors/note.txt", b"a folder\n")
    return Expect(problems=[(f"bad/{INDEX}", ("folder.safetensors",))],
                  tensors={"model": FIRST + SECOND}, merged={"model.safetensors": False})


@case
def index_names_a_fifo(source, outside):
    pair(source, trees.index_bytes(weight_map(c="fifo.safetensors")))
    os.mkfifo(source.path("bad/fifo.safetensors"))
    return Expect(problems=[("bad/fifo.safetensors", ())],
                  tensors={"model": FIRST + SECOND}, merged={"model.safetensors": False},
                  absent=["fifo.safetensors"])


@case
def index_is_a_directory(source, outside):
    pair(source, None)
    source.place(f"bad/{INDEX}/inside.txt", b"x\n")
    return Expect(tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True})


@case
def index_is_a_fifo(source, outside):
    pair(source, None)
    os.mkfifo(source.path(f"bad/{INDEX}"))
    return Expect(problems=[(f"bad/{INDEX}", ())], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": True})


@case
def index_disagrees_which_shard(source, outside):
    pair(source, trees.index_bytes(weight_map(a1=TWO)))
    return Expect(problems=[("bad/", ("a1",))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": True})


@case
def index_names_missing_tensor(source, outside):
    pair(source, trees.index_bytes(weight_map(nowhere=ONE)))
    return Expect(problems=[("bad/", ("nowhere",))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": True})


@case
def index_leaves_a_tensor_out(source, outside):
    leaving = weight_map()
    del leaving["b1"]
    pair(source, trees.index_bytes(leaving))
    return Expect(problems=[("bad/", ("b1",))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": True})


@case
def index_wrong_total_size(source, outside):
    pair(source, trees.index_bytes(weight_map(), 1))
    return Expect(tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True})


def bad_total_size(name, value, shown):
    """A case in which the index is accepted, and its total size is listed as a problem."""

    def make(source, outside):
        pair(source, b'{"metadata": {"total_size": %s}, "weight_map": %s}' % (
            value, json.dumps(weight_map()).encode()))
        return Expect(problems=[(f"bad/{INDEX}", (f"metadata.total_size is {shown}, expected",))],
                      tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True})

    make.__name__ = f"index_total_size_{name}"
    CASES.append(make)


bad_total_size("text", b'"x"', '"x"')
bad_total_size("digits_in_text", b'"84"', '"84"')
bad_total_size("null", b"null", "null")
bad_total_size("true", b"true", "true")
bad_total_size("negative", b"-1", "-1")
bad_total_size("fraction", b"84.5", "84.5")
bad_total_size("beyond_exact", b"9007199254740994", "9007199254740994")
bad_total_size("huge", b"1e300", "1e+300")
bad_total_size("list", b"[84]", "[84]")


@case
def index_with_byte_order_mark(source, outside):
    pair(source, b"\xef\xbb\xbf" + trees.index_bytes(weight_map()))
    return Expect(problems=[(f"bad/{INDEX}", ("begins with a byte order mark",))],
                  tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True})


@case
def index_total_size_whole_as_float(source, outside):
    """As written by transformers."""
    total = float(sum(len(t.data) for t in FIRST + SECOND))
    pair(source, json.dumps({"metadata": {"total_size": total},
                             "weight_map": weight_map()}).encode())
    return Expect(tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True},
                  silent=True)


@case
def index_without_metadata(source, outside):
    pair(source, json.dumps({"weight_map": weight_map()}).encode())
    return Expect(tensors={"model": FIRST + SECOND}, merged={"model.safetensors": True},
                  silent=True)


@case
def two_indexes_of_one_stem(source, outside):
    for name, tensors in (("x", FIRST), ("y", SECOND)):
        source.place(f"bad/{name}.safetensors", trees.file_bytes(tensors))
    source.place("bad/model.safetensors.index.fp16.json",
                 trees.index_bytes({t.name: "x.safetensors" for t in FIRST}))
    source.place("bad/model.fp16.safetensors.index.json",
                 trees.index_bytes({t.name: "y.safetensors" for t in SECOND}))
    return Expect(problems=[("bad/model", ("model.fp16",))])


@case
def two_indexes_share_a_shard(source, outside):
    pair(source, trees.index_bytes(weight_map()))
    source.place("bad/other.safetensors.index.json",
                 trees.index_bytes({t.name: TWO for t in SECOND}))
    return Expect(tensors={"model": FIRST + SECOND, "other": SECOND},
                  merged={"model.safetensors": True, "other.safetensors": True})


@case
def one_tensor_in_two_shards(source, outside):
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST + [trees.tensor("both", "U8", (4,), 1)]))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND + [trees.tensor("both", "U8", (4,), 2)]))
    source.place(f"bad/{INDEX}", trees.index_bytes(weight_map(both=ONE)))
    return Expect(problems=[("bad/", ("both", ONE, TWO))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": False}, shards={ONE: "same", TWO: "same"})


@case
def one_tensor_in_two_shards_without_index(source, outside):
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST + [trees.tensor("both", "U8", (0,))]))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND + [trees.tensor("both", "U8", (0,))]))
    return Expect(problems=[("bad/", ("both",))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": False}, shards={ONE: "same", TWO: "same"})


@case
def the_same_shard_twice(source, outside):
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST))
    source.place(f"bad/{TWO}", trees.file_bytes(FIRST))
    return Expect(problems=[("bad/", ("a0",))], tensors={"model": []},
                  merged={"model.safetensors": False}, shards={ONE: "same", TWO: "same"})


@case
def one_shard_broken(source, outside):
    pair(source, trees.index_bytes(weight_map()))
    with open(source.path(f"bad/{TWO}"), "r+b") as f:
        f.truncate(40)
    return Expect(problems=[(f"bad/{TWO}", ("InvalidHeaderLength",))], tensors={"model": FIRST},
                  merged={"model.safetensors": False}, shards={ONE: "same", TWO: "EIO"})


@case
def one_shard_empty(source, outside):
    pair(source, trees.index_bytes(weight_map()))
    source.place(f"bad/{ONE}", b"")
    return Expect(problems=[(f"bad/{ONE}", ("HeaderTooSmall",))], tensors={"model": SECOND},
                  merged={"model.safetensors": False}, shards={ONE: "EIO", TWO: "same"})


@case
def one_file_empty(source, outside):
    source.place("bad/model.safetensors", b"")
    return Expect(problems=[("bad/model.safetensors", ("HeaderTooSmall",))], tensors={"model": []},
                  merged={"model.safetensors": False}, shards={"model.safetensors": "EIO"})


@case
def one_file_is_text(source, outside):
    source.place("bad/model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid x\n")
    return Expect(problems=[("bad/model.safetensors", ("HeaderTooLarge",))], tensors={"model": []},
                  merged={"model.safetensors": False}, shards={"model.safetensors": "EIO"})


@case
def one_file_cut_short(source, outside):
    source.place("bad/model.safetensors", trees.file_bytes(FIRST)[:-1])
    return Expect(problems=[("bad/model.safetensors", ("MetadataIncompleteBuffer",))],
                  tensors={"model": []}, merged={"model.safetensors": False},
                  shards={"model.safetensors": "EIO"})


def hole(name, present, of, missing):
    """A case with an incomplete `-of-` set; its files stay readable."""

    def make(source, outside):
        tensors = []
        for n in present:
            tensors.append(trees.tensor(f"h{n}", "U8", (n + 5,), seed=n))
            source.place(f"bad/model-{n:05}-of-{of:05}.safetensors", trees.file_bytes(tensors[-1:]))
        return Expect(problems=[("bad/", (str(missing),))], tensors={"model": tensors},
                      merged={"model.safetensors": False})

    make.__name__ = name
    CASES.append(make)


hole("hole_in_the_middle", (1, 3), 3, 2)
hole("hole_first", (2, 3), 3, 1)
hole("hole_last", (1, 2), 3, 3)
hole("hole_all_but_one_of_99999", (77,), 99999, 1)


def number_of_no_set(name, numbers, spelled="model-{}.safetensors"):
    """A case with one file whose number is outside its set."""
    file = spelled.format(numbers)
    number, of = (int(n) for n in numbers.split("-of-"))

    def make(source, outside):
        source.place(f"bad/{file}", trees.file_bytes(FIRST))
        return Expect(problems=[(f"bad/{file}", (f"named as shard {number} of {of}, expected",))],
                      tensors={file.removesuffix(".safetensors"): FIRST}, merged={file: True})

    make.__name__ = f"number_{name}"
    CASES.append(make)


number_of_no_set("beyond_the_total", "00003-of-00002")
number_of_no_set("zero", "00000-of-00002")
number_of_no_set("of_none", "00001-of-00000")
number_of_no_set("zero_of_none", "00000-of-00000")
number_of_no_set("of_six_digits", "100001-of-100000")
number_of_no_set("before_a_variant", "00003-of-00002", "model-{}.fp16.safetensors")


@case
def numbers_that_are_no_shards(source, outside):
    """Shard numbers have at least five digits; other names are single files."""
    names = ["model-1-of-2", "model-0003-of-0002", "model-00003-of-2", "3-of-2",
             "model-0000000003-of-0000000002"]
    for name in names:
        source.place(f"bad/{name}.safetensors", trees.file_bytes(FIRST))
    return Expect(tensors={name: FIRST for name in names}, silent=True)


@case
def number_beyond_a_set_that_is_there(source, outside):
    pair(source, None)
    source.place("bad/model-00003-of-00002.safetensors", trees.file_bytes(FIRST))
    return Expect(problems=[("bad/model-00003-of-00002.safetensors", ("named as shard 3 of 2",))],
                  tensors={"model": FIRST + SECOND, "model-00003-of-00002": FIRST},
                  merged={"model.safetensors": True})


@case
def number_beyond_the_total_of_an_index(source, outside):
    """Loaders use the index, whatever the names are."""
    source.place("bad/model-00003-of-00002.safetensors", trees.file_bytes(FIRST))
    source.place(f"bad/{INDEX}", trees.index_bytes(
        {t.name: "model-00003-of-00002.safetensors" for t in FIRST}))
    return Expect(tensors={"model": FIRST}, merged={"model.safetensors": True}, silent=True)


@case
def number_beyond_the_set(source, outside):
    source.place("bad/model-00003-of-00002.safetensors", trees.file_bytes(FIRST))
    source.place("bad/model-00000-of-00002.safetensors", trees.file_bytes(SECOND))
    return Expect(problems=[("bad/model-00003-of-00002.safetensors", ("named as shard 3 of 2",)),
                        ("bad/model-00000-of-00002.safetensors", ("named as shard 0 of 2",))],
                  tensors={"model-00003-of-00002": FIRST, "model-00000-of-00002": SECOND},
                  merged={"model.safetensors": False})


@case
def two_sets_of_one_stem(source, outside):
    source.place("bad/model-00001-of-00001.safetensors", trees.file_bytes(FIRST))
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND))
    return Expect(problems=[("bad/model-", ("model",))])


@case
def one_file_beside_an_index(source, outside):
    pair(source, trees.index_bytes(weight_map()))
    stray = [trees.tensor("stray", "U8", (9,), 3)]
    source.place("bad/model.safetensors", trees.file_bytes(stray))
    return Expect(problems=[("bad/model.safetensors", ())],
                  tensors={"model": FIRST + SECOND, "model.safetensors": stray},
                  merged={"model.safetensors": True}, shards={"model.safetensors": "same"})


@case
def link_to_itself(source, outside):
    os.symlink("self.safetensors", source.path("bad/self.safetensors"))
    return Expect(problems=[("bad/self.safetensors", ())], absent=["self.safetensors", "self"])


@case
def links_to_each_other(source, outside):
    os.symlink("pong.safetensors", source.path("bad/ping.safetensors"))
    os.symlink("ping.safetensors", source.path("bad/pong.safetensors"))
    return Expect(problems=[("bad/ping.safetensors", ()), ("bad/pong.safetensors", ())],
                  absent=["ping.safetensors", "ping", "pong"])


@case
def link_to_parent_directory(source, outside):
    os.symlink("..", source.path("bad/up"))
    return Expect(problems=[("bad/up", ())], absent=["up"])


@case
def link_to_own_directory(source, outside):
    os.symlink(".", source.path("bad/here"))
    return Expect(problems=[("bad/here", ())], absent=["here"])


@case
def link_to_an_ancestor_by_absolute_path(source, outside):
    source.directory("bad/x/y")
    os.symlink(source.root, source.path("bad/x/y/root"))
    return Expect(problems=[("bad/x/y/root", ())], absent=["x/y/root"])


@case
def links_between_directories(source, outside):
    source.directory("bad/x")
    source.directory("bad/y")
    os.symlink("../y", source.path("bad/x/to_y"))
    os.symlink("../x", source.path("bad/y/to_x"))
    return Expect(problems=[("bad/", ())])  # x/to_y is valid, x/to_y/to_x is a loop


@case
def broken_link_to_checkpoint(source, outside):
    os.symlink("nothing-here", source.path("bad/gone.safetensors"))
    return Expect(problems=[("bad/gone.safetensors", ())], absent=["gone.safetensors", "gone"])


@case
def broken_link_to_side_file(source, outside):
    os.symlink("/nonexistent/config.json", source.path("bad/config.json"))
    return Expect(problems=[("bad/config.json", ())], absent=["config.json"])


@case
def broken_link_to_shard(source, outside):
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST))
    source.place(f"bad/{INDEX}", trees.index_bytes(weight_map()))
    os.symlink("../../blobs/" + "0" * 64, source.path(f"bad/{TWO}"))
    return Expect(problems=[(f"bad/{TWO}", ())], tensors={"model": FIRST},
                  merged={"model.safetensors": False}, absent=[TWO])


@case
def link_out_of_the_tree(source, outside):
    with open(os.path.join(outside, "far.safetensors"), "wb") as f:
        f.write(trees.file_bytes(FIRST))
    os.symlink(os.path.join(outside, "far.safetensors"), source.path("bad/near.safetensors"))
    return Expect(tensors={"near": FIRST}, merged={"near.safetensors": True},
                  shards={"near.safetensors": "same"}, silent=True)


@case
def link_to_a_device(source, outside):
    os.symlink("/dev/zero", source.path("bad/zero.safetensors"))
    os.symlink("/dev/zero", source.path("bad/zero.json"))
    return Expect(problems=[("bad/zero.safetensors", ()), ("bad/zero.json", ())],
                  absent=["zero.safetensors", "zero", "zero.json"])


@case
def link_chain_too_long(source, outside):
    source.place("bad/end.bin", trees.file_bytes(FIRST))
    before = "end.bin"
    for i in range(45):
        os.symlink(before, source.path(f"bad/chain{i:02}.safetensors"))
        before = f"chain{i:02}.safetensors"
    return Expect(problems=[("bad/chain44.safetensors", ())], absent=["chain44.safetensors"])


@case
def directory_called_safetensors(source, outside):
    source.place("bad/x.safetensors/inner.safetensors", trees.file_bytes(FIRST))
    return Expect(tensors={"x.safetensors/inner": FIRST},
                  merged={"x.safetensors/inner.safetensors": True},
                  shards={"x.safetensors/inner.safetensors": "same"})


@case
def directory_with_the_stem_of_a_checkpoint(source, outside):
    source.place("bad/model.safetensors", trees.file_bytes(FIRST))
    source.place("bad/model/inner.safetensors", trees.file_bytes(SECOND))
    return Expect(merged={"model.safetensors": True, "model/inner.safetensors": True},
                  shards={"model.safetensors": "same", "model/inner.safetensors": "same"})


@case
def directory_in_the_place_of_the_merged_file(source, outside):
    pair(source, trees.index_bytes(weight_map()))
    source.place("bad/model.safetensors/note.txt", b"x")
    return Expect(tensors={"model": FIRST + SECOND}, shards={ONE: "same", TWO: "same"})


@case
def checkpoint_in_the_place_of_an_index(source, outside):
    source.place("bad/a.safetensors", trees.file_bytes(FIRST))
    source.place("bad/a.index.json.safetensors", trees.file_bytes(SECOND))
    return Expect(merged={"a.safetensors": True, "a.index.json.safetensors": True})


@case
def fifo(source, outside):
    os.mkfifo(source.path("bad/pipe.safetensors"))
    os.mkfifo(source.path("bad/config.json"))
    return Expect(problems=[("bad/pipe.safetensors", ()), ("bad/config.json", ())],
                  absent=["pipe.safetensors", "pipe", "config.json"])


@case
def unix_socket(source, outside):
    here = os.getcwd()
    os.chdir(source.path("bad"))  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("sock.safetensors")
    finally:
        os.chdir(here)
    return Expect(problems=[("bad/sock.safetensors", ())], absent=["sock.safetensors", "sock"])


@case
def device_node(source, outside):
    try:
        os.mknod(source.path("bad/dev.safetensors"), 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        return None
    return Expect(problems=[("bad/dev.safetensors", ())], absent=["dev.safetensors", "dev"])


@case
def file_name_not_utf8(source, outside):
    with open(os.fsencode(source.path("bad")) + b"/caf\xe9.safetensors", "wb") as f:
        f.write(trees.file_bytes(FIRST))
    return Expect(tensors={"caf\udce9": FIRST}, merged={"caf\udce9.safetensors": True},
                  shards={"caf\udce9.safetensors": "same"})


@case
def file_name_not_utf8_broken(source, outside):
    with open(os.fsencode(source.path("bad")) + b"/caf\xe9.safetensors", "wb") as f:
        f.write(b"1234567")
    return Expect(problems=[(r"bad/caf\xe9.safetensors", ("HeaderTooSmall",))],
                  tensors={"caf\udce9": []}, merged={"caf\udce9.safetensors": False},
                  shards={"caf\udce9.safetensors": "EIO"})


@case
def file_name_with_newline(source, outside):
    name = "new\ngood/model.safetensors: forged".replace("/", "\u2215")
    source.place(f"bad/{name}.safetensors", b"1234567")
    return Expect(problems=[(r"bad/new\x0agood", ("HeaderTooSmall",))], tensors={name: []},
                  shards={f"{name}.safetensors": "EIO"})


@case
def file_name_with_escape_sequences(source, outside):
    name = "\x1b[2J\x1b]0;owned\x07"
    source.place(f"bad/{name}.safetensors", b"1234567")
    return Expect(problems=[(r"bad/\x1b[2J", ("HeaderTooSmall",))], tensors={name: []},
                  shards={f"{name}.safetensors": "EIO"})


@case
def file_name_of_255_bytes(source, outside):
    stem = "s" * (255 - len(".safetensors"))
    source.place(f"bad/{stem}.safetensors", trees.file_bytes(FIRST))
    return Expect(tensors={stem: FIRST}, merged={f"{stem}.safetensors": True},
                  shards={f"{stem}.safetensors": "same"})


@case
def file_name_only_extension(source, outside):
    source.place("bad/.safetensors", trees.file_bytes(FIRST))
    return Expect(shards={".safetensors": "same"})


@case
def index_name_only_extension(source, outside):
    source.place("bad/.safetensors.index.json", b"{")
    return Expect(shards={".safetensors.index.json": "same"})


@case
def upper_case_extension(source, outside):
    source.place("bad/model.SAFETENSORS", trees.file_bytes(FIRST))
    return Expect(tensors={"model": FIRST}, merged={"model.SAFETENSORS": True},
                  shards={"model.SAFETENSORS": "same"}, silent=True)


@case
def tensor_names_that_are_paths(source, outside):
    tensors = [trees.tensor(n, "U8", (i + 1,), seed=i) for i, n in
               enumerate(["/", "..", ".", "../../x", "/etc/passwd", "a\0b", "a\nb", "", "y" * 300])]
    source.place("bad/model.safetensors", trees.file_bytes(tensors))
    return Expect(tensors={"model": tensors}, merged={"model.safetensors": True},
                  shards={"model.safetensors": "same"}, silent=True)


@case
def tensor_names_that_could_escape_alike(source, outside):
    tensors = [trees.tensor(n, "U8", (i + 1,), seed=i) for i, n in enumerate(
        ["a/b", "a%2Fb", "a%2fb", "a%252Fb", "%", "", "%25", ".x", "%2Ex", "x" * 300,
         "x" * 299 + "y", "x" * 238 + "~" + "0" * 16])]
    source.place("bad/model.safetensors", trees.file_bytes(tensors))
    return Expect(tensors={"model": tensors}, merged={"model.safetensors": True}, silent=True)


@case
def unknown_dtype(source, outside):
    head = trees.header([("new", "F2_E1M0", (16,), 4), ("old", "U8", (3,), 3)])
    source.place("bad/model.safetensors", head + b"newnold")
    return Expect(problems=[("bad/model.safetensors", ("F2_E1M0",))],
                  tensors={"model": [trees.Tensor("new", "F2_E1M0", [16], b"newn"),
                                     trees.Tensor("old", "U8", [3], b"old")]},
                  merged={"model.safetensors": True}, shards={"model.safetensors": "same"})


@case
def metadata_disagrees(source, outside):
    source.place(f"bad/{ONE}", trees.file_bytes(FIRST, {"format": "pt", "who": "one"}))
    source.place(f"bad/{TWO}", trees.file_bytes(SECOND, {"format": "pt", "who": "two"}))
    return Expect(problems=[("bad/", ("who",))], tensors={"model": FIRST + SECOND},
                  merged={"model.safetensors": True})


@case
def empty_checkpoint(source, outside):
    source.place("bad/model.safetensors", trees.file_bytes([]))
    return Expect(tensors={"model": []}, merged={"model.safetensors": True},
                  shards={"model.safetensors": "same"}, silent=True)


@case
def tensor_name_of_100000_bytes(source, outside):
    """Longer than an xattr can be (64 KiB): the name is only in the index."""
    source.place("bad/model.safetensors",
                 trees.file_bytes([trees.tensor("n" * 100_000, "U8", (7,))]))
    return Expect(merged={"model.safetensors": True}, shards={"model.safetensors": "same"},
                  silent=True)


@case
def merged_header_too_large(source, outside):
    """Two shards with valid headers whose merged header would exceed 100,000,000 bytes."""
    for shard, name in ((0, ONE), (1, TWO)):
        source.place(f"bad/{name}", trees.file_bytes(
            [trees.Tensor(f"{shard}{i:03}" + "n" * 60_000, "U8", [0], b"") for i in range(900)]))
    return Expect(problems=[("bad/", ("100000000",))], merged={"model.safetensors": False},
                  shards={ONE: "same", TWO: "same"})
