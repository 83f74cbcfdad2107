"""Exercises of notebook 05: from importance ratio to loss."""

NAMES = (
    "importance_ratio",
    "gspo_token_ratio",
    "clipped_surrogate",
    "cispo_surrogate",
    "sapo_surrogate",
    "aggregate",
    "policy_loss",
)
