"""What each metric means: the one source of docs/metrics.md, of `grpo-lab diagnose --glossary` and of 09's appendix."""

from typing import NamedTuple

from grpo_lab.display import View, markdown_table


class Metric(NamedTuple):
    """name: in metrics.jsonl, "<name>" standing for a reward function. of: who writes it: "ours", "TRL" or "both"."""

    name: str
    of: str
    formula: str
    healthy: str
    outside: str


OURS, TRL, BOTH = "ours", "TRL", "both"
METRICS = (
    # rewards
    Metric("reward", BOTH, "mean of the weighted sum of all reward functions", "rises",
           "flat: too hard, too easy, or a policy that does not move; falls: a learning rate that is too high"),
    Metric("reward_std", BOTH, "standard deviation of the reward over the batch", "above 0",
           "0: every completion earns the same"),
    Metric("frac_reward_zero_std", BOTH, "share of groups whose rewards are all equal", "below 0.9",
           "those groups give no gradient; near 1 nothing is learnt"),
    Metric("rewards/<name>/mean", BOTH, "mean of one reward function where it applies", "moves",
           "0 throughout: its form is never written, or never read"),
    Metric("rewards/<name>/std", BOTH, "its standard deviation over the batch", "above 0",
           "0: it tells no completion from another"),
    Metric("rewards/<name>/frac_none", BOTH, "share of completions to which it did not apply, if any", "small",
           "a judge that does not answer, or an answer that is missing"),
    # completions
    Metric("completions/mean_length", BOTH, "mean tokens of a completion, end token and all", "steady, or with reward",
           "longer without gain: length is paid, or the end token is not in the loss"),
    Metric("completions/min_length", BOTH, "tokens of the shortest", "above 1", "1: the model ends at once"),
    Metric("completions/max_length", BOTH, "tokens of the longest", "below max_completion_length",
           "at the limit: some are cut off"),
    Metric("completions/clipped_ratio", BOTH, "share of completions that were cut off before their end token",
           "below 0.1", "above 0.3: the limit is too small, or ending is not learnt"),
    Metric("completions/mean_terminated_length", BOTH, "mean tokens of those that ended by themselves; 0 if none did",
           "below max_completion_length / 2", "near the limit: give more tokens"),
    Metric("completions/min_terminated_length", TRL, "tokens of the shortest of those", "above 1",
           "1: the model ends at once"),
    Metric("completions/max_terminated_length", TRL, "tokens of the longest of those", "below max_completion_length",
           "at the limit: give more tokens"),
    # the policy
    Metric("entropy", BOTH, "mean of -sum p log p over the tokens, in nats (at the sampling temperature)",
           "falls slowly while reward rises", "near 0 before the task is solved: nothing new is tried"),
    Metric("kl", BOTH, "mean over tokens of k3 = exp(d) - 1 - d, d = log p_ref - log p, in nats",
           "0 at step 1, then grows with reward",
           "not 0 at first: another reference; above 0.5 without gain: the policy is leaving for nothing"),
    Metric("sampling/logp_difference_max", OURS, "largest |log p sampled - log p scored| of a token, in nats",
           "1e-5 in fp32, 0.5 in half precision", "sampler and scorer are two policies: top_p, temperature, an engine"),
    Metric("sampling/sampling_logp_difference/mean", TRL, "mean of the same between vLLM and the trainer", "below 0.05",
           "above 0.1: the gradient is that of another policy"),
    Metric("sampling/sampling_logp_difference/max", TRL, "its maximum", "below 1 or so", "as above"),
    Metric("sampling/importance_sampling_ratio/min", TRL, "smallest exp(log p scored - log p sampled)", "near 1",
           "as above"),
    Metric("sampling/importance_sampling_ratio/mean", TRL, "its mean", "1", "as above"),
    Metric("sampling/importance_sampling_ratio/max", TRL, "its maximum, after truncation", "near 1", "as above"),
    # the update
    Metric("loss", BOTH, "the value that is minimised, mean over the updates of the step", "anything; near 0 is usual",
           "it measures no progress; NaN: look at the batch"),
    Metric("policy_loss", TRL, "the loss without the entropy term", "anything; near 0 is usual", "as loss"),
    Metric("aux_loss", TRL, "load balance of a mixture of experts", "steady", "rises: experts fall out of use"),
    Metric("entropy_coef", TRL, "weight of the entropy term", "as configured", "-"),
    Metric("ratio", OURS, "mean over tokens of p / p_old", "1 within 0.01",
           "exactly 1 in the second update of a rollout: old log-probabilities are those of now"),
    Metric("clip_ratio/region_mean", BOTH, "share of tokens where the clip stops the gradient, on either side",
           "0 with one update of a rollout, else 0.001 to 0.1", "above 0.2: updates too large for their clip range"),
    Metric("clip_ratio/low_mean", BOTH, "of these, negative advantage and ratio below 1 - epsilon", "as above",
           "as above"),
    Metric("clip_ratio/high_mean", BOTH, "positive advantage and ratio above 1 + epsilon_high", "as above", "as above"),
    Metric("clip_ratio/low_min", TRL, "smallest low share of a process", "as above", "as above"),
    Metric("clip_ratio/high_max", TRL, "largest high share of a process", "as above", "as above"),
    Metric("cispo_clip_ratio", BOTH, "share of tokens whose weight CISPO cuts", "below 0.1", "as above"),
    Metric("vespo/phi_seq_mean", BOTH, "mean weight of a sequence in VESPO", "near 1", "far from 1: old completions"),
    Metric("grad_norm", BOTH, "norm of all gradients before clipping (TRL: of the last update)",
           "within a factor of 5 of its median", "0: no spread; 20 times its median: a spike"),
    Metric("learning_rate", BOTH, "rate of the step's updates", "moves KL to 0.01 to 1 over a run",
           "too low: nothing moves; too high: reward falls"),
    Metric("nonfinite_steps", OURS, "updates so far that were skipped for a NaN or infinite loss or gradient", "0",
           "a learning rate, a reward or a logarithm; a few are usual at the start of fp16"),
    Metric("rows_without_gradient", OURS, "share of completions with an advantage of 0 that cost no update",
           "below 0.9", "as frac_reward_zero_std"),
    # held-out problems, cost
    Metric("eval/accuracy", OURS, "share of held-out completions with a first reward of 1", "rises with reward",
           "falls behind: learnt by heart, or gamed"),
    Metric("eval/<metric>", BOTH, "the same on held-out problems (eval_<metric> in TRL's log)", "near training's",
           "falls behind: learnt by heart, or gamed"),
    Metric("num_tokens", BOTH, "tokens of prompts and completions so far", "grows", "-"),
    Metric("tokens_per_second", OURS, "sampled tokens a second", "steady", "falls: longer answers, or a full machine"),
    Metric("step_time", BOTH, "seconds of a step (TRL: of the last update)", "steady", "as above"),
    Metric("time/rollout", OURS, "seconds of sampling", "most of a step", "-"),
    Metric("time/reward", OURS, "seconds of the reward functions", "small", "a slow verifier: sample meanwhile"),
    Metric("time/score", OURS, "seconds of log-probabilities, forward", "below sampling", "-"),
    Metric("time/update", OURS, "seconds of backward and optimizer", "below sampling", "-"),
    Metric("time/eval", OURS, "seconds of an evaluation", "-", "evaluate less often"),
)  # fmt: skip


