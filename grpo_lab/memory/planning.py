"""Plan the memory that a run will take on a device before it starts, and choose settings with which it fits.

It plans for the worst case, every completion as long as it may be and every row with a gradient, because that is the
step in which a run would fail. It counts tensors. `RESERVE` is for what it does not count: 0.76 GiB in the one run that
was measured on a GPU, and the gaps that the allocator leaves between tensors. What is free is read after CUDA has
started. What a CPU's kernels take beside the tensors, in half precision above all, and what a process keeps free
between them (base/allocator.py), is not counted.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from grpo_lab.base.checks import InputError, check_at_least, check_choice
from grpo_lab.base.display import GIB, text_table
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import SHORT
from grpo_lab.config.precision import PRECISIONS, possible_precisions
from grpo_lab.memory.phases import PHASES, PlannedRun, resident
from grpo_lab.models.shapes import shape_of
from grpo_lab.objective import LOSSES
from grpo_lab.rollout import encode_prompts

PROMPTS = 200  # whose length is looked at before a run
RESERVE = GIB  # bytes, for what a plan does not count
LORA_NOT_PLANNED = "memory: not planned, since the plan counts a training of all parameters, which takes more than LoRA"


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of tensors alive in each phase of a step, by part."""

    run: PlannedRun

    @cached_property
    def moments(self) -> dict[str, list[dict[str, int]]]:
        """Phase -> its moments in order -> part -> bytes."""
        always = resident(self.run)
        return {name: [always | alive for alive in phase(self.run)] for name, phase in PHASES.items()}

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
        return MemoryPlan(replace(self.run, **changes))

    def __str__(self) -> str:
        """The plan in GiB: one row per part (those that take nothing are left out), and the totals."""
        run, config = self.run, self.run.config
        title = (
            f"{run.shape.parameters:,} parameters, {run.mode}; {config.generation_batch_size} completions per step x "
            f"({run.prompt_length} prompt + {config.max_completion_length} response) tokens, "
            f"{run.rows} rows at a time{', layers checkpointed' if config.gradient_checkpointing else ''}"
        )
        names = dict.fromkeys(part for alive in self.phases.values() for part, size in alive.items() if size)
        sizes = {part: [alive.get(part, 0) for alive in self.phases.values()] for part in names}
        sizes["together"] = list(self.totals.values())
        rows = [
            [part, *(f"{size / GIB:.2f}" if size else "-" for size in part_sizes)] for part, part_sizes in sizes.items()
        ]
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


class Candidate(NamedTuple):
    """A precision and a cut of the batch with which a run could be trained on a GPU, and the plan of that."""

    plan: MemoryPlan
    precision: str
    gradient_checkpointing: bool
    rows: int  # at a time, of a micro-batch

    def __str__(self) -> str:
        layers = "layers computed again" if self.gradient_checkpointing else "all activations kept"
        parts = self.plan.run.rollout_parts
        return f"{self.precision}, {layers}, {self.rows} rows at a time{f', rollout in {parts} parts' * (parts > 1)}"

    def with_rollout_within(self, budget: int) -> "Candidate":
        """This candidate, its rollout cut into the fewest parts with which it fits into so many bytes, if any do."""
        prompts = self.plan.run.config.prompts_per_step
        for parts in range(1, prompts + 1):
            if prompts % parts:
                continue
            plan_in_parts = self.plan.with_setting(rollout_parts=parts)
            if plan_in_parts.fits(budget):
                return self._replace(plan=plan_in_parts)
        return self


def all_candidates(planned: MemoryPlan, modes: tuple[str, ...], fixed: Container[str] = ()) -> Iterator[Candidate]:
    """Yield the candidates, best first: what rounds comes after what does not, and what is slower after what is not.

    That is each mode with its activations kept, then computed again; and the last of these with fewer rows at a time.

    fixed: settings that stay as they are.
    """
    config, rows = planned.run.config, planned.run.rows
    checkpointing_choices = (config.gradient_checkpointing,) if "gradient_checkpointing" in fixed else (False, True)
    combinations = [(mode, checkpointing, rows) for mode in modes for checkpointing in checkpointing_choices]
    if not {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(fixed):
        last_mode, last_checkpointing, _ = combinations[-1]
        divisors = [fewer_rows for fewer_rows in range(rows - 1, 0, -1) if rows % fewer_rows == 0]
        combinations += [(last_mode, last_checkpointing, fewer_rows) for fewer_rows in divisors]
    for mode, checkpointing, rows in combinations:
        batch_cut = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": config.update_batch_size // rows,
        }
        changes = {"precision": None, "bf16": False, "fp16": False, "gradient_checkpointing": checkpointing}
        new_config = replace(config, **changes, **batch_cut)
        yield Candidate(planned.with_setting(config=new_config, mode=PRECISIONS[mode]), mode, checkpointing, rows)


