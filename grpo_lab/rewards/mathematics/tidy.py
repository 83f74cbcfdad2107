r"""Taking the answer out of a completion, and writing it in one notation: "７½", "7 1/2." and "$7\dfrac{1}{2}$"."""

import re
import unicodedata
from functools import lru_cache

from grpo_lab.rewards.text import after_thinking, extract_answer, is_cut_off, nfkc_text

_SIGNS = str.maketrans(
    dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("！。", ".")  # unlike "!", a factorial, "！" ends a sentence
    | {c: unicodedata.normalize("NFKC", c).replace("⁄", "/") for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
    | dict.fromkeys("⁄∕", "/")
    | {"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "或": " or ", "、": ","}
    | {"⟨": "(", "⟩": ")"}
)  # fmt: skip
_MIXED_NUMBER_GAP = re.compile("(?<=[0-9０-９])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_SUPERSCRIPTS = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_SUBSCRIPTS = re.compile("[₀-₉]+")
_WORD_START = r"(?<![a-zA-Z\\])"
# Replaces the double backslash at the end of a row while commands with one backslash are rewritten.
_ROW_END = "\ue000"
_ROW_END_PATTERN = re.compile(
    r"\\\\\*?\s*(?:\[\s*-?[0-9.]+\s*(?:pt|ex|em|mm|cm|in|bp|pc|mu)\s*\])?|\\cr(?![a-z])|\\hline(?![a-z])"
)
_COLUMN_FORMAT = re.compile(r"(?<=\{array\})\s*\{[lcr|\s]*\}")
_REWRITES = {
    r"^\s*```[a-z]+ (.*)```\s*$": r" \1 ",
    r"^\s*(`{1,3}|[*_]{1,3}|['\"])(.*)\1\s*$": r" \2 ",
    r"^\s*[“‘「『«„‹](.*)[”’」』»“›]\s*$": r" \1 ",
    r"\\displaystyle(?![a-z])": " ",
    r"\\(?:left|right)(?![a-z])\.?|\\!": "",
    r"\^\s*\{?\s*\\(?:top|intercal|(?:mathsf|mathrm|text) ?\{ ?T ?\})(?![a-z])\s*\}?": "^T",
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|underline|textcolor ?\{\w+\})\s*\{([^{}]*)\}": r" \1 ",
    r"\\langle(?![a-z])": "(",
    r"\\rangle(?![a-z])": ")",
    r"\+/-": r"\\pm ",
    r"\\[()\[\]]|\$\$|\\[,;: ]|~|\\q?quad(?![a-z])": " ",
    r"^\s*\*\*(.*?)\*\*\s*$|\$([^$]+)\$": r" \1\2 ",
    r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))": "",
    r"\{,\}": ",",
    r"\\[dtc]frac": r"\\frac",
    r"\{\s*([+-])\s+(?=[0-9])": r"{\1",
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\})": "°",
    r"\\%|\s*\b(?:per ?cent|pct)\b": "%",
    r"\\\$": "$",
    r"\*\*": "^",
    r"^\s*(?:负|零下|(?i:minus|negative) (?=[0-9$]))": "-",
    rf"{_WORD_START}(pi|log|ln|sin|cos|tan)(?![a-zA-Z])": r"\\\1 ",
    rf"(?:√|{_WORD_START}sqrt)\s*\(([^()]*)\)|√\s*([0-9]+|[a-z])": r"\\sqrt{\1\2}",
    rf"{_WORD_START}oo(?![a-zA-Z])": r"\\infty ",
    r"\\varnothing|^\s*no (?:real )?solutions?\s*$|^\s*(?:无解|空集)\s*$": r"\\emptyset ",
}
MAX_BRACE_DEPTH = 6  # levels of nested braces that are read in a box
_BOX_CONTENT = "[^{}]*+"
for _ in range(MAX_BRACE_DEPTH):
    _BOX_CONTENT = rf"(?:[^{{}}]|\{{{_BOX_CONTENT}\}})*+"
_BOX = rf"\\boxed\s*(?:\{{({_BOX_CONTENT})\}}|([0-9]+))"


def given_answer(text: str) -> str:
    r"""Return the answer after the thinking: the last answer block, or without a block, the last `\boxed{}`.

    If the block contains a box, the content of the box is returned. The answer is empty if there is neither, or if the
    text was cut off in its thinking, or in a block or box after the last closed one.
    """
    text = after_thinking(text)
    if was_cut_off(text):
        return ""
    return answer_in_block(text) if "</answer>" in text else boxed(text)


def answer_in_block(text: str) -> str:
    """Return the answer in the last answer block after the thinking, as in `given_answer`; empty without a block."""
    text = after_thinking(text)
    block = "" if was_cut_off(text) else extract_answer(text) or ""
    return boxed(block) if r"\boxed" in block else block


def boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{}`, or of the box inside it; empty without a closed box."""
    *_, last = [None, *re.finditer(_BOX, text)]
    if last is None or _is_box_open(text):
        return ""
    content = last[1] or last[2] or ""
    while inner := re.fullmatch(rf"\s*{_BOX}\s*", content):
        content = inner[1] or inner[2] or ""
    return content


def was_cut_off(text: str) -> bool:
    """Return True if the last answer block of a text is not closed, or, without any block, if its last box is not."""
    _, closing, ending = text.rpartition("</answer>")
    return is_cut_off(ending, "<answer>") or (not closing and _is_box_open(text))


def _is_box_open(text: str) -> bool:
    """Return True if a text ends within a box, or within the command that opens one."""
    *_, end = [0, *(box.end() for box in re.finditer(_BOX, text))]
    return is_cut_off(re.sub(r"\\boxed\s+\{", r"\\boxed{", text[end:]), r"\boxed{")


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """Return a text in one notation, as LaTeX, without quotation marks around it and full stops at its end."""
    text = _MIXED_NUMBER_GAP.sub(" ", text)
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}".replace("−", "-"), text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = nfkc_text(text.translate(_SIGNS)).rstrip(" .,;")
    if r"\begin{" in text:
        text = _COLUMN_FORMAT.sub(lambda columns: re.sub(r"[|\s]", "", columns[0]), text)
        text = _ROW_END_PATTERN.sub(lambda end: "" if "hline" in end[0] else _ROW_END, text)
        text = text.replace("{smallmatrix}", "{matrix}")
    for pattern, new in _REWRITES.items():
        text = re.sub(pattern, new, text)
    return " ".join(text.replace(_ROW_END, r" \\ ").split()).rstrip(" .,;")