def named(metric: str) -> Metric | None:
    """The entry of a metric as a log writes it, such as "rewards/accuracy_reward/mean"; None if it has none."""
    entries = {one.name: one for one in METRICS}
    if metric in entries:
        return entries[metric]
    if metric.startswith("eval/"):
        return entries["eval/<metric>"] if named(metric.removeprefix("eval/")) else None
    first, last = metric.split("/")[0], metric.split("/")[-1]
    return entries.get(f"{first}/<name>/{last}")


def glossary() -> View:
    """All metrics, as a table."""
    head = ("metric", "of", "what it is", "healthy", "outside")
    rows = [(f"`{one.name}`", *(cell.replace("|", r"\|") for cell in one[1:])) for one in METRICS]
    table = markdown_table(head, rows)
    return View(table, table)


def page() -> str:
    """docs/metrics.md."""
    return (
        "# Metrics\n\nWhat `metrics.jsonl`, TRL's log and TensorBoard hold, one line a step. `<name>` is that of "
        'a reward function. "of" says who writes it. The ranges are those of runs like the course\'s: a line that is '
        "crossed is a reason to look, and `grpo-lab diagnose DIR` looks. This page is written by "
        "`python -m grpo_lab.diagnose --glossary`.\n\n" + glossary().rich + "\n"
    )
