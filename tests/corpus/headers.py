# SPDX-License-Identifier: Apache-2.0
"""Valid and invalid safetensors files: each rule of a header on its own, at its limit and just
beyond.

CASES is a list of (name, content, rule, note):
  name     a unique file stem
  content  the file's bytes, or a function that writes the file to a given path
           (for large sparse files)
  rule     the rule by which fstfs refuses the file, or None if it is valid
  note     "" if the safetensors library agrees; otherwise why it differs
"""

import json
import struct

MAX_HEADER = 100_000_000
U64 = 2**64

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


def raw(header, data=b"", n=None):
    """A file with this header text."""
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if n is None else n) + header + data


def entry(begin, end, dtype="U8", shape=None):
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file(tensors, size, **more):
    """A file with the header {name: entry} and `size` bytes of data."""
    return raw(json.dumps({**more, **tensors}), bytes(i % 251 for i in range(size)))


def one(fields, size=1):
    """A file with one tensor, "a", with this text as its entry."""
    return raw('{"a":%s}' % fields, b"x" * size)


def sparse(header, length, n=None):
    """Writes a file of `length` bytes that starts with this header and continues with a hole."""

    def write(path):
        with open(path, "wb") as f:
            f.write(raw(header, n=n))
            f.truncate(length)

    return write


def padded(header, n):
    """Writes a file with a header of exactly n bytes, padded with spaces, and no data."""

    def write(path):
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", n))
            f.write(header.encode())
            left = n - len(header)
            while left:
                piece = min(left, 1 << 20)
                f.write(b" " * piece)
                left -= piece

    return write


def nested(arrays):
    """An entry with an unknown field of that many nested arrays, two levels down."""
    return one('{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":%s%s}' % ("[" * arrays, "]" * arrays))


def unknown(text):
    return one('{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":%s}' % text)


JSON = "InvalidHeaderDeserialization"
GOOD = '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
A = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
TWICE = (
    "the library keeps the last of two tensors with one name; the format forbids them and fstfs "
    "refuses the file"
)
NEW_DTYPE = (
    "the library knows 22 dtypes and refuses the file; fstfs shows a tensor of an unknown dtype as "
    "its bytes, so that a new dtype needs no new fstfs"
)

CASES = []


def case(name, content, rule=None, note=""):
    CASES.append((name, content, rule, note))


# Valid files, including unusual ones.
case("valid-one", raw(GOOD, b"x"))
case("valid-no-tensors", raw("{}"))
case("valid-two", file({"a": entry(0, 4), "b": entry(4, 6)}, 6))
case("valid-order-of-header-is-not-offsets", file({"b": entry(4, 6), "a": entry(0, 4)}, 6))
case("valid-scalar", file({"a": entry(0, 4, "F32", [])}, 4))
case("valid-zero-size", file({"a": entry(0, 0)}, 0))
case("valid-zero-sizes-at-one-place", file({"a": entry(2, 2), "b": entry(0, 2), "c": entry(0, 0), "d": entry(2, 2)}, 2))
case("valid-zero-dimension", file({"a": entry(0, 0, "F32", [3, 0, 7])}, 0))
case("valid-metadata", raw('{"__metadata__":{"format":"pt","x":"\\u00e9\\n"},"a":%s}' % A, b"x"))
case("valid-metadata-empty", raw('{"__metadata__":{}}'))
case("valid-metadata-null", raw('{"__metadata__":null,"a":%s}' % A, b"x"))
case("valid-metadata-escaped-key", raw('{"\\u005f_metadata__":{"a":"b"}}'))
case("valid-metadata-key-twice", raw('{"__metadata__":{"a":"b","a":"c"}}'))
case("valid-metadata-nul", raw('{"__metadata__":{"a\\u0000b":"c\\u0000d"}}'))
case("valid-spaces-after", raw(GOOD + " \n\r\t ", b"x"))
case("valid-spaces-before", raw(" \n\r\t " + GOOD, b"x"))
case("valid-spaces-within", raw('{ "a" : { "dtype" : "U8" , "shape" : [ 1 ] , "data_offsets" : [ 0 , 1 ] } }', b"x"))
case("valid-unknown-fields", unknown('[1,-2.5e-3,"y",{"z":[null,true,false]},{},[]]'))
case("valid-unknown-field-twice", one('{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1,"x":2}'))
case("valid-entry-as-array", raw('{"a":["U8",[1],[0,1]]}', b"x"))
case("valid-dtype-as-variant", one('{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}'))
case("valid-escapes-in-keys", one('{"\\u0064type":"\\u00558","shape":[1],"data_offs\\u0065ts":[0,1]}'))
case("valid-name-empty", raw('{"":%s}' % A, b"x"))
case("valid-name-nul", raw('{"a\\u0000b":%s}' % A, b"x"))
case("valid-name-newline", raw('{"a\\nb":%s}' % A, b"x"))
case("valid-name-slashes", raw('{"../../etc/passwd":%s}' % A, b"x"))
case("valid-name-del", raw('{"a\x7fb":%s}' % A, b"x"))
case("valid-name-300-bytes", raw('{"%s":%s}' % ("n" * 300, A), b"x"))
case("valid-name-surrogate-pair", raw('{"a\\ud83d\\ude00":%s}' % A, b"x"))
case("valid-name-utf8", raw('{"a\u00e9\u4e2d\U0001f600":%s}' % A, b"x"))
case("valid-names-that-differ-in-case", file({"a": entry(0, 1), "A": entry(1, 2)}, 2))
for _dtype, _bits in DTYPE_BITS.items():
    case(f"valid-dtype-{_dtype}", file({"a": entry(0, _bits, _dtype, [4, 2])}, _bits))
