"""The settings of a run: the dataclass `GRPOConfig`, and the options of commands that are made from its fields."""

from grpo_lab.base.renamed import renamed_in_module
from grpo_lab.base.setting import union_members
from grpo_lab.config.settings import MAY_CHANGE_ON_RESUME, SETTINGS, GRPOConfig

__getattr__ = renamed_in_module(__name__, {"MAY_CHANGE": "MAY_CHANGE_ON_RESUME"})
