"""Sampling completions, and computing their log-probabilities again: the two sides that have to agree."""

from grpo_lab.rollout.environments.episodes import sample_episodes
from grpo_lab.rollout.forward.score import score_logprobs
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids, evaluating, pad_token_id
from grpo_lab.rollout.sample import Rollout, read_sequences, sample_completions
