"""Sampling completions, and computing their log-probabilities again; the two must agree.

`sample.py` goes from prompts (`prompts.py`) to a `Rollout` (`rollout.py`), and `completion_texts.py` decodes its
completions for the rewards. In the folders: `decoding/` draws tokens, `forward/` computes log-probabilities, and
`environments/` samples episodes in which an environment or tools reply. `model.py` has what they ask of a model.

`# [name]` at the end of a line is an address used by the exercises and mutation tests (formulas/lines.py).
"""

from grpo_lab.rollout.environments.text_environment import sample_episodes
from grpo_lab.rollout.forward.model_logprobs import compute_logprobs
from grpo_lab.rollout.model import evaluation_mode
from grpo_lab.rollout.prompts import encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.rollout.sample import read_sequences, sample_completions
