"""Plan the memory that a run will take on a device before it starts, and choose settings with which it fits.

A plan is for the worst case, in which every completion has the maximum length and every row a gradient, because a run
would fail in such a step. The length of the prompts is that of the longest of the first 200 (`longest_prompt`): a
longer one that comes later needs more than is planned. A plan counts tensors. `RESERVE_BYTES` covers what is not
counted on a GPU: 0.76 GiB in the one run that was measured, and the gaps that the allocator leaves between tensors. The
free memory of a GPU is read after CUDA has started. On a CPU two things are not counted: memory that kernels allocate
in addition to the tensors, above all in half precision, and freed memory that the process keeps
(base/process_state.py).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from grpo_lab.base.checks import InputError, check_at_least, check_choice
from grpo_lab.base.display import GIB, text_table
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import MICROBATCH_SETTINGS, SHORT_COMPLETION_TOKENS
from grpo_lab.config.precision import PRECISIONS, possible_precisions
from grpo_lab.memory.phases import SNAPSHOTS_BY_PHASE, BytesByPart, RunSizes, resident_bytes
from grpo_lab.models.shapes import shape_of
from grpo_lab.objective import LOSSES
from grpo_lab.rollout.prompts import longest_prompt
from grpo_lab.trainer.run.inputs import RunInputs

RESERVE_BYTES = GIB  # bytes that are left free for what a plan does not count
LORA_NOT_PLANNED = "memory: not planned; the plan is for training all parameters, which needs more memory than LoRA"
OTHER_ENGINE_NOT_PLANNED = "memory: not planned; the plan is for our own loop, not for --engine trl"


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of tensors that are alive in each phase of a step, by part, such as "weights" or "gradients".

    sizes: The sizes of the run, from which all bytes follow.
    fixed_settings: Names of settings that a plan with other settings (`all_candidates`) must not change.
    """

    sizes: RunSizes
    fixed_settings: frozenset[str] = frozenset()

    @cached_property
    def snapshots(self) -> dict[str, list[BytesByPart]]:
        """All snapshots of each phase, in order: {phase: [{part: bytes}, ...]}."""
        resident = resident_bytes(self.sizes)
        return {
            name: [resident | snapshot for snapshot in make_snapshots(self.sizes)]
            for name, make_snapshots in SNAPSHOTS_BY_PHASE.items()
        }

    @property
    def phases(self) -> dict[str, BytesByPart]:
        """The snapshot of each phase that needs the most memory: {phase: {part: bytes}}."""
        return {
            name: max(snapshots, key=lambda snapshot: sum(snapshot.values()))
            for name, snapshots in self.snapshots.items()
        }

    @property
    def totals(self) -> dict[str, int]:
        """The bytes that each phase needs: {phase: bytes}."""
        return {name: sum(snapshot.values()) for name, snapshot in self.phases.items()}

    @property
    def peak(self) -> int:
        """The largest number of bytes of tensors that are alive at one time."""
        return max(self.totals.values())

    @property
    def peak_phase(self) -> str:
        return max(self.totals, key=self.totals.__getitem__)

    def fits(self, budget: int) -> bool:
        """Return True if the peak and `RESERVE_BYTES` together fit into a device with `budget` bytes free."""
        return self.peak + RESERVE_BYTES <= budget

    def with_changes(self, **changes) -> "MemoryPlan":
        """Return the plan of another run: `changes` are fields of `RunSizes`, such as `config` or `precision`."""
        return replace(self, sizes=replace(self.sizes, **changes))

    def with_rollout_within(self, budget: int) -> "MemoryPlan":
        """Return this plan with the rollout split into the fewest parts with which it fits into `budget` bytes.

        The plan is returned unchanged if it fits with no number of parts, or if an environment replies, since
        `draw_samples` then samples all episodes together.
        """
        if self.sizes.has_environment:
            return self
        num_prompts = self.sizes.config.prompts_per_step
        for num_parts in range(1, num_prompts + 1):
            if num_prompts % num_parts:
                continue
            plan_in_parts = self.with_changes(rollout_parts=num_parts)
            if plan_in_parts.fits(budget):
                return plan_in_parts
        return self

    @property
    def has_fixed_microbatches(self) -> bool:
        """True if the size of a micro-batch must not change: by a setting, or since the loss depends on it."""
        has_fixed_size = any(name in self.fixed_settings for name in MICROBATCH_SETTINGS)
        return has_fixed_size or LOSSES[self.sizes.config.loss_type].depends_on_microbatches

    def describe_candidate(self) -> str:
        """Return in a few words what distinguishes this plan from others of the same run (`all_candidates`)."""
        layers = "layers computed again" if self.sizes.config.gradient_checkpointing else "all activations kept"
        num_parts = self.sizes.rollout_parts
        in_parts = f", rollout in {num_parts} parts" * (num_parts > 1)
        return f"{self.sizes.precision.name}, {layers}, {self.sizes.microbatch_size} rows at a time{in_parts}"

    def __str__(self) -> str:
        """Return a table of the plan in GiB: a row for each part that takes memory, and the totals."""
        sizes, config = self.sizes, self.sizes.config
        title = (
            f"{sizes.shape.parameters:,} parameters, {sizes.precision}; "
            f"{config.generation_batch_size} completions per step x "
            f"({sizes.prompt_length} prompt + {config.max_completion_length} response) tokens, "
            f"{sizes.microbatch_size} rows at a time"
            f"{', layers checkpointed' if config.gradient_checkpointing else ''}"
        )
        snapshots = self.phases.values()
        parts = dict.fromkeys(part for snapshot in snapshots for part, size in snapshot.items() if size)
        bytes_by_label = {part: [snapshot.get(part, 0) for snapshot in snapshots] for part in parts}
        bytes_by_label["together"] = list(self.totals.values())
        table_rows = [
            [label, *(f"{size / GIB:.2f}" if size else "-" for size in bytes_in_phases)]
            for label, bytes_in_phases in bytes_by_label.items()
        ]
        lines = text_table(["GiB", *self.phases], table_rows).splitlines()
        lines.insert(-1, "-" * len(lines[0]))
        return "\n".join([title, *lines, f"peak: {self.peak / GIB:.2f} GiB, {self.peak_phase}"])


