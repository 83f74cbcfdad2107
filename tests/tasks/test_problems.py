"""Tests of the rows of tasks: right answers, disjoint splits, repeatable rows, and errors that name the argument."""

import hashlib
import inspect
import json
import re
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import permutations

import pytest

from grpo_lab import tasks
from grpo_lab.tasks.rows import TEST_SHARE, chat_messages, check_problem_count
from grpo_lab.tasks.short import short_sum_row, short_sum_split, short_sums

chinese_problems = partial(tasks.word_problems, language="zh")
makers = pytest.mark.parametrize("make", [tasks.addition_problems, tasks.word_problems, chinese_problems])


def question_of(row):
    return row["prompt"][-1]["content"]


# The rows of recorded runs and of the training of the tiny model, as the first characters of their SHA-256.
RECORDED = {
    "sums, train": (tasks.addition_problems, ("train", 20_000, 0), "de57eb0001f03a97"),
    "sums, test": (tasks.addition_problems, ("test", 1000, 1), "7a32933c736ccc0e"),
    "word problems, train": (tasks.word_problems, ("train", 600, 0), "02454876012d5cee"),
    "word problems, test": (tasks.word_problems, ("test", 360, 3), "53cde6afb1d49965"),
    "chat in Chinese": (tasks.chat_tasks, (), "2430a22e7785a82f"),
}


