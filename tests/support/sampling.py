"""Prompts of all difficult kinds, sampling and log-probabilities, for the tests of rollouts."""

import torch

from grpo_lab.rollout import compute_logprobs, sample_completions
from tests.support.small_policy import END, ROWS

# Prompts of different lengths, of a single token, and with the end token inside (from the chat template).
PROMPTS = [row["prompt"] for row in ROWS] + ["d", "?" + END + "e" + END]
G, T = 5, 6
# Sampling settings: the defaults, each setting alone, all together.
SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 4},
    {"top_p": 0.7},
    {"repetition_penalty": 1.8},
    {"temperature": 1.3, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3},
]


def sample(model, tokenizer, prompts=PROMPTS, seed=0, length=T, generations=G, **settings):
    torch.manual_seed(seed)
    return sample_completions(model, tokenizer, prompts, generations, length, **settings)


def logprobs_of(model, rollout, **settings):
    row = rollout.prompt_of_row
    inputs = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask, row)
    return compute_logprobs(model, *inputs, **settings)


def scale_hidden(factor, hidden, before):
    """Return a wrong result in place of `packed_hidden`: hidden states times a factor."""
    return factor * hidden, before


def tokens_of(rollout, b):
    """Return the token ids of prompt and completion of row b, without padding."""
    p = rollout.prompt_of_row[b]
    prompt = rollout.prompt_ids[p, rollout.prompt_mask[p]].tolist()
    return prompt, rollout.completion_ids[b, rollout.mask[b]].tolist()


@torch.no_grad()
def next_logits(model, prefix):
    return model(torch.tensor([prefix]), use_cache=False).logits[0, -1]


def assert_same_rollouts(first, second, tolerance=1e-4):
    """Check that tokens are equal, and log-probabilities and entropies (in nats) within the tolerance."""
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "mask", "truncated"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert first.texts == second.texts
    for values in (first.logp - second.logp, first.entropy - second.entropy):
        assert values.abs().max() < tolerance
