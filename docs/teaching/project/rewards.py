"""Three prices on length, for the sample report of the project; each is a reward function with TRL's signature.

A price is the number of tokens with a minus sign; what a token costs is its weight on the command line.
"""

import random
from collections import defaultdict

from grpo_lab.rewards import accuracy_reward


def on_all(completions, completion_ids, **kwargs):
    """Every completion pays for its tokens."""
    return [-float(len(tokens)) for tokens in completion_ids]


def on_right(completions, completion_ids, answer, **kwargs):
    """Only a right completion pays for its tokens."""
    right = accuracy_reward(completions, answer)
    return [-float(len(tokens)) * is_right for tokens, is_right in zip(completion_ids, right, strict=True)]


def exchanged(completions, completion_ids, prompts, **kwargs):
    """The control: every completion pays for the tokens of one of its group, drawn by chance."""
    groups = defaultdict(list)
    for row, prompt in enumerate(prompts):
        groups[str(prompt)].append(row)
    prices = [0.0] * len(completion_ids)
    for rows in groups.values():
        lengths = [len(completion_ids[row]) for row in rows]
        random.Random(str([completion_ids[row] for row in rows])).shuffle(lengths)
        for row, length in zip(rows, lengths, strict=True):
            prices[row] = -float(length)
    return prices
