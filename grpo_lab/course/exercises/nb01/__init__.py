"""Exercises of notebook 01: what the policy thought of its tokens, and the loss of the policy gradient."""

NAMES = (
    "token_logprobs",
    "token_entropy",
    "completion_mask",
    "sequence_logprob",
    "reinforce_loss",
    "score_function_objective",
)
