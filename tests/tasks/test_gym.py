"""Tasks of reasoning-gym: repeatable rows, disjoint splits, and names that are refused."""

import json
import sys
from importlib.util import find_spec

import pytest

from grpo_lab.rewards.verifiers import gym_reward
from grpo_lab.tasks import find_task
from grpo_lab.tasks.gym import EXCLUDED_GENERATORS, GYM_PREFIX, generator_names, make_generator
from tests.support.rows import question_of

if find_spec("reasoning_gym") is None:  # not imported here, since each process that collects tests would take 2 s
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)
SUMS = "gym:chain_sum:max_terms=2,max_digits=1"
SOME = (SUMS, "gym:gsm_symbolic:difficulty=1", "gym:countdown:min_numbers=2,max_numbers=3", "gym:maze", "gym:ab")


@pytest.mark.parametrize("name", SOME)
def test_gym_rows_repeat_and_splits_are_disjoint(name):
    task = find_task(name)
    train, test = ([task.rows(split, 20, seed) for seed in (0, 1)] for split in ("train", "test"))
    assert task.rows("train", 12, 1) == train[1][:12]
    assert train[0] != train[1]
    assert json.loads(json.dumps(train)) == train
    assert len({question_of(row) for row in train[0]}) == 20
    trained, held_out = ({question_of(row) for rows in of_split for row in rows} for of_split in (train, test))
    assert not trained & held_out
    generators = [
        make_generator(name.removeprefix(GYM_PREFIX), json.loads(row["gym"]["options"])["seed"]) for row in train[0]
    ]
    problems_of_rows = [
        generator.problems[row["gym"]["index"]] for generator, row in zip(generators, train[0], strict=True)
    ]
    assert [problem["question"] for problem in problems_of_rows] == [question_of(row) for row in train[0]]
    assert gym_reward([f"<answer>{row['answer']}</answer>" for row in test[0]], [row["gym"] for row in test[0]]) == (
        [1.0] * 20
    )


def test_gym_task_with_few_problems_splits_all_and_refuses_more():
    task = find_task("gym:count_bits:max_n=30")
    train, test = ({question_of(row) for row in task.rows(split)} for split in ("train", "test"))
    assert len(train) + len(test) == 30
    assert not train & test
    with pytest.raises(ValueError, match=r"n is 1; gym:countdown:.* has 0 problems in the split 'train'"):
        find_task("gym:countdown:max_value=1,min_numbers=2,max_numbers=2").rows("train")
    with pytest.raises(ValueError, match=rf"n is 31; gym:count_bits:max_n=30 has {len(train)} problems in the split"):
        task.rows("train", 31)


WRONG = {
    "gym:chain_smu": r"task is 'gym:chain_smu'; expected gym:NAME with a name from reasoning-gym's GALLERY.md",
    "gym:chain_sum:max_trems=3": r"refuses it \(TypeError: .* argument 'max_trems'\)",
    "gym:chain_sum:seed=3": "refuses it .*multiple values for keyword argument 'seed'",
    "gym:chain_sum:max_terms=[": "refuses it .ParserError",
    "gym:chain_sum:max_terms=1": r"refuses it \(AssertionError: max_terms must be .*\)",
    "gym:codeio": "expected gym:NAME",
}


def test_gym_task_names_are_refused_with_a_reason():
    for name, message in WRONG.items():
        with pytest.raises(ValueError, match=message):
            find_task(name)
    import reasoning_gym

    assert not {*EXCLUDED_GENERATORS} & {*generator_names()}
    assert {*EXCLUDED_GENERATORS} < {*reasoning_gym.factory.DATASETS}
    problems = make_generator("countdown:operators=['+', '-'],shuffle=false, max_value=20").problems
    assert problems.config.operators == ["+", "-"]
    assert problems.config.shuffle is False


def test_gym_task_names_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    make_generator.cache_clear()
    with pytest.raises(ImportError, match="reasoning-gym is not installed: pip install .grpo-lab.gym."):
        find_task(SUMS)
