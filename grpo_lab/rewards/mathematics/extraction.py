r"""Extracting the final answer of a completion: the last answer block, or the last `\boxed{}`."""

import re

from grpo_lab.rewards.text import after_thinking, extract_answer

MAX_BRACE_DEPTH = 6  # levels of nested braces that are read in a box
_BOX_CONTENT = "[^{}]*+"
for _ in range(MAX_BRACE_DEPTH):
    _BOX_CONTENT = rf"(?:[^{{}}]|\{{{_BOX_CONTENT}\}})*+"
_BOX = re.compile(rf"\\boxed\s*(?:\{{({_BOX_CONTENT})\}}|([0-9]+))")
_ONLY_A_BOX = re.compile(rf"\s*{_BOX.pattern}\s*")


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
