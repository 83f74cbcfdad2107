"""`diagnose` goes through the faults of faults.toml, which says what each may come from, and what to try.

What a fault looks like in a log is the function of `conditions` with its name. The lines between healthy and not were
drawn on recorded runs: `python notebooks/runs/record_faults.py --table` counts what is found, missed and falsely
reported.
"""

import contextlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose import conditions
from grpo_lab.diagnose.conditions import CLIPPED, GRADIENT, Evidence
from grpo_lab.diagnose.logs import Log, MissingMetric, read_log


@dataclass(frozen=True)
class Finding:
    """A fault that a run seems to have.

    name: of the fault, as in `RULES`.
    step: the first one by which it shows; a trend is read from step 8 on.
    evidence: the metric, what it was, and what is expected.
    causes: what it may come from, the likeliest first.
    remedies: what to try, in this order.
    source: who says so.
    """

    name: str
    step: int
    evidence: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    source: str


class Rule(NamedTuple):
    """One fault: how it looks, and what `Finding` says of it."""

    condition: Callable[[Log], Evidence]
    source: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.condition.__name__


def _read(fault: str, *, source: str, causes: list[str], remedies: list[str]) -> Rule:
    return Rule(getattr(conditions, fault), source, tuple(causes), tuple(remedies))


FAULTS = Path(__file__).with_name("faults.toml")
RULES = tuple(_read(fault, **texts) for fault, texts in tomllib.loads(FAULTS.read_text(encoding="utf-8")).items())


def examined(log: Log) -> tuple[list[Finding], dict[str, str]]:
    """Return the findings, and for each rule that could not look the metric that the log lacks."""
    findings, unread_metrics = [], {}
    for rule in RULES:
        try:
            evidence = rule.condition(log)
        except MissingMetric as missing:
            unread_metrics[rule.name] = str(missing)
            continue
        if evidence:
            step = first_step(rule, log)
            findings.append(Finding(rule.name, step, evidence, rule.causes, rule.remedies, rule.source))
    return findings, unread_metrics


def first_step(rule: Rule, log: Log) -> int:
    """The last step of the shortest beginning of the log in which the rule finds something."""
    for count, row in enumerate(log.rows, 1):
        with contextlib.suppress(MissingMetric):
            if rule.condition(replace(log, rows=log.rows[:count])):
                return row["step"]
    raise AssertionError("a rule that finds something in the whole log finds it there")


def diagnose(source, settings: dict | None = None) -> list[Finding]:
    """Find what looks wrong in the log of a run, root causes before what follows from them; nothing in a healthy run.

    Args:
        source, settings: as `read_log` takes or refuses them: a folder, file, `trainer.state.log_history`, our history.
    """
    return examined(read_log(source, settings))[0]


def notes(log: Log) -> list[str]:
    """List what looks like a fault and is none, a sentence each."""
    sentences = []
    loss, norms, clipped = (log.points(metric)[1] for metric in ("loss", GRADIENT, CLIPPED))
    if len(loss) and len(norms) and np.median(np.abs(loss)) < 1e-3 < np.median(norms):
        sentences.append(
            f"loss is {np.median(loss):.1g} in the median step, and that is no fault: the advantages of a group sum to "
            f"0 and the ratio is 1, so the loss is 0, and its gradient is not (grad_norm {np.median(norms):.2g}). "
            "Watch reward, held-out reward and KL (trl issues 2703, 3452; open-r1 239)"
        )
    if conditions.updates_per_rollout(log) == 1 and len(clipped) and not clipped.any():
        sentences.append(
            f"{CLIPPED} is 0 in all steps, and that is no fault: with one update of each rollout the ratio is 1"
        )
    return sentences
