r"""Reading completions: their text, the answer block, box or code block in it, and the normal form for comparing texts.

The final answer is in the last answer block, or in the last `\boxed{}`.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from grpo_lab.base.checks import InputTypeError
from grpo_lab.rewards.functions import describe_value

# In characters. A policy may write millions of digits, and arithmetic with them takes long.
MAX_ANSWER_LENGTH = 1000
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)  # [answer]
# The tags that begin and end the thinking in models of several makers.
_THINKING_TAG = re.compile(r"<(/?)(?:\w+:)?think(?:ing)?>|\[(/?)THINK\]|◁(/?)think▷", re.IGNORECASE)
_CODE_BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")
_PUNCTUATION = re.compile(r"(?<![0-9])[.,:]|[.,:](?![0-9])|[!?;。、\"'“”‘’「」『』《》]")
_SPACE_BESIDE_CHINESE = re.compile(r"(?<=[\u3400-\u9fff]) | (?=[\u3400-\u9fff])")
# Kinds of characters that NFKC must not replace, since the number would change: 10² is not 102, and 2½ is not 21/2.
_NOT_NORMALISED = ("<super>", "<sub>", "<fraction>")
MAX_BRACE_DEPTH = 6  # levels of nested braces that are read in a box
_BOX_CONTENT = "[^{}]*+"
for _ in range(MAX_BRACE_DEPTH):
    _BOX_CONTENT = rf"(?:[^{{}}]|\{{{_BOX_CONTENT}\}})*+"
_BOX = re.compile(rf"\\boxed\s*(?:\{{({_BOX_CONTENT})\}}|([0-9]+))")
_ONLY_A_BOX = re.compile(rf"\s*{_BOX.pattern}\s*")


def completion_text(completion: Any) -> str:
    """Return the text of a completion, which is a string or a list of chat messages.

    The texts of the assistant's messages are joined by line breaks. A message without a role counts as the assistant's.

    Raises:
        TypeError: if the completion is neither a string nor such a list.
    """
    return _text_of(completion, "assistant", "completion")


def prompt_text(prompt: Any) -> str:
    """Return the question in a prompt: a string as it is, or the joined texts of the user's messages."""
    return _text_of(prompt, "user", "prompt")


def _text_of(value: Any, role: str, argument: str) -> str:
    if isinstance(value, str):
        return value
    messages = value if isinstance(value, list) and all(isinstance(message, dict) for message in value) else []
    contents = [message.get("content") for message in messages if message.get("role", role) == role]
    if not messages or not all(isinstance(content, str) for content in contents):
        expected = "expected a string, or a non-empty list of chat messages whose contents are strings"
        raise InputTypeError(argument, value, expected, problem=f"is {describe_value(value)}")
    return "\n".join(contents)


def after_thinking(text: str) -> str:
    """Return the text after the last `</think>`, the whole text if it has no such tag, "" if the thinking was cut off.

    Other tags of thinking count as well: `<thinking>`, `[THINK]`, `◁think▷`.
    """
    tags = [*_THINKING_TAG.finditer(text)]
    if not tags:
        return text
    is_end = "/" in tags[-1].groups()
    return text[tags[-1].end() :] if is_end else ""


def extract_answer(text: str) -> str | None:
    """Return the text of the last closed `<answer>...</answer>` block, stripped; None if there is no text in it.

    A block reaches from an `<answer>` to the next `</answer>`. After several `<answer>` in a row, the block begins at
    the last of them. If no block is closed, or the last one is empty, the result is None: an earlier block does not
    replace an empty last one.
    """
    blocks = _ANSWER.findall(text)
    return (blocks[-1].strip() or None) if blocks else None


def last_code_block(text: str, languages: Iterable[str]) -> str | None:
    """Return the last closed code block that names one of these languages or none; None without such a block.

    A code block stands between two lines that begin with three backquotes; the first may name a language.
    """
    blocks = _CODE_BLOCK.findall(text.replace("\r\n", "\n"))
    return next((code for language, code in reversed(blocks) if language.lower() in ("", *languages)), None)


def normalise_text(text: str) -> str:
    """Return a text in the form in which two texts are compared: NFKC, single spaces, no commas between thousands.

    Full-width characters become ordinary ones ("１２！" becomes "12!"). Superscripts, subscripts and fractions stay
    unchanged. Case and notation still differ: "0.5" is not "1/2" here, although `math_reward` finds the two equal.
    """
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), nfkc_text(text))


def loose_text(text: str) -> str:
    """Return a normalised text in lower case, without punctuation, and without spaces next to Chinese characters.

    "I like machine learning." and "i like machine learning" become the same text, and so do "czq 是神！" and "czq是神".
    Punctuation between digits stays: 1.5 is not 15.
    """
    plain = _PUNCTUATION.sub(" ", normalise_text(text).casefold())
    return " ".join(_SPACE_BESIDE_CHINESE.sub("", " ".join(plain.split())).split())


def nfkc_text(text: str) -> str:
    """Return a text in NFKC, except for superscripts, subscripts and fractions, with single spaces.

    Commas stay, since they may separate the elements of a list.
    """
    if text.isascii():  # NFKC does not change ASCII
        return " ".join(text.split())
    folded = "".join(
        character
        if unicodedata.decomposition(character).startswith(_NOT_NORMALISED)
        else unicodedata.normalize("NFKC", character)
        for character in text
    )
    return " ".join(unicodedata.normalize("NFC", folded).split())


def extract_final_answer(text: str) -> str:
    r"""Return the answer after the thinking: the last answer block, or without a block, the last `\boxed{}`.

    If the block contains a box, the content of the box is returned. The answer is empty if there is neither, or if the
    text was cut off in its thinking, or in a block or box after the last closed one.
    """
    text = after_thinking(text)
    if is_answer_cut_off(text):
        return ""
    return extract_block_answer(text) if "</answer>" in text else extract_boxed(text)


def extract_block_answer(text: str) -> str:
    """Return the final answer if it is in an answer block, as `extract_final_answer` does; empty without a block."""
    text = after_thinking(text)
    block = "" if is_answer_cut_off(text) else extract_answer(text) or ""
    return extract_boxed(block) if r"\boxed" in block else block


def extract_boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{}`, or of the box inside it; empty without a closed box."""
    *_, last_box = [None, *_BOX.finditer(text)]
    if last_box is None or _is_box_open(text):
        return ""
    content = last_box[1] or last_box[2] or ""
    while inner_box := _ONLY_A_BOX.fullmatch(content):
        content = inner_box[1] or inner_box[2] or ""
    return content


def is_answer_cut_off(text: str) -> bool:
    """Return True if the last answer block of a text is not closed, or, without any block, if its last box is not."""
    _, closing_tag, remainder = text.rpartition("</answer>")
    return _is_opened_in("<answer>", remainder) or (not closing_tag and _is_box_open(text))


def _is_box_open(text: str) -> bool:
    """Return True if a text ends within a box, or within the command that opens one."""
    *_, end_of_last_box = [0, *(box.end() for box in _BOX.finditer(text))]
    return _is_opened_in(r"\boxed{", re.sub(r"\\boxed\s+\{", r"\\boxed{", text[end_of_last_box:]))


def _is_opened_in(opening: str, remainder: str) -> bool:
    """Return True if a text contains an opening tag, or ends with at least the first three characters of one.

    remainder: The text after the last closed block or box.
    """
    return opening in remainder or any(remainder.endswith(opening[:length]) for length in range(3, len(opening)))
