"""Random completions of random prompts, for tests that score them."""

import torch

from grpo_lab.rollout.inputs import ScoreInputs


def score_inputs(
    prompt_lengths: tuple[int, ...],
    completion_lengths: tuple[int, ...],
    prompt_of_row: tuple[int, ...],
    vocabulary: int,
) -> ScoreInputs:
    """Token ids everywhere, padding included, from one seed: the columns are those of the longest."""
    generator = torch.Generator().manual_seed(0)
    L = max(prompt_lengths)
    T = max(completion_lengths)
    return ScoreInputs(
        prompt_ids=torch.randint(vocabulary, (len(prompt_lengths), L), generator=generator),
        prompt_mask=torch.arange(L) >= L - torch.tensor(prompt_lengths)[:, None],
        completion_ids=torch.randint(vocabulary, (len(completion_lengths), T), generator=generator),
        mask=torch.arange(T) < torch.tensor(completion_lengths)[:, None],
        prompt_of_row=torch.tensor(prompt_of_row),
    )
