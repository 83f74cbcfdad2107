"""The GRPO objective and its relatives, from importance ratio to loss.

Read it in this order: `surrogates` (the importance ratio, and the contribution of one token), `table` (the surrogate
and the settings of each loss), `aggregation` (the average over tokens), and `loss`, which combines them.

Invalid arguments raise a ValueError that names the argument. `# [name]` at the end of a line is an address for the
exercises and the mutation tests (`formulas/lines.py`).
"""

from grpo_lab.base.renamed import warn_renamed
from grpo_lab.objective.aggregation import aggregate, token_mean
from grpo_lab.objective.loss import microbatch_loss, policy_loss
from grpo_lab.objective.surrogates import (
    LEVELS,
    cispo_surrogate,
    clipped_surrogate,
    gspo_token_ratio,
    importance_ratio,
    sapo_surrogate,
    vespo_surrogate,
)
from grpo_lab.objective.table import LOSS_TYPES, LOSSES, Loss, LossSettings, divides_by_update_tokens


def __getattr__(name: str) -> tuple[str, ...]:
    """Return the names of the losses that divide by the tokens of the update, under the old name of their list."""
    if name != "LOSSES_BY_TOKENS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(name, "divides_by_update_tokens(loss_type)")
    return tuple(loss_type for loss_type in LOSSES if divides_by_update_tokens(loss_type))
