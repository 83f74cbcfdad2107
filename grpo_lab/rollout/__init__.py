"""Sampling completions, and scoring them again: the two sides that have to agree."""

from grpo_lab.rollout.sample import (
    Rollout,
    encode_prompts,
    end_token_ids,
    evaluating,
    head_chunk,
    pad_token_id,
    read_sequences,
    sample_completions,
    score_logprobs,
)

__all__ = [
    "Rollout",
    "encode_prompts",
    "end_token_ids",
    "evaluating",
    "head_chunk",
    "pad_token_id",
    "read_sequences",
    "sample_completions",
    "score_logprobs",
]