case("valid-rank-100", file({"a": entry(0, 1, "U8", [1] * 100)}, 1))
case("valid-zero-before-overflow", file({"a": entry(0, 0, "U8", [0, 2**63, 4])}, 0))

# 1. HeaderTooSmall
for _size in (0, 1, 7):
    case(f"small-{_size}-bytes", b"\x02\0\0\0\0\0\0"[:_size], "HeaderTooSmall")

# 2. HeaderTooLarge
case("large-at-limit", padded("{}", MAX_HEADER))
case("large-past-limit", sparse("{}", MAX_HEADER + 100, MAX_HEADER + 1), "HeaderTooLarge")
case("large-past-limit-and-file", raw("{}", n=MAX_HEADER + 1), "HeaderTooLarge")
case("large-2^63", raw("{}", n=2**63), "HeaderTooLarge")
case("large-2^64-1", raw("{}", n=U64 - 1), "HeaderTooLarge")

# 3. InvalidHeaderLength
case("length-one-past-file", raw("{}", n=3), "InvalidHeaderLength")
case("length-limit-past-file", raw("{}", n=MAX_HEADER), "InvalidHeaderLength")
case("length-only-8-bytes", raw("", n=1), "InvalidHeaderLength")

# 4. InvalidHeader: not UTF-8
for _name, _bytes in {
    "ff": b"\xff", "continuation": b"\x80", "cut": b"\xc3", "cut-3": b"\xe4\xb8", "overlong-2": b"\xc0\xaf",
    "overlong-3": b"\xe0\x80\xaf", "overlong-4": b"\xf0\x80\x80\xaf", "surrogate": b"\xed\xa0\x80",
    "past-10ffff": b"\xf4\x90\x80\x80", "f5": b"\xf5\x80\x80\x80",
}.items():  # fmt: skip
    case(f"utf8-{_name}", raw(b'{"a' + _bytes + b'":' + A.encode() + b"}", b"x"), "InvalidHeader")
case("utf8-before-json", raw(b"not json \xff"), "InvalidHeader")

# 5. InvalidHeaderDeserialization: not JSON
for _name, _text in {
    "empty": "", "spaces": "   ", "bom": "\ufeff" + GOOD, "text": "hello", "cut": GOOD[:-1], "cut-in-string": '{"a',
    "trailing-nul": GOOD + "\0", "trailing-text": GOOD + " x", "trailing-object": GOOD + GOOD, "trailing-brace": GOOD + "}",
    "trailing-comma": GOOD[:-1] + ",}", "leading-comma": "{," + GOOD[1:], "single-quotes": GOOD.replace('"', "'"),
    "comment": "/**/" + GOOD, "vertical-tab": "\v" + GOOD, "no-break-space": "\u00a0" + GOOD, "key-without-quotes": "{a:%s}" % A,
    "no-colon": '{"a" %s}' % A, "control-in-name": '{"a\x1f":%s}' % A, "tab-in-name": '{"a\t":%s}' % A,
    "nul-in-name": '{"a\0":%s}' % A, "bad-escape": '{"a\\x41":%s}' % A, "short-hex": '{"a\\u00e":%s}' % A,
    "bad-hex": '{"a\\u00g0":%s}' % A, "lone-lead": '{"a\\ud800":%s}' % A, "lone-trail": '{"a\\udc00":%s}' % A,
    "lead-then-letter": '{"a\\ud800\\u0041":%s}' % A, "lead-then-lead": '{"a\\ud800\\ud800":%s}' % A,
    "mismatched-brackets": '{"a":[1}]', "just-a-bracket": "{",
}.items():  # fmt: skip
    case(f"json-{_name}", raw(_text, b"x"), JSON)
