"""Rows: right answers, splits that never meet, same arguments same rows, errors that name the argument."""

import hashlib
import inspect
import json
import re
from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab import tasks
from grpo_lab.tasks.chats import PAIRS
from grpo_lab.tasks.rows import asking, check_number

operands = st.lists(st.integers(10, 99), min_size=3, max_size=3)
chinese_problems = partial(tasks.word_problems, language="zh")
makers = pytest.mark.parametrize("make", [tasks.addition_problems, tasks.word_problems, chinese_problems])

FIRST_TRAIN = ["13+53+56=?", "75+98+99=?"]
FIRST_TEST = ["71+63+50=?", "66+31+95=?"]


def question_of(row):
    return row["prompt"][-1]["content"]


def test_sums_are_three_two_digit_numbers_with_the_right_answer():
    for row in tasks.addition_problems("train", 500, 3):
        (message,) = row["prompt"]
        assert message["role"] == "user"
        a, b, c = map(int, re.fullmatch(r"(\d\d)\+(\d\d)\+(\d\d)=\?", message["content"]).groups())
        assert row["operands"] == [a, b, c]
        assert row["answer"] == str(a + b + c)


@given(operands, st.randoms(use_true_random=False))
def test_the_split_of_a_sum_ignores_the_order_of_its_operands(numbers, rng):
    shuffled = list(numbers)
    rng.shuffle(shuffled)
    assert tasks.addition_split(shuffled) == tasks.addition_split(numbers) in tasks.SPLITS


