"""Make random prompts and completions, for tests of log-probabilities."""

import torch

from grpo_lab.rollout.rollout import LogprobInputs


def logprob_inputs(
    prompt_lengths: tuple[int, ...],
    completion_lengths: tuple[int, ...],
    prompt_of_row: tuple[int, ...],
    vocabulary: int,
) -> LogprobInputs:
    """Return random token ids, also in the padding; prompts and completions have the columns of the longest one."""
    generator = torch.Generator().manual_seed(0)
    L = max(prompt_lengths)
    T = max(completion_lengths)
    return LogprobInputs(
        prompt_ids=torch.randint(vocabulary, (len(prompt_lengths), L), generator=generator),
        prompt_mask=torch.arange(L) >= L - torch.tensor(prompt_lengths)[:, None],
        completion_ids=torch.randint(vocabulary, (len(completion_lengths), T), generator=generator),
        mask=torch.arange(T) < torch.tensor(completion_lengths)[:, None],
        prompt_of_row=torch.tensor(prompt_of_row),
    )


def unequal_rows(completion_lengths: tuple[int, ...] = (14, 3, 1, 8, 14)) -> LogprobInputs:
    """Return 5 rows of 3 prompts of different lengths; rows 0 and 4 begin alike, and row 2 has a single token."""
    inputs = logprob_inputs((9, 5, 1), completion_lengths, (0, 1, 1, 2, 0), vocabulary=4096)
    inputs.completion_ids[4, :6] = inputs.completion_ids[0, :6]
    return inputs
