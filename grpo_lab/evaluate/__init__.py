"""Evaluate a policy on problems that it was not trained on: `python -m grpo_lab.evaluate --model DIR` prints JSON.

`cli` is the command. `measure` evaluates a policy and summarises its completions with the estimates and intervals of
`estimates`. It is imported at the first use of one of its functions, since it imports transformers, which takes
seconds: so `--help` comes at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grpo_lab.evaluate.cli import main
from grpo_lab.evaluate.estimates import pass_at_k, wilson_interval

if TYPE_CHECKING:
    from grpo_lab.evaluate.measure import evaluate, evaluation_metrics, sample_records, thinking_probability

__all__ = [
    "evaluate",
    "evaluation_metrics",
    "main",
    "pass_at_k",
    "sample_records",
    "thinking_probability",
    "wilson_interval",
]


def __getattr__(name: str) -> Any:
    """Return a function of `measure`, which is imported if it is not yet."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("grpo_lab.evaluate.measure"), name)
