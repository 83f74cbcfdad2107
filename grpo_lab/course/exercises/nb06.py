"""The exercises of notebook 06."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from grpo_lab.course.exercise import NAN, Case, Draws, Exercise, drawn, extreme, given
from grpo_lab.rewards import accuracy_reward, completion_text, extract_answer, format_fault, normalise_text

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
NTH = ("first", "second", "third", "fourth")
KEPT = "<think>so</think><answer>4</answer>"


def _ordered(order: tuple[int, ...]) -> Case:
    a, b, c, d = (TAGS[n] for n in order)
    return given(f"the {', '.join(NTH[n] for n in order)} tag", f"{a}so{b}{c}4{d}")


def _nearly_kept(draws: Draws, *inserted: str) -> tuple[str]:
    """The format, with one of these somewhere between its tags."""
    pieces = ["<think>", "so", "</think>", "\n", "<answer>", "4", "</answer>"]
    pieces.insert(int(draws.integers(len(pieces) + 1, 1)), inserted[draws.integers(len(inserted), 1)])
    return ("".join(pieces),)


def white_space_is_text(text):
    outside = re.sub("<think>.*?</think>|<answer>.*?</answer>", "", text, flags=re.DOTALL)
    return format_fault(text) or ("text outside" if outside else None)


def between_unseen(text):
    around = text.partition("<think>")[0] + text.rpartition("</answer>")[2]
    return None if format_fault(text) == "text outside" and not around.strip() else format_fault(text)


FORMAT_FAULT = Exercise(
    function=format_fault,
    cases=(
        given("the format kept", "<think>2+2</think><answer>4</answer>"),
        given("no tag at all", "4"),
        given("cut off before its end", "<think>2+2</think><answer>4"),
        given("two answers", "<think>so</think><answer>4</answer><answer>5</answer>"),
        given("the answer first", "<answer>4</answer><think>so</think>"),
        given("a word after the answer", "<think>so</think><answer>4</answer> Done."),
        given("a word before the thinking", "Well. <think>so</think><answer>4</answer>"),
        given("a word between the blocks", "<think>so</think>Hence<answer>4</answer>"),
        given("thinking over two lines", "<think>first\nthen</think><answer>4</answer>"),
        given("a line break between the blocks", "<think>so</think>\n<answer>4</answer>"),
        given("empty blocks", "<think></think><answer></answer>"),
        given("the answer within the thinking", "<think>so<answer>4</think></answer>"),
        given("one tag twice, another missing", "<think><think>so</think><answer>4"),
        given("two ends of thinking", "<think>so</think></think><answer>4</answer>"),
        given("nothing", ""),
        given("signs like those of tags", "<think>2 < 3, <b>so</b> 4 > 3</think><answer>a<b>4</answer>"),
        given("the beginning of a tag", "<think>so <thin</think><answer>4 </answe</answer>"),
        given("tags in other letters", "<Think>so</Think><ANSWER>4</ANSWER>"),
        given("white space of other kinds", "\t\u3000<think>so</think>\r\n\u00a0<answer>4</answer>\n\n"),
        *(_ordered(order) for order in ((0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (2, 3, 0, 1), (3, 2, 1, 0))),
        *(given(f"the {NTH[n]} tag missing", KEPT.replace(tag, "")) for n, tag in enumerate(TAGS)),
        *(given(f"the {NTH[n]} tag twice", KEPT.replace(tag, 2 * tag)) for n, tag in enumerate(TAGS)),
        given("an answer before and behind the thinking", "<answer>4</answer><think>so</think><answer>4</answer>"),
        given("the end of thinking before and behind it", "</think><think>so</think><answer>4</answer>"),
        given("the second tag in the place of the first", KEPT.replace(TAGS[0], TAGS[1])),
        drawn("a word or a blank somewhere", lambda d: _nearly_kept(d, "so", " ", "\n")),
        drawn("one tag more", lambda d: _nearly_kept(d, *TAGS)),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>4</answer>" + "\n" * 5000),
        extreme("a word after thousands of lines", KEPT + "\n" * 5000 + "so"),
    ),
    mistakes={
        "regex-no-dotall": {
            "fullmatch()": "return None if re.fullmatch(FORMAT_PATTERN.pattern, text) else 'text outside'"
        },
        "text-outside-unseen": {"fullmatch()": "return None"},
        "repeated-unseen": {"max()": "if False:"},
        "interleaved-unseen": {"index()": "positions = [text.index(tag) for tag in TAGS[::2]]"},
        "order-unseen": {"sorted()": "if False:"},
        "repeated-first": {"min()": "if max(counts) > 1:\n    return 'repeated tag'\nif min(counts) == 0:"},
        "white-space-is-text": white_space_is_text,
        "between-unseen": between_unseen,
    },
)


AS_WRITTEN = ("42.", "0", "None", "(4)", '"4"', "$4$", "1,000", "１２", "a  b", "北京", "4\n\n5", "&lt;", "...")


def _tags_and_words(draws: Draws, pieces: int) -> tuple[str]:
    """Tags and words in any order, with a closed block at the beginning."""
    words = ("<answer>", "</answer>", "4", " ", "\n", "</think>", "12")
    return ("<answer>7</answer>" + "".join(words[i] for i in draws.integers(len(words), pieces)),)


def not_stripped(text):
    return extract_answer(text) and text.rpartition("</answer>")[0].rpartition("<answer>")[2]


def last_that_is_not_empty(text):
    while "</answer>" in text and extract_answer(text) is None:
        text = text.rpartition("</answer>")[0].rpartition("<answer>")[0]
    return extract_answer(text)


def back_from_the_last_closing_tag(text):
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if min(start, end) < 0 else text[start + len("<answer>") : end].strip() or None


EXTRACT_ANSWER = Exercise(
    function=extract_answer,
    cases=(
        given("one block", "<answer>4</answer>"),
        given("no block", "It is 4."),
        given("two blocks", "<answer>4</answer> Wait. <answer>5</answer>"),
        given("white space within", "<answer> 4\n</answer>"),
        given("two lines", "<answer>4\n5</answer>"),
        given("an empty block", "<answer></answer>"),
        given("only white space", "<answer> \n </answer>"),
        given("an answer, then an empty block", "<answer>4</answer><answer></answer>"),
        given("never closed", "<think>so</think><answer>4"),
        given("closed, then opened again", "<answer>4</answer> or <answer>5"),
        given("opened twice, closed once", "<answer>one <answer>two</answer>"),
        given("closed without being opened", "4</answer>"),
        given("opened once, closed twice", "<answer>4</answer> or 5</answer>"),
        given("within the thinking", "<think><answer>4</answer> or 5</think> It is 5."),
        given("another tag in the answer", "<answer>if 3 < 4: <b>4</b></answer>"),
        given("white space of other kinds", "<answer>\t\u3000 4 5\u00a0\r\n</answer>"),
        given("a block in other letters", "<answer>4</answer> or <Answer>5</Answer>"),
        given("opened three times", "<answer>1<answer> 2 <answer>\n3</answer>"),
        *(given(f"an answer as it is written, {text}", f"<answer>{text}</answer>") for text in AS_WRITTEN),
        given("a tag with an attribute", '<answer type="number">4</answer>'),
        given("a tag with an attribute behind a block", '<answer>4</answer> or <answer id="2">5</answer>'),
        given("tags with blanks in them", "<answer >4</answer> or < answer>5</answer>"),
        given("an end with a blank in it", "<answer>4</answer> or <answer>5</answer >"),
        given("words that begin as the tag does", "<answer>4</answer> or <answers>5</answers>"),
        given("a tag that closes itself", "<answer>4</answer> or <answer/>5</answer>"),
        *(drawn(f"{n} tags and words in any order", lambda d, n=n: _tags_and_words(d, n)) for n in (5, 7, 9, 40)),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>" + "4\n" * 5000 + "</answer>"),
        extreme(
            "300 blocks, the last one never closed", "".join(f"<answer>{i}</answer>" for i in range(300)) + "<answer>1"
        ),
    ),
    mistakes={
        "first-block": {"strip()": "return blocks[0].strip() or None if blocks else None"},
        "greedy": {"findall()": "blocks = re.findall('<answer>(.*)</answer>', text, re.DOTALL)"},
        "regex-no-dotall": {"findall()": "blocks = re.findall(_ANSWER.pattern, text)"},
        "empty-matches": {"strip()": "return blocks[-1].strip() if blocks else None"},
        "unclosed-counts": {
            "findall()": "blocks = [block.partition('</answer>')[0] for block in text.split('<answer>')[1:]]"
        },
        "opened-twice": {"findall()": "blocks = re.findall('<answer>(.*?)</answer>', text, re.DOTALL)"},
        "not-stripped": not_stripped,
        "last-that-is-not-empty": last_that_is_not_empty,
        "back-from-the-last-closing-tag": back_from_the_last_closing_tag,
    },
)


def answered(answer, thought="so"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _many(draws: Draws) -> tuple[list[str], list]:
    """300 rows: right, wrong, right in an earlier block, without a block; some without an expected answer."""
    answers, kinds = draws.integers(20, 300).tolist(), draws.integers(5, 300).tolist()
    texts = [
        (answered(a), answered(a + 1), answered(a) + answered(a + 1), f"{a}", answered(a + 1) + answered(f" {a}\n"))[
            kind
        ]
        for a, kind in zip(answers, kinds, strict=True)
    ]
    return texts, [(a, f" {a}", None)[row % 3] for row, a in enumerate(answers)]


TALK = [
    {"role": "user", "content": answered("3")},
    {"role": "assistant", "content": answered("4\n")},
    {"role": "user", "content": answered("5")},
    {"role": "assistant", "content": "Yes."},
]
MARKS = ("", ".", "'", '"', "$", "%", "!", "(", "-", "*", ",", ";", ":", "?", "`", "+", "=", "#", "°", "€", "\\")
NO_THOUGHT = [
    "<answer>4</answer>",
    "It is <answer>4</answer>",
    "<answer>4</answer> of course",
    "</think><answer>4</answer>",
]
UNFINISHED_THOUGHT = [
    "<think>so<answer>4</answer>",
    "<think>so</think>\n<answer>4</answer>",
    "<answer>4</answer><think>so",
    "<think>so<answer>4</answer></think>",
]


def _value(text):
    try:
        return float(normalise_text(str(text)))
    except ValueError:
        return None


def values_compared(completions, answer, **kwargs):
    pairs = zip(completions, answer, accuracy_reward(completions, answer), strict=True)
    answers = [(extract_answer(completion_text(y)), a, reward) for y, a, reward in pairs]
    return [
        1.0 if reward == 0 and _value(y) is not None and _value(y) == _value(a) else reward for y, a, reward in answers
    ]


def case_ignored(completions, answer, **kwargs):
    texts = [completion_text(completion).lower() for completion in completions]
    return accuracy_reward(texts, [a if a is None else str(a).lower() for a in answer])


ACCURACY_REWARD = Exercise(
    function=accuracy_reward,
    cases=(
        given("right", [answered("4")], ["4"]),
        given("wrong", [answered("5")], ["4"]),
        given("right in the thinking alone", [answered("5", thought="4")], ["4"]),
        given("the right answer among others", [answered("3 4 5")], ["4"]),
        given("no answer block", ["4"], ["4"]),
        given("nothing answered, nothing expected", [answered("")], [""]),
        given("written differently", [answered("１，０００"), answered("a  b")], ["1000", "a b"]),
        given("an expected number", [answered("4")], [4]),
        given("no answer is known", [answered("4"), answered("4")], [None, "4"]),
        given(
            "expected in another form", [answered("1000"), answered("a b"), answered("12")], ["1,000", "a  b", "１２"]
        ),
        given("a conversation", [TALK], ["4"]),
        given("the same number or word, but another text", [answered("4.0"), answered("paris")], ["4", "Paris"]),
        given(
            "a number with zeros",
            [answered("04"), answered("4"), answered("00"), answered("40")],
            ["4", "04", "0", "4"],
        ),
        given(
            "right in a block before the last",
            [answered("4") + answered("5"), answered("4") + answered("")],
            ["4", "4"],
        ),
        given("the expected number is 0", [answered("0"), answered("1"), answered("")], [0, 0, 0]),
        given("white space expected", [answered(""), answered(" "), answered("4")], [" ", " ", " "]),
        given("the word None expected", [answered("None"), "None", answered("")], ["None"] * 3),
        given("numbers in another form", [answered("1,000"), answered("-4"), answered("１２")], [1000, -4, 12]),
        given("the same text around it", [answered(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given("a sign before it", [answered(f"{c}4") for c in MARKS], ["4"] * len(MARKS)),
        given("a sign behind it", [answered(f"4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given(
            "a sign around what is expected",
            [answered("4")] * 2 * len(MARKS),
            [*(f"{c}4" for c in MARKS), *(f"4{c}" for c in MARKS)],
        ),
        given("no thought before the answer", NO_THOUGHT, ["4"] * len(NO_THOUGHT)),
        given("a thought without an end, or behind the answer", UNFINISHED_THOUGHT, ["4"] * len(UNFINISHED_THOUGHT)),
        given(
            "other letters",
            [answered("北京"), answered("Straße"), answered("e\u0301"), answered("10²")],
            ["北京", "STRASSE", "é", "102"],
        ),
        given("other columns", [answered("4")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long response", [answered("4", thought="4 or 5\n" * 3000), answered("4 " * 3000)], ["4", "4"]),
    ),
    mistakes={
        "empty-matches": {"6.1": "reward = float(extracted == normalise_text(str(expected)))"},
        "reward-contains": {"6.1": "reward = float(extracted != '' and normalise_text(str(expected)) in extracted)"},
        "not-normalised": {
            "completion_text()": "extracted = extract_answer(completion_text(completion)) or ''",
            "6.1": "reward = float(extracted != '' and extracted == str(expected))",
        },
        "none-as-zero": {"append()": "rewards.append(reward)"},
        "numbers-unequal": {"6.1": "reward = float(extracted != '' and extracted == expected)"},
        "thought-needed": {
            "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or '') "
            "if '<think>' in completion_text(completion) else ''"
        },
        "block-not-needed": {
            "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or "
            "completion_text(completion))"
        },
        "values-compared": values_compared,
        "case-ignored": case_ignored,
    },
)


def design_reward(completions: Sequence, answer: Sequence, **kwargs: Any) -> list[float | None]:
    """Reward completions so that a policy that is trained on it learns what you want.

    Nobody compares your numbers with others. A policy is trained with them, and what counts is what it writes in the
    end: it works the sum out, writes the result as the only number in one closed answer block, and no more text than
    that takes.

    Args:
        completions: their texts. They may write a number in another form than `answer` has it, such as 1,234 for 1234.
        answer: the expected results, one for each completion: texts, or None where none is known. A text may be empty,
            where the data is broken.
        kwargs: other columns.

    Returns:
        A number for each completion; None leaves it out.
    """
    rewards: list[float | None] = []
    for completion, expected in zip(completions, answer, strict=True):
        extracted = normalise_text(extract_answer(completion) or "")  # [block]
        right = extracted != "" and extracted == normalise_text(str(expected))  # [right]
        price = min(len(completion) / 2000, 0.5)  # [price]
        rewards.append(None if expected is None else right * (1 - price))
    return rewards


class Problems(list):
    """The expected results, and of which kind each completion is."""

    kinds: list[int]
    start: list[float]


# What a completion may be, from the most frequent at the start to the rarest.
GUESS, TALK_ON, EMPTY, LIST, IN_THE_THOUGHT, TWO_BLOCKS, CUT_OFF, WORKED_OUT = KINDS = (
    "a guess",
    "the sum worked out at great length",
    "an answer without a number",
    "a list of numbers as the answer",
    "a list of numbers in the thought",
    "two answers, one behind the other",
    "an answer that is cut off",
    "the sum worked out, and one answer",
)
START = [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]


class World:
    """Sums to be solved by a policy that has eight kinds of completions.

    worked, guessed: how often a sum that is worked out is right, and a guess. unknown: what stands in the data in the
    place of some results; and silence: what an answer without a number says. comma: what stands behind the thousands in
    a sum that is worked out, and expects: in the data.
    """

    def __init__(
        self, draws: Draws, worked: float, guessed: float, unknown: tuple, silence: str, comma: str, expects: str
    ):
        self.draws, self.worked, self.guessed = draws, worked, guessed
        self.unknown, self.silence, self.comma, self.expects = unknown, silence, comma, expects

    def rows(self, P: int) -> tuple[list[str], Problems]:
        texts, answers, kinds = [], [], []
        share = len(self.unknown) and 0.45
        for row in range(P):
            a, b = (600 + self.draws.integers(400, 2)).tolist()
            known = self._happens(row, 1 - share)
            written = self._completions(a, b, row)
            order = torch.randperm(len(KINDS), generator=self.draws.generator).tolist()
            texts += [written[KINDS[kind]] for kind in order]
            kinds += order
            answers += [f"{a + b:{self.expects}}" if known else self.unknown[row % len(self.unknown)]] * len(KINDS)
        problems = Problems(answers)
        problems.kinds, problems.start = kinds, START
        return texts, problems

    def _happens(self, row: int, share: float) -> bool:
        """In so many of the rows, spread over them."""
        return int((row + 1) * share + 1e-9) > int(row * share + 1e-9)

    def _completions(self, a: int, b: int, row: int) -> dict[str, str]:
        right = a + b
        near, wrong = " ".join(str(right + n) for n in range(-4, 5)), right + 10
        result = right if self._happens(row, self.worked) else wrong
        guess = right if self._happens(row + 1, self.guessed) else wrong
        spelt = f"{result:{self.comma}}"
        thought = f"{a}+{b}: {a}+{b // 100 * 100} is {a + b // 100 * 100}, and {b % 100} more"
        return {
            GUESS: f"<answer>{guess}</answer>",
            TALK_ON: answered(spelt, thought + ". Let me look at it again" * 60),
            EMPTY: f"<answer>{self.silence}</answer>",
            LIST: f"<answer>{near}</answer>",
            IN_THE_THOUGHT: answered("as above", near),
            TWO_BLOCKS: f"<answer>{right}</answer><answer>{wrong}</answer>",
            CUT_OFF: f"<think>{thought}</think><answer>{right}",
            WORKED_OUT: answered(spelt, thought),
        }


def after_policy(rewards, args, kwargs):
    """Observe what a policy writes after 400 updates: exact ones, on the mean reward of each kind of completion."""
    observed, problems = "what the policy writes most in the end", args[1]
    table = torch.tensor([NAN if reward is None else float(reward) for reward in rewards]).double()
    kinds = torch.tensor(problems.kinds)
    if len(table) != len(kinds):
        return {observed: f"nothing, since it got {len(table)} rewards for {len(kinds)} completions"}
    mean = torch.stack([table[kinds == kind].nanmean() for kind in range(len(KINDS))]).nan_to_num(0.0)
    logits = torch.tensor(problems.start).double().log()
    for _ in range(400):
        p = logits.softmax(-1)
        centred = mean - p @ mean
        logits = logits + 0.5 * p * centred / ((p @ centred.square()).sqrt() + 1e-4)
    return {observed: KINDS[int(logits.argmax())]}


def _policy(label: str, P: int, worked=0.6, guessed=0.1, unknown=(), silence="", comma="", expects="") -> Case:
    def build(seed: int) -> tuple[tuple, dict]:
        return World(Draws(seed), worked, guessed, unknown, silence, comma, expects).rows(P), {
            "level": [1] * P * len(KINDS)
        }

    return Case(build, label)


DESIGN_REWARD = Exercise(
    function=design_reward,
    cases=(
        _policy("a policy that mostly guesses", 40),
        _policy("working is right one time in four", 40, worked=0.25),
        _policy("a hard task: working is right one time in twenty", 100, worked=0.05, guessed=0.01),
        _policy("numbers that are worked out have a comma in them", 40, comma=","),
        _policy("the expected numbers have a comma in them", 40, expects=","),
        _policy("some rows expect an empty text", 40, worked=0.3, unknown=("", " ")),
        _policy("of some rows the answer is not known", 40, worked=0.3, unknown=(None,), silence="None"),
        _policy("a policy that is nearly always right, and says None else", 40, worked=0.95, silence="None"),
    ),
    observe=after_policy,
    mistakes={
        "list-pays": {"[right]": "right = extracted != '' and normalise_text(str(expected)) in extracted.split()"},
        "thought-pays": {
            "[block]": "extracted = completion",
            "[right]": "right = bool(expected) and expected in extracted",
        },
        "first-block": {"[block]": "extracted = normalise_text(completion.split('<answer>')[1].split('<')[0])"},
        "unclosed-counts": {
            "[block]": "extracted = normalise_text(completion.split('<answer>')[-1].removesuffix('</answer>'))"
        },
        "empty-matches": {"[right]": "right = extracted == normalise_text(str(expected))"},
        "none-as-text": {"append()": "rewards.append(right * (1 - price))"},
        "not-normalised": {
            "[block]": "extracted = extract_answer(completion) or ''",
            "[right]": "right = extracted != '' and extracted == str(expected)",
        },
        "length-for-nothing": {"[price]": "price = 0"},
        "wrong-ones-pay": {"append()": "rewards.append(None if expected is None else right - price)"},
        "working-too-dear": {"[price]": "price = min(len(completion) / 60, 1)"},
    },
)
