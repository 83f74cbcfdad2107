"""Forward passes over prompts and completions, for their log-probabilities.

The way to a log-probability: `compute_logprobs` (`model_logprobs.py`) asks whether the model takes the fast path
(`has_fast_path` of `rollout/model.py`).

- On the fast path, `packed_hidden` (`packing.py`) runs the layers once for each common prefix of the rows. Each layer
  calls `attend_packed`, which attends with a mask or, in long rows, without one (`attention.py`). The head then
  computes logits and log-probabilities by the formulas of `grpo_lab/logprobs.py`.
- Any other model runs its own forward pass over whole rows, and its head alone if there are too many logits for one
  pass (`ModelHead`).
"""