def test_every_sum_has_one_split_and_every_row_is_of_the_split_asked_for():
    # The split depends on the sorted operands alone, so rows of two splits can share no problem, reordered or not.
    found = {}
    for split in tasks.SPLITS:
        rows = [row for seed in range(3) for row in tasks.addition_problems(split, 2000, seed)]
        assert {tasks.addition_split(row["operands"]) for row in rows} == {split}
        found[split] = {tuple(sorted(row["operands"])) for row in rows}
    assert not found["train"] & found["test"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_word_problems_of_the_two_splits_are_disjoint(language):
    found = {
        split: {question_of(row) for seed in range(3) for row in tasks.word_problems(split, 300, seed, language)}
        for split in tasks.SPLITS
    }
    assert not found["train"] & found["test"]


def test_a_tenth_of_all_sums_is_held_out():
    triples = [(a, b, c) for a in range(10, 100) for b in range(a, 100) for c in range(b, 100)]
    share = Counter(map(tasks.addition_split, triples))["test"] / len(triples)
    assert share == pytest.approx(tasks.TEST_SHARE, abs=0.005)


@makers
def test_same_arguments_same_rows_other_seed_other_rows_longer_starts_with_shorter(make):
    assert make("train", 50, 1) == make("train", 50, 1)
    assert make("train", 50, 1) != make("train", 50, 2)
    assert make("train", 80, 1)[:50] == make("train", 50, 1)


@makers
@pytest.mark.parametrize("split", tasks.SPLITS)
def test_the_rows_of_one_call_are_all_different(make, split):
    rows = make(split, 300, 0)
    assert len(rows) == len({question_of(row) for row in rows}) == 300


def test_rows_do_not_change_between_versions_and_machines():
    assert [question_of(row) for row in tasks.addition_problems("train", 2, 0)] == FIRST_TRAIN
    assert [question_of(row) for row in tasks.addition_problems("test", 2, 1)] == FIRST_TEST


# What recorded runs and the tiny model's own training were made with: the first characters of a SHA-256 of the rows.
RECORDED = {
    "sums, train": (tasks.addition_problems, ("train", 20_000, 0), "de57eb0001f03a97"),
    "sums, test": (tasks.addition_problems, ("test", 1000, 1), "7a32933c736ccc0e"),
    "word problems, train": (tasks.word_problems, ("train", 600, 0), "02454876012d5cee"),
    "word problems, test": (tasks.word_problems, ("test", 360, 3), "53cde6afb1d49965"),
    "chat in Chinese": (tasks.chat_tasks, (), "2430a22e7785a82f"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_rows_of_recorded_runs_are_the_same_to_the_last_character(name):
    make, arguments, expected = RECORDED[name]
    text = json.dumps(make(*arguments), ensure_ascii=False, sort_keys=True)
    assert hashlib.sha256(text.encode("utf-8")).hexdigest()[:16] == expected


@pytest.mark.parametrize("split", tasks.SPLITS)
def test_as_many_word_problems_as_promised(split):
    limit = tasks.MAX_WORD_PROBLEMS[split]
    assert len(tasks.word_problems(split, limit)) == limit


def test_word_problems_by_hand():
    by_story = {problem.story: problem.solve for problem in tasks.WORD_PROBLEMS}
    expected = {
        "marbles": ((42, 10, 5), 47),
        "eggs": ((12, 3, 4), 40),
        "coaches": ((4, 50, 110), 90),
        "pages": ((20, 3), 420),
        "rope": ((9, 4), Fraction(9, 4)),
        "drawn": ((3, 5), Fraction(3, 8)),
        "mother": ((10, 4, 6), 46),
        "yuan": ((12, 5, 3), 41),
        "rectangle": ((4, 31), 70),
        "scores": ((10, 12, 15), Fraction(37, 3)),
        "litres": ((90, 4), Fraction(45, 2)),
        "apples": ((70, 20), 10),
    }
    assert len(expected) == len(by_story)
    for word, (numbers, answer) in expected.items():
        (solve,) = [solve for story, solve in by_story.items() if word in story]
        assert solve(*numbers) == answer


def test_word_problems_have_sensible_exact_answers_and_ask_for_the_tags():
    rows = tasks.word_problems("train", 600)
    assert len({row["prompt"][1]["content"].split()[0] + row["prompt"][1]["content"][-12:] for row in rows}) >= 12
    for row in rows:
        system, user = row["prompt"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert all(tag in system["content"] for tag in ("<think>", "</think>", "<answer>", "</answer>"))
        assert Fraction(row["answer"]) > 0
        assert all(str(number) in user["content"] for number in row["numbers"])
        assert "{" not in user["content"]


# Beside each story the words that only it has, and its answer, computed from the numbers as they stand in the Chinese.
CHINESE = {
    "弹珠": lambda had, bought, gave: had + bought - gave,
    "鸡蛋": lambda each, boxes, left: boxes * each + left,
    "车厢": lambda coaches, seats, taken: coaches * seats - taken,
    "每天读": lambda pages, weeks: pages * weeks * 7,
    "绳子": lambda metres, pieces: Fraction(metres) / pieces,
    "红球和": lambda red, blue: Fraction(red, red + blue),
    "年龄": lambda age, times, years: age * times + years,
    "笔记本": lambda book, pen, books: books * book + pen,
    "周长": lambda width, length: width + length + width + length,
    "三场比赛": lambda *points: Fraction(sum(points), len(points)),
    "水龙头": lambda litres, a_minute: Fraction(litres) / a_minute,
    "苹果": lambda had, morning: had - morning - 2 * morning,
}


def test_the_chinese_answers_are_those_of_the_chinese_text():
    seen = Counter()
    for row in chinese_problems("train", 600, 5):
        text = question_of(row)
        (word,) = [word for word in CHINESE if word in text]
        numbers = [int(number) for number in re.findall("[0-9]+", text)]
        assert numbers == row["numbers"] and Fraction(row["answer"]) == CHINESE[word](*numbers)
        assert not re.search("[A-Za-z{},.?!]", text) and text.endswith("？")
        seen[word] += 1
    assert set(seen.values()) == {50}


def test_the_same_problems_are_told_in_both_languages():
    for split in tasks.SPLITS:
        english, chinese = tasks.word_problems(split, 60, 2), chinese_problems(split, 60, 2)
        assert [row["answer"] for row in english] == [row["answer"] for row in chinese]
        assert [row["numbers"] for row in english] == [row["numbers"] for row in chinese]
    assert all(problem.chinese.count("{}") == problem.story.count("{}") for problem in tasks.WORD_PROBLEMS)


def test_the_chinese_instruction_names_the_same_tags():
    system = chinese_problems("train", 1)[0]["prompt"][0]
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    assert system["role"] == "system" and all(system["content"].count(tag) == 1 for tag in tags)
    assert "请只输出数字" in system["content"]


def test_chat_tasks_in_english():
    rows = tasks.chat_tasks("en")
    assert [row["answer"] for row in rows] == ["czq is a legend!", "4", "I like machine learning", "Tongyi Qianwen"]
    assert all([message["role"] for message in row["prompt"]] == ["user"] for row in rows)
    assert all(len(pairs) == 4 for pairs in PAIRS.values())


@pytest.mark.parametrize("make", [tasks.chat_tasks, partial(tasks.word_problems, "train", 1, 0)])
def test_another_language_is_refused(make):
    with pytest.raises(ValueError, match="language is 'fr'; expected one of 'en', 'zh'"):
        make("fr")


def test_a_worked_example_stands_before_the_question():
    assert asking("q", "s", ("a", "b")) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "q"},
    ]


def test_a_system_message_is_put_in_front_or_in_place_and_rows_are_not_touched():
    bare, led = {"prompt": asking("q"), "answer": "1"}, {"prompt": asking("q", "own"), "answer": "1"}
    new = {"prompt": asking("q", "new"), "answer": "1"}
    assert tasks.with_system([bare, led], "new") == [new, led]
    assert tasks.with_system([bare, led], "new", replace=True) == [new, new]
    assert tasks.with_system([bare, led], None) == [bare, led]
    assert tasks.with_system([bare, led], None, replace=True) == [bare, bare]
    assert len(bare["prompt"]) == 1 and led["prompt"][0]["content"] == "own"


def test_chat_tasks():
    rows = tasks.chat_tasks()
    assert [row["answer"] for row in rows] == ["czq是神！", "4", "I like machine learning", "通义千问"]
    assert all(row["prompt"][0]["role"] == "user" for row in rows)
    rows[0]["answer"] = "changed"
    assert tasks.chat_tasks()[0]["answer"] == "czq是神！"


@makers
def test_rows_are_plain_data(make):
    rows = make("test", 20)
    assert json.loads(json.dumps(rows)) == rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}


@pytest.mark.parametrize(
    ("text", "thinks"),
    [
        ("<think>1+1=2</think><answer>2</answer>", True),
        ("<think>1+1=2\n2+3=5</think>", True),
        ("<answer>2</answer>", False),
        ("<think> \n</think><answer>2</answer>", False),
        ("<think>1+1=2", False),
        ("1+1=2</think>", False),
        ("", False),
    ],
)
def test_has_thinking(text, thinks):
    assert tasks.has_thinking(text) is thinks


@makers
def test_wrong_arguments_are_named(make):
    with pytest.raises(ValueError, match="split is 'dev'; expected one of 'train', 'test'"):
        make("dev", 10)
    for n in (0, -1, 10**9):
        with pytest.raises(ValueError, match=rf"n is {n}; it must be a whole number from 1 to \d+ for the split"):
            make("test", n)


@pytest.mark.parametrize("n", [1.5, "3", True, None])
def test_a_number_of_rows_is_a_whole_number(n):
    check = inspect.unwrap(check_number)  # without the run-time type check of the tests, which would answer first
    with pytest.raises(ValueError, match=f"n is {n!r}; it must be a whole number from 1 to 9 for the split 'train'"):
        check(n, "train", {"train": 9})
