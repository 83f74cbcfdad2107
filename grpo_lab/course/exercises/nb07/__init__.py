"""Exercises of notebook 07: what happens between the samples and the next weights."""

NAMES = (
    "read_sequences",
    "compute_advantages",
    "silence_dropout",
    "frozen_copy",
    "microbatch_loss",
    "step_if_finite",
    "pass_at_k",
)
