"""Random completions of random prompts, for tests that compute their log-probabilities."""

import torch

from grpo_lab.rollout.inputs import LogprobInputs


def logprob_inputs(
    prompt_lengths: tuple[int, ...],
    completion_lengths: tuple[int, ...],
    prompt_of_row: tuple[int, ...],
    vocabulary: int,
) -> LogprobInputs:
    """Token ids everywhere, padding included, from one seed: the columns are those of the longest."""
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
    """5 rows of 3 prompts of other lengths. Rows 0 and 4 begin alike, row 2 is one token, which no query stands for."""
    inputs = logprob_inputs((9, 5, 1), completion_lengths, (0, 1, 1, 2, 0), vocabulary=4096)
    inputs.completion_ids[4, :6] = inputs.completion_ids[0, :6]
    return inputs
