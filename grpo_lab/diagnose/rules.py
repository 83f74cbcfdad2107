"""The table of faults: what each may come from, what to try, and who says so; and `diagnose`, which goes through it.

What a fault looks like in a log is one function of `conditions`. The lines between healthy and not were drawn on
recorded runs: `python notebooks/runs/record_faults.py --table` counts what is found, missed and falsely reported.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose import conditions as c
from grpo_lab.diagnose.logs import Lacking, Log, read_log


@dataclass(frozen=True)
class Finding:
    """What looks wrong in a run.

    name: of the fault, as in `RULES`.
    step: the first one at which it shows.
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

    condition: Callable[[Log], c.Evidence]
    source: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.condition.__name__


RULES = (  # root causes before what follows from them
    Rule(c.nonfinite_steps, "verl issue 891; notebook 08",
         ("a learning rate that is too high", "a logarithm of 0, a 0/0 or a reward that is NaN",
          "a row without tokens, or a softmax over -inf alone", "fp16 without a loss scale"),
         ("print the first batch whose loss is NaN", "halve the learning rate, max_grad_norm 1", "bf16 for fp16")),
    Rule(c.sampler_trainer_apart, "Yao et al. 2025, on engines that sample off-policy; notebook 10",
         ("top_p, top_k, repetition_penalty or a temperature that the sampler has and the trainer lacks",
          "completions that were decoded and tokenised again", "dropout in the trainer", "two engines or precisions"),
         ("top_p 1, top_k 0, repetition_penalty 1, one temperature in both",
          "take the log-probabilities of the sampled ids themselves, with the model in eval mode",
          "importance sampling between the engines (vllm_importance_sampling_correction), fp32 for the head")),
    Rule(c.kl_not_zero_at_start, "k3 is 0 where both are equal (Schulman 2020); notebook 04",
         ("the reference is another checkpoint than the policy began with", "policy and reference in two precisions",
          "dropout or a temperature in one of them"),
         ("load both from one folder, in one dtype, in eval mode", "compute both log-probabilities with one function")),
    Rule(c.kl_negative, "Schulman 2020, Approximating KL Divergence; notebook 04",
         ("k1 is recorded, and perhaps in the loss, where its gradient is 0 on average", "a sign, or another d"),
         ("k3 = exp(d) - 1 - d with d = log p_ref - log p", "for the gradient of the KL: r k3, or k1 in the reward")),
    Rule(c.kl_still, "recorded runs; notebook 09",
         ("the reference is the policy itself, or is refreshed from it at every step", "the KL of another model"),
         ("copy the model before the first step, and freeze the copy", "a reference that is refreshed more seldom")),
    Rule(c.not_centred, "recorded runs; notebooks 02 and 09",
         ("the mean of the group is not subtracted", "a KL term or an entropy bonus that outweighs the rewards"),
         ("print the advantages of one group: they sum to 0", "scale_rewards group, advantage group")),
    Rule(c.learning_rate_too_high, "recorded runs; notebook 07b (rate x 10 on SmolLM2)",
         ("a learning rate that is too high", "too few completions in a batch", "an advantage with the wrong sign"),
         ("a third of the learning rate, with warm-up", "max_grad_norm 1", "larger batches", "beta above 0")),
    Rule(c.kl_explosion, "Schulman 2020, Approximating KL Divergence; recorded runs",
         ("a learning rate that is too high", "a KL term with the wrong sign, or beta 0",
          "k3 of few tokens that the reference finds impossible"),
         ("a third of the learning rate", "beta 0.01 to 0.1, added to a loss that is minimised", "max_grad_norm 1")),
    Rule(c.updates_swallowed, "Micikevicius et al. 2018, FP32 master copy of weights; notebook 08",
         ("AdamW on bf16 weights: an update below 1/256 of a weight is rounded away", "a low learning rate"),
         ("fp32 master weights (bf16=True with a model loaded in float32), or stochastic rounding",
          "measure which share of the updates arrives (notebook 08)")),
    Rule(c.learning_rate_too_low, "recorded runs",
         ("a learning rate that is too low (LoRA wants ten times that of all parameters)",
          "weights in bf16, where small updates are rounded away", "parameters that are not in the optimizer"),
         ("three times the learning rate, until KL or entropy moves", "compare the weights before and after a step")),
    Rule(c.gradient_spikes, "recorded runs",
         ("a reward or an advantage without bounds", "ratios or k3 of tokens that have become very improbable"),
         ("max_grad_norm 1 or below", "scale or clip the rewards", "delta, the upper bound of the ratio")),
    Rule(c.clip_never, "Schulman et al. 2017 (PPO); notebook 05",
         ("old log-probabilities are computed anew at each update, so the ratio is always 1",
          "an epsilon so large that nothing reaches it", "updates too small to reach the clip range"),
         ("keep the log-probabilities of the rollout for all of its updates", "epsilon 0.2",
          "num_iterations 1 costs less")),
    Rule(c.clip_always, "Huang et al. 2022, The 37 Implementation Details of PPO; Zheng et al. 2025 (GSPO)",
         ("an epsilon of sequences (3e-4, GSPO) on tokens", "a learning rate too high for so many updates of a rollout",
          "old log-probabilities of another temperature or model"),
         ("epsilon 0.2 for tokens", "fewer updates of a rollout, or a smaller learning rate",
          "look at the ratio before the first update: it is 1")),
    Rule(c.no_spread_all_wrong, "Yu et al. 2025 (DAPO), Dynamic Sampling; trl issue 3452",
         ("the problems are too hard for this model", "the reward reads another form than the model writes",
          "completions are cut off before the answer"),
         ("read some completions: is their form what the reward reads?", "easier problems, more completions of each",
          "a reward for a part of the way, or a warm-up on examples")),
    Rule(c.no_spread_all_right, "Yu et al. 2025 (DAPO), Dynamic Sampling",
         ("the problems are too easy for this model", "the reward pays for what every completion has"),
         ("harder problems, or leave out those that are always solved", "read some completions: are they right?")),
    Rule(c.no_spread_equal, "trl issue 3857",
         ("the reward depends on the prompt or the batch, and not on the completion",
          "the completions of a prompt are all the same: temperature near 0, or one seed for each",
          "one reward function is full, the others are 0"),
         ("reward two completions of one prompt by hand", "temperature 1", "look at each rewards/<name>/mean")),
    Rule(c.reward_component_still, "the pattern without DOTALL in notebook 06",
         ("a pattern that no completion matches (such as `.` without DOTALL over several lines)",
          "a form that the model never tries", "an answer column that is empty"),
         ("call the reward on a completion that should earn it", "show the form in the prompt, or in a warm-up")),
    Rule(c.reward_component_falls, "recorded runs; notebook 06",
         ("two rewards ask for different things, and the one that is easier to earn wins",
          "a weight that lets one outvote the other"),
         ("look at each rewards/<name>/mean", "a smaller weight for the one that rises", "pay only for both at once")),
    Rule(c.entropy_collapse, "Yu et al. 2025 (DAPO), Clip-Higher; Cui et al. 2025, The Entropy Mechanism",
         ("a learning rate that is too high", "an entropy bonus with the wrong sign", "few problems, seen often",
          "only what is probable is pushed up (a low upper clip)"),
         ("a smaller learning rate", "epsilon_high 0.28", "beta above 0, or an entropy_coef above 0", "more problems")),
    Rule(c.truncation, "Yu et al. 2025 (DAPO), Overlong Reward Shaping",
         ("max_completion_length is too small", "the end token is cut off before the loss, or masked as padding",
          "a reward that grows with the length"),
         ("a larger max_completion_length", "is the end token in the mask? (notebook 05)", "a price on length")),
    Rule(c.length_without_gain, "Liu et al. 2025 (Dr. GRPO), length bias",
         ("a reward that pays for length", "a loss that divides by each completion's own length",
          "the end token is not in the loss"),
         ("take the reward on length out, or bound it", "loss_type dapo or dr_grpo", "is the end token in the mask?")),
    Rule(c.held_out_falls_behind, "recorded runs; notebook 06",
         ("few problems, learnt by heart", "a reward that can be gamed", "held-out problems of another kind"),
         ("more problems, fewer passes over each", "stop at the best evaluation", "read held-out completions")),
)  # fmt: skip


