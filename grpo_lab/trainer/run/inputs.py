"""The inputs of a run: model, tokenizer, data, rewards and settings; and their checks before the first step.

A script makes all checks at once. A command makes those without weights before it loads the model, and `check_model`
after that; its dry run reports every check without weights that fails.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from grpo_lab.advantages import ADVANTAGES
from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import check_lora_reference
from grpo_lab.config.precision import autocast
from grpo_lab.models.adapters import has_adapter
from grpo_lab.models.loading import ModelWithoutWeights
from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.rewards import reward_names
from grpo_lab.rewards.functions import check_signatures, check_weights
from grpo_lab.rollout.environments.environment import Environment, check_is_environment
from grpo_lab.rollout.forward.attention import attention_dtype, describe_attention
from grpo_lab.rollout.model import has_fast_path
from grpo_lab.rollout.prompts import check_prompts, end_token_ids, find_prompt_quirks, longest_prompt
from grpo_lab.tasks import Rows
from grpo_lab.tasks.rows import LazyRows
from grpo_lab.trainer.run.checkpoint import check_savable


class RunCheck(NamedTuple):
    """A check of a run: what it checks, in words, and the function that raises an error if the check fails."""

    description: str
    function: Callable[[], None]


# Not compared and not printed field by field: that would read whole models and data sets.
@dataclass(frozen=True, eq=False, repr=False)
class RunInputs:
    """The inputs of a run, under the names of the arguments of `Run` and in their order.

    Before the weights are loaded, the model is a `ModelWithoutWeights`.
    """

    model: Any
    tokenizer: Any
    dataset: Rows
    reward_funcs: Callable | list | None  # None: the environment or the user's own loop computes the rewards
    config: GRPOConfig
    eval_dataset: Rows | None = None
    environment: Environment | None = None

    def __post_init__(self):
        check_types(self)

    @property
    def datasets(self) -> dict[str, Rows]:
        """The data sets of the run, by the names of their arguments."""
        return {"dataset": self.dataset} | ({} if self.eval_dataset is None else {"eval_dataset": self.eval_dataset})

    def read_data_rows(self, step: int) -> list[dict]:
        """Read the P data rows of a step; every epoch has a new random order, computed from the seed and the epoch.

        step: Index of the step, counted from 0.
        """
        data_rows = []
        first = step * self.config.prompts_per_step
        for position in range(first, first + self.config.prompts_per_step):
            epoch, position_in_epoch = divmod(position, len(self.dataset))
            order = _random_order(len(self.dataset), seed=self.config.seed * SEED_STRIDE + epoch)
            data_rows.append(self.dataset[order[position_in_epoch]])
        return data_rows

    def checks_without_weights(self) -> Iterator[RunCheck]:
        """Yield the checks that need no weights, in their order.

        The description of a check may count rows whose form the check before it has checked.
        """
        for name, dataset in self.datasets.items():
            yield RunCheck(f"columns of {name}", functools.partial(check_dataset, dataset, name))
        yield RunCheck("arguments of the rewards", lambda: check_rewards(self))
        yield RunCheck("held-out rows for the evaluations", lambda: check_evaluation(self))
        yield RunCheck("settings of turns", lambda: check_turn_advantage(self.config, self.environment))
        held_out = f" and {len(self.eval_dataset):,} held out" if self.eval_dataset is not None else ""
        room = "room for each prompt"
        if self.environment is not None and self.environment.schemas is not None:
            room += " and its tools, and the chat template has them"
        rows = f"{len(self.dataset):,} rows{held_out}: expected answers, {room}"
        yield RunCheck(rows, lambda: check_prompts_of_run(self))

    def check_without_weights(self) -> None:
        """Raise InputError for the first of the `checks_without_weights` that fails."""
        for check in self.checks_without_weights():
            check.function()

    def check_model(self) -> None:
        """Raise InputError for a model that cannot be trained or saved, and print notes on its prompts and attention.

        The notes say how the chat template changes the prompts, and which implementation of attention computes rows
        that are too long for a mask.
        """
        model, tokenizer, config = self.model, self.tokenizer, self.config
        if has_adapter(model):
            check_lora_reference(config.ref_model_sync_steps, config.ref_model_device)
        ensure_checked(model)
        datasets = self.datasets.values()
        prompts = (dataset[index]["prompt"] for dataset in datasets for index in range(len(dataset)))
        for line in find_prompt_quirks(tokenizer, prompts, end_token_ids(model, tokenizer)).values():
            print(f"prompts: {line}")
        if has_fast_path(model):
            schemas = None if self.environment is None else self.environment.schemas
            max_length = longest_prompt(tokenizer, self.dataset, schemas) + config.max_completion_length
            with autocast(model, config):
                attention = describe_attention(max_length, model.device.type, attention_dtype(model))
            if attention is not None:  # None: no row is too long for a mask
                print(f"attention: {attention}")
        if config.output_dir is not None:
            check_savable(model, tokenizer)


@functools.lru_cache(maxsize=2)
def _random_order(count: int, seed: int) -> list[int]:
    """Return the indices 0 to count - 1 in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def check_rewards(inputs: RunInputs) -> None:
    """Raise InputError for reward functions that `score_completions` would refuse after the first rollout."""
    if inputs.reward_funcs is None:
        return
    column_names = list(inputs.dataset[0])
    check_weights(inputs.config.reward_weights, reward_names(inputs.reward_funcs))
    if reserved_name := next((name for name in TRAINER_ARGUMENTS if name in column_names), None):
        expected = "expected another name, since reward functions get something else under this one"
        raise InputError("dataset", inputs.dataset, expected, problem=f"has the column {reserved_name!r}")
    has_environments = inputs.environment is not None and inputs.environment.has_instances
    check_reward_arguments(inputs.reward_funcs, column_names, has_environments)


