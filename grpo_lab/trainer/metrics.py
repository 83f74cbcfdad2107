"""Measurements of a step: the clock, and the metrics of its rollout, its rewards and its updates."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError
from grpo_lab.base.names import FRAC_LOGP_DIFFERENCE, LOGP_DIFFERENCE_MAX, TRAINED_REPLIES
from grpo_lab.rewards.scoring import Rewards
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.rollout import Episode
from grpo_lab.trainer.experience import Experience

LOGP_TOLERANCE = 0.1  # nats
# What `update` and `train` add to the metrics of `collect`; a reward function may not log under these names.
METRICS_OF_UPDATES = ("step", "loss", "grad_norm", "learning_rate", "kl", "ratio", "step_time", "nonfinite_steps")


def now(device: torch.device) -> float:
    """Seconds on the wall clock, once the device has finished what it was given: a GPU works asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """Timer of the phases of a step: `with clock(name):` adds the seconds spent inside to `seconds[name]`.

    Phases may be nested; the time of an inner one is its own and not the outer's. `read` may count something else.
    """

    def __init__(self, device: torch.device, read: Callable[[], float] | None = None):
        self.read = read or partial(now, device)
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # seconds of the phases that ran inside the present one

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        started = self.read()
        try:
            yield
        finally:
            passed = self.read() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + passed - self._inner
            self._inner = outer + passed


class _PartMetrics(NamedTuple):
    """The contribution of a micro-batch to the metrics of its update, still on the device."""

    means: dict[str, float]  # of `policy_loss`
    share: Float[Tensor, ""]  # of the update's tokens
    loss: Float[Tensor, ""]
    max_difference: Float[Tensor, ""]  # difference from the sampler's log-probabilities
    differing: Int[Tensor, "2"]  # tokens: those that differ by more than LOGP_TOLERANCE, and all
    trained_replies: Int[Tensor, "2"] | None  # tokens of environments: those that the loss counts, and all


class UpdateMetrics:
    """The metrics of one update, added up over its micro-batches. Means over tokens count by a part's share of them."""

    def __init__(self, num_items: Int[Tensor, ""]):
        self.num_items = num_items.clamp(min=1)
        self._parts: list[_PartMetrics] = []

    def add(
        self,
        part: Experience,
        row_mask: Bool[Tensor, " R"],
        logp: Float[Tensor, "R T"],
        loss: Float[Tensor, ""],
        means: dict,
    ) -> None:
        """Add a micro-batch of R rows, of which the log-probabilities of `row_mask` were computed."""
        computed = part.loss_mask & row_mask[:, None]
        difference = torch.where(computed, (logp.detach() - part.rollout.logp).abs(), 0)
        differing = torch.stack([(difference > LOGP_TOLERANCE).sum(), computed.sum()])
        trained_replies = None
        if part.rollout.episodes is not None:
            reply_tokens = differing.new_tensor([episode.reply_tokens for episode in part.rollout.episodes])
            # Counted from lengths and not from `policy_mask`: a run that trains on replies by mistake has probably
            # lost that mask.
            policy_tokens = part.rollout.mask.sum(-1) - reply_tokens
            surplus = (part.loss_mask.sum(-1) - policy_tokens).clamp(min=0)
            trained_replies = torch.stack([surplus.sum(), reply_tokens.sum()])
        share = part.loss_mask.sum() / self.num_items
        self._parts.append(_PartMetrics(means, share, loss.detach(), difference.max(), differing, trained_replies))

    @property
    def total(self) -> dict[str, float]:
        """The metrics of the whole update; the host waits here, and for the loss of each micro-batch."""
        rows = [torch.stack([part.share, part.loss, part.max_difference]) for part in self._parts]
        numbers = torch.stack(rows).tolist()
        total = {"loss": 0.0, LOGP_DIFFERENCE_MAX: max(0.0, *(difference for _, _, difference in numbers))}
        for part, (share, loss, _) in zip(self._parts, numbers, strict=True):
            for name, value in part.means.items():
                total[name] = total.get(name, 0.0) + value * share
            total["loss"] += loss
        total[FRAC_LOGP_DIFFERENCE] = _share_of_tokens([part.differing for part in self._parts])
        replies = [part.trained_replies for part in self._parts if part.trained_replies is not None]
        if replies:
            total[TRAINED_REPLIES] = _share_of_tokens(replies)
        return total


def _share_of_tokens(counts: list[Int[Tensor, "2"]]) -> float:
    """The share of the tokens that a count names among all, summed over the micro-batches; 0 where there are none.

    counts: of each micro-batch the tokens that are named, and all.
    """
    named, total = torch.stack(counts).sum(0).tolist()
    return named / max(total, 1)


def mean_of_updates(updates: list[dict]) -> dict:
    """The mean of each metric. The mismatch is that of the first update: after it, the policy has moved."""
    mean = {name: sum(metrics[name] for metrics in updates) / len(updates) for name in updates[0]}
    return mean | {name: updates[0][name] for name in (LOGP_DIFFERENCE_MAX, FRAC_LOGP_DIFFERENCE)}


def mean_and_std(values: Tensor) -> tuple[float | None, float]:
    """Mean and standard deviation of the values that are not NaN; a mean of None says that there are none."""
    known = values[~values.isnan()]
    return known.mean().item() if len(known) else None, known.std().item() if len(known) > 1 else 0.0


def none_shares(names: list[str], rewards_per_func: Float[Tensor, "B F"]) -> dict[str, float]:
    """The share of completions to which a reward did not apply, for each reward of which there are some."""
    shares = rewards_per_func.isnan().double().mean(0).tolist()
    return {f"rewards/{name}/frac_none": share for name, share in zip(names, shares, strict=True) if share}


def plain_numbers(metrics: dict) -> dict:
    """The metrics of a step as numbers of Python; raises for what is none, for it could not be written to a file."""
    plain = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise InputTypeError("metrics", name, "expected texts, such as 'think_rate'", found=f"has the key {name!r}")
        plain[name] = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(plain[name], int | float | str | None):
            value_shown = f"is {value!r:.60}"
            raise InputTypeError(f"metrics[{name!r}]", value, "expected a number, or None", found=value_shown)
    return plain


def rollout_metrics(rollout: Rollout, seconds: float) -> dict:
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
    """Calls of an episode on average, and the share of them that failed; nothing where there is no environment."""
    if episodes is None:
        return {}
    calls = sum(episode.calls for episode in episodes)
    failures = sum(episode.failures for episode in episodes)
    return {"tools/call_frequency": calls / len(episodes), "tools/failure_frequency": failures / max(calls, 1)}


def reward_metrics(experience: Experience, rewards: Rewards) -> dict:
    """The rewards together and of each function, and how many groups have equal ones."""
    num_groups = int(experience.rollout.group_of_row.max()) + 1
    grouped_rewards = rearrange(experience.rewards, "(P G) -> P G", P=num_groups)  # completions of a prompt: neighbours
    highest = grouped_rewards.nan_to_num(nan=-torch.inf).amax(-1)
    lowest = grouped_rewards.nan_to_num(nan=torch.inf).amin(-1)
    mean, std = mean_and_std(experience.rewards)
    metrics = {"reward": mean, "reward_std": std, "frac_reward_zero_std": (highest <= lowest).float().mean().item()}
    for name, values in zip(rewards.names, rewards.rewards_per_func.unbind(1), strict=True):
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = mean_and_std(values)
    return metrics | none_shares(rewards.names, rewards.rewards_per_func)