def examined(log: Log) -> tuple[list[Finding], dict[str, str]]:
    """(findings, the metric that the log lacks for each rule that could not look)."""
    found, blind = [], {}
    for rule in RULES:
        try:
            evidence = rule.condition(log)
        except Lacking as lacking:
            blind[rule.name] = str(lacking)
            continue
        if evidence:
            found.append(Finding(rule.name, first_step(rule, log), evidence, rule.causes, rule.remedies, rule.source))
    return found, blind


def first_step(rule: Rule, log: Log) -> int:
    """The last step of the shortest beginning of the log in which the rule finds something."""
    for count, row in enumerate(log.rows, 1):
        with contextlib.suppress(Lacking):
            if rule.condition(replace(log, rows=log.rows[:count])):
                return row["step"]
    raise AssertionError("a rule that finds something in the whole log finds it there")


def diagnose(source, settings: dict | None = None) -> list[Finding]:
    """What looks wrong in the log of a run, root causes before what follows from them; nothing for a healthy run.

    Args:
        source, settings: as `read_log` takes them: a folder, a file, `trainer.state.log_history`, our history.

    Raises:
        FileNotFoundError, ValueError, TypeError: as `read_log` does.
    """
    return examined(read_log(source, settings))[0]


def notes(log: Log) -> list[str]:
    """What looks like a fault and is none, in a sentence each."""
    said = []
    loss, norms, clipped = (log.points(metric)[1] for metric in ("loss", c.GRADIENT, c.CLIPPED))
    if len(loss) and len(norms) and np.median(np.abs(loss)) < 1e-3 < np.median(norms):
        said.append(
            f"loss is {np.median(loss):.1g} in the median step, and that is no fault: the advantages of a group sum to "
            f"0 and the ratio is 1, so the loss is 0, and its gradient is not (grad_norm {np.median(norms):.2g}). "
            "Watch reward, held-out reward and KL (trl issues 2703, 3452; open-r1 239)"
        )
    if c.updates_of_a_rollout(log) == 1 and len(clipped) and not clipped.any():
        said.append(
            f"{c.CLIPPED} is 0 in all steps, and that is no fault: with one update of each rollout the ratio is 1"
        )
    return said