for _name, _text in {
    "leading-zero": "01", "plus": "+1", "nan": "NaN", "infinity": "Infinity", "hex": "0x10", "point-first": ".5",
    "point-last": "5.", "no-exponent": "1e", "minus": "-", "too-big": "1e309", "too-big-digits": "1" + "0" * 309,
    "true-cut": "tru", "none": "None", "lone-surrogate": '"\\ud800"', "control": '"\x01"',
}.items():  # fmt: skip
    case(f"unknown-{_name}", unknown(_text), JSON)
case("unknown-biggest-number", unknown("1e308"))
case("unknown-tiny-number", unknown("1e-999"))
case("unknown-zero-of-big-exponent", unknown("0e999"))
case("nested-127", nested(125))
case("nested-128", nested(126), JSON)
case("nested-100000", nested(100_000), JSON)
case("nested-bomb", raw("[" * 5_000_000), JSON)

# 5. InvalidHeaderDeserialization: JSON of the wrong shape
for _name, _text in {
    "array": "[]", "null": "null", "string": '"x"', "number": "0", "true": "true", "entry-null": '{"a":null}', "entry-number": '{"a":0}',
    "entry-string": '{"a":"x"}', "entry-empty": '{"a":{}}', "entry-array-2": '{"a":["U8",[1]]}', "entry-array-4": '{"a":["U8",[1],[0,1],0]}',
    "metadata-array": '{"__metadata__":[]}', "metadata-string": '{"__metadata__":"x"}', "metadata-value-null": '{"__metadata__":{"a":null}}',
    "metadata-value-number": '{"__metadata__":{"a":1}}', "metadata-value-object": '{"__metadata__":{"a":{}}}',
    "metadata-twice": '{"__metadata__":{},"__metadata__":{}}', "metadata-null-twice": '{"__metadata__":null,"__metadata__":null}',
    "metadata-is-entry": '{"__metadata__":%s}' % A,
}.items():  # fmt: skip
    case(f"shape-{_name}", raw(_text, b""), JSON)
for _name, _text in {
    "no-dtype": '{"shape":[1],"data_offsets":[0,1]}', "no-shape": '{"dtype":"U8","data_offsets":[0,1]}',
    "no-offsets": '{"dtype":"U8","shape":[1]}', "dtype-null": '{"dtype":null,"shape":[1],"data_offsets":[0,1]}',
    "dtype-number": '{"dtype":3,"shape":[1],"data_offsets":[0,1]}', "dtype-object": '{"dtype":{"U8":1},"shape":[1],"data_offsets":[0,1]}',
    "shape-null": '{"dtype":"U8","shape":null,"data_offsets":[0,1]}', "shape-number": '{"dtype":"U8","shape":1,"data_offsets":[0,1]}',
    "shape-string": '{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}', "shape-float": '{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}',
    "shape-exponent": '{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}', "shape-negative": '{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}',
    "shape-minus-zero": '{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}', "shape-nested": '{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}',
    "shape-2^64": '{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}', "shape-leading-zero": '{"dtype":"U8","shape":[01],"data_offsets":[0,1]}',
    "offsets-1": '{"dtype":"U8","shape":[1],"data_offsets":[0]}', "offsets-3": '{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}',
    "offsets-object": '{"dtype":"U8","shape":[1],"data_offsets":{"0":0}}', "offsets-null": '{"dtype":"U8","shape":[1],"data_offsets":[null,1]}',
    "offsets-float": '{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}', "offsets-negative": '{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}',
    "offsets-2^64": '{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}', "dtype-twice": '{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}',
    "shape-twice": '{"dtype":"U8","shape":[1],"sh\\u0061pe":[1],"data_offsets":[0,1]}', "offsets-twice": '{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}',
    "key-in-capitals": '{"DTYPE":"U8","shape":[1],"data_offsets":[0,1]}', "key-with-nul": '{"dtype\\u0000":"U8","shape":[1],"data_offsets":[0,1]}',
}.items():  # fmt: skip
    case(f"entry-{_name}", one(_text), JSON)

# Rules of fstfs: unknown dtypes, duplicate names.
case("dtype-unknown", one('{"dtype":"F2_E1M0","shape":[7],"data_offsets":[0,1]}'), None, NEW_DTYPE)
case("dtype-lower-case", one('{"dtype":"u8","shape":[1],"data_offsets":[0,1]}'), None, NEW_DTYPE)
case("dtype-with-nul", one('{"dtype":"U8\\u0000","shape":[9],"data_offsets":[0,1]}'), None, NEW_DTYPE)
case("dtype-empty", one('{"dtype":"","shape":[],"data_offsets":[0,1]}'), None, NEW_DTYPE)
case("dtype-unknown-with-hole", raw('{"a":{"dtype":"Q","shape":[1],"data_offsets":[1,2]}}', b"xy"), "InvalidOffset", NEW_DTYPE)
case("duplicate-same", raw('{"a":%s,"a":%s}' % (A, A), b"x"), "DuplicateTensorName", TWICE)
case("duplicate-escaped", raw('{"a":%s,"\\u0061":%s}' % (A, A), b"x"), "DuplicateTensorName", TWICE)
case("duplicate-apart", raw('{"a":%s,"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"a":%s}' % (A, A), b"x"), "DuplicateTensorName", TWICE)
case("duplicate-with-hole", raw('{"a":%s,"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}' % A, b"xy"), "DuplicateTensorName", TWICE)
case("duplicate-after-bad-json", raw('{"a":%s,"a":%s,}' % (A, A), b"x"), JSON)

