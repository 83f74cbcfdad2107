"""How a step is measured: the clock, and the metrics of its updates."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError

WORST = "sampling/logp_difference_max"  # over all tokens; every other metric of an update is a sum or a mean
APART = "sampling/frac_logp_difference"  # share of tokens whose log-probabilities differ by more than APART_BY nats
APART_BY = 0.1
WORLD = "tools/frac_trained"  # share of what environments wrote that the loss counts


def now(device: torch.device) -> float:
    """Seconds on the wall clock, once the device has finished what it was given: a GPU works asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """`with clock("time/logprobs"):` adds the seconds that pass inside to those of that name.

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


class UpdateMetrics:
    """The metrics of one update, added up over its micro-batches. Means over tokens count by a part's share of them."""

    def __init__(self, num_items: Int[Tensor, ""]):
        self.num_items = num_items.clamp(min=1)
        self.total: dict[str, float] = {"loss": 0.0, WORST: 0.0}
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, part, rows: Bool[Tensor, " R"], logp: Float[Tensor, "R T"], loss: Float[Tensor, ""], means) -> None:
        share = (part.mask.sum() / self.num_items).item()
        for name, value in means.items():
            self.total[name] = self.total.get(name, 0.0) + value * share
        self.total["loss"] += loss.item()
        computed = part.mask & rows[:, None]
        difference = (logp.detach() - part.rollout.logp)[computed].abs()
        self.total[WORST] = max(self.total[WORST], difference.max().item() if len(difference) else 0.0)
        self._count(APART, int((difference > APART_BY).sum()), len(difference))
        if part.rollout.episodes is not None:
            replies = torch.tensor([episode.reply_tokens for episode in part.rollout.episodes])
            counted, written = part.mask.sum(-1).cpu(), part.rollout.mask.sum(-1).cpu()
            # Counted by length: whoever takes the wrong mask has perhaps lost the one that knows who wrote what.
            self._count(WORLD, int((counted - (written - replies)).clamp(min=0).sum()), int(replies.sum()))

    def _count(self, name: str, count: int, size: int) -> None:
        """Add to a share, of all micro-batches so far; that of nothing is 0."""
        earlier_count, earlier_size = self.counts.get(name, (0, 0))
        self.counts[name] = count, size = earlier_count + count, earlier_size + size
        self.total[name] = count / max(size, 1)


def mean_of_updates(updates: list[dict]) -> dict:
    """The mean of each metric. The mismatch is that of the first update: after it, the policy has moved."""
    mean = {name: sum(metrics[name] for metrics in updates) / len(updates) for name in updates[0]}
    return mean | {name: updates[0][name] for name in (WORST, APART)}


def mean_and_std(values: Tensor) -> tuple[float | None, float]:
    """Mean and standard deviation of the values that are not NaN; a mean of None says that there are none."""
    known = values[~values.isnan()]
    return known.mean().item() if len(known) else None, known.std().item() if len(known) > 1 else 0.0


def none_shares(names: list[str], per_func: Float[Tensor, "B F"]) -> dict[str, float]:
    """The share of completions to which a reward did not apply, for each reward of which there are some."""
    shares = per_func.isnan().double().mean(0).tolist()
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
