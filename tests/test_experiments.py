"""Several runs side by side: in this process and in processes of their own they are the same runs."""

import pytest

from grpo_lab.experiments import Outcome, sweep

VARIANTS = {"default": {}, "shifted": {"advantage": "none", "reward_shift": 1.0}}
SMALL = {"max_steps": 1, "generation_batch_size": 16, "num_generations": 8}


def run(workers: int) -> dict[str, list[Outcome]]:
    return sweep(VARIANTS, [0, 1], common=SMALL, problems=4, workers=workers)


def without_clocks(outcome: Outcome) -> tuple:
    clocks = ("time/", "step_time", "tokens_per_second")
    history = [{k: v for k, v in step.items() if not k.startswith(clocks)} for step in outcome.history]
    return outcome.variant, outcome.seed, history, outcome.before, outcome.after


@pytest.mark.slow
def test_runs_in_this_process_are_those_of_processes_of_their_own():
    here, apart = run(workers=1), run(workers=2)
    assert list(here) == list(VARIANTS) and [outcome.seed for outcome in here["shifted"]] == [0, 1]
    for name in VARIANTS:
        assert [*map(without_clocks, here[name])] == [*map(without_clocks, apart[name])]
    shift = here["shifted"][0].history[0]["reward"] - here["default"][0].history[0]["reward"]
    assert shift == pytest.approx(1)


@pytest.mark.parametrize(("variants", "seeds"), [({}, [0]), (VARIANTS, [])])
def test_a_sweep_needs_a_variant_and_a_seed(variants, seeds):
    with pytest.raises(ValueError, match="variants .* seeds"):
        sweep(variants, seeds)
