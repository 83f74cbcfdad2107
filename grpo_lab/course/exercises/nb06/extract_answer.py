"""The exercise extract_answer: wrong answers, as people write them, then what is said about each."""

import random
import re

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import extreme, given
from grpo_lab.rewards import extract_answer

BLOCK = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


def first_block(text):
    blocks = BLOCK.findall(text)
    return (blocks[0].strip() or None) if blocks else None


def greedy(text):
    found = re.search(r"<answer>(.*)</answer>", text, re.DOTALL)
    return (found[1].strip() or None) if found else None


def one_line_only(text):
    blocks = re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", text)
    return (blocks[-1].strip() or None) if blocks else None


def unstripped(text):
    blocks = BLOCK.findall(text)
    return (blocks[-1] or None) if blocks else None


def empty_text(text):
    blocks = BLOCK.findall(text)
    return blocks[-1].strip() if blocks else None


def empty_for_nothing(text):
    blocks = BLOCK.findall(text)
    return blocks[-1].strip() if blocks else ""


def earlier_stands_in(text):
    filled = [block.strip() for block in BLOCK.findall(text) if block.strip()]
    return filled[-1] if filled else None


def end_of_text(text):
    tail = text.rpartition("<answer>")[2].partition("</answer>")[0] if "<answer>" in text else ""
    return tail.strip() or None


def crashes(text):
    return BLOCK.findall(text)[-1].strip() or None


def from_first_opening(text):
    blocks = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (blocks[-1].strip() or None) if blocks else None


def _two_blocks(seed: int) -> tuple[tuple, dict]:
    return (f"<answer>{seed}</answer> No:\n<answer>\n{seed + 7} cm\n</answer>",), {}


def _tags_and_words(pieces: int) -> Case:
    """Tags and words in an order drawn from the seed, with a closed block at the beginning."""

    def build(seed: int) -> tuple[tuple, dict]:
        dice = random.Random(f"answer/{pieces}/{seed}")
        drawn = dice.choices(["<answer>", "</answer>", "4", " ", "\n", "</think>", "12"], k=pieces)
        return ("<answer>7</answer>" + "".join(drawn),), {}

    return Case(build, f"{pieces} tags and words in any order", tests="stability")


EXERCISE = Exercise(
    function=extract_answer,
    notebook="06",
    points=3,
    minutes=15,
    difficulty=2,
    task="Take the text out of the last closed answer block. Whatever your function lets through will be found and "
    "used by a policy that is rewarded for it.",
    hints=(
        "Write down what should come out of: no block, an empty block, two blocks, a block that is never closed.",
        "`re.findall` gives all blocks. The dot needs a flag to cross lines, and a question mark so as not to run to "
        "the last closing tag.",
        "'<answer>one <answer>two</answer>': where does the block begin that is closed here?",
    ),
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
        given("nothing", ""),
        Case(_two_blocks, "a second thought"),
        extreme("another tag in the answer", "<answer>if 3 < 4: <b>4</b></answer>"),
        extreme("white space of other kinds", "<answer>\t\u3000 4 5\u00a0\r\n</answer>"),
        extreme("closed twice", "<answer>4</answer> or 5</answer>"),
        extreme("a long response", "<think>" + "so\n" * 5000 + "</think><answer>" + "4\n" * 5000 + "</answer>"),
        extreme(
            "300 blocks, the last one never closed", "".join(f"<answer>{i}</answer>" for i in range(300)) + "<answer>1"
        ),
        _tags_and_words(12),
        _tags_and_words(40),
    ),
    misconceptions=(
        Misconception(
            "first-block",
            first_block,
            "You take the first block. A response that corrects itself means its last one.",
        ),
        Misconception(
            "greedy",
            greedy,
            "Your pattern runs from the first opening tag to the last closing one, and takes the whole text between "
            "two answers for an answer. What makes a repetition stop as early as it can?",
        ),
        Misconception(
            "regex-no-dotall",
            one_line_only,
            "An answer that stands on a line of its own is not found: the dot does not match a line break. Which flag "
            "changes that?",
        ),
        Misconception(
            "unstripped",
            unstripped,
            "White space around the answer is left in, so ' 4' will not be equal to '4', and a block of blanks counts "
            "as an answer.",
        ),
        Misconception(
            "empty-matches",
            empty_text,
            "An empty block gives you an empty text. Whoever compares that with an expected answer that happens to be "
            "empty, or looks for it *in* one, finds it equal. What should say that there is no answer?",
        ),
        Misconception(
            "empty-for-nothing",
            empty_for_nothing,
            "Where there is no answer you return an empty text, which later looks like an answer. The docstring wants "
            "None.",
        ),
        Misconception(
            "earlier-stands-in",
            earlier_stands_in,
            "Where the last block is empty you take an earlier one. A policy could then write a guess and withdraw it. "
            "The last block is what the response says in the end, even if that is nothing.",
        ),
        Misconception(
            "unclosed-counts",
            end_of_text,
            "You take a block that is never closed. Such a response was cut off at the length limit: '<answer>12' may "
            "have been on its way to 125.",
        ),
        Misconception(
            "crashes-without-block",
            crashes,
            "Without a block there is no last one, and your function raises an error. Most responses of an untrained "
            "policy have none; a run would end in its first step.",
        ),
        Misconception(
            "opened-twice",
            from_first_opening,
            "In '<answer>one <answer>two</answer>' you begin at the first opening tag, and the second becomes part of "
            "the answer. Which opening tag belongs to the closing one?",
        ),
    ),
)
