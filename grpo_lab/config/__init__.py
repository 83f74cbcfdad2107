"""The settings of a run: the dataclass `GRPOConfig`, and the rules and values that belong to single settings.

Read `settings.py` first. The others: `defaults.py` has defaults by the size of the model, `precision.py` the
precisions, `lora.py` the settings of LoRA, and `user_formulas.py` losses and advantages that are the user's own
functions. Options of commands are made from the fields in `command_options.py`.
"""

from grpo_lab.config.settings import MAY_CHANGE_ON_RESUME, SETTINGS, GRPOConfig
