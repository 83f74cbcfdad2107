r"""What a completion answers, in one way of writing: "７½", "$7\dfrac{1}{2}$" and "7 1/2." become "7 1/2" or LaTeX."""

import re
import unicodedata
from functools import lru_cache

from grpo_lab.rewards.text import after_thinking, extract_answer, fold, is_cut_off

_SIGNS = str.maketrans(
    dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("！。", ".")  # "!" is a factorial, "！" ends a sentence
    | {c: unicodedata.normalize("NFKC", c).replace("⁄", "/") for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
    | dict.fromkeys("⁄∕", "/")
    | {"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "或": " or ", "、": ","}
    | {"⟨": "(", "⟩": ")"}
)  # fmt: skip
_MIXED = re.compile("(?<=[0-9０-９])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_RAISED = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_LOWERED = re.compile("[₀-₉]+")
_WORD = r"(?<![a-zA-Z\\])"
_ROW = "\ue000"  # stands for a row's end, a double backslash, while commands of one backslash are rewritten
_ROW_ENDS = re.compile(
    r"\\\\\*?\s*(?:\[\s*-?[0-9.]+\s*(?:pt|ex|em|mm|cm|in|bp|pc|mu)\s*\])?|\\cr(?![a-z])|\\hline(?![a-z])"
)
_COLUMNS = re.compile(r"(?<=\{array\})\s*\{[lcr|\s]*\}")
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
    rf"{_WORD}(pi|log|ln|sin|cos|tan)(?![a-zA-Z])": r"\\\1 ",
    rf"(?:√|{_WORD}sqrt)\s*\(([^()]*)\)|√\s*([0-9]+|[a-z])": r"\\sqrt{\1\2}",
    rf"{_WORD}oo(?![a-zA-Z])": r"\\infty ",
    r"\\varnothing|^\s*no (?:real )?solutions?\s*$|^\s*(?:无解|空集)\s*$": r"\\emptyset ",
}
_BRACES = "[^{}]*+"
for _ in range(6):  # as deep as braces may be nested in a box
    _BRACES = rf"(?:[^{{}}]|\{{{_BRACES}\}})*+"
_BOX = rf"\\boxed\s*(?:\{{({_BRACES})\}}|([0-9]+))"


def given_answer(text: str) -> str:
    r"""The answer that a completion gives: its last answer block, else its last `\boxed{}` after the thinking.

    In a block that holds a box, the box counts. Empty where there is neither, and where the text was cut off: in its
    thinking, or in a block or box after the last closed one.
    """
    text = after_thinking(text)
    if was_cut_off(text):
        return ""
    return answer_in_block(text) if "</answer>" in text else boxed(text)


def answer_in_block(text: str) -> str:
    """The answer in the last answer block after the thinking, by the rules of `given_answer`; empty without one."""
    text = after_thinking(text)
    block = "" if was_cut_off(text) else extract_answer(text) or ""
    return boxed(block) if r"\boxed" in block else block


def boxed(text: str) -> str:
    r"""The content of the last `\boxed{}`, or of the box that fills it; empty without one that is closed."""
    *_, last = [None, *re.finditer(_BOX, text)]
    content = "" if last is None or _is_box_open(text) else last[1] or last[2] or ""
    while inner := re.fullmatch(rf"\s*{_BOX}\s*", content):
        content = inner[1] or inner[2] or ""
    return content


def was_cut_off(text: str) -> bool:
    """True if a text ends in an answer block that is not closed, or, without a block, in a box that is not."""
    _, closing, ending = text.rpartition("</answer>")
    return is_cut_off(ending, "<answer>") or (not closing and _is_box_open(text))


def _is_box_open(text: str) -> bool:
    *_, end = [0, *(box.end() for box in re.finditer(_BOX, text))]
    return is_cut_off(re.sub(r"\\boxed\s+\{", r"\\boxed{", text[end:]), r"\boxed{")


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The text with one sign for each thing, in LaTeX, without marks around it and full stops at its end."""
    text = _MIXED.sub(" ", text)
    text = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}".replace("−", "-"), text)
    text = _LOWERED.sub(lambda run: f"_{{{unicodedata.normalize('NFKC', run[0])}}}", text)
    text = fold(text.translate(_SIGNS)).rstrip(" .,;")
    if r"\begin{" in text:
        text = _COLUMNS.sub(lambda columns: re.sub(r"[|\s]", "", columns[0]), text)
        text = _ROW_ENDS.sub(lambda end: "" if "hline" in end[0] else _ROW, text).replace("{smallmatrix}", "{matrix}")
    for pattern, new in _REWRITES.items():
        text = re.sub(pattern, new, text)
    return " ".join(text.replace(_ROW, r" \\ ").split()).rstrip(" .,;")
