"""Tests of a task with its rewards: their origin, their weights, and the system prompt."""

import json
import re

import pytest

from grpo_lab.rewards.named import find_rewards
from grpo_lab.task_spec import make_task_spec
from grpo_lab.tasks import TASKS, THINK_SYSTEM_PROMPT
from grpo_lab.tasks.builtin_problems import ANSWER_ONLY
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT_ZH


def system_message(spec, split="train"):
    """Return the system message of the first row, or None."""
    first = spec.rows(split, 1, 0)[0]["prompt"][0]
    return first["content"] if first["role"] == "system" else None


@pytest.mark.parametrize("name", TASKS)
def test_a_task_brings_rewards_that_exist_with_a_weight_each(name):
    spec, task = make_task_spec(name, for_bundled_model=False), TASKS[name]
    assert [function.__name__ for function in spec.reward_funcs] == [
        f.__name__ for f in find_rewards(spec.reward_names)
    ]
    assert spec.reward_weights is None or len(spec.reward_weights) == len(spec.reward_names)
    assert spec.task is task and 0 < task.completion_length(for_tiny_model=True) <= task.max_completion_length
    rows = [{"prompt": [{"role": "user", "content": "a"}]}]
    assert spec.description_lines(rows)[0].startswith(f"task {name}: reward = 1 {spec.reward_names[0]}")


def test_default_system_prompt_asks_for_the_tags_that_the_rewards_read():
    expected = {
        ("sums", True, None): None,
        ("sums", False, None): THINK_SYSTEM_PROMPT,
        ("word-problems", True, None): THINK_SYSTEM_PROMPT,
        ("word-problems-zh", False, None): THINK_SYSTEM_PROMPT_ZH,
        ("chat", False, None): ANSWER_ONLY["en"],
        ("chat-zh", False, None): ANSWER_ONLY["zh"],
        ("chat-zh", True, None): None,
        ("chat-zh", False, ("accuracy",)): THINK_SYSTEM_PROMPT_ZH,
        ("chat", True, ("accuracy",)): None,
    }
    for (task, small, rewards), system in expected.items():
        assert system_message(make_task_spec(task, rewards and list(rewards), for_bundled_model=small)) == system, (
            task,
            small,
            rewards,
        )


def test_a_system_prompt_of_ones_own_takes_the_place_of_the_tasks():
    for task in ("sums", "word-problems"):
        assert system_message(make_task_spec(task, None, "Be brief.", for_bundled_model=True)) == "Be brief."
        assert system_message(make_task_spec(task, None, "none", for_bundled_model=False)) is None
    rows = make_task_spec("word-problems", None, "Be brief.", for_bundled_model=False).rows("train", 3, 0)
    assert all([message["role"] for message in row["prompt"]] == ["system", "user"] for row in rows)


def test_reward_weights_are_those_of_the_task_unless_rewards_or_weights_are_typed():
    assert make_task_spec("word-problems", for_bundled_model=True).reward_weights == [1.0, 0.1]
    assert make_task_spec("word-problems", ["math", "format"], for_bundled_model=True).reward_weights is None, (
        "as in TRL: 1 each"
    )
    assert make_task_spec("word-problems", None, reward_weights=[2.0, 0.5], for_bundled_model=True).reward_weights == [
        2.0,
        0.5,
    ]
    both = make_task_spec("sums", ["accuracy", "format"], reward_weights=[1.0, 0.2], for_bundled_model=True)
    without_system = both.rows("train", 1, 0)
    with_system = make_task_spec("word-problems", for_bundled_model=True).rows("train", 1, 0)
    assert both.description_lines(without_system) == [
        "task sums: reward = 1 accuracy + 0.2 format; system prompt: none"
    ]
    assert both.description_lines(with_system)[0].endswith(f"; system prompt: {THINK_SYSTEM_PROMPT!r}")


def test_a_prompt_without_a_chat_template_is_the_text_of_its_messages():
    chat, text = (
        make_task_spec("word-problems", chat_template=template, for_bundled_model=False)
        for template in ("model", "none")
    )
    rows = text.rows("test", 5, 0)
    expected = ["\n\n".join(m["content"] for m in row["prompt"]) for row in chat.rows("test", 5, 0)]
    assert [row["prompt"] for row in rows] == expected and expected[0].startswith(THINK_SYSTEM_PROMPT + "\n\n")
    assert text.description_lines(rows)[0].endswith(f"; the first prompt is str {repr(expected[0])[:77]}...")


WRONG = [
    ({"reward_funcs": ["math"], "reward_weights": [1.0, 2.0]}, r"for each of the 1 reward functions \(math\)"),
    ({"chat_template": "mine"}, "chat_template is 'mine'; expected one of 'model', 'none'"),
    ({"system_prompt": " "}, "system_prompt is ' '; expected a text, or none for nothing"),
]


def test_make_task_spec_refuses_wrong_arguments_by_name():
    for arguments, message in WRONG:
        with pytest.raises(ValueError, match=message):
            make_task_spec(**arguments, for_bundled_model=True)
    chat = make_task_spec("chat", for_bundled_model=True)
    assert len(chat.rows("test", None, 0)) == 4, "none is held out"
    for split, n, message in (("test", 5, "n is 5; it must be at most 4"), ("test", 0, "n is 0"), ("dev", 1, "split")):
        with pytest.raises(ValueError, match=message):
            chat.rows(split, n, 0)


def test_task_spec_of_a_file_checks_all_rows_and_describes_its_splits(tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [json.dumps({"prompt": f"{n} + 1 = ?", "answer": str(n + 1)}) for n in range(40)]
    file.write_text("\n".join(lines), encoding="utf-8")
    spec = make_task_spec(str(file), for_bundled_model=True)
    train, test = (spec.rows(split, None, 0) for split in ("train", "test"))
    assert f"problems to train on: {len(train)}, held out: {len(test)}" in spec.description_lines(train)
    held_out = spec.task.user_data.locations("test")[0]
    row = int(held_out.rpartition(" ")[2]) - 1
    lines[row] = lines[row].replace(f'"{row + 1}"', "1.5")
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=f"{held_out}: answer is 1.5; expected a text or a whole number"):
        make_task_spec(str(file), for_bundled_model=True).rows("train", None, 0)


def test_task_spec_warns_of_word_problems_for_the_tiny_model(tmp_path):
    file, words = tmp_path / "mine.jsonl", "2 of 3 problems are not sums such as 17.58.42=., which is"
    for prompts, is_warned in (
        (["1 + 1 = ?", "20+30=?"], False),
        (["1 + 1 = ?", "What is half of 9?", "3 * 3 = ?"], True),
    ):
        file.write_text("\n".join(json.dumps({"prompt": p, "answer": "1"}) for p in prompts), encoding="utf-8")
        for small in (True, False):
            lines = make_task_spec(str(file), for_bundled_model=small).description_lines(
                [{"prompt": p} for p in prompts]
            )
            assert bool(re.match(words, lines[-1])) == (is_warned and small)
    for task, is_warned in (("sums", False), ("chat-zh", False), ("word-problems", True), ("short-sums", True)):
        spec = make_task_spec(task, for_bundled_model=True)
        assert ("tiny model" in spec.description_lines(spec.rows("train", 2, 0))[-1]) == is_warned
