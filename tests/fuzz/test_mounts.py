# SPDX-License-Identifier: Apache-2.0
"""A short run of mounts.py; tools/fuzz runs it longer, with other seeds."""

import sys
from pathlib import Path

import pytest
from conftest import BUILD

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mounts  # noqa: E402

SEEDS = 32


@pytest.mark.limit(150)
def test_random_readers_and_changes(fstfs, place):
    done, failed, counts = mounts.run(range(SEEDS), BUILD, place, 4)
    print(counts)
    assert not failed, "\n".join(f"seed {seed}: " + "\n".join(output)
                                 for seed, output in failed.items())
    assert done == SEEDS and counts["bytes"] > 1 << 20
    assert counts["errors"] < counts["operations"] / 2, "the seeds test nothing but errors"
