"""Define three penalties on length for the sample report of the project, as reward functions with TRL's signature.

A penalty is minus a number of tokens. The penalty per token is the weight of the function on the command line.
"""

import random
from collections import defaultdict

from grpo_lab.rewards import accuracy_reward


def on_all(completions, completion_ids, **kwargs):
    """Return minus the length of every completion."""
    return [-float(len(tokens)) for tokens in completion_ids]


def on_right(completions, completion_ids, answer, **kwargs):
    """Return minus the length of every right completion, and 0 for the others."""
    right = accuracy_reward(completions, answer)
    return [-float(len(tokens)) * is_right for tokens, is_right in zip(completion_ids, right, strict=True)]


def exchanged(completions, completion_ids, prompts, **kwargs):
    """Return minus the length of a random completion of the same group, as a control."""
    groups = defaultdict(list)
    for row, prompt in enumerate(prompts):
        groups[str(prompt)].append(row)
    penalties = [0.0] * len(completion_ids)
    for rows in groups.values():
        lengths = [len(completion_ids[row]) for row in rows]
        random.Random(str([completion_ids[row] for row in rows])).shuffle(lengths)
        for row, length in zip(rows, lengths, strict=True):
            penalties[row] = -float(length)
    return penalties
