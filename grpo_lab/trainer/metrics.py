"""The metrics of a step: of its updates, its rollout and its rewards, and the seconds of its phases."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError, RunError
from grpo_lab.base.files import FRAC_LOGP_DIFFERENCE, FRAC_TRAINED_REPLIES, LOGP_DIFFERENCE_MAX
from grpo_lab.objective.loss import LossMetrics
from grpo_lab.rewards.scoring import Rewards
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.rollout import Episode
from grpo_lab.trainer.experience import Experience

LOGP_TOLERANCE = 0.1  # in nats; a larger difference from the log-probability of the sampler is counted


def merge_metrics(*parts: dict) -> dict:
    """Return the metrics of all parts together.

    Raises:
        RunError: if two parts have the same name, so that one value would replace the other. A reward function may have
            logged it, or the `clip_metrics` of a loss returned it.
    """
    merged: dict = {}
    for part in parts:
        if repeated_names := sorted(merged.keys() & part.keys()):
            name = repeated_names[0]
            expected = "expected another name in `log_metric`, or in the `clip_metrics` of the loss"
            raise RunError("metrics", name, expected, problem=f"have {name!r} twice")
        merged |= part
    return merged


class _MicrobatchMetrics(NamedTuple):
    """The contribution of a micro-batch to the metrics of its update; its tensors are on the device."""

    means: dict[str, Float[Tensor, ""]]  # metrics that `policy_loss` returned
    row_mean_names: set[str]  # names of those that are means over rows; the others are means over tokens
    num_rows: int
    token_share: Float[Tensor, ""]  # share of the tokens of the update
    loss: Float[Tensor, ""]
    max_logp_difference: Float[Tensor, ""]  # largest difference from the sampler's log-probabilities
    num_differing_tokens: Int[Tensor, ""]  # number of computed tokens that differ by more than LOGP_TOLERANCE
    num_computed_tokens: Int[Tensor, ""]
    num_trained_reply_tokens: Int[Tensor, ""] | None  # number of reply tokens in the loss; None: no environment
    num_reply_tokens: Int[Tensor, ""] | None


class UpdateMetrics:
    """The metrics of one update, combined from its micro-batches.

    A mean over tokens is weighted by the share of the update's tokens that the micro-batch has, and a mean over rows by
    its share of the rows.

    Args:
        num_items: Number of tokens in the loss of the update.
    """

    def __init__(self, num_items: Int[Tensor, ""]):
        self.num_items = num_items.clamp(min=1)
        self._microbatches: list[_MicrobatchMetrics] = []

    def add(
        self,
        microbatch: Experience,
        gradient_rows: Bool[Tensor, " R"],
        logp: Float[Tensor, "R T"],
        loss: Float[Tensor, ""],
        microbatch_metrics: dict[str, Float[Tensor, ""]],
    ) -> None:
        """Add the metrics of a micro-batch of R rows.

        Args:
            microbatch: The rows.
            gradient_rows: True for each row with a gradient, whose log-probabilities were therefore computed.
            logp: Log-probabilities under the trained policy.
            loss: The loss of the micro-batch.
            microbatch_metrics: Metrics that `microbatch_loss` returned, by name; a student's function may return none.

        Raises:
            InputTypeError: if the metrics are another dict, which does not tell the means over rows from the others.
        """
        if not microbatch_metrics:
            microbatch_metrics = LossMetrics({}, set())
        if not isinstance(microbatch_metrics, LossMetrics):
            expected = "expected {}, or a `LossMetrics`, as `microbatch_loss` returns it; add a metric to it by `|`"
            raise InputTypeError("microbatch_metrics", microbatch_metrics, expected)
        computed = microbatch.loss_mask & gradient_rows[:, None]
        logp_difference = torch.where(computed, (logp.detach() - microbatch.rollout.logp).abs(), 0)
        num_trained_reply_tokens, num_reply_tokens = _count_reply_tokens(microbatch)
        differs = ~(logp_difference <= LOGP_TOLERANCE)  # also where the difference is NaN
        self._microbatches.append(
            _MicrobatchMetrics(
                means={name: torch.as_tensor(value).to(loss) for name, value in microbatch_metrics.items()},
                row_mean_names=microbatch_metrics.row_mean_names,
                num_rows=len(microbatch),
                token_share=microbatch.loss_mask.sum() / self.num_items,
                loss=loss.detach(),
                max_logp_difference=logp_difference.max(),
                num_differing_tokens=differs.sum(),
                num_computed_tokens=computed.sum(),
                num_trained_reply_tokens=num_trained_reply_tokens,
                num_reply_tokens=num_reply_tokens,
            )
        )

    def combine(self) -> dict[str, float]:
        """Return the metrics of the whole update; this waits for the device."""
        stacked_numbers = [
            torch.stack([metrics.token_share, metrics.loss, metrics.max_logp_difference, *metrics.means.values()])
            for metrics in self._microbatches
        ]
        numbers = torch.stack(stacked_numbers).tolist()  # one list per micro-batch
        differences = [difference for _, _, difference, *_ in numbers]
        max_difference = math.nan if any(map(math.isnan, differences)) else max(differences)
        combined = {"loss": 0.0, LOGP_DIFFERENCE_MAX: max_difference}
        means_of_update: dict[str, float] = {}
        num_rows = sum(metrics.num_rows for metrics in self._microbatches)
        for metrics, (token_share, loss, _, *means) in zip(self._microbatches, numbers, strict=True):
            combined["loss"] += loss
            for name, mean in zip(metrics.means, means, strict=True):
                weight = metrics.num_rows / num_rows if name in metrics.row_mean_names else token_share
                means_of_update[name] = means_of_update.get(name, 0.0) + mean * weight
        combined[FRAC_LOGP_DIFFERENCE] = _share_of_tokens(
            [(metrics.num_differing_tokens, metrics.num_computed_tokens) for metrics in self._microbatches]
        )
        reply_counts = [
            (metrics.num_trained_reply_tokens, metrics.num_reply_tokens)
            for metrics in self._microbatches
            if metrics.num_trained_reply_tokens is not None and metrics.num_reply_tokens is not None
        ]
        if reply_counts:
            combined[FRAC_TRAINED_REPLIES] = _share_of_tokens(reply_counts)
        return merge_metrics(combined, means_of_update)


def _count_reply_tokens(microbatch: Experience) -> tuple[Int[Tensor, ""], Int[Tensor, ""]] | tuple[None, None]:
    """Count the tokens of the environment's replies that enter the loss, and all of them; None: no environment."""
    if microbatch.rollout.episodes is None:
        return None, None
    reply_lengths = [episode.num_reply_tokens for episode in microbatch.rollout.episodes]
    reply_tokens = torch.tensor(reply_lengths, device=microbatch.loss_mask.device)
    # Counted from lengths and not from `policy_mask`: a run that trains on replies by mistake has probably lost that
    # mask.
    policy_tokens = microbatch.rollout.mask.sum(-1) - reply_tokens
    surplus = (microbatch.loss_mask.sum(-1) - policy_tokens).clamp(min=0)
    return surplus.sum(), reply_tokens.sum()


