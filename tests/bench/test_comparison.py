"""The figures of a run, and their ratios within pairs of runs."""

from grpo_lab.bench.comparison import FIGURES, WINDOW, Comparison, FigureSummary, RunPair
from grpo_lab.bench.record import Setup
from tests.support.bench_record import run_result


def test_figures_summarise_times_rewards_and_memory_of_a_run():
    rewards = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # means of five: 0.6, 0.8, 0.9
    run = run_result([4.0, 5.0, 6.0, 7.0, 8.5, 9.5, 10.0], rewards)
    assert {name: figure.of_run(run) for name, figure in FIGURES.items()} == {
        "seconds_per_step": 1.0,  # median of 4, 1, 1, 1, 1.5, 1, 0.5: the slow first step counts once
        "time_to_accuracy": 9.5,
        "cpu_seconds_per_step": 0.5,
        "cpu_time_to_accuracy": 4.75,
        "peak_memory": 300,
    }


def run_with_accuracy_after(seconds: float | None):
    """Return a run that reaches the accuracy after this time, or never."""
    step_ends = [(seconds or 1.0) * step / WINDOW for step in range(1, WINDOW + 1)]
    return run_result(step_ends, [0.0 if seconds is None else 1.0] * WINDOW)


def summary_of_times(*pairs):
    """Return the summary of the times to accuracy of pairs of runs, each our time and TRL's."""
    setup = Setup(model="tiny", precision="fp32", device="cpu", steps=WINDOW, threads=1)
    runs = [dict(zip(("ours", "trl"), map(run_with_accuracy_after, pair), strict=True)) for pair in pairs]
    return Comparison(setup, [RunPair(seed, pair) for seed, pair in enumerate(runs)]).summary["time_to_accuracy"]


def test_bench_ratio_is_the_median_over_pairs_in_which_both_trainers_have_a_time():
    # The machine is slow in one pair and fast in another: the ratio of the medians would be 1.
    slow_and_fast = summary_of_times((1.0, 2.0), (10.0, 20.0), (2.0, 1.0))
    assert slow_and_fast == FigureSummary(ours=2.0, trl=2.0, ratio=0.5, ratios=[0.5, 0.5, 2.0])
    some = summary_of_times((None, 2.0), (3.0, 4.0), (3.0, None))
    assert some == FigureSummary(ours=3.0, trl=3.0, ratio=0.75, ratios=[0.75])
    assert summary_of_times((None, 2.0)) == FigureSummary(ours=None, trl=2.0, ratio=None, ratios=[])
