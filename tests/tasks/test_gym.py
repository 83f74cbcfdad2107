"""Tests of tasks of reasoning-gym: repeatable rows, disjoint splits, and the scores of its verifiers."""

import json
import sys
from importlib.util import find_spec

import pytest

from grpo_lab.rewards.gym import gym_reward
from grpo_lab.tasks import find_task
from grpo_lab.tasks.gym import EXCLUDED_GENERATORS, GYM_PREFIX, generator_names, make_generator

if find_spec("reasoning_gym") is None:  # not imported here, since each process that collects tests would take 2 s
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)
SUMS = "gym:chain_sum:max_terms=2,max_digits=1"
SOME = (SUMS, "gym:gsm_symbolic:difficulty=1", "gym:countdown:min_numbers=2,max_numbers=3", "gym:maze", "gym:ab")


def question_of(row):
    return row["prompt"][-1]["content"]


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
    own = [make_generator(name.removeprefix(GYM_PREFIX), json.loads(row["gym"]["options"])["seed"]) for row in train[0]]
    problems_of_rows = [problems[row["gym"]["index"]] for (*_, problems), row in zip(own, train[0], strict=True)]
    assert [problem["question"] for problem in problems_of_rows] == [question_of(row) for row in train[0]]
    assert gym_reward([f"<answer>{row['answer']}</answer>" for row in test[0]], [row["gym"] for row in test[0]]) == (
        [1.0] * 20
    )


def test_where_there_are_few_problems_all_of_them_are_split_and_more_are_refused():
    task = find_task("gym:count_bits:max_n=30")
    train, test = ({question_of(row) for row in task.rows(split)} for split in ("train", "test"))
    assert len(train) + len(test) == 30
    assert not train & test
    with pytest.raises(ValueError, match=r"n is 1; gym:countdown:.* has 0 problems in the split 'train'"):
        find_task("gym:countdown:max_value=1,min_numbers=2,max_numbers=2").rows("train")
    with pytest.raises(ValueError, match=rf"n is 31; gym:count_bits:max_n=30 has {len(train)} problems in the split"):
        task.rows("train", 31)


def test_the_verifier_scores_the_answer_block_or_text_after_thinking():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    texts = ["1 + 1", "", "no", problems[0]["answer"], "7 * (", "x" * 500]
    expected = [problems.score_answer(text, problems[0]) for text in texts]
    assert set(expected) == {0.01, 0.05, 1.0}
    origins = [{"index": 0, "options": options, "generator": name}] * len(texts)
    forms = "<think>1 + 1</think><answer>{}</answer>", "{}", "<think>hm</think>\n{}\n", "So:\nthe **answer** is: {}"
    for form in forms:
        assert gym_reward([form.format(text) for text in texts], origins) == expected
    assert gym_reward([[{"role": "assistant", "content": f"<answer>{texts[3]}</answer>, then"}]], origins[:1]) == [1.0]


def test_an_answer_that_would_do_harm_earns_nothing(tmp_path):
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    file = tmp_path / "made"
    answers = [f"open({str(file)!r}, 'w')", f"__import__('os').mkdir({str(file)!r})", problems[0]["answer"]]
    scores = gym_reward(answers, [{"generator": name, "options": options, "index": 0}] * 3)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0
    assert not file.exists()


@pytest.mark.slow
def test_an_answer_that_would_run_for_ever_earns_nothing():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    origin = {"generator": name, "options": options, "index": 0}
    with pytest.warns(RuntimeWarning, match=r"gym_reward: 2 of 3 answers were not scored within 1 s .*'9\*\*9"):
        scores = gym_reward(["9**9**9**9", "9**9**9**9", problems[0]["answer"]], [origin] * 3, time_limit=1.0)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0


WRONG = {
    "gym:chain_smu": r"task is 'gym:chain_smu'; expected gym:NAME with a name from reasoning-gym's GALLERY.md",
    "gym:chain_sum:max_trems=3": r"refuses it \(TypeError: .* argument 'max_trems'\)",
    "gym:chain_sum:seed=3": "refuses it .*multiple values for keyword argument 'seed'",
    "gym:chain_sum:max_terms=[": "refuses it .ParserError",
    "gym:chain_sum:max_terms=1": r"refuses it \(AssertionError: max_terms must be .*\)",
    "gym:codeio": "expected gym:NAME",
}


def test_what_is_wrong_with_a_name_is_said():
    for name, message in WRONG.items():
        with pytest.raises(ValueError, match=message):
            find_task(name)
    import reasoning_gym

    assert not {*EXCLUDED_GENERATORS} & {*generator_names()}
    assert {*EXCLUDED_GENERATORS} < {*reasoning_gym.factory.DATASETS}
    problems = make_generator("countdown:operators=['+', '-'],shuffle=false, max_value=20")[2]
    assert problems.config.operators == ["+", "-"]
    assert problems.config.shuffle is False


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    make_generator.cache_clear()
    with pytest.raises(ImportError, match="reasoning-gym is not installed: pip install .grpo-lab.gym."):
        find_task(SUMS)
