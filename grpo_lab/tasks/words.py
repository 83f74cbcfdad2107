"""Word problems: twelve stories whose numbers change, each told in English and in Chinese."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from grpo_lab.commands.checks import check_choice
from grpo_lab.tasks.rows import THINK, Row, asking, check_number, split_of

MAX_WORD_PROBLEMS = {"train": 3600, "test": 360}


@dataclass(frozen=True)
class WordProblem:
    """A story with numbers left open: `ranges` are inclusive, `solve` gives the exact answer."""

    story: str
    chinese: str  # the same story, with the same numbers in the same order
    ranges: tuple[tuple[int, int], ...]
    solve: Callable[..., int | Fraction]


STORIES = (
    ("Mei has {} marbles. She buys {} more and gives {} to her brother. How many marbles has she now?",
     "小美有{}颗弹珠，又买了{}颗，后来送给弟弟{}颗。她现在有多少颗弹珠？",
     ((20, 60), (5, 30), (3, 19)), lambda a, b, c: a + b - c),
    ("A box holds {} eggs. A farmer fills {} boxes and has {} eggs left over. How many eggs did the hens lay?",
     "一个盒子能装{}个鸡蛋。农夫装满了{}盒，还剩下{}个。母鸡一共下了多少个蛋？",
     ((6, 24), (3, 12), (1, 5)), lambda a, b, c: a * b + c),
    ("A train has {} coaches with {} seats each. {} seats are taken. How many seats are free?",
     "一列火车有{}节车厢，每节车厢有{}个座位，全车已有{}个座位坐了人。还有多少个空座位？",
     ((4, 9), (30, 60), (40, 110)), lambda a, b, c: a * b - c),
    ("Tom reads {} pages a day. How many pages does he read in {} weeks?",
     "小明每天读{}页书，{}周一共读多少页？",
     ((8, 60), (2, 9)), lambda a, b: 7 * a * b),
    ("A rope of {} metres is cut into {} equal pieces. How many metres long is each piece?",
     "把一根{}米长的绳子平均剪成{}段，每段长多少米？",
     ((3, 60), (2, 12)), lambda a, b: Fraction(a, b)),
    ("A bag has {} red and {} blue balls. One ball is drawn at random. What is the probability that it is red?",
     "袋子里有{}个红球和{}个蓝球，从中随机摸出一个球，摸到红球的概率是多少？",
     ((1, 30), (1, 30)), lambda a, b: Fraction(a, a + b)),
    ("Ana is {} years old. Her mother is {} times as old. How old will the mother be in {} years?",
     "小安今年{}岁，妈妈的年龄是她的{}倍。再过{}年，妈妈多少岁？",
     ((6, 14), (2, 5), (2, 20)), lambda a, b, c: a * b + c),
    ("A notebook costs {} yuan and a pen costs {} yuan. How many yuan do {} notebooks and one pen cost?",
     "一本笔记本{}元，一支笔{}元。买{}本笔记本和一支笔一共要多少元？",
     ((5, 15), (2, 9), (2, 8)), lambda a, b, c: a * c + b),
    ("A rectangle is {} cm wide and {} cm long. How many centimetres is its perimeter?",
     "一个长方形宽{}厘米，长{}厘米，它的周长是多少厘米？",
     ((2, 30), (31, 60)), lambda a, b: 2 * (a + b)),
    ("Lin scores {}, {} and {} points in three games. What is the mean number of points a game?",
     "小林在三场比赛中分别得了{}分、{}分和{}分，平均每场得多少分？",
     ((4, 20), (4, 20), (4, 20)), lambda a, b, c: Fraction(a + b + c, 3)),
    ("A tank holds {} litres. A tap fills {} litres a minute. How many minutes does it take to fill the tank?",
     "一个水箱能装{}升水，水龙头每分钟放{}升水。把空水箱放满需要多少分钟？",
     ((20, 200), (2, 12)), lambda a, b: Fraction(a, b)),
    ("A shop has {} apples. It sells {} in the morning and twice as many in the afternoon. How many are left?",
     "商店里有{}个苹果，上午卖出{}个，下午卖出的数量是上午的两倍。还剩多少个苹果？",
     ((70, 150), (5, 20)), lambda a, b: a - 3 * b),
)  # fmt: skip
WORD_PROBLEMS = tuple(WordProblem(*story) for story in STORIES)


def word_problems(split: str = "train", n: int = 12, seed: int = 0, language: str = "en") -> list[Row]:
    """`n` different word problems from one split, each with a system message that asks for think and answer tags.

    The stories take turns, so `n=12` shows each once. Answers are exact: "7", or "3/4" where the result is a fraction;
    `math_reward` takes 0.75 for that as well. In Chinese ("zh") the same arguments give the same problems: a problem
    is held out in both languages or in none.
    """
    check_choice("language", language, THINK)
    check_number(n, split, MAX_WORD_PROBLEMS)
    rng = random.Random(f"word/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        story = len(seen) % len(WORD_PROBLEMS)
        numbers = tuple(rng.randint(low, high) for low, high in WORD_PROBLEMS[story].ranges)
        if split_of("word", story, *numbers) == split:
            seen[(story, *numbers)] = None
    return [_word_row(language, *key) for key in seen]


def _word_row(language: str, story: int, *numbers: int) -> Row:
    problem = WORD_PROBLEMS[story]
    text = problem.chinese if language == "zh" else problem.story
    prompt = asking(text.format(*numbers), THINK[language])
    return {"prompt": prompt, "answer": str(problem.solve(*numbers)), "numbers": list(numbers)}
