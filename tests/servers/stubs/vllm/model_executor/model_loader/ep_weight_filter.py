# SPDX-License-Identifier: Apache-2.0
import re


def should_skip_weight(weight_name: str, local_expert_ids: set[int] | None) -> bool:
    found = re.search(r"\.experts\.(\d+)\.", weight_name)
    return local_expert_ids is not None and found is not None and \
        int(found.group(1)) not in local_expert_ids
