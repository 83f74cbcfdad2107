"""The log-probabilities of an experience by `compute_logprobs`, at a run's temperature and in its precision.

`completion_logprobs` has a gradient and takes its rows at once; `logprobs_without_gradient` has none and cuts them into
micro-batches. Rows are cut and put in order so that as little padding as possible is computed.

A comment such as `# [temperature]` labels a line that exercises and mutation tests break (formulas/lines.py).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.rollout import Rollout, compute_logprobs
from grpo_lab.rollout.forward.fast_paths import is_fast
from grpo_lab.trainer.experience import Experience


def completion_logprobs(
    model, experience: Experience, config: GRPOConfig, row_mask: Bool[Tensor, " B"] | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Log-probability and entropy of each sampled token under the model, all at once, with gradient if it is enabled.

    Args:
        config: its temperature and precision are those of the computation.
        row_mask: True for each row to compute; the others are left at 0. None means all that have a token in the loss.

    Returns:
        In nats, on the device of the experience. Values where the mask is False are undefined. The entropy is None
        where `config.entropy_coef` is 0: the metrics take the sampler's.
    """
    logp = torch.zeros(experience.loss_mask.shape, device=experience.loss_mask.device)
    entropy = torch.zeros_like(logp) if config.entropy_coef != 0 else None
    row_index = (experience.loss_mask.any(-1) if row_mask is None else row_mask).nonzero()[:, 0]
    if len(row_index) == 0:
        return logp, entropy
    with autocast(model, config):
        new_logp, new_entropy = _logprobs_together(model, experience.rollout[row_index], config)
    token_index = (row_index[:, None], torch.arange(new_logp.shape[1], device=logp.device))
    logp = logp.to(new_logp.dtype).index_put(token_index, new_logp.to(logp.device))
    return logp, None if entropy is None else entropy.to(logp).index_put(token_index, new_entropy.to(logp))


@torch.no_grad()
def logprobs_without_gradient(
    model, experience: Experience, config: GRPOConfig, row_mask: Bool[Tensor, " B"] | None = None
) -> Float[Tensor, "B T"]:
    """The log-probabilities of `completion_logprobs` without gradient, as many rows at a time as an update takes."""
    row_mask = experience.loss_mask.any(-1) if row_mask is None else row_mask
    order = cheapest_order(model, experience.rollout, row_mask)
    parts = [
        completion_logprobs(model, experience[rows], config, row_mask[rows])[0]
        for rows in order.split(config.rows_at_once)
    ]
    return torch.cat(parts)[order.argsort()]


def cheapest_order(model, rollout: Rollout, row_mask: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Order the rows so that few tokens go through the layers, of which only the rows of `row_mask` are computed.

    The rows of a prompt stand together: what they share is computed once, and a micro-batch of whole groups holds no
    other prompt. Where the model goes the plain way, rows are in order of length: that saves padding.
    """
    # Longest first: what does not fit into memory shows at once, not after an hour.
    order = (rollout.mask.sum(-1) * row_mask).argsort(descending=True, stable=True)
    if not is_fast(model):
        return order
    prompts = rollout.prompt_of_row[order]
    position = torch.arange(len(order), device=order.device).where(row_mask[order], len(order))
    first_position = torch.full((len(rollout.prompt_ids),), len(order), device=order.device)
    first_position = first_position.scatter_reduce(0, prompts, position, "amin")  # of each prompt's first row
    return order[first_position[prompts].argsort(stable=True)]


def _logprobs_together(model, rollout: Rollout, config: GRPOConfig):
    length = int(rollout.mask.sum(-1).max())
    # Before its first column with a token, all rows have padding.
    first_column = int(rollout.prompt_mask[rollout.prompt_of_row].any(0).int().argmax())
    prompts = rollout.prompt_ids[:, first_column:], rollout.prompt_mask[:, first_column:]
    completions = rollout.completion_ids[:, :length], rollout.mask[:, :length]
    policy_mask = rollout.policy_mask[:, :length].to(model.device)
    inputs = [tensor.to(model.device) for tensor in (*prompts, *completions, rollout.prompt_of_row)]
    return compute_logprobs(
        model,
        *inputs,
        temperature=config.temperature,  # [temperature]
        with_entropy=config.entropy_coef != 0,
        policy_mask=policy_mask,
    )
