"""Mistakes in circulation as single changes of the live source: to be planted, shown as a diff, and taken out again.

    with planted("off-by-one"):
        history = train(...)  # makes the mistake
    show_bugs({"C": "off-by-one"})

Notebook 09 hunts them; the test suite has to kill each of them as a mutant.
"""

import difflib
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from grpo_lab.commands.display import say
from grpo_lab.formulas.lines import running, with_lines, without_markers


@dataclass(frozen=True)
class Bug:
    """One mistake: in `function` of `module`, other lines at these addresses (see `grpo_lab.formulas.lines`)."""

    module: str
    function: str
    lines: Mapping[str, str]

    def planted(self) -> AbstractContextManager:
        """The function with the mistake, inside the `with`."""
        source = inspect.getsource(importlib.import_module(self.module))
        return running(with_lines(source, self.lines, self.function), self.module, self.function)

    def diff(self) -> str:
        """The lines that differ, without their indentation."""
        function = inspect.unwrap(pkgutil.resolve_name(f"{self.module}:{self.function}"))
        old = textwrap.dedent(inspect.getsource(function))
        both = (without_markers(source).splitlines() for source in (old, with_lines(old, self.lines)))
        lines = difflib.unified_diff(*both, n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in changed)


# By name, most of them in ERRATA's words: where it is, and what stands there instead.
BUGS = {
    "temperature-mismatch": Bug(
        "grpo_lab.trainer.logprobs", "_logprobs_together", {"[temperature]": "temperature=1.0,"}
    ),
    "retokenised": Bug(
        "grpo_lab.rollout.sample",
        "sample_completions",
        {
            "[ids]": """completion_ids=tokenizer(
    texts, padding="max_length", padding_side="right", max_length=mask.shape[1], truncation=True,
    add_special_tokens=False, return_tensors="pt",
).input_ids,"""
        },
    ),
    "off-by-one": Bug(
        "grpo_lab.rollout.packing",
        "packed_hidden",
        {"[aligned]": "before = place[:, [*range(length, place.shape[1]), -1]][mask]"},
    ),
    "microbatch-mean": Bug(
        "grpo_lab.objective.loss",
        "microbatch_loss",
        {
            "policy_loss()": "loss, metrics = policy_loss("
            "logp, advantages, mask, loss_type=loss_type, num_items=mask.sum(), **settings)"
        },
    ),
    "group-mixed": Bug(
        "grpo_lab.trainer.experience",
        "compute_advantages",
        {"rearrange()": 'by_group = rearrange(rewards, "(G P) -> P G", G=config.num_generations)'},
    ),
    "no-centre": Bug("grpo_lab.advantages", "group_advantages", {"2.2": "centred = rewards"}),
    "eos-trimmed": Bug("grpo_lab.logprobs", "completion_mask", {"1.9": "ends_before = is_end.cumsum(-1)"}),
    "k1-as-loss": Bug("grpo_lab.kl", "kl_estimate", {"4.4": "k3 = k1"}),
    "ratio-quotient": Bug(
        "grpo_lab.objective.surrogates", "importance_ratio", {"5.2": "ratio = logp / old_logp.detach()"}
    ),
    "old-not-frozen": Bug(
        "grpo_lab.trainer.loop", "update", {"replace()": "experience = replace(experience, old_logp=None)"}
    ),
    "ref-not-frozen": Bug("grpo_lab.models.frozen", "frozen_copy", {"deepcopy()": "return model"}),
    "pure-bf16-adamw": Bug(
        "grpo_lab.trainer.optim_8bit",
        "EightBitAdamW.__init__",
        {"adamw()": "self.adamw = adamw(flat, **settings, bf16_stochastic_round=False)"},
    ),
    "answers-mixed": Bug(
        "grpo_lab.trainer.experience",
        "_as_reward_functions_see_it",
        {"[rows]": "rows = [rows[row % len(rows)] for row in range(len(rollout.texts))]"},
    ),
}


def planted(name: str) -> AbstractContextManager:
    """The mistake of this name inside the `with`; "healthy" is none."""
    return nullcontext() if name == "healthy" else BUGS[name].planted()


def show_bugs(runs: Mapping[str, str]) -> None:
    """Of each run's mistake the lines that differ from the live source; the first stands open, a click opens others."""
    for place, (run, name) in enumerate(runs.items()):
        bug = BUGS[name]
        where = f"{bug.module}.{bug.function}"
        head = f"<details{'' if place else ' open'}><summary>Run {run}: {name}, in <code>{where}</code></summary>"
        say(f"{head}\n\n```diff\n{bug.diff()}\n```\n\n</details>", f"Run {run}: {name}, in {where}\n{bug.diff()}")
