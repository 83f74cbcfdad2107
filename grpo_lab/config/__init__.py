"""The settings of a run, each once: as a dataclass, and as options of a command."""

from grpo_lab.base.names import SETTINGS_FILE
from grpo_lab.base.setting import union_members
from grpo_lab.config.settings import MAY_CHANGE, SETTINGS, GRPOConfig
