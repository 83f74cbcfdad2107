r"""Rewards: what a completion earns, by rule, by mathematics or by a judge, and how several of them add up.

A reward function is any callable `(completions, **kwargs) -> list[float | None]`, the signature of TRL's trainers.
Completions are strings, or lists of chat messages; `prompts`, `completion_ids` and every column of the dataset arrive
as lists by keyword; None means that the reward does not apply to that completion. The expected text is always the
column `answer`.

Bind another setting with `functools.partial(contains_reward, penalty_per_character=0.0)`: the name stays the
function's. A reward that subtracts a penalty from what is right or wrong may have an attribute `without_penalty`, the
reward function by which an evaluation counts what is right.
"""

from grpo_lab.rewards.answers import last_number, last_number_reward, number_reward, same_number
from grpo_lab.rewards.judge import JUDGE_TEMPLATE, judge_reward, read_verdict, reward_model_reward
from grpo_lab.rewards.mathematics import math_reward
from grpo_lab.rewards.programs import code_reward, pass_rate_reward, sql_reward
from grpo_lab.rewards.rules import (
    accuracy_reward,
    contains_reward,
    format_fault,
    format_reward,
    get_soft_overlong_punishment,
    graded_reward,
)
from grpo_lab.rewards.scoring import reward_names, score_completions
from grpo_lab.rewards.text import completion_text, extract_answer, loose_text, normalise_text, prompt_text
