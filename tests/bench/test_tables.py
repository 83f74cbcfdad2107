"""The figures of a run, their ratios within pairs of runs, and the tables of both."""

from grpo_lab.bench import tables
from tests.support.bench_record import record


def test_run_figures_summarise_times_rewards_and_memory_of_a_record():
    rewards = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # means of five: 0.6, 0.8, 0.9
    assert tables.run_figures(record([4.0, 5.0, 6.0, 7.0, 8.5, 9.5, 10.0], rewards)) == {
        "seconds_per_step": 1.0,  # median of 4, 1, 1, 1, 1.5, 1, 0.5: the slow first step counts once
        "time_to_accuracy": 9.5,
        "cpu_seconds_per_step": 0.5,
        "cpu_time_to_accuracy": 4.75,
        "peak_memory": 300,
    }


def summary(*pairs):
    usual = dict.fromkeys((key for key, *_ in tables.FIGURES), 1.0)
    sides = [{"ours": usual | {"time_to_accuracy": a}, "trl": usual | {"time_to_accuracy": b}} for a, b in pairs]
    return tables.summarise(sides)["time_to_accuracy"]


def test_bench_ratio_is_the_median_over_pairs_in_which_both_trainers_have_a_time():
    # The machine is slow in one pair and fast in another: the ratio of the medians would be 1.
    slow_and_fast = summary((1.0, 2.0), (10.0, 20.0), (2.0, 1.0))
    assert slow_and_fast == {"ours": 2.0, "trl": 2.0, "ratio": 0.5, "ratios": [0.5, 0.5, 2.0]}
    some = summary((None, 2.0), (3.0, 4.0), (3.0, None))
    assert some == {"ours": 3.0, "trl": 3.0, "ratio": 0.75, "ratios": [0.75]}
    assert summary((None, 2.0)) == {"ours": None, "trl": 2.0, "ratio": None, "ratios": []}
