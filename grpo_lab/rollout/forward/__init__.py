"""Forward passes over prompts and completions: log-probabilities, the fast paths, and the models that take them.

The way to a log-probability: `compute_logprobs` (`model_logprobs.py`) asks `has_fast_path` (`fast_paths.py`).

- On the fast path, `packed_hidden` (`packing.py`) runs the layers once for each common prefix of the rows. Each layer
  calls `attend_packed`, which attends with a mask (`masked_rows.py`) or, in long rows, without one (`long_rows.py`);
  both use `attention.py`. The head then computes logits and log-probabilities by the formulas of
  `grpo_lab/logprobs.py`.
- Any other model runs its own forward pass over whole rows, and its head alone if there are too many logits for one
  pass (`model_head.py`).

`modes.py` sets the mode of a model for such a pass.
"""
