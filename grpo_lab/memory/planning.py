"""The memory that a run will take on a device, known before it starts; and what to turn down where it does not fit.

It plans for the worst case, every completion as long as it may be and every row with a gradient, because that is the
step in which a run would fail. It counts tensors. `RESERVE` is for what it does not count: 0.76 GiB in the one run that
was measured on a card, and the gaps that the allocator leaves between tensors. What is free is read after CUDA has
started. What a processor's kernels take beside the tensors, in half precision above all, is not counted.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from grpo_lab.base.checks import InputError, check_at_least, check_choice
from grpo_lab.base.display import GIB, text_table
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, has_native_bf16
from grpo_lab.memory import phases
from grpo_lab.memory.phases import PlannedRun
from grpo_lab.models.shapes import shape_of
from grpo_lab.rollout import encode_prompts

PROMPTS = 200  # whose length is looked at before a run
RESERVE = GIB  # bytes, for what a plan does not count
MODES = {True: ("fp32-master", "bf16"), False: ("fp16",)}  # for a card with bf16 in hardware, and for one without


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of tensors alive in each phase of a step, by part."""

    setting: PlannedRun

    @cached_property
    def moments(self) -> dict[str, list[dict[str, int]]]:
        """Phase -> its moments in order -> part -> bytes."""
        always = phases.resident(self.setting)
        return {name: [always | alive for alive in phase(self.setting)] for name, phase in phases.PHASES.items()}

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """Phase -> part -> bytes, at the moment of the phase that needs the most."""
        return {name: max(moments, key=lambda alive: sum(alive.values())) for name, moments in self.moments.items()}

    @property
    def totals(self) -> dict[str, int]:
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        """The most bytes of tensors that are alive at one time."""
        return max(self.totals.values())

    @property
    def peak_phase(self) -> str:
        return max(self.totals, key=self.totals.get)

    def fits(self, budget: int) -> bool:
        """True if a device with so many bytes free is enough for the peak, and for `RESERVE` beside it."""
        return self.peak + RESERVE <= budget

    def with_setting(self, **changes) -> "MemoryPlan":
        """The plan for another configuration, mode, or whatever else a `PlannedRun` holds."""
        return MemoryPlan(replace(self.setting, **changes))

    def __str__(self) -> str:
        """The plan in GiB: one row per part (those that take nothing are left out), and the totals."""
        s, config = self.setting, self.setting.config
        title = (
            f"{s.shape.parameters:,} parameters, {s.mode}; {config.generation_batch_size} completions a step x "
            f"({s.prompt_length} prompt + {config.max_completion_length} response) tokens, "
            f"{s.rows} rows at a time{', layers checkpointed' if config.gradient_checkpointing else ''}"
        )
        names = dict.fromkeys(part for alive in self.phases.values() for part, size in alive.items() if size)
        sizes = {part: [alive.get(part, 0) for alive in self.phases.values()] for part in names}
        sizes["together"] = list(self.totals.values())
        rows = [[part, *(f"{size / GIB:.2f}" if size else "-" for size in each)] for part, each in sizes.items()]
        lines = text_table(["GiB", *self.phases], rows).splitlines()
        lines.insert(-1, "-" * len(lines[0]))
        return "\n".join([title, *lines, f"peak: {self.peak / GIB:.2f} GiB, {self.peak_phase}"])


def plan(
    model_config, config: GRPOConfig, *, prompt_length: int, precision: str, device_type: str = "cuda"
) -> MemoryPlan:
    """Plan the memory of a run, of a transformers configuration of Qwen2's kind, such as `shape_config("qwen2")`.

    prompt_length: L, tokens of the longest prompt. precision: a name in `PRECISIONS`. device_type: "cuda" or "cpu";
    they differ in the cache, and in the chunks of logits. Another kind of model, whose parts are not known, is refused.
    """
    check_choice("precision", precision, PRECISIONS)
    check_at_least("prompt_length", prompt_length, 1)
    return MemoryPlan(PlannedRun(shape_of(model_config), config, PRECISIONS[precision], prompt_length, device_type))


