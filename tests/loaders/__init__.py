# SPDX-License-Identifier: Apache-2.0
"""The real loaders, on a bare directory and through the mount."""
