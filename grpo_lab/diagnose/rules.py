"""The table of faults: what each may come from, what to try, and who says so; and `diagnose`, which goes through it.

What a fault looks like in a log is one function of `conditions`. The lines between healthy and not were drawn on
recorded runs: `python notebooks/runs/record_faults.py --table` counts what is found, missed and called a fault in vain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose import conditions as c
from grpo_lab.diagnose.logs import Log, read_log


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
    """One fault. needs: metrics without which its condition has nothing to say; "a | b": one of the two."""

    condition: Callable[[Log], c.Evidence]
    needs: tuple[str, ...]
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    source: str

    @property
    def name(self) -> str:
        return self.condition.__name__

    def missing(self, log: Log) -> list[str]:
        return [need for need in self.needs if not any(log.has(metric) for metric in need.split(" | "))]


OWN_RUNS = "recorded runs (notebooks/runs/faults.json)"

RULES = (
    Rule(
        c.nonfinite_steps, ("loss | grad_norm | nonfinite_steps",),
        ("a learning rate that is too high", "a logarithm of 0, a 0/0 or a reward that is NaN",
         "a row without tokens, or a softmax over -inf alone", "fp16 without a loss scale"),
        ("halve the learning rate, clip the gradient (max_grad_norm 1)", "skip an update that is not finite",
         "print the first batch whose loss is NaN", "bf16 or fp32 for fp16"),
        "volcengine/verl issue 721; notebook 08",
    ),
    Rule(
        c.sampler_scorer_apart, (" | ".join(c.MISMATCH),),
        ("top_p, top_k, repetition_penalty or a temperature that the sampler has and the scorer lacks",
         "completions that were decoded and tokenised again", "dropout while scoring",
         "two engines, or two precisions"),
        ("top_p 1, top_k 0, repetition_penalty 1, one temperature in both",
         "score the sampled ids themselves, with the model in eval mode",
         "importance sampling between the engines (vllm_importance_sampling_correction), fp32 for the head"),
        "Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training; notebook 10",
    ),
    Rule(
        c.kl_not_zero_at_start, ("kl",),
        ("the reference is another checkpoint than the policy began with", "policy and reference in two precisions",
         "dropout in one of them", "temperature in one of them"),
        ("load both from one folder, in one dtype, in eval mode", "compute both log-probabilities with one function"),
        "k3 is 0 where both are equal (Schulman 2020); notebook 04",
    ),
    Rule(
        c.learning_rate_too_high, ("reward",),
        ("a learning rate that is too high", "no clipping of the gradient", "too few completions in a batch",
         "an advantage with the wrong sign"),
        ("a third of the learning rate, with warm-up", "max_grad_norm 1", "larger batches", "beta above 0"),
        "notebook 07b (rate x 10 on SmolLM2); " + OWN_RUNS,
    ),
    Rule(
        c.kl_explosion, ("kl", "reward"),
        ("a learning rate that is too high", "a KL term with the wrong sign, or beta 0",
         "k3 of few tokens that the reference finds impossible"),
        ("a third of the learning rate", "beta 0.01 to 0.1, added to a loss that is minimised", "max_grad_norm 1"),
        "Schulman 2020, Approximating KL Divergence; " + OWN_RUNS,
    ),
    Rule(
        c.updates_swallowed, ("reward", c.SPREAD),
        ("AdamW on bf16 weights: an update below 1/256 of a weight is rounded away", "a learning rate that is too low"),
        ("fp32 master weights (bf16=True with a model loaded in float32), or stochastic rounding",
         "measure which share of the updates arrives (notebook 08)"),
        "Micikevicius et al. 2018, section 3.1; notebook 08",
    ),
    Rule(
        c.learning_rate_too_low, ("reward", c.SPREAD),
        ("a learning rate that is too low (LoRA wants ten times that of all parameters)",
         "weights in bf16, where small updates are rounded away", "parameters that are frozen or not in the optimizer",
         "a gradient that is cut off: old log-probabilities that are not detached"),
        ("three times the learning rate, until KL or entropy moves", "float32 weights",
         "look at grad_norm, and at the weights before and after a step"),
        OWN_RUNS,
    ),
    Rule(
        c.gradient_spikes, (c.GRADIENT,),
        ("a reward or an advantage without bounds", "ratios or k3 of tokens that have become very improbable",
         "a batch of few tokens"),
        ("max_grad_norm 1 or below", "scale or clip the rewards", "delta, the upper bound of the ratio"),
        OWN_RUNS,
    ),
    Rule(
        c.clip_never, (c.CLIPPED,),
        ("old log-probabilities are computed anew at each update, so the ratio is always 1",
         "the updates are too small to reach the clip range"),
        ("keep the log-probabilities of the rollout for all of its updates", "num_iterations 1 costs less"),
        "Schulman et al. 2017 (PPO), section 3; notebook 05",
    ),
    Rule(
        c.clip_always, (c.CLIPPED,),
        ("an epsilon of sequences (3e-4, GSPO) on tokens", "a learning rate too high for so many updates of a rollout",
         "old log-probabilities of another temperature or model"),
        ("epsilon 0.2 for tokens", "fewer updates of a rollout, or a smaller learning rate",
         "look at the ratio before the first update: it is 1"),
        "Huang et al. 2022, The 37 Implementation Details of PPO; Zheng et al. 2025 (GSPO)",
    ),
    Rule(
        c.no_spread_all_wrong, (c.SPREAD, "reward"),
        ("the problems are too hard for this model", "the reward reads another form than the model writes",
         "completions are cut off before the answer"),
        ("read some completions: is their form what the reward reads?", "easier problems, more completions of each",
         "a reward for a part of the way, or a warm-up on examples"),
        "Yu et al. 2025 (DAPO), section 3.2; trl issue 3452",
    ),
    Rule(
        c.no_spread_all_right, (c.SPREAD, "reward"),
        ("the problems are too easy for this model", "the reward pays for what every completion has"),
        ("harder problems, or leave out those that are always solved", "read some completions: are they right?"),
        "Yu et al. 2025 (DAPO), section 3.2",
    ),
    Rule(
        c.no_spread_equal, (c.SPREAD, "reward"),
        ("the reward depends on the prompt or the batch, and not on the completion",
         "the completions of a prompt are all the same: temperature near 0, or one seed for each",
         "one reward function is full, the others are 0", "rows of different prompts in a group"),
        ("reward two different completions of one prompt by hand", "temperature 1",
         "look at rewards/<name>/mean one by one"),
        "trl issue 3857",
    ),
    Rule(
        c.reward_component_still, ("reward",),
        ("a pattern that no completion matches (such as `.` without DOTALL over several lines)",
         "a form that the model never tries", "an answer column that is empty"),
        ("call the reward on a completion that should earn it", "show the form in the prompt, or in a warm-up",
         "a reward for a part of the form"),
        "the pattern without DOTALL in notebook 06",
    ),
    Rule(
        c.entropy_collapse, ("entropy", "reward"),
        ("a learning rate that is too high", "an entropy bonus with the wrong sign",
         "few problems, seen again and again", "only what is probable is pushed up (a low upper clip)"),
        ("a smaller learning rate", "epsilon_high 0.28", "beta above 0, or an entropy_coef above 0", "more problems"),
        "Yu et al. 2025 (DAPO), section 3.1; Cui et al. 2025, The Entropy Mechanism",
    ),
    Rule(
        c.truncation, (c.CUT,),
        ("max_completion_length is too small", "the end token is cut off before the loss, or masked as padding",
         "a reward that grows with the length"),
        ("a larger max_completion_length", "is the end token in the mask? (notebook 05)",
         "mask_truncated_completions, or a price on length"),
        "Yu et al. 2025 (DAPO), section 3.4",
    ),
    Rule(
        c.length_without_gain, (c.LENGTH, "reward"),
        ("a reward that pays for length", "a loss that divides by each completion's own length",
         "the end token is not in the loss"),
        ("take the reward on length out, or bound it", "loss_type dapo or dr_grpo", "is the end token in the mask?"),
        "Liu et al. 2025 (Dr. GRPO), section 3",
    ),
    Rule(
        c.held_out_falls_behind, ("eval/reward", "reward"),
        ("few problems, learnt by heart", "a reward that can be gamed on the training problems",
         "held-out problems of another kind"),
        ("more problems, fewer passes over each", "stop at the best evaluation (load_best_model_at_end)",
         "read held-out completions"),
        "notebook 06; " + OWN_RUNS,
    ),
)  # fmt: skip


def diagnose(source, settings: dict | None = None) -> list[Finding]:
    """What looks wrong in the log of a run, root causes before what follows from them; nothing for a healthy run.

    Args:
        source, settings: as `read_log` takes them: a folder, a file, `trainer.state.log_history`, our history.

    Raises:
        FileNotFoundError, ValueError, TypeError, ImportError: as `read_log` does.
    """
    log = read_log(source, settings)
    found = [(rule, rule.condition(log)) for rule in RULES if not rule.missing(log)]
    return [Finding(r.name, *evidence, r.causes, r.remedies, r.source) for r, evidence in found if evidence]


def notes(source, settings: dict | None = None) -> list[str]:
    """What looks like a fault and is none, in a sentence each."""
    log = read_log(source, settings)
    said = []
    loss, norms = log.points("loss")[1], log.points(c.GRADIENT)[1]
    if len(loss) and len(norms) and np.median(np.abs(loss)) < 1e-3 < np.median(norms):
        said.append(
            f"loss_zero: loss is {np.median(loss):.1g} in the median step, and that is no fault: the advantages of a "
            f"group sum to 0 and the ratio is 1, so the loss is 0, and its gradient is not (grad_norm "
            f"{np.median(norms):.2g}). Watch reward, held-out reward and KL (trl issues 2703, 3452; open-r1 239)"
        )
    if (c.updates_of_a_rollout(log) or 0) == 1 and len(log.points(c.CLIPPED)[1]) and not log.points(c.CLIPPED)[1].any():
        said.append(
            f"{c.CLIPPED} is 0 in all steps, and that is no fault: with one update of each rollout the ratio is 1"
        )
    return said
