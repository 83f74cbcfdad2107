"""The path from hidden states to the loss has the value and the gradient of Liger's fused loss, for every loss type.

Liger has no sequence level for cispo, sapo and vespo. Its luspo agrees with ours and TRL's only at the sequence level
without KL; otherwise it also counts masked positions, and divides by the width of the batch.
"""

import pytest

from grpo_lab.logprobs import chunked_token_logprobs, token_logprobs
from grpo_lab.objective import policy_loss
from tests.parity.engines import IN_TRL, require_engine
from tests.support.agreement import assert_agree, draw, draw_integers, ragged_mask
from tests.support.few_fast import few_fast

liger = require_engine("liger_kernel.chunked_loss.grpo_loss")

B, T, V, D = 4, 6, 23, 5
KLS = ["none", "k3", "corrected k3"]
CASES = [
    (loss_type, level, kl)
    for loss_type in IN_TRL
    for level in ("token", "sequence")
    for kl in KLS
    if not (loss_type in ("cispo", "sapo", "vespo") and level == "sequence")
    and not (loss_type == "luspo" and (level, kl) != ("sequence", "none"))
]


@pytest.mark.parametrize(("loss_type", "level", "kl", "head"), few_fast(CASES, ["plain", "chunked"]))
def test_policy_loss_has_ligers_value_and_gradient(loss_type, level, kl, head):
    hidden, weight = draw(B, T, D, seed=0).float(), draw(V, D, seed=1).float()
    ids = draw_integers((B, T), V, seed=2)
    mask, advantages = ragged_mask(B, T, 3), draw(B, seed=4).float()
    logp = token_logprobs(hidden @ weight.T, ids)
    old, ref = logp + draw(B, T, seed=5, scale=0.3).float(), logp + draw(B, T, seed=6, scale=0.3).float()
    beta, corrected = 0.0 if kl == "none" else 0.1, kl.startswith("corrected")
    high = 5.0 if loss_type == "cispo" else 0.3
    loss_of_liger = liger.LigerFusedLinearGRPOLoss(
        beta=beta, compiled=False, use_ref_model=beta > 0, loss_type=loss_type, max_completion_length=9,
        importance_sampling_level=level, epsilon_low=0.2, epsilon_high=high, use_bias_correction_kl=corrected,
        temperature=0.8,
    )  # fmt: skip

    def theirs(h, w):
        references = {"ref_per_token_logps": ref} if beta else {}
        return loss_of_liger(
            h, w, ids, mask.float(), advantages, old_per_token_logps=old, num_items_in_batch=30, **references
        )[0]  # fmt: skip

    def ours(h, w):
        if head == "chunked":
            logp = chunked_token_logprobs(h, w, ids, 0.8, chunk_size=5)
        else:
            logp = token_logprobs(h @ w.T, ids, 0.8)
        return policy_loss(
            logp, advantages, mask, old, ref, loss_type=loss_type, importance_sampling_level=level, epsilon=0.2,
            epsilon_high=high, beta=beta, kl_bias_correction=corrected, max_completion_length=9, num_items=30,
        )[0]  # fmt: skip

    assert_agree(ours, theirs, hidden, weight, tolerance=2e-6)
