"""The log-probabilities of an experience under a model, computed with as little padding as possible."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.config import GRPOConfig
from grpo_lab.kl import kl_estimate
from grpo_lab.precision import autocast, precision_of
from grpo_lab.rollout import Rollout, score_logprobs
from grpo_lab.trainer.experience import Experience


def completion_logprobs(
    model, experience: Experience, config: GRPOConfig
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Log-probability and entropy under the model; rows that carry no gradient are left at 0, uncomputed.

    The entropy is None where no bonus asks for it (the metrics take the sampler's). The results stay on the device of
    the experience, whichever device the model is on.
    """
    logp = torch.zeros(experience.mask.shape, device=experience.mask.device)
    entropy = torch.zeros_like(logp) if config.entropy_coef != 0 else None
    active = experience.active.nonzero()[:, 0]
    for rows in similar_lengths(active, experience.rollout.mask[active].sum(-1)):
        part_logp, part_entropy = _logprobs_together(model, experience.rollout[rows], config)
        logp = _put(logp, rows, part_logp)
        if entropy is not None:
            entropy = _put(entropy, rows, part_entropy)
    return logp, entropy


@torch.no_grad()
def all_logprobs(model, experience: Experience, config: GRPOConfig) -> Float[Tensor, "B T"]:
    """Log-probabilities of the whole experience without gradient, as many rows at once as an update takes."""
    order = cheapest_order(experience, config)
    parts = experience[order].split(config.per_device_train_batch_size)
    return torch.cat([completion_logprobs(model, part, config)[0] for part in parts])[order.argsort()]


def kl_to_reference(model, reference, experience: Experience, config: GRPOConfig) -> float:
    """KL(policy || reference) a token, from the sampled tokens: what the loss would report if beta were not 0.

    Both compute in the same way and on every row, those without gradient too.
    """
    every_row = replace(experience, active=experience.mask.any(-1))
    logp, ref_logp = (all_logprobs(one, every_row, config) for one in (model, reference))
    kl = torch.where(experience.mask, kl_estimate(logp, ref_logp, config.kl_estimator), 0)
    return (kl.sum() / experience.mask.sum().clamp(min=1)).item()


def cheapest_order(experience: Experience, config: GRPOConfig) -> Int[Tensor, " B"]:
    """By length or by prompt: the order of rows whose micro-batches put fewer tokens through the layers.

    By length there is less padding. By prompt, the rows of a micro-batch share one, which is computed once for them;
    not with gradient checkpointing, which computes the prompt of every row.
    """
    orders = [by_length(experience)]
    if not config.gradient_checkpointing:
        orders.append(by_prompt(experience, orders[0]))
    return min(orders, key=lambda order: _layer_tokens(experience[order], config.per_device_train_batch_size))


def by_prompt(experience: Experience, order: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The rows in this order, but those of a prompt together, and those without gradient last."""
    prompts, active = experience.rollout.prompt_of_row[order], experience.active[order]
    first = torch.arange(len(order), device=order.device)
    turn = torch.full((len(experience.rollout.prompt_ids),), len(order), device=order.device)
    turn = turn.scatter_reduce(0, prompts, first, "amin")  # of each prompt: that of its first row
    return order[torch.where(active, turn[prompts], len(order)).argsort(stable=True)]


def _layer_tokens(experience: Experience, rows: int) -> int:
    tokens, length = 0, experience.rollout.prompt_ids.shape[1]
    for part in experience.split(rows):
        if part.active.any():
            longest = part.rollout.mask[part.active].sum(-1).max()
            prompts = part.rollout.prompt_of_row[part.active].unique()
            tokens += len(prompts) * length + int(part.active.sum() * longest)
    return tokens


def by_length(experience: Experience) -> Int[Tensor, " B"]:
    """Order the rows longest completion first, those without gradient last, so that micro-batches hold similar lengths.

    That saves padding. And what does not fit into memory shows at once, not after an hour.
    """
    lengths = experience.rollout.mask.sum(-1) * experience.active
    return lengths.argsort(descending=True, stable=True)


def similar_lengths(rows: Int[Tensor, " R"], lengths: Int[Tensor, " R"]) -> list[Int[Tensor, " _"]]:
    """Cut the rows into groups within a factor of two in length, if together more than a third of them were padding."""
    if len(rows) == 0:
        return []
    if 3 * lengths.sum() >= 2 * len(rows) * lengths.max():
        return [rows]
    doublings = lengths.log2().ceil()
    return [rows[doublings == number] for number in doublings.unique()]


def _logprobs_together(model, rollout: Rollout, config: GRPOConfig):
    length = int(rollout.mask.sum(-1).max())
    begin = int(rollout.prompt_mask[rollout.prompt_of_row].any(0).int().argmax())  # before it, all rows have padding
    inputs = (
        rollout.prompt_ids[:, begin:],
        rollout.prompt_mask[:, begin:],
        rollout.completion_ids[:, :length],
        rollout.mask[:, :length],
        rollout.prompt_of_row,
    )
    shared = len(rollout.prompt_of_row.unique()) < len(rollout.prompt_of_row)
    with autocast(model.device, precision_of(model, config)):
        return score_logprobs(
            model,
            *(tensor.to(model.device) for tensor in inputs),
            temperature=config.temperature,
            share_prompts=shared and not config.gradient_checkpointing,  # checkpointed layers allow no cache
            with_entropy=config.entropy_coef != 0,
        )


def _put(into: Float[Tensor, "B T"], rows: Int[Tensor, " S"], values: Float[Tensor, "S t"]) -> Float[Tensor, "B T"]:
    place = (rows[:, None], torch.arange(values.shape[1], device=into.device))
    return into.to(values.dtype).index_put(place, values.to(into.device))
