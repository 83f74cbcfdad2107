"""Reward functions of this package in a form that TRL's trainer can call."""

import asyncio
import warnings
from collections.abc import Callable

from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.rewards import reward_names, score_completions
from grpo_lab.rewards.functions import reward_func_list
from grpo_lab.rewards.scoring import is_async
from grpo_lab.rollout.completion_texts import TagKeepingTokenizer, thought_prefix, with_thought_prefix
from grpo_lab.rollout.prompts import encode_prompt
from grpo_lab.tasks import Rows
from grpo_lab.trainer.run.reports import none_if_nan


def rewards_for_trl(reward_funcs, rows: Rows, tokenizer=None) -> list[Callable]:
    """Return the reward functions in a form that TRL can call, with the arguments and checks of this package.

    TRL would pass further keyword arguments, and columns with values as Arrow converts them. So TRL's dataset holds
    only the number of each row, and the columns are taken from `rows`.

    Args:
        reward_funcs: One reward function, a list of them, or None.
        rows: The problems of all steps, in order.
        tokenizer: The tokenizer that restores the tags that TRL drops from completions, see `TagRestorer`; None leaves
            the completions as TRL returns them.
    """
    functions = reward_func_list(reward_funcs)
    names = reward_names(functions) if functions else []
    restore_tags = None if tokenizer is None else TagRestorer(tokenizer)
    return [
        _reward_for_trl(function, name, rows, restore_tags) for function, name in zip(functions, names, strict=True)
    ]


def _reward_for_trl(function: Callable, name: str, rows: Rows, restore_tags: "TagRestorer | None") -> Callable:
    """Return the reward function as TRL calls it; a coroutine function if `function` is one."""

    def reward(
        prompts, completions, completion_ids, row_number, log_metric, environments=None, **trainer_arguments
    ) -> list[float | None]:
        # TRL passes each column of its dataset as a list, under the name of the column.
        batch_rows = [rows[number] for number in row_number]
        if restore_tags is not None:
            completions = restore_tags(completions, completion_ids, batch_rows)
        columns = {column: [row[column] for row in batch_rows] for column in rows[0] if column != "prompt"}
        columns |= {} if environments is None else {"environments": environments}
        trainer_arguments |= {"log_metric": log_metric}
        columns |= {key: trainer_arguments[key] for key in TRAINER_ARGUMENTS if key in trainer_arguments}
        with warnings.catch_warnings():
            # Only this reward function is called here, and TRL itself warns if none gives a reward.
            warnings.filterwarnings("ignore", "every reward function")
            rewards = score_completions(function, prompts, completions, completion_ids, columns)[1]
        # Logged in every process at every call, since TRL gathers the values. `StepRecorder` drops zeros, as our own
        # loop does.
        log_metric(f"rewards/{name}/frac_none", rewards.isnan().double().mean().item())
        return [none_if_nan(value) for value in rewards[:, 0].tolist()]

    async def async_reward(**keywords) -> list[float | None]:
        return await asyncio.to_thread(reward, **keywords)

    named_reward = async_reward if is_async(function) else reward
    named_reward.__name__ = name
    return named_reward


class TagRestorer:
    """A function that restores the tags that TRL leaves out of completions.

    These are the tags that are special tokens, and the opening tag of a thought if it is at the end of the prompt.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.tag_keeping_tokenizer = TagKeepingTokenizer(tokenizer, [tokenizer.eos_token_id])

    def __call__(self, completions: list, completion_ids: list, rows: list[dict]) -> list:
        """Return the completions with their tags; `rows` holds the row of each completion."""
        tokenizer = self.tokenizer
        prefixes = [thought_prefix(tokenizer, encode_prompt(tokenizer, row["prompt"])) for row in rows]
        if not (self.tag_keeping_tokenizer.tags or any(prefixes)):
            return completions
        decoded = [self.tag_keeping_tokenizer.decode(ids, skip_special_tokens=True) for ids in completion_ids]
        texts = [with_thought_prefix(text, prefix) for text, prefix in zip(decoded, prefixes, strict=True)]
        if completions and isinstance(completions[0], str):
            return texts
        return [[{"role": "assistant", "content": text}] for text in texts]
