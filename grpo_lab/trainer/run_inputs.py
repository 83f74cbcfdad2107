"""The inputs of a run: model, tokenizer, data, rewards and settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.tasks import Rows


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run, with the names and in the order of the arguments of `Run`."""

    model: Any
    tokenizer: Any
    dataset: Rows
    reward_funcs: Callable | list | None  # None: the environment or the user's own loop computes the rewards
    config: GRPOConfig
    eval_dataset: Rows | None = None
    environment: Environment | None = None

    @property
    def datasets(self) -> dict[str, Rows]:
        """The data sets of the run, by the names of their arguments."""
        return {"dataset": self.dataset} | ({} if self.eval_dataset is None else {"eval_dataset": self.eval_dataset})