def check_reward_arguments(reward_funcs: Any, column_names: Iterable[str], has_environments: bool = False) -> None:
    """Raise InputError for a reward function that does not accept the arguments of a run.

    Args:
        reward_funcs: One reward function or several.
        column_names: Names of the columns of the data.
        has_environments: Whether each episode has an instance of an environment class; reward functions then get the
            argument `environments`.
    """
    instances = ["environments"] if has_environments else []
    check_signatures(reward_funcs, [*column_names, *TRAINER_ARGUMENTS, *instances])


def check_evaluation(inputs: RunInputs) -> None:
    """Raise InputError if only one of `eval_dataset` and `eval_steps` is given, or if the columns do not fit."""
    eval_steps, eval_dataset = inputs.config.eval_steps, inputs.eval_dataset
    if eval_steps is None and eval_dataset is not None:
        raise InputError("eval_steps", None, "expected one where eval_dataset is given")
    if eval_steps is not None and eval_dataset is None:
        raise InputError("eval_dataset", None, "expected one where eval_steps is given")
    if eval_dataset is not None and (missing_columns := sorted(inputs.dataset[0].keys() - eval_dataset[0].keys())):
        expected = f"expected those of dataset, with {', '.join(missing_columns)}"
        raise InputError("eval_dataset", eval_dataset, expected, problem=f"has the columns {sorted(eval_dataset[0])}")


def check_prompts_of_run(inputs: RunInputs) -> None:
    """Raise InputError for tools without a chat template for them, and for the first row that cannot begin an episode.

    Without an environment an episode is a completion. The tokens of the tools count as part of the prompt.
    """
    model, tokenizer, environment = inputs.model, inputs.tokenizer, inputs.environment
    length = inputs.config.max_completion_length
    for name, dataset in inputs.datasets.items():
        if environment is not None:
            rows = LazyRows(range(len(dataset)), dataset.__getitem__)
            environment.check(model, tokenizer, rows, length, name)
        else:
            prompts = (dataset[index]["prompt"] for index in range(len(dataset)))
            check_prompts(model.config, tokenizer, prompts, length, name)


def check_turn_advantage(config: GRPOConfig, environment: Environment | None = None) -> None:
    """Raise InputError if the environment does not provide what the setting `advantage` needs."""
    name, entry = config.advantage, ADVANTAGES[config.advantage]
    if entry.per_turn and environment is None:
        raise InputError("advantage", name, "leave it out: there is no environment, and so there are no turns")
    if entry.reads_states and not (environment is not None and environment.has_state):
        expected = "expected an environment_factory whose class has `def get_state(self)`: the state a turn begins in"
        raise InputError("advantage", name, expected)


def check_types(inputs: RunInputs) -> None:
    """Raise InputTypeError if an input of a run has a wrong type, for instance if model and tokenizer are swapped."""
    model, tokenizer, config = inputs.model, inputs.tokenizer, inputs.config
    check_is_environment(inputs.environment)
    has_head = getattr(model, "get_output_embeddings", lambda: None)() is not None
    is_model = has_head or isinstance(model, ModelWithoutWeights)
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "eos_token_id")
    for name, value, has_type, expected in (
        ("config", config, isinstance(config, GRPOConfig), "a GRPOConfig"),
        ("model", model, is_model, "a causal language model, as load_policy returns it"),
        ("tokenizer", tokenizer, is_tokenizer, "the model's, as load_policy returns it"),
    ):
        if not has_type:
            raise InputTypeError(name, value, f"expected {expected}", problem=f"is of type {type(value).__name__}")


def check_dataset(dataset: Rows, name: str = "dataset") -> None:
    """Raise InputError unless every row is a dict with a "prompt", and all rows have the same columns."""
    first_row: Any = None
    for index, row in enumerate(_data_rows(dataset, name)):
        first_row = row if index == 0 else first_row
        if not isinstance(row, dict):
            raise InputTypeError(
                f"{name} row {index}", row, "expected a dict with a 'prompt'", problem=f"is {row!r:.60}"
            )
        if "prompt" not in row or row.keys() != first_row.keys():
            expected = f"those of row 0, {sorted(first_row)}" if "prompt" in row else "'prompt' among them"
            problem = f"has the columns {sorted(row)}"
            raise InputTypeError(f"{name} row {index}", row, f"expected {expected}", problem=problem)
    if first_row is None:
        raise InputError(name, dataset, "expected at least one row", problem="is empty")


def _data_rows(dataset: Rows, name: str) -> Iterator[Any]:
    """Yield all rows of a data set.

    Raises:
        InputTypeError: if rows cannot be read by index, as in a generator, a dict, a DatasetDict or a DataFrame.
    """
    try:
        for index in range(len(dataset)):
            yield dataset[index]
    except (KeyError, TypeError) as error:
        expected = "expected a list of dicts or a datasets.Dataset (of one split)"
        raise InputTypeError(name, dataset, expected, problem=f"is a {type(dataset).__name__}") from error
