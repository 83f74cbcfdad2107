"""Evaluate a policy on problems that it was not trained on: `python -m grpo_lab.evaluate --model DIR` prints JSON.

`measure` evaluates a policy and summarises its completions with the estimates and intervals of `estimates`, and `cli`
is the command.
"""

from grpo_lab.evaluate.cli import main
from grpo_lab.evaluate.estimates import pass_at_k, wilson_interval
from grpo_lab.evaluate.measure import evaluate, evaluation_metrics, sample_records, thinking_probability
