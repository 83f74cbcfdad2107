"""Sampling completions, and computing their log-probabilities again: the two sides that have to agree.

`sample.py` goes from prompts to a `Rollout`. Its parts: `prompting/` makes token ids of prompts, `decoding/` draws
tokens, `forward/` computes log-probabilities, and `environments/` has episodes in which an environment or tools reply.
"""

import warnings

from grpo_lab.rollout.environments.episodes import sample_episodes
from grpo_lab.rollout.forward.model_logprobs import compute_logprobs
from grpo_lab.rollout.forward.modes import evaluating
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.rollout.sample import read_sequences, sample_completions


def __getattr__(name: str):
    """`score_logprobs`, as `compute_logprobs` was called: a score is a reward."""
    if name != "score_logprobs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("score_logprobs is called compute_logprobs now", DeprecationWarning, stacklevel=2)
    return compute_logprobs
