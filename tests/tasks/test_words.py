"""Word problems have the right answers, and are the same in both languages."""

import re
from collections import Counter
from fractions import Fraction
from functools import partial

from grpo_lab import tasks
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
