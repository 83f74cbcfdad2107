"""Built-in problems: splits of sums, the calculator's replies, answers of word problems, and both languages."""

import re
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import permutations

import pytest
import torch

from grpo_lab import tasks
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.builtin_problems import calculate, calculator_replies
from grpo_lab.tasks.rows import TEST_SHARE
from tests.support.rows import question_of

chinese_problems = partial(tasks.word_problems, language="zh")
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>17+58=", "75"), ("17+58=75\n75+42=", "117"), ("3*4=", "12"), ("2+3*4-1=", "13"), ("10-20=", "-10"),
        ("17+58= ", "75"), ("a=", ""), ("5=", ""), ("=", ""), ("", ""), ("17+58", ""), ("1+=", ""),
        ("9" * 100 + "+1=", str(int("9" * 37) + 1)),  # only the last 40 characters are read
    ],
)  # fmt: skip
def test_calculate_gives_the_value_of_the_term_before_the_last_sign(text, value):
    assert calculate(text) == value


def test_calculator_replies_equal_pythons_eval():
    terms = ["1+2", "12*3+4", "7-8*9", "5*5*5", "100-1-1+2*3", "0*9"]
    assert calculator_replies([f"so {term}=" for term in terms]) == [str(eval(term)) for term in terms]


def test_tiny_model_uses_the_calculator(tiny):
    task = TASKS["sums-calculator"]
    rows = task.rows("train", 8)
    torch.manual_seed(0)
    rollout = TextEnvironment(task.respond, task.stop_strings).sample(*tiny, rows, SamplingParams(8, 64))
    texts_with_calls = [text for text in rollout.texts if "=" in text]
    assert len(texts_with_calls) > 5
    for text in texts_with_calls:
        for a, b, total in re.findall(r"(\d+)\+(\d+)=(\d+)", text):
            assert int(a) + int(b) == int(total)
    assert {episode.num_calls for episode in rollout.episodes} >= {0, 2}
    assert rows == TASKS["sums"].rows("train", 8), "the problems are those of sums"


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


def test_chat_tasks_have_their_answers_in_both_languages():
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
