"""The configuration that a command makes from its options, for a model of any size."""

from grpo_lab.config import GRPOConfig
from grpo_lab.task_spec import make_task_spec
from grpo_lab.train.options import RunOptions
from grpo_lab.train.plan import make_config


def config_of_options(options: RunOptions, num_parameters: int, device_type: str) -> GRPOConfig:
    task_spec = make_task_spec(**options.task_options, for_bundled_model=False)
    return make_config(options, task_spec, num_parameters, device_type)
