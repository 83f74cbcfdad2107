"""What every reward reads first: the text of a completion, the answer in it, and the form in which texts compare."""

import numbers
import re
import unicodedata
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError

LONGEST_ANSWER = 1000  # characters; a policy may write millions of digits, and arithmetic on them takes long
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)  # [answer]
# As the models of several makers mark the end of their thinking, and its beginning.
_THOUGHT = re.compile(r"<(/?)(?:\w+:)?think(?:ing)?>|\[(/?)THINK\]|◁(/?)think▷", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")
_MARKS = re.compile(r"(?<![0-9])[.,:]|[.,:](?![0-9])|[!?;。、\"'“”‘’「」『』《》]")
_BESIDE_CHINESE = re.compile(r"(?<=[\u3400-\u9fff]) | (?=[\u3400-\u9fff])")
# Folding these would change the number: 10² is not 102, and 2½ is not 21/2.
_KEPT_APART = ("<super>", "<sub>", "<fraction>")


def completion_text(completion: Any) -> str:
    """The text of a completion, given as a string or as a list of chat messages, of which the assistant's are joined.

    A message without a role counts as the assistant's. Anything else is a TypeError.
    """
    return _text_of(completion, "assistant", "completion")


def prompt_text(prompt: Any) -> str:
    """The question in a prompt, given as a string or as a list of chat messages, of which the user's are joined."""
    return _text_of(prompt, "user", "prompt")


def _text_of(value: Any, role: str, argument: str) -> str:
    if isinstance(value, str):
        return value
    messages = value if isinstance(value, list) and all(isinstance(message, dict) for message in value) else []
    contents = [message.get("content") for message in messages if message.get("role", role) == role]
    if not messages or not all(isinstance(content, str) for content in contents):
        expected = "expected a string, or a non-empty list of chat messages whose contents are strings"
        raise InputTypeError(argument, value, expected, found=f"is {shortened(value)}")
    return "\n".join(contents)


def after_thinking(text: str) -> str:
    """The text after the last `</think>`, or all of a text without thinking; empty where the thinking was cut off.

    Other tags of thinking count as well: `<thinking>`, `[THINK]`, `◁think▷`.
    """
    tags = [*_THOUGHT.finditer(text)]
    if not tags:
        return text
    is_end = "/" in tags[-1].groups()
    return text[tags[-1].end() :] if is_end else ""


def is_cut_off(ending: str, opening: str) -> bool:
    """True if this much text, after the last closed block, opens another one, or ends amid the word that would."""
    return opening in ending or any(ending.endswith(opening[:length]) for length in range(3, len(opening)))


def extract_answer(text: str) -> str | None:
    """The text of the last closed `<answer>...</answer>` block, stripped; None where there is none or it is empty.

    A block reaches from an `<answer>` to the next `</answer>`; of several openings in a row the last one counts. An
    earlier block never stands in for an empty last one.
    """
    blocks = _ANSWER.findall(text)
    return (blocks[-1].strip() or None) if blocks else None


def normalise_text(text: str) -> str:
    """The form in which two texts are compared: NFKC, single spaces, no commas between thousands.

    Full-width forms become ordinary ones ("１２！" is "12!"); superscripts, subscripts and fractions stay as they are.
    Case counts, and so does the way to write a number: "0.5" is not "1/2" here; for `math_reward` they are equal.
    """
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), fold(text))


def loose_text(text: str) -> str:
    """Normalised, in lower case, without the marks that part sentences, and without spaces beside Chinese characters.

    "I like machine learning." and "i like machine learning" are the same here, and so are "czq 是神！" and "czq是神".
    A mark between digits stays: 1.5 is not 15.
    """
    plain = _MARKS.sub(" ", normalise_text(text).casefold())
    return " ".join(_BESIDE_CHINESE.sub("", " ".join(plain.split())).split())


def fold(text: str) -> str:
    """NFKC and single spaces, for a text in which a comma may part the elements of a list."""
    if text.isascii():  # which NFKC leaves as it is
        return " ".join(text.split())
    folded = "".join(
        character
        if unicodedata.decomposition(character).startswith(_KEPT_APART)
        else unicodedata.normalize("NFKC", character)
        for character in text
    )
    return " ".join(unicodedata.normalize("NFC", folded).split())


def expected_texts(name: str, completions: Any, answer: Any) -> list[str | None]:
    """The column `answer` as strings, one per completion; None where the reward does not apply."""
    check_expected(name, completions, answer)
    return [None if expected is None else str(expected) for expected in answer]


def check_expected(name: str, completions: Any, answer: Any) -> None:
    """Raise unless the column `answer` has a str, an int or None for each completion."""
    check_column(f"{name}: answer", answer, completions)
    for row, expected in enumerate(answer):
        # A float is refused: 42.0 would be compared as "42.0", which no response ever says.
        if expected is not None and (isinstance(expected, bool) or not isinstance(expected, (str, numbers.Integral))):
            description = f"is {shortened(expected)}"
            raise InputTypeError(
                f"{name}: answer[{row}]", expected, "expected a str, an int or None", found=description
            )


def check_setting(name: str, value: Any) -> None:
    """A setting of a reward is one number; a list is a column of the data that has its name."""
    if not isinstance(value, numbers.Real):
        expected = "expected a number; a column of the data must have another name than this setting"
        raise InputTypeError(name, value, expected, found=f"is {shortened(value)}")


def check_column(name: str, values: Any, completions: Any) -> None:
    """A column that reward functions get has one entry per completion; `name` is for the message."""
    is_no_list = isinstance(values, (str, bytes)) or not hasattr(values, "__len__")
    if is_no_list or len(values) != len(completions):
        description = f"is {shortened(values)}" if is_no_list else f"has {len(values)} entries"
        raise InputError(
            name, values, f"expected one entry for each of {len(completions)} completions", found=description
        )


def shortened(value: Any) -> str:
    """Type and beginning of a value, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
