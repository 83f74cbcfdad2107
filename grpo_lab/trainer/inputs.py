"""The checks of what a run is given, before its first step: model, tokenizer, data, rewards and settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.names import TRAINER_ARGUMENTS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import check_reference
from grpo_lab.config.precision import autocast
from grpo_lab.models.adapters import has_adapter
from grpo_lab.models.folders import usable_folder
from grpo_lab.models.loading import load_tokenizer, pick_device
from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.rewards import reward_names
from grpo_lab.rewards.functions import check_signatures, check_weights
from grpo_lab.rollout.environments.environment import Environment, abilities
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.forward.fast_paths import is_fast
from grpo_lab.rollout.forward.long_rows import describe_attention
from grpo_lab.rollout.prompting.probe import probe
from grpo_lab.rollout.prompting.prompt_checks import check_prompts
from grpo_lab.rollout.prompting.prompts import encode_prompt, end_token_ids
from grpo_lab.tasks import Rows
from grpo_lab.tasks.lazy_rows import LazyRows
from grpo_lab.trainer.turn_credit import check_turn_advantage

LOOKED_AT = 200  # prompts whose length is counted


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run, under the names and in the order of `train`'s arguments."""

    model: Any
    tokenizer: Any
    dataset: Rows
    reward_funcs: Callable | list | None  # None: the environment has a reward of its own, or a loop of one's own does
    config: GRPOConfig
    eval_dataset: Rows | None = None
    environment: Environment | None = None

    @property
    def datasets(self) -> dict[str, Rows]:
        """The rows of the run by the name of their argument."""
        return {"dataset": self.dataset} | ({} if self.eval_dataset is None else {"eval_dataset": self.eval_dataset})


def check_run_inputs(inputs: RunInputs) -> None:
    """Raise InputError for the first argument of `Run` that is of another kind, or does not fit the others.

    What is right and yet worth knowing is printed: what the probe of the prompts finds, and what attends in long rows.
    """
    model, tokenizer, config = inputs.model, inputs.tokenizer, inputs.config
    check_types(model, tokenizer, config)
    check_turn_advantage(config, inputs.environment)
    if has_adapter(model):
        check_reference(config)
    for name, rows in inputs.datasets.items():
        check_dataset(rows, name)
    check_reward_funcs(inputs)
    check_evaluation(inputs)
    ensure_checked(model)
    check_prompts_of_run(inputs)
    prompts = (rows[index]["prompt"] for rows in inputs.datasets.values() for index in range(len(rows)))
    for line in probe(tokenizer, prompts, end_token_ids(model, tokenizer)).values():
        print(f"prompts: {line}")
    if line := _attention_of_long_rows(model, tokenizer, inputs.dataset, config):
        print(f"attention: {line}")


def check_reward_funcs(inputs: RunInputs) -> None:
    """Raise InputError for what `score_completions` would refuse after the first rollout."""
    if inputs.reward_funcs is None:
        return
    columns = inputs.dataset[0]
    check_weights(inputs.config.reward_weights, reward_names(inputs.reward_funcs))
    if clash := next((name for name in TRAINER_ARGUMENTS if name in columns), None):
        expected = "expected another name, since reward functions get something else under this one"
        raise InputError("dataset", inputs.dataset, expected, found=f"has the column {clash!r}")
    check_reward_arguments(inputs.reward_funcs, columns, abilities(inputs.environment).has_instances)


def check_reward_arguments(reward_funcs: Any, columns: Iterable[str], has_environments: bool = False) -> None:
    """Raise InputError for a reward function that cannot take what a run calls it with.

    columns: of the rows. has_environments: whether each episode has an instance of a class, which rewards get as
    `environments`.
    """
    instances = ["environments"] if has_environments else []
    check_signatures(reward_funcs, [*columns, *TRAINER_ARGUMENTS, *instances])


def check_evaluation(inputs: RunInputs) -> None:
    """Raise InputError unless there are both held-out rows and a time to see them, or neither."""
    eval_steps, eval_dataset = inputs.config.eval_steps, inputs.eval_dataset
    if eval_steps is None and eval_dataset is not None:
        raise InputError("eval_steps", None, "expected one where eval_dataset is given")
    if eval_steps is not None and eval_dataset is None:
        raise InputError("eval_dataset", None, "expected one where eval_steps is given")
    if eval_dataset is not None:
        check_columns(inputs.dataset, eval_dataset)