def choice(
    planned: MemoryPlan, budget: int, modes: tuple[str, ...], fixed: Container[str] = ()
) -> tuple[Candidate, list[str]]:
    """The first candidate that fits into so many bytes (the last if none does); and lines on it and the others."""
    candidates = [candidate.with_rollout_within(budget) for candidate in all_candidates(planned, modes, fixed)]
    fitting = [candidate for candidate in candidates if candidate.plan.fits(budget)]
    if fitting:  # those with fewer rows at a time are shown only where they are needed
        candidates = [candidate for candidate in candidates if candidate.rows >= fitting[0].rows]
    rows = [
        [str(candidate), f"{candidate.plan.peak / GIB:.2f}", "fits" if candidate.plan.fits(budget) else "-"]
        for candidate in candidates
    ]
    head = f"in {budget / GIB:.2f} GiB, {RESERVE / GIB:.2f} of them left beside the plan"
    lines = text_table(["ways to train, best first", "GiB", head], rows).splitlines()
    if fitting:
        return fitting[0], [*lines, f"chosen: {fitting[0]}, the first that fits"]
    config = planned.run.config
    remedies = f"max_completion_length below {config.max_completion_length}, "
    remedies += f"generation_batch_size below {config.generation_batch_size}"
    remedies += ", ref_model_device cpu" * (config.needs_reference and config.ref_model_device is None)
    return candidates[-1], [*lines, f"none of them fits; what is left: {remedies}, or a smaller model"]


def longest_prompt(tokenizer, rows) -> int:
    """Tokens of the longest among the prompts that a run looks at before it begins."""
    return encode_prompts(tokenizer, [rows[index]["prompt"] for index in range(min(len(rows), PROMPTS))])[0].shape[1]


def fit_to_gpu(
    model_config, tokenizer, rows, config: GRPOConfig, device: torch.device, fixed: Container[str]
) -> tuple[GRPOConfig, list[str]]:
    """The configuration with the mode that fits a GPU, where none is requested; and lines on the plan and the choice.

    fixed: settings that stay as they are. On other devices, and for a model whose parts are not known, nothing changes.
    """
    if device.type != "cuda":
        return config, []
    modes = possible_precisions(device, config.requested_precision)
    try:
        memory_plan = plan(model_config, config, prompt_length=longest_prompt(tokenizer, rows), precision=modes[0])
    except InputError as error:  # an architecture whose parts are not known can be trained all the same
        return config, [f"memory: not planned, since {error}"]
    chosen, lines = choice(memory_plan, torch.cuda.mem_get_info(device)[0], modes, fixed)
    return replace(chosen.plan.run.config, precision=chosen.precision), [str(chosen.plan), *lines]


def fit_to_cpu(
    model_config, tokenizer, rows, config: GRPOConfig, precision: str, fixed: Container[str] = ()
) -> tuple[GRPOConfig, list[str]]:
    """The configuration with larger micro-batches where completions are short; and lines on it, if it has changed.

    Each micro-batch passes over all weights and gradients, and with few tokens that is much of a CPU's time. The rows
    that a run begins with are those for completions of `SHORT` tokens. Of shorter ones it takes the most rows whose
    update is planned to need no more memory than that.

    fixed: settings that stay as they are. So does a cut on which the loss depends, and that of a model whose parts are
    not known.
    """
    is_given = {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(fixed)
    cut_matters = LOSSES[config.loss_type].divided_by == "microbatch_tokens"
    if is_given or cut_matters or config.max_completion_length >= SHORT:
        return config, []
    usual = replace(config, max_completion_length=SHORT)
    try:
        planned = plan(
            model_config, usual, prompt_length=longest_prompt(tokenizer, rows), precision=precision, device_type="cpu"
        )
    except InputError:
        return config, []
    for at_once in range(config.update_batch_size, config.rows_at_once, -1):
        if config.update_batch_size % at_once:
            continue
        parts = config.update_batch_size // at_once
        larger = replace(config, per_device_train_batch_size=at_once, gradient_accumulation_steps=parts)
        if planned.with_setting(config=larger).totals["update"] <= planned.totals["update"]:
            why = f"{at_once} short completions need no more memory than {config.rows_at_once} of {SHORT} tokens"
            return larger, [f"per_device_train_batch_size {at_once}, gradient_accumulation_steps {parts}: {why}"]
    return config, []
