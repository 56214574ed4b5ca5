# SPDX-License-Identifier: Apache-2.0
import enum
import json
from dataclasses import dataclass, field


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    SAFETENSORS = "safetensors"
    DUMMY = "dummy"


@dataclass
class LoadConfig:
    load_format: str | LoadFormat = LoadFormat.AUTO
    model_loader_extra_config: str | dict | None = field(default_factory=dict)
    draft_model_idx: int | None = None

    def __post_init__(self):
        if isinstance(self.model_loader_extra_config, str):
            self.model_loader_extra_config = json.loads(self.model_loader_extra_config)
        self._verify_load_format()

    def _verify_load_format(self) -> None:
        if isinstance(self.load_format, str):
            self.load_format = LoadFormat(self.load_format.lower())
