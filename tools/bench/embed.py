# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE HEADER: writes a file's bytes as a C array of its name."""

import os
import sys

source, header = sys.argv[1:]
name = os.path.splitext(os.path.basename(source))[0] + "_script"
with open(source, "rb") as f:
    numbers = ",".join(map(str, f.read()))
with open(header, "w") as f:
    f.write(f"static const unsigned char {name}[] = {{{numbers}}};\n")
