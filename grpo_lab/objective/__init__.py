"""The GRPO objective and its relatives, from importance ratio to loss.

Read it in this order: `surrogates` (the ratio, and what one token contributes), `table` (which loss takes which),
`aggregation` (how tokens become one number), and `loss`, which puts them together.
"""

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
from grpo_lab.objective.table import LOSS_TYPES, LOSSES, LOSSES_BY_TOKENS, Loss, LossSettings
