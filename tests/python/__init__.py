# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python module. A package, because other folders have modules of the same names."""
