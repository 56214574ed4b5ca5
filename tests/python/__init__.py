# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python module (a package, for test modules elsewhere have the same names)."""
