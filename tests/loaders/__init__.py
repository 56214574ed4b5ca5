# SPDX-License-Identifier: Apache-2.0
"""Real loaders, on a bare directory and through the mount."""
