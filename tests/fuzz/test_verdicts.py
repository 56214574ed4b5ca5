# SPDX-License-Identifier: Apache-2.0
"""A short run of verdicts.py: all fuzzer inputs, and some mutations."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import verdicts  # noqa: E402

MUTATIONS = 3000


def test_verdicts(tmp_path):
    left = iter(range(MUTATIONS))
    counts = verdicts.run(random.Random(1), tmp_path, None, lambda: next(left, None) is None)
    print(counts)
    assert counts["headers"] > MUTATIONS and counts["written anew"] > 5 and counts["npy"] > 5


def test_indexes(tmp_path):
    assert any([verdicts.check_index(tmp_path, data) for data in verdicts.corpus("index")])
