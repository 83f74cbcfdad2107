"""The parts of an update add up to its loss and its gradient, however it is cut."""

import pytest
import torch

from grpo_lab.objective import LOSS_TYPES, part_loss, policy_loss

B, T = 7, 5
CUTS = ((7,), (3, 3, 1), (1,) * 7, (2, 5))


def batch():
    dice = torch.Generator().manual_seed(0)
    logp = -torch.rand(B, T, generator=dice, dtype=torch.float64)
    old_logp, ref_logp = (logp + 0.3 * torch.randn(B, T, generator=dice, dtype=torch.float64) for _ in range(2))
    mask = torch.arange(T) < torch.tensor([5, 1, 0, 4, 2, 3, 5])[:, None]
    return logp.requires_grad_(), torch.randn(B, generator=dice, dtype=torch.float64), mask, old_logp, ref_logp


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("loss_type", [name for name in LOSS_TYPES if name != "bnpo"])
def test_the_parts_add_up_to_the_whole(loss_type, cut):
    logp, advantages, mask, old_logp, ref_logp = batch()
    settings = {"loss_type": loss_type, "beta": 0.1, "max_completion_length": 8}
    whole, _ = policy_loss(logp, advantages, mask, old_logp, ref_logp, **settings)
    parts = [
        part_loss(
            logp[rows], advantages[rows], mask[rows], B, mask.sum(),
            old_logp=old_logp[rows], ref_logp=ref_logp[rows], **settings,
        )[0]
        for rows in torch.arange(B).split(cut)
    ]  # fmt: skip
    torch.testing.assert_close(sum(parts), whole)
    gradients = [torch.autograd.grad(loss, logp)[0] for loss in (sum(parts), whole)]
    torch.testing.assert_close(*gradients)


def test_bnpo_weighs_the_mean_of_each_part_by_its_rows():
    logp, advantages, mask, *_ = batch()
    part = part_loss(logp[:3], advantages[:3], mask[:3], B, mask.sum(), loss_type="bnpo")[0]
    alone = policy_loss(logp[:3], advantages[:3], mask[:3], loss_type="bnpo")[0]
    torch.testing.assert_close(part, alone * 3 / 7)