def plan_memory(
    model_config,
    config: GRPOConfig,
    *,
    prompt_length: int,
    precision: str,
    device_type: str = "cuda",
    has_environment: bool = False,
) -> MemoryPlan:
    """Plan the memory of a run.

    Args:
        model_config: The transformers configuration of a model that is built like Qwen2, such as
            `shape_config("qwen2")`.
        config: The settings of the run.
        prompt_length: L, tokens of the longest prompt, with the schemas of the tools if there are any.
        precision: A name in `PRECISIONS`.
        device_type: "cuda" or "cpu", which differ in the KV cache and in the chunks of logits.
        has_environment: Whether an environment or tools reply to the policy. All episodes of a step are then sampled
            together; otherwise a rollout that does not fit is sampled in parts.

    Raises:
        ValueError: if the configuration lacks a size that the plan needs. A model of another architecture that has all
            of them is planned as if it were built like Qwen2.
    """
    check_choice("precision", precision, PRECISIONS)
    check_at_least("prompt_length", prompt_length, 1)
    sizes = RunSizes(
        shape=shape_of(model_config),
        config=config,
        precision=PRECISIONS[precision],
        prompt_length=prompt_length,
        device_type=device_type,
        has_environment=has_environment,
    )
    return MemoryPlan(sizes)


def plan_run_memory(inputs: RunInputs, precision: str, device_type: str) -> MemoryPlan:
    """Plan the memory of a run by its inputs: the longest of its first prompts, and whether an environment replies.

    Args:
        inputs: The inputs of the run; of its model only the configuration is read, as `plan_memory` takes it.
        precision, device_type: As in `plan_memory`, which also says what is raised.
    """
    environment = inputs.environment
    schemas = None if environment is None else environment.schemas
    return plan_memory(
        inputs.model.config,
        inputs.config,
        prompt_length=longest_prompt(inputs.tokenizer, inputs.dataset, schemas),
        precision=precision,
        device_type=device_type,
        has_environment=environment is not None,
    )


def all_candidates(memory_plan: MemoryPlan, precisions: tuple[str, ...]) -> Iterator[MemoryPlan]:
    """Yield plans of the run with other settings, best first: exact before more rounding ones, fast before slow ones.

    These are, for each precision, a candidate that keeps all activations and a candidate with checkpointing; then the
    last of these with smaller micro-batches, unless the loss depends on their size. No candidate changes a setting of
    `memory_plan.fixed_settings`. The settings of a candidate name its precision.

    Args:
        memory_plan: The plan of the run as it is configured.
        precisions: Names in `PRECISIONS`, best first.
    """
    config, configured_size = memory_plan.sizes.config, memory_plan.sizes.microbatch_size
    is_checkpointing_fixed = "gradient_checkpointing" in memory_plan.fixed_settings
    checkpointing_choices = (config.gradient_checkpointing,) if is_checkpointing_fixed else (False, True)
    combinations = [
        (precision, checkpointing, configured_size)
        for precision in precisions
        for checkpointing in checkpointing_choices
    ]
    if not memory_plan.has_fixed_microbatches:
        last_precision, last_checkpointing, _ = combinations[-1]
        divisors = [size for size in range(configured_size - 1, 0, -1) if configured_size % size == 0]
        combinations += [(last_precision, last_checkpointing, size) for size in divisors]
    for precision, checkpointing, size in combinations:
        new_config = replace(
            config, precision=precision, bf16=False, fp16=False, gradient_checkpointing=checkpointing,
            per_device_train_batch_size=size, gradient_accumulation_steps=config.update_batch_size // size,
        )  # fmt: skip
        yield memory_plan.with_changes(config=new_config, precision=PRECISIONS[precision])