def _share_of_tokens(counts: list[tuple[Int[Tensor, ""], Int[Tensor, ""]]]) -> float:
    """Return the share of the counted tokens among all tokens of the micro-batches; 0 if there are no tokens.

    counts: The number of counted tokens and the number of all tokens, for each micro-batch.
    """
    counted, total = torch.stack([torch.stack(pair) for pair in counts]).sum(0).tolist()
    return counted / max(total, 1)


def mean_of_updates(updates: list[dict]) -> dict:
    """Return the mean of each metric over the updates of a step.

    `LOGP_DIFFERENCE_MAX` and `FRAC_LOGP_DIFFERENCE`, which compare the policy with the sampler, are those of the first
    update: after it, the policy has changed.
    """
    mean = {name: sum(metrics[name] for metrics in updates) / len(updates) for name in updates[0]}
    return mean | {name: updates[0][name] for name in (LOGP_DIFFERENCE_MAX, FRAC_LOGP_DIFFERENCE)}


def mean_and_std(values: Tensor) -> tuple[float | None, float]:
    """Return the mean and the standard deviation of the values that are not NaN; the mean is None if all are NaN."""
    numbers = values[~values.isnan()]
    return numbers.mean().item() if len(numbers) else None, numbers.std().item() if len(numbers) > 1 else 0.0


def frac_none_metrics(names: list[str], rewards_per_func: Float[Tensor, "B F"]) -> dict[str, float]:
    """Return, for each reward function, the share of completions to which it did not apply, if the share is not 0."""
    shares = rewards_per_func.isnan().double().mean(0).tolist()
    return {f"rewards/{name}/frac_none": share for name, share in zip(names, shares, strict=True) if share}


