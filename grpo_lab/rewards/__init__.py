r"""Reward functions: by rule, by mathematical equality or by a judge, and the weighted sum of several of them.

A reward function is any callable `(completions, **kwargs) -> list[float | None]`, the signature of TRL's trainers.
Completions are strings, or lists of chat messages. `prompts`, `completion_ids` and every column of the dataset are
passed as lists by keyword. None means that the reward does not apply to that completion. The expected text is always
the column `answer`.

To change a setting, bind it: `functools.partial(contains_reward, penalty_per_character=0.0)`. The reward keeps the name
of the function. A reward with a penalty may have an attribute `without_penalty`: the same reward function without that
penalty. An evaluation uses it to count the correct completions.
"""

from grpo_lab.rewards.answers import last_number, last_number_reward, number_reward, same_number
from grpo_lab.rewards.functions import reward_names
from grpo_lab.rewards.judge import JUDGE_TEMPLATE, judge_reward, read_verdict, reward_model_reward
from grpo_lab.rewards.programs import code_reward, pass_rate_reward, sql_reward
from grpo_lab.rewards.rules import (
    accuracy_reward,
    contains_reward,
    format_fault,
    format_reward,
    get_soft_overlong_punishment,
    graded_reward,
)
from grpo_lab.rewards.scoring import score_completions
from grpo_lab.rewards.text import completion_text, extract_answer, loose_text, normalise_text, prompt_text
from grpo_lab.rewards.verifiers import math_reward