# 6a. InvalidOffset
case("offset-does-not-start-at-0", file({"a": entry(1, 2)}, 2), "InvalidOffset")
case("offset-hole", file({"a": entry(0, 1), "b": entry(2, 3)}, 3), "InvalidOffset")
case("offset-overlap", file({"a": entry(0, 2), "b": entry(1, 3)}, 3), "InvalidOffset")
case("offset-same-range", file({"a": entry(0, 2), "b": entry(0, 2)}, 2), "InvalidOffset")
case("offset-reversed", raw('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}', b"x"), "InvalidOffset")
case("offset-reversed-at-0", raw('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}}', b"x"), "InvalidOffset")
case("offset-2^64-1", raw('{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]}}', b"x"), "InvalidOffset")
case("offset-hole-before-zero-size", file({"a": entry(0, 1), "b": entry(2, 2)}, 2), "InvalidOffset")
case("offset-2^53-apart", raw('{"a":{"dtype":"U8","shape":[9007199254740992],"data_offsets":[0,9007199254740992]},"b":{"dtype":"U8","shape":[0],"data_offsets":[9007199254740993,9007199254740993]}}'), "InvalidOffset")

# 6b. ValidationOverflow
case("overflow-shape", file({"a": entry(0, 1, "U8", [2**63, 2])}, 1), "ValidationOverflow")
case("overflow-shape-just-not", file({"a": entry(0, 1, "U8", [2**30, 2**30])}, 1), "TensorInvalidInfo")
case("overflow-bits", file({"a": entry(0, 1, "U8", [2**61])}, 1), "ValidationOverflow")
case("overflow-bits-just-not", file({"a": entry(0, 1, "U8", [2**61 - 1])}, 1), "TensorInvalidInfo")
case("overflow-bits-f4-just-not", file({"a": entry(0, 1, "F4", [2**62 - 2])}, 1), "TensorInvalidInfo")
case("overflow-then-zero", file({"a": entry(0, 0, "U8", [2**63, 4, 0])}, 0), "ValidationOverflow")
case("overflow-one-dimension", file({"a": entry(0, 1, "U8", [U64 - 1])}, 1), "ValidationOverflow")

# 6c. MisalignedSlice
case("bits-f4-odd", file({"a": entry(0, 1, "F4", [3])}, 1), "MisalignedSlice")
case("bits-f4-even", file({"a": entry(0, 1, "F4", [2])}, 1))
case("bits-f6-3", file({"a": entry(0, 3, "F6_E2M3", [3])}, 3), "MisalignedSlice")
case("bits-f6-4", file({"a": entry(0, 3, "F6_E2M3", [4])}, 3))
case("bits-f6-scalar", file({"a": entry(0, 1, "F6_E3M2", [])}, 1), "MisalignedSlice")

# 6d. TensorInvalidInfo
case("size-one-less", file({"a": entry(0, 3, "F32", [1])}, 3), "TensorInvalidInfo")
case("size-one-more", file({"a": entry(0, 5, "F32", [1])}, 5), "TensorInvalidInfo")
case("size-zero-dimension", file({"a": entry(0, 1, "U8", [0])}, 1), "TensorInvalidInfo")
case("size-second-tensor", file({"a": entry(0, 4, "F32", [1]), "b": entry(4, 6, "F32", [1])}, 6), "TensorInvalidInfo")
case("size-before-next-offset", file({"a": entry(0, 3, "F32", [1]), "b": entry(9, 10)}, 10), "TensorInvalidInfo")
case("size-exact-past-2^53", raw('{"a":{"dtype":"U8","shape":[9007199254740993],"data_offsets":[0,9007199254740992]}}'), "TensorInvalidInfo")

# 7. MetadataIncompleteBuffer
case("cover-one-byte-missing", file({"a": entry(0, 4)}, 3), "MetadataIncompleteBuffer")
case("cover-one-byte-more", file({"a": entry(0, 4)}, 5), "MetadataIncompleteBuffer")
case("cover-no-data", file({"a": entry(0, 4)}, 0), "MetadataIncompleteBuffer")
case("cover-data-without-tensors", raw("{}", b"x"), "MetadataIncompleteBuffer")

