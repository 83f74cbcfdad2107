"""The experience of a step: the sampled completions with their rewards, advantages, loss mask and log-probabilities.

The log-probabilities are those of `compute_logprobs` at the temperature and precision of the run.
`completion_logprobs` computes all rows at once and keeps the gradient. `logprobs_without_gradient` computes one
micro-batch after the other. Rows are ordered and trimmed so that little padding is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError, check_shapes
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.objective.surrogates import per_token
from grpo_lab.rewards.scoring import LoggedColumns
from grpo_lab.rollout import Rollout, compute_logprobs
from grpo_lab.rollout.forward.model_logprobs import LogprobsAndEntropy
from grpo_lab.rollout.model import has_fast_path
from grpo_lab.rollout.rollout import LogprobInputs


@dataclass(frozen=True)
class Experience:
    """B completions of T tokens with their rewards, advantages and loss mask.

    `experience[rows]` selects rows. `replace(experience, advantages=mine)` replaces the advantages.
    """

    rollout: Rollout
    rewards: Float[Tensor, " B"]  # NaN where no reward function applied
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]  # one per completion, or one per token
    loss_mask: Bool[Tensor, "B T"]  # True at each token of the policy that enters the loss
    old_logp: Float[Tensor, "B T"] | None = None  # log-probabilities before the first update; None: not computed yet
    ref_logp: Float[Tensor, "B T"] | None = None  # log-probabilities under the reference; None: no KL term
    rewards_per_func: Float[Tensor, "B F"] | None = None  # NaN where a reward function did not apply
    logged_columns: LoggedColumns | None = None  # values that the reward functions logged for each completion

    def __post_init__(self):
        if self.advantages is None:
            raise InputTypeError("experience.advantages", None, "expected a tensor of shape (B,) or (B, T)")
        loss_mask, advantages = (self.loss_mask, "B T"), (self.advantages, "B | B T")
        check_shapes(**{"experience.loss_mask": loss_mask, "experience.advantages": advantages})

    def __len__(self) -> int:
        return len(self.loss_mask)

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Experience":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    def split(self, size: int) -> "Iterator[Experience]":
        """Yield consecutive parts of `size` rows; the last part may be smaller."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def rows_with_gradient(self, *, every_row: bool) -> Bool[Tensor, " B"]:
        """Return True for each row with a gradient: one with a token in the loss and an advantage other than zero.

        every_row: Whether a row has a gradient whatever its advantage, because of a KL term or an entropy bonus
            (`config.needs_every_row`).
        """
        if every_row:
            return self.loss_mask.any(-1)
        return (self.loss_mask & (per_token(self.advantages) != 0)).any(-1)


def completion_logprobs(
    model, experience: Experience, config: GRPOConfig, needed_rows: Bool[Tensor, " B"] | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Compute the log-probability and the entropy of each sampled token under the model, for all rows at once.

    Args:
        model: The model that computes; the result has a gradient if gradients are enabled.
        experience: The B completions with their prompts.
        config: The settings of the run, from which temperature, precision and entropy coefficient are read.
        needed_rows: True for each row to compute; the others get 0. None: every row with a token in the loss.

    Returns:
        Log-probabilities and entropies in nats, on the device of the experience. Values outside the loss mask are
        undefined. The entropy is None if `config.entropy_coef` is 0: the metrics then report the sampler's entropy.
    """
    logp = torch.zeros(experience.loss_mask.shape, device=experience.loss_mask.device)
    entropy = torch.zeros_like(logp) if config.entropy_coef != 0 else None
    row_index = (experience.loss_mask.any(-1) if needed_rows is None else needed_rows).nonzero()[:, 0]
    if len(row_index) == 0:
        return logp, entropy
    with autocast(model, config):
        new_logp, new_entropy = _trimmed_logprobs(model, experience.rollout[row_index], config)
    token_index = (row_index[:, None], torch.arange(new_logp.shape[1], device=logp.device))
    logp = logp.to(new_logp.dtype).index_put(token_index, new_logp.to(logp.device))
    if entropy is None or new_entropy is None:
        return logp, None
    return logp, entropy.to(logp).index_put(token_index, new_entropy.to(logp))


@torch.no_grad()
def logprobs_without_gradient(
    model, experience: Experience, config: GRPOConfig, needed_rows: Bool[Tensor, " B"] | None = None
) -> Float[Tensor, "B T"]:
    """Compute the log-probabilities of `completion_logprobs` without gradient, one micro-batch at a time.

    With an entropy coefficient, the entropies are computed and dropped: logits in chunks give log-probabilities that
    differ in their last bits with and without entropy, and these have to equal those of the update, for a ratio of 1.
    """
    needed_rows = experience.loss_mask.any(-1) if needed_rows is None else needed_rows
    order = order_for_microbatches(model, experience.rollout, needed_rows)
    parts = [
        completion_logprobs(model, experience[rows], config, needed_rows[rows])[0]
        for rows in order.split(config.microbatch_size)
    ]
    return torch.cat(parts)[order.argsort()]


def order_for_microbatches(model, rollout: Rollout, needed_rows: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return an order of the rows in which the micro-batches compute few tokens.

    The rows of a prompt are adjacent: their shared prompt is computed once, and a micro-batch of whole groups holds no
    other prompt. A model without the fast path (`has_fast_path`) gets rows sorted by length, which saves padding.

    Args:
        model: The model that computes the log-probabilities.
        rollout: The B completions.
        needed_rows: True for each row that is computed; the other rows come last, with the fast path last within their
            prompt.
    """
    # The longest rows come first, so that a run that needs too much memory fails at once and not after an hour.
    order = (rollout.mask.sum(-1) * needed_rows).argsort(descending=True, stable=True)
    if not has_fast_path(model):
        return order
    prompts = rollout.prompt_of_row[order]
    position = torch.arange(len(order), device=order.device).where(needed_rows[order], len(order))
    first_position = torch.full((len(rollout.prompt_ids),), len(order), device=order.device)
    # The position of the first computed row of each prompt.
    first_position = first_position.scatter_reduce(0, prompts, position, "amin")
    return order[first_position[prompts].argsort(stable=True)]


def _trimmed_logprobs(model, rollout: Rollout, config: GRPOConfig) -> LogprobsAndEntropy:
    """Compute log-probabilities and entropies of all rows, without the columns that are padding in every row.

    T is the length of the longest completion.
    """
    length = int(rollout.mask.sum(-1).max())
    # All prompts have padding in the columns before this one.
    first_column = int(rollout.prompt_mask[rollout.prompt_of_row].any(0).int().argmax())
    inputs = LogprobInputs(
        prompt_ids=rollout.prompt_ids[:, first_column:],
        prompt_mask=rollout.prompt_mask[:, first_column:],
        completion_ids=rollout.completion_ids[:, :length],
        mask=rollout.mask[:, :length],
        prompt_of_row=rollout.prompt_of_row,
    )
    return compute_logprobs(
        model,
        *inputs.to(model.device),
        temperature=config.temperature,  # [temperature]
        with_entropy=config.entropy_coef != 0,
        policy_mask=rollout.policy_mask[:, :length].to(model.device),
    )
