"""Look for the faults of faults.toml in the log of a run.

faults.toml gives the causes and remedies of each fault. Its entry in `conditions.CONDITIONS` is the function that
recognises the fault in a log. The thresholds were chosen on recorded runs: `python notebooks/runs/record_faults.py
--table` counts the faults that are found, missed and falsely reported.
"""

import contextlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose.conditions import CONDITIONS
from grpo_lab.diagnose.logs import CLIP_RATIO, GRAD_NORM, Evidence, Log, MissingMetric, read_log, updates_per_rollout


@dataclass(frozen=True)
class Finding:
    """A fault that a run seems to have."""

    name: str  # name of the fault in `RULES`
    step: int  # first step by which the fault can be recognised; trends are computed from step 8 on
    evidence: str  # metrics with the values that show the fault
    causes: tuple[str, ...]  # possible causes, the likeliest first
    remedies: tuple[str, ...]  # remedies in the order in which to try them
    source: str  # paper, issue or notebook that describes the fault


class Rule(NamedTuple):
    """A fault with the condition that recognises it; the other fields are those of `Finding`."""

    name: str
    condition: Callable[[Log], Evidence | None]  # returns the evidence for the fault, or None
    source: str
    causes: list[str]
    remedies: list[str]


FAULTS_FILE = Path(__file__).with_name("faults.toml")
RULES = tuple(
    Rule(fault, CONDITIONS[fault], **texts)
    for fault, texts in tomllib.loads(FAULTS_FILE.read_text(encoding="utf-8")).items()
)


def examine(log: Log) -> tuple[list[Finding], dict[str, str]]:
    """Look for every fault in a log.

    Returns:
        The findings; and {name of the fault: missing metric} for the faults that could not be checked, because the log
        has too few numbers of a metric.
    """
    findings, missing_metrics = [], {}
    for rule in RULES:
        try:
            evidence = rule.condition(log)
        except MissingMetric as missing:
            missing_metrics[rule.name] = str(missing)
            continue
        if evidence:
            step = first_step_of_fault(rule, log)
            causes, remedies = tuple(rule.causes), tuple(rule.remedies)
            findings.append(Finding(rule.name, step, evidence, causes, remedies, rule.source))
    return findings, missing_metrics


def first_step_of_fault(rule: Rule, log: Log) -> int:
    """Return the first step by which a fault can be recognised, for a log in which the rule finds it.

    This is the last step of the shortest beginning of the log in which the rule finds the fault.
    """
    for num_rows, row in enumerate(log.rows, 1):
        with contextlib.suppress(MissingMetric):
            if rule.condition(log.beginning(num_rows)):
                return row["step"]
    raise AssertionError("a rule that finds something in the whole log finds it there")


def diagnose(source, settings: dict | None = None) -> list[Finding]:
    """Find the faults in the log of a run, root causes before their consequences. A healthy run has none.

    Args:
        source: The log: a folder, a file or a list of dicts, as `read_log` takes it.
        settings: Settings of the run; they take precedence over the settings that the log contains.

    Raises:
        InputError: if `read_log` cannot read the source.
    """
    return examine(read_log(source, settings))[0]


def harmless_signs(log: Log) -> list[str]:
    """Return a sentence for each thing in a log that looks like a fault but is not."""
    sentences = []
    loss, norms, clipped = (log.finite_values(metric) for metric in ("loss", GRAD_NORM, CLIP_RATIO))
    if len(loss) and len(norms) and np.median(np.abs(loss)) < 1e-3 < np.median(norms):
        sentences.append(
            f"loss is {np.median(loss):.1g} in the median step, which is not a fault: the advantages of a group sum to "
            f"0 and the ratio is 1, so the loss is 0, and its gradient is not (grad_norm {np.median(norms):.2g}). "
            "Watch reward, held-out reward and KL (trl issues 2703, 3452; open-r1 239)"
        )
    if updates_per_rollout(log) == 1 and len(clipped) and not clipped.any():
        sentences.append(
            f"{CLIP_RATIO} is 0 in all steps, which is not a fault: with one update of each rollout the ratio is 1"
        )
    return sentences
