r"""What a run will take of a device's memory, known before it starts; and what to turn down where it does not fit.

`python -m grpo_lab.memory --model qwen2 --budget 8` prints both.

It plans for the worst case, every completion as long as it may be and every row with a gradient, because that is the
step in which a run would fail. It counts tensors. CUDA itself takes about half a GiB more, and the allocator leaves
gaps between tensors: `RESERVE` stands for both. What a processor's kernels take beside the tensors, in half precision
above all, is not counted.
"""

from dataclasses import dataclass, replace

import torch

from grpo_lab.commands.checks import InputError, check_at_least, check_choice
from grpo_lab.commands.display import GIB, text_table
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, has_native_bf16, precision_asked
from grpo_lab.memory import phases
from grpo_lab.memory.choice import MODES, RESERVE, choice
from grpo_lab.memory.phases import Setting
from grpo_lab.models.shapes import ModelShape, shape_of
from grpo_lab.rollout import encode_prompts

PROMPTS = 200  # whose length is looked at before a run


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of tensors alive in each phase of a step, by part."""

    setting: Setting
    moments: dict[str, list[dict[str, int]]]  # phase -> its moments in order -> part -> bytes

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
        """Whether a device with so many bytes free is enough: the peak, and `RESERVE` beside it."""
        return self.peak + RESERVE <= budget

    def with_setting(self, **changes) -> "MemoryPlan":
        """The plan for another configuration, mode, or whatever else a `Setting` holds."""
        return _plan(replace(self.setting, **changes))

    def table(self) -> str:
        """In GiB: one row a part (those that take nothing are left out), and the totals."""
        s, config = self.setting, self.setting.config
        title = (
            f"{s.shape.parameters:,} parameters, {s.mode}; {config.generation_batch_size} completions a step x "
            f"({s.prompt_length} prompt + {config.max_completion_length} response) tokens, "
            f"{config.rows_at_once} rows at a time"
            f"{', layers checkpointed' if config.gradient_checkpointing else ''}"
        )
        names = dict.fromkeys(part for alive in self.phases.values() for part, size in alive.items() if size)
        rows = [[part, *(_gib(alive.get(part, 0)) for alive in self.phases.values())] for part in names]
        rows.append(["together", *(_gib(total) for total in self.totals.values())])
        lines = text_table(["GiB", *self.phases], rows).splitlines()
        lines.insert(-1, "-" * len(lines[0]))
        return "\n".join([title, *lines, f"peak: {self.peak / GIB:.2f} GiB, {self.peak_phase}"])

    __str__ = table


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else "-"


def plan(
    model_config, config: GRPOConfig, *, prompt_length: int, precision: str, device_type: str = "cuda"
) -> MemoryPlan:
    """Plan the memory of a run.

    Args:
        model_config: a transformers configuration of Qwen2's kind, such as `shape_config("qwen2")`.
        config: the settings of the run.
        prompt_length: L, tokens of the longest prompt.
        precision: the mode, a name in `PRECISIONS`.
        device_type: "cuda" or "cpu"; they differ in the cache, in the chunks of logits and in torch's AdamW.

    Raises:
        ValueError: for arguments that are out of range, and for a model whose parts are not known.
    """
    check_choice("precision", precision, PRECISIONS)
    check_at_least("prompt_length", prompt_length, 1)
    check_choice("device_type", device_type, ("cuda", "cpu"))
    if config.precision not in (None, precision):
        raise InputError("precision", precision, f"expected {config.precision!r}, as in config")
    return _plan(Setting(known_shape(model_config), config, PRECISIONS[precision], prompt_length, device_type))


def known_shape(model_config) -> ModelShape:
    """The sizes of the model, or InputError if it is of a kind whose memory cannot be planned."""
    try:
        return shape_of(model_config)
    except (AttributeError, ValueError) as error:
        raise InputError(f"model_config is not of Qwen2's kind: {error!s:.100}") from error


def _plan(setting: Setting) -> MemoryPlan:
    always = phases.resident(setting)
    made = {name: [always | alive for alive in moments(setting)] for name, moments in phases.PHASES.items()}
    return MemoryPlan(setting, made)


def longest_prompt(tokenizer, rows) -> int:
    """Tokens of the longest among the prompts that a run looks at before it begins."""
    return encode_prompts(tokenizer, [rows[index]["prompt"] for index in range(min(len(rows), PROMPTS))])[0].shape[1]


def fitted(model_config, tokenizer, rows, config: GRPOConfig, device: torch.device, given) -> GRPOConfig:
    """The configuration with the mode that a card takes, where none is asked for; the plan and the choice are printed.

    given: settings that stay as they are. On other devices, and for a model whose parts are not known, nothing changes.
    """
    if device.type != "cuda":
        return config
    native, asked = has_native_bf16(device), precision_asked(config)
    modes = MODES[native] if asked is None else (asked,)
    try:
        made = plan(model_config, config, prompt_length=longest_prompt(tokenizer, rows), precision=modes[0])
    except InputError as error:  # an architecture whose parts are not known can be trained all the same
        print(f"memory: not planned, since {error}")
        return config
    way, lines = choice(made, torch.cuda.mem_get_info(device)[0], modes, given)
    print(way.plan.table(), *lines, sep="\n")
    return replace(way.plan.setting.config, precision=way.precision)
