"""The exercises of notebook 06."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from grpo_lab.course.exercise import (
    NAN,
    Case,
    Draws,
    Exercise,
    drawn_case,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.rewards import accuracy_reward, completion_text, extract_answer, format_fault, normalise_text

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
ORDINALS = ("first", "second", "third", "fourth")
WELL_FORMED = "<think>so</think><answer>4</answer>"


def _tags_in_order(order: tuple[int, ...]) -> Case:
    a, b, c, d = (TAGS[n] for n in order)
    return handwritten_case(f"the {', '.join(ORDINALS[n] for n in order)} tag", f"{a}so{b}{c}4{d}")


def _with_insertion(draws: Draws, *inserted: str) -> tuple[str]:
    """Return a text in the format, with one of the given pieces inserted at a random place."""
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
        handwritten_case("the format kept", "<think>2+2</think><answer>4</answer>"),
        handwritten_case("no tag at all", "4"),
        handwritten_case("cut off before its end", "<think>2+2</think><answer>4"),
        handwritten_case("two answers", "<think>so</think><answer>4</answer><answer>5</answer>"),
        handwritten_case("the answer first", "<answer>4</answer><think>so</think>"),
        handwritten_case("a word after the answer", "<think>so</think><answer>4</answer> Done."),
        handwritten_case("a word before the thinking", "Well. <think>so</think><answer>4</answer>"),
        handwritten_case("a word between the blocks", "<think>so</think>Hence<answer>4</answer>"),
        handwritten_case("thinking over two lines", "<think>first\nthen</think><answer>4</answer>"),
        handwritten_case("a line break between the blocks", "<think>so</think>\n<answer>4</answer>"),
        handwritten_case("empty blocks", "<think></think><answer></answer>"),
        handwritten_case("the answer within the thinking", "<think>so<answer>4</think></answer>"),
        handwritten_case("one tag twice, another missing", "<think><think>so</think><answer>4"),
        handwritten_case("two ends of thinking", "<think>so</think></think><answer>4</answer>"),
        handwritten_case("nothing", ""),
        handwritten_case(
            "angle brackets that are not tags", "<think>2 < 3, <b>so</b> 4 > 3</think><answer>a<b>4</answer>"
        ),
        handwritten_case("the beginning of a tag", "<think>so <thin</think><answer>4 </answe</answer>"),
        handwritten_case("tags with capital letters", "<Think>so</Think><ANSWER>4</ANSWER>"),
        handwritten_case("white space of other kinds", "\t\u3000<think>so</think>\r\n\u00a0<answer>4</answer>\n\n"),
        *(_tags_in_order(order) for order in ((0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (2, 3, 0, 1), (3, 2, 1, 0))),
        *(
            handwritten_case(f"the {ORDINALS[n]} tag missing", WELL_FORMED.replace(tag, ""))
            for n, tag in enumerate(TAGS)
        ),
        *(
            handwritten_case(f"the {ORDINALS[n]} tag twice", WELL_FORMED.replace(tag, 2 * tag))
            for n, tag in enumerate(TAGS)
        ),
        handwritten_case(
            "an answer before and after the thinking", "<answer>4</answer><think>so</think><answer>4</answer>"
        ),
        handwritten_case("the end of thinking before and after it", "</think><think>so</think><answer>4</answer>"),
        handwritten_case("the second tag in place of the first", WELL_FORMED.replace(TAGS[0], TAGS[1])),
        drawn_case("a word or a blank somewhere", lambda draws: _with_insertion(draws, "so", " ", "\n")),
        drawn_case("one extra tag", lambda draws: _with_insertion(draws, *TAGS)),
        stability_case("a long response", "<think>" + "so\n" * 5000 + "</think><answer>4</answer>" + "\n" * 5000),
        stability_case("a word after thousands of lines", WELL_FORMED + "\n" * 5000 + "so"),
    ),
    mistakes=(
        wrong_lines(
            "regex-no-dotall",
            {"fullmatch()": "return None if re.fullmatch(FORMAT_PATTERN.pattern, text) else 'text outside'"},
        ),
        wrong_lines("text-outside-unseen", {"fullmatch()": "return None"}),
        wrong_lines("repeated-unseen", {"max()": "if False:"}),
        wrong_lines("interleaved-unseen", {"index()": "positions = [text.index(tag) for tag in TAGS[::2]]"}),
        wrong_lines("order-unseen", {"sorted()": "if False:"}),
        wrong_lines(
            "repeated-first", {"min()": "if max(counts) > 1:\n    return 'repeated tag'\nif min(counts) == 0:"}
        ),
        wrong_function("white-space-is-text", white_space_is_text),
        wrong_function("between-unseen", between_unseen),
    ),
)


# Answers that have to be extracted as they are written.
ANSWER_TEXTS = ("42.", "0", "None", "(4)", '"4"', "$4$", "1,000", "１２", "a  b", "北京", "4\n\n5", "&lt;", "...")


def _tags_and_words(draws: Draws, count: int) -> tuple[str]:
    """Return a closed answer block, followed by `count` tags and words in random order."""
    pieces = ("<answer>", "</answer>", "4", " ", "\n", "</think>", "12")
    return ("<answer>7</answer>" + "".join(pieces[i] for i in draws.integers(len(pieces), count)),)


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
        handwritten_case("one block", "<answer>4</answer>"),
        handwritten_case("no block", "It is 4."),
        handwritten_case("two blocks", "<answer>4</answer> Wait. <answer>5</answer>"),
        handwritten_case("white space within", "<answer> 4\n</answer>"),
        handwritten_case("two lines", "<answer>4\n5</answer>"),
        handwritten_case("an empty block", "<answer></answer>"),
        handwritten_case("only white space", "<answer> \n </answer>"),
        handwritten_case("an answer, then an empty block", "<answer>4</answer><answer></answer>"),
        handwritten_case("never closed", "<think>so</think><answer>4"),
        handwritten_case("closed, then opened again", "<answer>4</answer> or <answer>5"),
        handwritten_case("opened twice, closed once", "<answer>one <answer>two</answer>"),
        handwritten_case("closed without being opened", "4</answer>"),
        handwritten_case("opened once, closed twice", "<answer>4</answer> or 5</answer>"),
        handwritten_case("within the thinking", "<think><answer>4</answer> or 5</think> It is 5."),
        handwritten_case("another tag in the answer", "<answer>if 3 < 4: <b>4</b></answer>"),
        handwritten_case("white space of other kinds", "<answer>\t\u3000 4 5\u00a0\r\n</answer>"),
        handwritten_case("a block with capital letters", "<answer>4</answer> or <Answer>5</Answer>"),
        handwritten_case("opened three times", "<answer>1<answer> 2 <answer>\n3</answer>"),
        *(handwritten_case(f"an answer as it is written, {text}", f"<answer>{text}</answer>") for text in ANSWER_TEXTS),
        handwritten_case("a tag with an attribute", '<answer type="number">4</answer>'),
        handwritten_case("a tag with an attribute after a block", '<answer>4</answer> or <answer id="2">5</answer>'),
        handwritten_case("tags with blanks in them", "<answer >4</answer> or < answer>5</answer>"),
        handwritten_case("an end with a blank in it", "<answer>4</answer> or <answer>5</answer >"),
        handwritten_case("words that begin as the tag does", "<answer>4</answer> or <answers>5</answers>"),
        handwritten_case("a tag that closes itself", "<answer>4</answer> or <answer/>5</answer>"),
        *(drawn_case(f"{n} tags and words in any order", partial(_tags_and_words, count=n)) for n in (5, 7, 9, 40)),
        stability_case("a long response", "<think>" + "so\n" * 5000 + "</think><answer>" + "4\n" * 5000 + "</answer>"),
        stability_case(
            "300 blocks, the last one never closed", "".join(f"<answer>{i}</answer>" for i in range(300)) + "<answer>1"
        ),
    ),
    mistakes=(
        wrong_lines("first-block", {"strip()": "return blocks[0].strip() or None if blocks else None"}),
        wrong_lines("greedy", {"findall()": "blocks = re.findall('<answer>(.*)</answer>', text, re.DOTALL)"}),
        wrong_lines("regex-no-dotall", {"findall()": "blocks = re.findall(_ANSWER.pattern, text)"}),
        wrong_lines("empty-matches", {"strip()": "return blocks[-1].strip() if blocks else None"}),
        wrong_lines(
            "unclosed-counts",
            {"findall()": "blocks = [block.partition('</answer>')[0] for block in text.split('<answer>')[1:]]"},
        ),
        wrong_lines("opened-twice", {"findall()": "blocks = re.findall('<answer>(.*?)</answer>', text, re.DOTALL)"}),
        wrong_function("not-stripped", not_stripped),
        wrong_function("last-that-is-not-empty", last_that_is_not_empty),
        wrong_function("back-from-the-last-closing-tag", back_from_the_last_closing_tag),
    ),
)


def answered(answer, thought="so"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _many_completions(draws: Draws) -> tuple[list[str], list]:
    """Return 300 completions of five kinds, and their expected answers, of which a third are None."""
    answers, kinds = draws.integers(20, 300).tolist(), draws.integers(5, 300).tolist()
    completions = []
    for a, kind in zip(answers, kinds, strict=True):
        right, wrong = answered(a), answered(a + 1)
        completions.append((right, wrong, right + wrong, f"{a}", wrong + answered(f" {a}\n"))[kind])
    return completions, [(a, f" {a}", None)[row % 3] for row, a in enumerate(answers)]


CONVERSATION = [
    {"role": "user", "content": answered("3")},
    {"role": "assistant", "content": answered("4\n")},
    {"role": "user", "content": answered("5")},
    {"role": "assistant", "content": "Yes."},
]
SIGNS = ("", ".", "'", '"', "$", "%", "!", "(", "-", "*", ",", ";", ":", "?", "`", "+", "=", "#", "°", "€", "\\")
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


def _as_number(text):
    try:
        return float(normalise_text(str(text)))
    except ValueError:
        return None


def values_compared(completions, answer, **kwargs):
    rewards = []
    for completion, expected, reward in zip(completions, answer, accuracy_reward(completions, answer), strict=True):
        number = _as_number(extract_answer(completion_text(completion)))
        has_equal_value = number is not None and number == _as_number(expected)
        rewards.append(1.0 if reward == 0 and has_equal_value else reward)
    return rewards


def case_ignored(completions, answer, **kwargs):
    texts = [completion_text(completion).lower() for completion in completions]
    return accuracy_reward(texts, [a if a is None else str(a).lower() for a in answer])


ACCURACY_REWARD = Exercise(
    function=accuracy_reward,
    cases=(
        handwritten_case("right", [answered("4")], ["4"]),
        handwritten_case("wrong", [answered("5")], ["4"]),
        handwritten_case("right in the thinking alone", [answered("5", thought="4")], ["4"]),
        handwritten_case("the right answer among others", [answered("3 4 5")], ["4"]),
        handwritten_case("no answer block", ["4"], ["4"]),
        handwritten_case("nothing answered, nothing expected", [answered("")], [""]),
        handwritten_case("written differently", [answered("１，０００"), answered("a  b")], ["1000", "a b"]),
        handwritten_case("an expected number", [answered("4")], [4]),
        handwritten_case("no answer is known", [answered("4"), answered("4")], [None, "4"]),
        handwritten_case(
            "expected in another form", [answered("1000"), answered("a b"), answered("12")], ["1,000", "a  b", "１２"]
        ),
        handwritten_case("a conversation", [CONVERSATION], ["4"]),
        handwritten_case(
            "the same number or word, but another text", [answered("4.0"), answered("paris")], ["4", "Paris"]
        ),
        handwritten_case(
            "a number with zeros",
            [answered("04"), answered("4"), answered("00"), answered("40")],
            ["4", "04", "0", "4"],
        ),
        handwritten_case(
            "right in a block before the last",
            [answered("4") + answered("5"), answered("4") + answered("")],
            ["4", "4"],
        ),
        handwritten_case("the expected number is 0", [answered("0"), answered("1"), answered("")], [0, 0, 0]),
        handwritten_case("white space expected", [answered(""), answered(" "), answered("4")], [" ", " ", " "]),
        handwritten_case("the word None expected", [answered("None"), "None", answered("")], ["None"] * 3),
        handwritten_case(
            "numbers in another form", [answered("1,000"), answered("-4"), answered("１２")], [1000, -4, 12]
        ),
        handwritten_case("the same text around it", [answered(f"{c}4{c}") for c in SIGNS], ["4"] * len(SIGNS)),
        handwritten_case("a sign before it", [answered(f"{c}4") for c in SIGNS], ["4"] * len(SIGNS)),
        handwritten_case("a sign after it", [answered(f"4{c}") for c in SIGNS], ["4"] * len(SIGNS)),
        handwritten_case(
            "a sign around what is expected",
            [answered("4")] * 2 * len(SIGNS),
            [*(f"{c}4" for c in SIGNS), *(f"4{c}" for c in SIGNS)],
        ),
        handwritten_case("no thought before the answer", NO_THOUGHT, ["4"] * len(NO_THOUGHT)),
        handwritten_case(
            "a thought without an end, or after the answer", UNFINISHED_THOUGHT, ["4"] * len(UNFINISHED_THOUGHT)
        ),
        handwritten_case(
            "other letters",
            [answered("北京"), answered("Straße"), answered("e\u0301"), answered("10²")],
            ["北京", "STRASSE", "é", "102"],
        ),
        handwritten_case(
            "other columns", [answered("4")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]
        ),
        drawn_case("300 responses", _many_completions),
        stability_case(
            "a long response", [answered("4", thought="4 or 5\n" * 3000), answered("4 " * 3000)], ["4", "4"]
        ),
    ),
    mistakes=(
        wrong_lines("empty-matches", {"6.1": "reward = float(extracted == normalise_text(str(expected)))"}),
        wrong_lines(
            "reward-contains", {"6.1": "reward = float(extracted != '' and normalise_text(str(expected)) in extracted)"}
        ),
        wrong_lines(
            "not-normalised",
            {
                "completion_text()": "extracted = extract_answer(completion_text(completion)) or ''",
                "6.1": "reward = float(extracted != '' and extracted == str(expected))",
            },
        ),
        wrong_lines("none-as-zero", {"append()": "rewards.append(reward)"}),
        wrong_lines("numbers-unequal", {"6.1": "reward = float(extracted != '' and extracted == expected)"}),
        wrong_lines(
            "thought-needed",
            {
                "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or '') "
                "if '<think>' in completion_text(completion) else ''"
            },
        ),
        wrong_lines(
            "block-not-needed",
            {
                "completion_text()": "extracted = normalise_text(extract_answer(completion_text(completion)) or "
                "completion_text(completion))"
            },
        ),
        wrong_function("values-compared", values_compared),
        wrong_function("case-ignored", case_ignored),
    ),
)


def design_reward(completions: Sequence, answer: Sequence, **kwargs: Any) -> list[float | None]:
    """Score completions of sums so that a policy trained with these rewards learns to write good completions.

    Your rewards are not compared with a reference. Instead a policy is trained with them, and its most frequent
    completion after training has to be a good one. A good completion works the sum out, gives the result as the only
    number in one closed answer block, and contains no unnecessary text.

    Args:
        completions: The texts of the completions. A number may have another form than in `answer`, such as 1,234 for
            1234.
        answer: The expected result of each completion as a text, or None if it is unknown. The data has errors: a text
            may be empty.
        kwargs: Other columns of the data set, which the reward does not need.

    Returns:
        A reward for each completion; None excludes the completion from training.
    """
    rewards: list[float | None] = []
    for completion, expected in zip(completions, answer, strict=True):
        extracted = normalise_text(extract_answer(completion) or "")  # [block]
        is_right = extracted != "" and extracted == normalise_text(str(expected))  # [right]
        length_penalty = min(len(completion) / 2000, 0.5)  # [penalty]
        rewards.append(None if expected is None else is_right * (1 - length_penalty))
    return rewards


class ExpectedResults(list):
    """The expected result of each completion, with what `after_policy` has to know about the completions.

    Attributes:
        kinds: Index in `KINDS` of each completion.
        initial_probabilities: Probability of each kind under the policy before training.
    """

    kinds: list[int]
    initial_probabilities: list[float]


# The kinds of completions, in descending order of their probability before training.
GUESS, TALK_ON, EMPTY, LIST, IN_THE_THOUGHT, TWO_BLOCKS, CUT_OFF, WORKED_OUT = KINDS = (
    "a guess",
    "the sum worked out at great length",
    "an answer without a number",
    "a list of numbers as the answer",
    "a list of numbers in the thought",
    "two answers, one after the other",
    "an answer that is cut off",
    "the sum worked out, and one answer",
)
INITIAL_PROBABILITIES = [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]


class SumCompletions:
    """A generator of sums, with a completion of each of the eight kinds for every sum.

    Args:
        draws: Source of the random numbers.
        worked_out_accuracy: Share of the sums for which the completions that work the sum out are right.
        guess_accuracy: Share of the sums for which the guess is right.
        missing_answers: What the data has in place of the expected result for 45% of the sums, used in turn; empty if
            every result is known.
        no_number_answer: The answer of a completion that gives no number.
        result_format: Format specification of the results that are worked out: "" or ",".
        expected_format: Format specification of the expected results: "" or ",".
    """

    def __init__(
        self,
        draws: Draws,
        worked_out_accuracy: float = 0.6,
        guess_accuracy: float = 0.1,
        missing_answers: tuple = (),
        no_number_answer: str = "",
        result_format: str = "",
        expected_format: str = "",
    ):
        self.draws, self.worked_out_accuracy, self.guess_accuracy = draws, worked_out_accuracy, guess_accuracy
        self.missing_answers, self.no_number_answer = missing_answers, no_number_answer
        self.result_format, self.expected_format = result_format, expected_format

    def generate(self, P: int) -> tuple[list[str], ExpectedResults]:
        """Return the completions of P sums, and their expected results; those of one sum are in random order."""
        completions, answers, kinds = [], [], []
        missing_share = 0.45 if self.missing_answers else 0.0
        for row in range(P):
            a, b = (600 + self.draws.integers(400, 2)).tolist()
            if self._is_in_share(row, 1 - missing_share):
                expected = f"{a + b:{self.expected_format}}"
            else:
                expected = self.missing_answers[row % len(self.missing_answers)]
            by_kind = self._completions(a, b, row)
            order = torch.randperm(len(KINDS), generator=self.draws.generator).tolist()
            completions += [by_kind[KINDS[kind]] for kind in order]
            kinds += order
            answers += [expected] * len(KINDS)
        results = ExpectedResults(answers)
        results.kinds, results.initial_probabilities = kinds, INITIAL_PROBABILITIES
        return completions, results

    def _is_in_share(self, row: int, share: float) -> bool:
        """Return True for this share of the rows, spread evenly."""
        return int((row + 1) * share + 1e-9) > int(row * share + 1e-9)

    def _completions(self, a: int, b: int, row: int) -> dict[str, str]:
        right = a + b
        wrong, list_of_numbers = right + 10, " ".join(str(right + n) for n in range(-4, 5))
        result = right if self._is_in_share(row, self.worked_out_accuracy) else wrong
        guess = right if self._is_in_share(row + 1, self.guess_accuracy) else wrong
        formatted_result = f"{result:{self.result_format}}"
        thought = f"{a}+{b}: {a}+{b // 100 * 100} is {a + b // 100 * 100}, and {b % 100} more"
        return {
            GUESS: f"<answer>{guess}</answer>",
            TALK_ON: answered(formatted_result, thought + ". Let me look at it again" * 60),
            EMPTY: f"<answer>{self.no_number_answer}</answer>",
            LIST: f"<answer>{list_of_numbers}</answer>",
            IN_THE_THOUGHT: answered("as above", list_of_numbers),
            TWO_BLOCKS: f"<answer>{right}</answer><answer>{wrong}</answer>",
            CUT_OFF: f"<think>{thought}</think><answer>{right}",
            WORKED_OUT: answered(formatted_result, thought),
        }


def after_policy(rewards, args, kwargs):
    """Observe what a policy writes most often after 400 exact updates with the mean reward of each kind."""
    observed, results = "what the policy writes most in the end", args[1]
    values = torch.tensor([NAN if reward is None else float(reward) for reward in rewards]).double()
    kinds = torch.tensor(results.kinds)
    if len(values) != len(kinds):
        return {observed: f"nothing, since it got {len(values)} rewards for {len(kinds)} completions"}
    mean_rewards = torch.stack([values[kinds == kind].nanmean() for kind in range(len(KINDS))]).nan_to_num(0.0)
    logits = torch.tensor(results.initial_probabilities).double().log()
    for _ in range(400):
        p = logits.softmax(-1)
        centred = mean_rewards - p @ mean_rewards
        logits = logits + 0.5 * p * centred / ((p @ centred.square()).sqrt() + 1e-4)
    return {observed: KINDS[int(logits.argmax())]}


def _policy_case(label: str, P: int, **settings) -> Case:
    """Return a case with P sums; `settings` are those of `SumCompletions`."""

    def build(seed: int) -> tuple[tuple, dict]:
        return SumCompletions(Draws(seed), **settings).generate(P), {"level": [1] * P * len(KINDS)}

    return Case(build, label)


DESIGN_REWARD = Exercise(
    function=design_reward,
    cases=(
        _policy_case("a policy that mostly guesses", P=40),
        _policy_case("working is right one time in four", P=40, worked_out_accuracy=0.25),
        _policy_case(
            "a hard task: working is right one time in twenty", P=100, worked_out_accuracy=0.05, guess_accuracy=0.01
        ),
        _policy_case("results that are worked out have a comma in them", P=40, result_format=","),
        _policy_case("the expected numbers have a comma in them", P=40, expected_format=","),
        _policy_case("some rows expect an empty text", P=40, worked_out_accuracy=0.3, missing_answers=("", " ")),
        _policy_case(
            "the answer to some rows is not known",
            P=40,
            worked_out_accuracy=0.3,
            missing_answers=(None,),
            no_number_answer="None",
        ),
        _policy_case(
            "a policy that is nearly always right, and otherwise says None",
            P=40,
            worked_out_accuracy=0.95,
            no_number_answer="None",
        ),
    ),
    observations=after_policy,
    mistakes=(
        wrong_lines(
            "list-pays",
            {"[right]": "is_right = extracted != '' and normalise_text(str(expected)) in extracted.split()"},
        ),
        wrong_lines(
            "thought-pays",
            {
                "[block]": "extracted = completion",
                "[right]": "is_right = bool(expected) and expected in extracted",
            },
        ),
        wrong_lines(
            "first-block", {"[block]": "extracted = normalise_text(completion.split('<answer>')[1].split('<')[0])"}
        ),
        wrong_lines(
            "unclosed-counts",
            {"[block]": "extracted = normalise_text(completion.split('<answer>')[-1].removesuffix('</answer>'))"},
        ),
        wrong_lines("empty-matches", {"[right]": "is_right = extracted == normalise_text(str(expected))"}),
        wrong_lines("none-as-text", {"append()": "rewards.append(is_right * (1 - length_penalty))"}),
        wrong_lines(
            "not-normalised",
            {
                "[block]": "extracted = extract_answer(completion) or ''",
                "[right]": "is_right = extracted != '' and extracted == str(expected)",
            },
        ),
        wrong_lines("length-for-nothing", {"[penalty]": "length_penalty = 0"}),
        wrong_lines(
            "wrong-ones-pay", {"append()": "rewards.append(None if expected is None else is_right - length_penalty)"}
        ),
        wrong_lines("working-too-dear", {"[penalty]": "length_penalty = min(len(completion) / 60, 1)"}),
    ),
)
