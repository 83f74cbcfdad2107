"""The GRPO objective and its relatives, from importance ratio to loss.

Read it in this order: `surrogates` (the importance ratio, and the contribution of one token), `losses` (the surrogate
and the settings of each loss), `aggregation` (the average over tokens), and `loss`, which combines them.

Invalid arguments raise a ValueError that names the argument. `# [name]` at the end of a line is an address for the
exercises and the mutation tests (`formulas/lines.py`).
"""

from grpo_lab.objective.aggregation import aggregate, token_mean
from grpo_lab.objective.loss import microbatch_loss, policy_loss
from grpo_lab.objective.losses import LOSS_TYPES, LOSSES, Loss, LossSettings, divides_by_update_tokens
from grpo_lab.objective.surrogates import (
    IMPORTANCE_SAMPLING_LEVELS,
    cispo_surrogate,
    clipped_surrogate,
    gspo_token_ratio,
    importance_ratio,
    sapo_surrogate,
    vespo_surrogate,
)