def choose_candidate(memory_plan: MemoryPlan, budget: int, precisions: tuple[str, ...]) -> tuple[MemoryPlan, list[str]]:
    """Choose the first candidate that fits into a number of bytes, or the last candidate if none fits.

    Args:
        memory_plan: The plan of the run as it is configured; this and `precisions` are passed to `all_candidates`.
        budget: Bytes that are free on the device.

    Returns:
        The chosen candidate, and lines to print: a table of the candidates, and the choice.
    """
    candidates = [candidate.with_rollout_within(budget) for candidate in all_candidates(memory_plan, precisions)]
    chosen = next((candidate for candidate in candidates if candidate.fits(budget)), candidates[-1])
    # Candidates with smaller micro-batches than the chosen one are not listed.
    listed = [candidate for candidate in candidates if candidate.sizes.microbatch_size >= chosen.sizes.microbatch_size]
    return chosen, [*_candidate_table(listed, budget), _describe_choice(chosen, budget)]


def _candidate_table(candidates: list[MemoryPlan], budget: int) -> list[str]:
    """Return the lines of a table of candidates, which says which of them fit into `budget` bytes."""
    rows = [
        [candidate.describe_candidate(), f"{candidate.peak / GIB:.2f}", "fits" if candidate.fits(budget) else "-"]
        for candidate in candidates
    ]
    fits_heading = f"in {budget / GIB:.2f} GiB, {RESERVE_BYTES / GIB:.2f} of which stay free"
    return text_table(["ways to train, best first", "GiB", fits_heading], rows).splitlines()


def _describe_choice(chosen: MemoryPlan, budget: int) -> str:
    """Return a line that names the chosen candidate, or what else saves memory if it does not fit."""
    if chosen.fits(budget):
        return f"chosen: {chosen.describe_candidate()}, the first that fits"
    config = chosen.sizes.config
    remedies = f"max_completion_length below {config.max_completion_length}, "
    remedies += f"generation_batch_size below {config.generation_batch_size}"
    remedies += ", ref_model_device cpu" * (config.needs_reference and config.ref_model_device is None)
    return f"none of them fits; what is left: {remedies}, or a smaller model"


def fit_to_memory(
    inputs: RunInputs, device: torch.device, fixed_settings: Iterable[str] = ()
) -> tuple[GRPOConfig, list[str]]:
    """Choose settings with which a run fits the memory of its device.

    On a GPU these are the precision, gradient checkpointing and the micro-batch size of the first candidate that fits.
    On a CPU they are larger micro-batches for short completions. Nothing changes on another device, or for a model
    whose memory cannot be planned.

    Args:
        inputs: The inputs of the run, with a model or a `ModelWithoutWeights`. A precision that its settings request
            is kept.
        device: The device of the run.
        fixed_settings: Names of settings that must not change.

    Returns:
        The chosen configuration, and lines to print on the plan and the choice. On a CPU there are no lines if nothing
        has changed.
    """
    config = inputs.config
    if device.type not in ("cuda", "cpu"):
        return config, []
    try:
        num_parameters = shape_of(inputs.model.config).parameters
        precisions = possible_precisions(device, num_parameters, config.requested_precision)
        memory_plan = plan_run_memory(inputs, precisions[0], device.type)
    except InputError as error:  # a model that cannot be planned may still be trained
        return config, [f"memory: not planned, since {error}"] * (device.type == "cuda")
    memory_plan = replace(memory_plan, fixed_settings=frozenset(fixed_settings))
    if device.type == "cpu":
        return _enlarge_microbatches(memory_plan)
    chosen, lines = choose_candidate(memory_plan, torch.cuda.mem_get_info(device)[0], precisions)
    return chosen.sizes.config, [str(chosen), *lines]


def _enlarge_microbatches(memory_plan: MemoryPlan) -> tuple[GRPOConfig, list[str]]:
    """Choose larger micro-batches for short completions, which saves time on a CPU and needs no more memory.

    Each micro-batch reads and writes all weights and gradients, which takes much of a CPU's time if it has few tokens.
    The default number of rows is chosen for completions of `SHORT_COMPLETION_TOKENS`. For shorter completions this
    function takes the most rows whose update needs no more memory, by the plan, than the default rows of that length.

    Nothing changes if the loss depends on the size of a micro-batch.
    """
    config = memory_plan.sizes.config
    if memory_plan.has_fixed_microbatches or config.max_completion_length >= SHORT_COMPLETION_TOKENS:
        return config, []
    long_completions = replace(config, max_completion_length=SHORT_COMPLETION_TOKENS)
    allowed_bytes = memory_plan.with_changes(config=long_completions).totals["update"]
    for size in range(config.update_batch_size, config.microbatch_size, -1):
        if config.update_batch_size % size:
            continue
        accumulation_steps = config.update_batch_size // size
        larger = replace(config, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation_steps)
        if memory_plan.with_changes(config=larger).totals["update"] <= allowed_bytes:
            default_size = f"{config.microbatch_size} of {SHORT_COMPLETION_TOKENS} tokens"
            why = f"{size} short completions need no more memory than {default_size}"
            new_settings = f"per_device_train_batch_size {size}, gradient_accumulation_steps {accumulation_steps}"
            return larger, [f"{new_settings}: {why}"]
    return config, []
