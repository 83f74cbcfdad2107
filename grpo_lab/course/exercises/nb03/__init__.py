"""Exercises of notebook 03: a reward that cannot be gamed, and the losses of the sorting world."""

NAMES = ("repaired_reward", "response_logprobs", "surrogate_loss", "kl_penalty")
