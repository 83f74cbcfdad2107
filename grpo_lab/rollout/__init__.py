"""Sampling completions, and computing their log-probabilities again: the two sides that have to agree."""

from grpo_lab.rollout.episodes import sample_episodes
from grpo_lab.rollout.prompts import encode_prompts, end_token_ids, evaluating, pad_token_id
from grpo_lab.rollout.sample import Rollout, read_sequences, sample_completions
from grpo_lab.rollout.score import score_logprobs