class Way(NamedTuple):
    """One way to train on a card, and the plan of it."""

    plan: MemoryPlan
    precision: str
    gradient_checkpointing: bool
    rows: int  # at a time

    def __str__(self) -> str:
        layers = "layers computed again" if self.gradient_checkpointing else "all activations kept"
        parts = self.plan.setting.rollout_parts
        return f"{self.precision}, {layers}, {self.rows} rows at a time{f', rollout in {parts} parts' * (parts > 1)}"

    def cut_to(self, budget: int) -> "Way":
        """The same with its rollout in as many parts as it needs, if it fits then."""
        prompts = self.plan.setting.config.prompts_per_step
        for parts in (number for number in range(1, prompts + 1) if prompts % number == 0):
            cut = self.plan.with_setting(rollout_parts=parts)
            if cut.fits(budget):
                return self._replace(plan=cut)
        return self


def ways(planned: MemoryPlan, modes: tuple[str, ...], fixed: Container[str] = ()) -> Iterator[Way]:
    """Best first: each mode with its activations kept, then computed again; the last one with fewer rows at a time.

    So what rounds comes after what does not; and what changes no result but is slower, after what is not.

    fixed: settings that stay as they are.
    """
    config, rows = planned.setting.config, planned.setting.rows
    checkpointing_choices = (config.gradient_checkpointing,) if "gradient_checkpointing" in fixed else (False, True)
    combinations = [(mode, checkpointing, rows) for mode in modes for checkpointing in checkpointing_choices]
    if not {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(fixed):
        divisors = [fewer for fewer in range(rows - 1, 0, -1) if rows % fewer == 0]
        combinations += [(*combinations[-1][:2], fewer) for fewer in divisors]
    for mode, checkpointing, rows in combinations:
        batch_cut = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": config.update_batch_size // rows,
        }
        changes = {"precision": None, "bf16": False, "fp16": False, "gradient_checkpointing": checkpointing}
        new_config = replace(config, **changes, **batch_cut)
        yield Way(planned.with_setting(config=new_config, mode=PRECISIONS[mode]), mode, checkpointing, rows)


def choice(
    planned: MemoryPlan, budget: int, modes: tuple[str, ...], fixed: Container[str] = ()
) -> tuple[Way, list[str]]:
    """The first way that fits into so many bytes (the last one if none does); and what to say of it and the others."""
    candidates = [way.cut_to(budget) for way in ways(planned, modes, fixed)]
    fitting = [way for way in candidates if way.plan.fits(budget)]
    if fitting:  # those with fewer rows at a time are shown only where they are needed
        candidates = [way for way in candidates if way.rows >= fitting[0].rows]
    rows = [[str(way), f"{way.plan.peak / GIB:.2f}", "fits" if way.plan.fits(budget) else "-"] for way in candidates]
    head = f"in {budget / GIB:.2f} GiB, {RESERVE / GIB:.2f} of them left beside the plan"
    lines = text_table(["ways to train, best first", "GiB", head], rows).splitlines()
    if fitting:
        return fitting[0], [*lines, f"chosen: {fitting[0]}, the first that fits"]
    config = planned.setting.config
    remedies = f"max_completion_length below {config.max_completion_length}, "
    remedies += f"generation_batch_size below {config.generation_batch_size}"
    remedies += ", ref_model_device cpu" * (config.needs_reference and config.ref_model_device is None)
    return candidates[-1], [*lines, f"none of them fits; what is left: {remedies}, or a smaller model"]


def longest_prompt(tokenizer, rows) -> int:
    """Tokens of the longest among the prompts that a run looks at before it begins."""
    return encode_prompts(tokenizer, [rows[index]["prompt"] for index in range(min(len(rows), PROMPTS))])[0].shape[1]


def fitted(model_config, tokenizer, rows, config: GRPOConfig, device: torch.device, fixed) -> GRPOConfig:
    """The configuration with the mode that a card takes, where none is asked for; the plan and the choice are printed.

    fixed: settings that stay as they are. On other devices, and for a model whose parts are not known, nothing changes.
    """
    if device.type != "cuda":
        return config
    has_bf16, requested = has_native_bf16(device), config.requested_precision
    modes = MODES[has_bf16] if requested is None else (requested,)
    try:
        memory_plan = plan(model_config, config, prompt_length=longest_prompt(tokenizer, rows), precision=modes[0])
    except InputError as error:  # an architecture whose parts are not known can be trained all the same
        print(f"memory: not planned, since {error}")
        return config
    way, lines = choice(memory_plan, torch.cuda.mem_get_info(device)[0], modes, fixed)
    print(way.plan, *lines, sep="\n")
    return replace(way.plan.setting.config, precision=way.precision)