def plain_numbers(metrics: dict) -> dict:
    """Convert the metrics of a step to Python numbers.

    Raises:
        InputTypeError: if a name is not a text, or if a value cannot be written to a file of metrics.
    """
    plain = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise InputTypeError(
                "metrics", name, "expected texts, such as 'think_rate'", problem=f"has the key {name!r}"
            )
        plain[name] = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(plain[name], int | float | str | None):
            value_shown = f"is {value!r:.60}"
            raise InputTypeError(f"metrics[{name!r}]", value, "expected a number, or None", problem=value_shown)
    return plain


def rollout_metrics(rollout: Rollout, seconds: float) -> dict:
    """Return the metrics of the sampled completions, and of the tool calls if there is an environment.

    seconds: The time that the sampling took.
    """
    lengths = rollout.policy_mask.sum(-1).float()
    ended = lengths[~rollout.truncated]
    prompt_tokens = rollout.prompt_mask.sum(-1)[rollout.prompt_of_row].sum()
    return {
        "entropy": (rollout.entropy.sum() / rollout.policy_mask.sum()).item(),
        "completions/mean_length": lengths.mean().item(),
        "completions/min_length": lengths.min().item(),
        "completions/max_length": lengths.max().item(),
        "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        "completions/mean_terminated_length": ended.mean().item() if len(ended) else 0.0,
        "num_tokens": int(lengths.sum() + prompt_tokens),
        "tokens_per_second": lengths.sum().item() / seconds,
    } | tool_metrics(rollout.episodes)


def tool_metrics(episodes: list[Episode] | None) -> dict:
    """Return the mean number of calls per episode and the share of failed calls; no metrics without an environment."""
    if episodes is None:
        return {}
    calls = sum(episode.num_calls for episode in episodes)
    failures = sum(episode.num_failures for episode in episodes)
    return {"tools/call_frequency": calls / len(episodes), "tools/failure_frequency": failures / max(calls, 1)}


def frac_equal_rewards(grouped_rewards: Float[Tensor, "P G"]) -> float:
    """Return the share of groups whose rewards are all equal; rewards that do not apply (NaN) are left out."""
    highest = grouped_rewards.nan_to_num(nan=-torch.inf).amax(-1)
    lowest = grouped_rewards.nan_to_num(nan=torch.inf).amin(-1)
    return (highest <= lowest).float().mean().item()


def reward_metrics(experience: Experience, rewards: Rewards) -> dict:
    """Return the metrics of the total reward, of each reward function, and of the groups with equal rewards."""
    num_groups = int(experience.rollout.group_of_row.max()) + 1
    grouped_rewards = rearrange(experience.rewards, "(P G) -> P G", P=num_groups)  # adjacent rows
    mean, std = mean_and_std(experience.rewards)
    metrics = {"reward": mean, "reward_std": std, "frac_reward_zero_std": frac_equal_rewards(grouped_rewards)}
    for name, values in zip(rewards.names, rewards.rewards_per_func.unbind(1), strict=True):
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = mean_and_std(values)
    return metrics | frac_none_metrics(rewards.names, rewards.rewards_per_func)


def synchronized_time(device: torch.device) -> float:
    """Wait until the device has finished its work, since a GPU works asynchronously; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """Timer of the phases of a step: `with clock(name):` adds the time spent inside to `totals[name]`.

    Phases may be nested: the time of an inner phase is not counted for the outer one. If `read` returns another
    quantity, such as a number of operations, that quantity is added up instead of seconds.

    Args:
        device: The device whose work is awaited before each reading.
        read: Function that returns the current reading. None: the time in seconds.
    """

    def __init__(self, device: torch.device, read: Callable[[], float] | None = None):
        self.read = read or partial(synchronized_time, device)
        self.totals: dict[str, float] = {}
        self._nested_seconds = 0.0  # the part spent in phases nested in the current one

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outer, self._nested_seconds = self._nested_seconds, 0.0
        started = self.read()
        try:
            yield
        finally:
            elapsed = self.read() - started
            self.totals[name] = self.totals.get(name, 0.0) + elapsed - self._nested_seconds
            self._nested_seconds = outer + elapsed
