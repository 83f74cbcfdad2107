"""The scores that reasoning-gym's verifiers give, also to answers that would do harm or run for ever."""

from importlib.util import find_spec

import pytest

from grpo_lab.rewards.verifiers import gym_reward
from grpo_lab.tasks.gym import make_generator

if find_spec("reasoning_gym") is None:  # not imported here, since each process that collects tests would take 2 s
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)


def test_gym_verifier_scores_the_answer_block_or_text_after_thinking():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    texts = ["1 + 1", "", "no", problems[0]["answer"], "7 * (", "x" * 500]
    expected = [problems.score_answer(text, problems[0]) for text in texts]
    assert set(expected) == {0.01, 0.05, 1.0}
    origins = [{"index": 0, "options": options, "generator": name}] * len(texts)
    forms = "<think>1 + 1</think><answer>{}</answer>", "{}", "<think>hm</think>\n{}\n", "So:\nthe **answer** is: {}"
    for form in forms:
        assert gym_reward([form.format(text) for text in texts], origins) == expected
    assert gym_reward([[{"role": "assistant", "content": f"<answer>{texts[3]}</answer>, then"}]], origins[:1]) == [1.0]


def test_gym_verifier_gives_0_to_a_harmful_answer(tmp_path):
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    file = tmp_path / "made"
    answers = [f"open({str(file)!r}, 'w')", f"__import__('os').mkdir({str(file)!r})", problems[0]["answer"]]
    scores = gym_reward(answers, [{"generator": name, "options": options, "index": 0}] * 3)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0
    assert not file.exists()


@pytest.mark.slow
def test_gym_verifier_gives_0_to_an_endless_answer():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    origin = {"generator": name, "options": options, "index": 0}
    with pytest.warns(RuntimeWarning, match=r"gym_reward: 2 of 3 answers were not scored within 1 s .*'9\*\*9"):
        scores = gym_reward(["9**9**9**9", "9**9**9**9", problems[0]["answer"]], [origin] * 3, time_limit=1.0)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0
