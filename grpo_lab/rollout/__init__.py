"""Sampling completions, and computing their log-probabilities again: the two sides that have to agree.

`sample.py` goes from prompts to a `Rollout`. Its parts: `prompting/` makes token ids of prompts, `decoding/` draws
tokens, `forward/` computes log-probabilities, and `environments/` has episodes in which an environment or tools reply.
"""

from grpo_lab.rollout.environments.episodes import sample_episodes
from grpo_lab.rollout.forward.modes import evaluating
from grpo_lab.rollout.forward.score import score_logprobs
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.sample import Rollout, read_sequences, sample_completions