def check_prompts_of_run(inputs: RunInputs) -> None:
    """Raise InputError for the first row that no completion, or no episode, can begin with."""
    model, tokenizer, length = inputs.model, inputs.tokenizer, inputs.config.max_completion_length
    for name, dataset in inputs.datasets.items():
        if inputs.environment is not None:
            rows = LazyRows(range(len(dataset)), dataset.__getitem__)
            inputs.environment.check(model, tokenizer, rows, length, name)
        else:
            prompts = (dataset[index]["prompt"] for index in range(len(dataset)))
            check_prompts(model.config, tokenizer, prompts, length, name)


def _attention_of_long_rows(model, tokenizer, dataset: Rows, config: GRPOConfig) -> str | None:
    """Say in words what attends in rows too long for a mask; None where the first of the prompts leave none so long."""
    if not is_fast(model):
        return None
    prompts = [dataset[index]["prompt"] for index in range(min(len(dataset), LOOKED_AT))]
    length = max(len(encode_prompt(tokenizer, prompt)) for prompt in prompts) + config.max_completion_length
    with autocast(model, config):
        return describe_attention(length, model.device.type, attention_dtype(model))


def check_tool_environment(environment: Any, model: str, rows: Rows, name: str = "dataset") -> None:
    """Raise InputError where a model's chat template or these rows will not do for an environment with tools.

    For commands, before the weights are loaded: of the model its tokenizer is enough.
    """
    if isinstance(environment, ToolEnvironment):
        environment.check_rows(load_tokenizer(usable_folder(model, pick_device().type)[0]), rows, name)


def check_columns(dataset: Rows, eval_dataset: Rows) -> None:
    """Raise InputError unless held-out rows have the columns of those that are trained on."""
    if lacking := sorted(dataset[0].keys() - eval_dataset[0].keys()):
        expected = f"expected those of dataset, with {', '.join(lacking)}"
        raise InputError("eval_dataset", eval_dataset, expected, found=f"has the columns {sorted(eval_dataset[0])}")


def check_types(model, tokenizer, config) -> None:
    """Raise InputTypeError for what is no model, tokenizer or configuration, such as two that changed places."""
    has_head = getattr(model, "get_output_embeddings", lambda: None)() is not None
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "eos_token_id")
    for name, value, fits, expected in (
        ("config", config, isinstance(config, GRPOConfig), "a GRPOConfig"),
        ("model", model, has_head, "a causal language model, as load_policy returns it"),
        ("tokenizer", tokenizer, is_tokenizer, "the model's, as load_policy returns it"),
    ):
        if not fits:
            raise InputTypeError(name, value, f"expected {expected}", found=f"is of type {type(value).__name__}")


def check_dataset(dataset: Rows, name: str = "dataset") -> None:
    """Raise InputError unless every row is a dict with a "prompt", and all have the same columns."""
    first = None
    for index, row in enumerate(_each_row(dataset, name)):
        first = row if index == 0 else first
        if not isinstance(row, dict):
            raise InputTypeError(f"{name} row {index}", row, "expected a dict with a 'prompt'", found=f"is {row!r:.60}")
        if "prompt" not in row or row.keys() != first.keys():
            expected = f"those of row 0, {sorted(first)}" if "prompt" in row else "'prompt' among them"
            columns = f"has the columns {sorted(row)}"
            raise InputTypeError(f"{name} row {index}", row, f"expected {expected}", found=columns)
    if first is None:
        raise InputError(name, dataset, "expected at least one row", found="is empty")


def _each_row(dataset: Rows, name: str) -> Iterator[Any]:
    """The rows one after the other.

    InputTypeError for what has none: a generator, a dict, a DatasetDict, a DataFrame.
    """
    try:
        for index in range(len(dataset)):
            yield dataset[index]
    except (KeyError, TypeError) as error:
        expected = "expected a list of dicts or a datasets.Dataset (of one split)"
        raise InputTypeError(name, dataset, expected, found=f"is a {type(dataset).__name__}") from error