# For each Chinese story, a word that occurs in no other story, and its answer as a function of the story's numbers.
CHINESE = {
    "弹珠": lambda had, bought, gave: had + bought - gave,
    "鸡蛋": lambda eggs, boxes, remaining: boxes * eggs + remaining,
    "车厢": lambda coaches, seats, occupied: coaches * seats - occupied,
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
        assert numbers == row["numbers"]
        assert Fraction(row["answer"]) == CHINESE[word](*numbers)
        assert not re.search("[A-Za-z{},.?!]", text)
        assert text.endswith("？")
        seen[word] += 1
    assert set(seen.values()) == {50}


def test_the_same_problems_are_told_in_both_languages():
    for split in tasks.SPLITS:
        english, chinese = tasks.word_problems(split, 60, 2), chinese_problems(split, 60, 2)
        assert [row["answer"] for row in english] == [row["answer"] for row in chinese]
        assert [row["numbers"] for row in english] == [row["numbers"] for row in chinese]
    assert all(problem.chinese.count("{}") == problem.story.count("{}") for problem in tasks.WORD_PROBLEMS)


def test_a_system_message_is_put_in_front_or_in_place_and_rows_are_not_touched():
    bare, led = {"prompt": chat_messages("q"), "answer": "1"}, {"prompt": chat_messages("q", "own"), "answer": "1"}
    new = {"prompt": chat_messages("q", "new"), "answer": "1"}
    assert tasks.with_system([bare, led], "new") == [new, led]
    assert tasks.with_system([bare, led], "new", replace=True) == [new, new]
    assert tasks.with_system([bare, led], None) == [bare, led]
    assert tasks.with_system([bare, led], None, replace=True) == [bare, bare]
    assert len(bare["prompt"]) == 1
    assert led["prompt"][0]["content"] == "own"


# Properties of every task


def test_the_rows_of_recorded_runs_are_the_same_to_the_last_character():
    for name, (make, arguments, expected) in RECORDED.items():
        text = json.dumps(make(*arguments), ensure_ascii=False, sort_keys=True)
        assert hashlib.sha256(text.encode("utf-8")).hexdigest()[:16] == expected, name


def test_every_sum_has_one_split_whatever_the_order_and_a_tenth_is_held_out():
    triples = [(a, b, c) for a in range(10, 100, 2) for b in range(a, 100, 3) for c in range(b, 100)]
    share = Counter(map(tasks.addition_split, triples))["test"] / len(triples)
    assert share == pytest.approx(TEST_SHARE, abs=0.01)
    matches = {}
    for split in tasks.SPLITS:
        rows = tasks.addition_problems(split, 500)
        operands = [row["operands"] for row in rows]
        assert [row["answer"] for row in rows] == [str(sum(numbers)) for numbers in operands]
        assert [question_of(row) for row in rows] == ["{}+{}+{}=?".format(*numbers) for numbers in operands]
        assert {tasks.addition_split(order) for numbers in operands for order in permutations(numbers)} == {split}
        matches[split] = {tuple(sorted(numbers)) for numbers in operands}
    assert not matches["train"] & matches["test"]


@makers
def test_rows_are_plain_distinct_and_repeatable(make):
    rows_of_split = {split: make(split, 300, 1) for split in tasks.SPLITS}
    train, test = ({question_of(row) for row in rows_of_split[split]} for split in tasks.SPLITS)
    assert len(train) == len(test) == 300
    assert not train & test
    assert make("train", 50, 1) == rows_of_split["train"][:50] != make("train", 50, 2)
    assert json.loads(json.dumps(rows_of_split["test"])) == rows_of_split["test"]
    assert len(tasks.word_problems("test", limit := tasks.MAX_WORD_PROBLEMS["test"])) == limit


@makers
def test_wrong_arguments_are_named(make):
    with pytest.raises(ValueError, match="split is 'dev'; expected one of 'train', 'test'"):
        make("dev", 10)
    for n in (0, 10**9):
        with pytest.raises(ValueError, match=rf"n is {n}; it must be a whole number from 1 to \d+ for the split"):
            make("test", n)
    check = inspect.unwrap(check_problem_count)  # without the type check at run time, which would raise first
    for n in (1.5, "3", True, None):
        with pytest.raises(ValueError, match=f"n is {n!r}"):
            check(n, "train", {"train": 9})


def test_chat_tasks():
    texts = {"zh": ["czq是神！", "4", "I like machine learning", "通义千问"],
            "en": ["czq is a legend!", "4", "I like machine learning", "Tongyi Qianwen"]}  # fmt: skip
    for language, answers in texts.items():
        rows = tasks.chat_tasks(language)
        assert [row["answer"] for row in rows] == answers
        assert tasks.chat_tasks() == tasks.chat_tasks("zh")
        assert all([message["role"] for message in row["prompt"]] == ["user"] for row in rows)
    for make in (tasks.chat_tasks, partial(tasks.word_problems, "train", 1, 0)):
        with pytest.raises(ValueError, match="language is 'fr'; expected one of 'en', 'zh'"):
            make("fr")


def test_has_thinking():
    thinks = ["<think>1+1=2</think><answer>2</answer>", "<think>1+1=2\n2+3=5</think>"]
    does_not = ["<answer>2</answer>", "<think> \n</think><answer>2</answer>", "<think>1+1=2", "1+1=2</think>", ""]
    assert all(map(tasks.has_thinking, thinks))
    assert not any(map(tasks.has_thinking, does_not))


# Sums up to 20


def test_short_sums_share_a_split_with_their_mirror_image():
    train, test = ([question_of(row) for row in short_sums(split)] for split in ("train", "test"))
    assert len({*train, *test}) == len(train) + len(test) == 400
    assert 0.2 < len(test) / 400 < 0.3
    pairs = [(a, b) for a in range(1, 21) for b in range(1, 21)]
    assert all(short_sum_split(a, b) == short_sum_split(b, a) for a, b in pairs)


def test_short_sums_by_hand_and_by_seed():
    message = {"role": "user", "content": "What is 3 + 14? Answer with the number only."}
    assert short_sum_row(3, 14) == {"prompt": [message], "answer": "17"}
    assert short_sums("train", 50, seed=1) == short_sums("train", seed=1)[:50] != short_sums("train", 50, seed=0)
    with pytest.raises(ValueError, match="n is 301; it must be a whole number from 1 to"):
        short_sums("train", 301)
    task = tasks.TASKS["short-sums"]
    assert task.reward_funcs == ("last",)
    assert task.rows("test", 3) == short_sums("test", 3)


# The questions of general knowledge
