"""What to turn down where a run does not fit: the cheapest change that lowers the peak first, found by planning."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_lab.commands.display import GIB
from grpo_lab.config.precision import PRECISIONS

RESERVE = 3 * GIB // 4  # bytes, for CUDA itself, and for what the allocator cannot join


@dataclass(frozen=True)
class Change:
    """One change of the settings, on top of those before it in the list."""

    settings: dict[str, object]  # name -> new value, as `GRPOConfig` takes them
    costs: str  # what is paid for it
    saves: int  # bytes at the peak
    peak: int  # bytes at the peak, after it

    def __str__(self) -> str:
        names = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{names}: saves {self.saves / GIB:.2f} GiB, leaves {self.peak / GIB:.2f} GiB ({self.costs})"


def advise(plan, budget: int) -> list[Change]:
    """What to change, each on top of those before it, until the plan fits or no change lowers the peak.

    budget: bytes that are free on the device.
    """
    changes = []
    while not plan.fits(budget):
        for settings, costs in _possible(plan.setting):
            after = _with(plan, settings)
            if after is not None and after.peak < plan.peak:
                saves = plan.peak - after.peak
                if changes and changes[-1].settings.keys() == settings.keys():  # halved once more
                    saves += changes.pop().saves
                changes.append(Change(settings, costs, saves, after.peak))
                plan = after
                break
        else:
            break
    return changes


def advice_lines(planned, budget: int) -> list[str]:
    """Whether it fits, and if not, what to change."""
    other = "Python and torch" if planned.setting.device_type == "cpu" else "CUDA itself"
    sizes = f"{planned.peak / GIB:.2f} GiB of tensors and {RESERVE / GIB:.2f} GiB for {other}"
    if planned.fits(budget):
        return [f"It fits into {budget / GIB:.2f} GiB: {sizes}."]
    changes = planned.advice(budget)
    numbered = [f"  {number}. {change}" for number, change in enumerate(changes, 1)]
    enough = bool(changes) and changes[-1].peak + RESERVE <= budget
    end = "Then it fits." if enough else "Even then it does not fit: a smaller model, or more memory."
    return [f"It does not fit into {budget / GIB:.2f} GiB: {sizes}.", *numbered, end]


def _possible(s) -> Iterator[tuple[dict, str]]:
    """From what costs nothing to what changes the experiment."""
    c = s.config
    if s.mode.name in ("fp32", "fp32-master"):
        yield {"precision": "bf16"}, "rounded weights; nothing on a card that has bf16"
    if c.rows_at_once > 1:
        yield _halved(c.rows_at_once, c.gradient_accumulation_steps), "the same result, a little slower"
    if c.log_kl and c.beta == 0:
        yield {"log_kl": False}, "the same result; the KL is not measured"
    if c.needs_reference and c.ref_model_device != "cpu" and s.device_type != "cpu":
        yield {"ref_model_device": "cpu"}, "the same result; the reference is slow on the CPU"
    if not c.gradient_checkpointing:
        yield {"gradient_checkpointing": True}, "the same result, about a third more time for updates"
    if s.mode.name == "fp16":
        yield {"precision": "bf16"}, "rounded weights; slow on a card without bf16"
    if c.beta > 0:
        yield {"beta": 0.0} | ({"log_kl": False} if c.log_kl else {}), "another objective: no KL term"
    yield {"generation_batch_size": c.generation_batch_size // 2}, "half as many prompts a step"
    if c.max_completion_length > 1:
        yield {"max_completion_length": c.max_completion_length // 2}, "longer answers are cut off"


def _halved(rows: int, accumulation: int) -> dict:
    smaller = next(rows // k for k in range(2, rows + 1) if rows % k == 0)
    steps = accumulation * rows // smaller
    return {"per_device_train_batch_size": smaller, "gradient_accumulation_steps": steps}


def _with(plan, settings: dict):
    config, mode = plan.setting.config, plan.setting.mode
    if "precision" in settings:
        mode = PRECISIONS[settings["precision"]]
        settings = settings | {"bf16": False, "fp16": False}
    if "generation_batch_size" in settings:
        rows = min(config.update_batch_size, settings["generation_batch_size"])
        accumulation = max(1, rows // config.rows_at_once)
        settings = settings | {"gradient_accumulation_steps": accumulation}
    try:
        return plan.with_setting(config=config.without(**settings), mode=mode)
    except ValueError:  # numbers that do not divide each other
        return None
