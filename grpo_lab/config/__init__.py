"""The settings of a run: the dataclass `GRPOConfig`, and the options of commands that are made from its fields."""

from grpo_lab.config.settings import MAY_CHANGE_ON_RESUME, SETTINGS, GRPOConfig
