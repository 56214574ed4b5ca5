# SPDX-License-Identifier: Apache-2.0
"""The plugins for vLLM and SGLang: on stubs, and with the servers' own code."""
