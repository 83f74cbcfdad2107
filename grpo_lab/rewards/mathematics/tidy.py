r"""One way to write an answer: of "７½", "$7\dfrac{1}{2}$" and "7 1/2." the same is left, "7 1/2" or its LaTeX."""

import re
import unicodedata
from functools import lru_cache

from grpo_lab.rewards.text import extract_answer, fold

_SIGNS = {
    **dict.fromkeys("−–—‐‑﹣⁃", "-"), "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": r"\div ", "∕": "/",
    "⁄": "/", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∞": r"\infty ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "￥": "¥", "。": ".", "或": " or ", "、": ",", "`": "", "…": "...", "∶": ":", "º": "°",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))
_RAISED = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_WORDS = (
    (r"\\left(?![a-zA-Z])\.?|\\right(?![a-zA-Z])\.?|\\[bB]igg?[lr]?(?![a-zA-Z])|\\displaystyle", ""),
    (r"(?<=[0-9])(?:\\[,!;:]|\{,\}\\!)(?=[0-9]{3})|\\!", ""),
    (r"\{,\}", ","),
    (r"\$([^$]+)\$", r" \1 "),
    (r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])", " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree", "°"),
    (r"^每(小时|分钟|秒|天)([0-9].*)$", r"\2/\1"),
    (r"\\%|\s*\b(?:per ?cent(?:age)?|pct)\b", "%"),
    (r"\\\$", "$"),
    (r"\*\*", "^"),
    (r"(?<=[0-9]) and a half\b", " 1/2"),
    (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
    (r"(?<![a-zA-Z\\])lg(?![a-zA-Z])|\\lg(?![a-zA-Z])", r"\\log_{10} "),
    (r"(?<![a-zA-Z\\])(log|ln|sin|cos|tan)(?![a-zA-Z])", r"\\\1 "),
    (r"√\s*\(([^()]*)\)|(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1\2}"),
    (r"√\s*([0-9]+|[a-z])", r"\\sqrt{\1}"),
    (r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
    (r"\\varnothing|^no (?:real )?solutions?$|^(?:无解|空集|无实数解)$", r"\\emptyset "),
)
_REPLACED = tuple((re.compile(pattern), new) for pattern, new in _WORDS)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}|\{\\rm ([^{}]*)\}")
_AROUND = (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def given_answer(text: str) -> str:
    r"""What a completion gives as its answer: its last answer block, else its last `\boxed{}` after the thinking.

    In a block that holds a box, the box counts. Empty where there is neither.
    """
    if "</answer>" in text:
        block = extract_answer(text) or ""
        return boxed(block) if r"\boxed" in block else block
    return boxed(text.rpartition("</think>")[2])


def boxed(text: str) -> str:
    r"""The content of the last `\boxed{}`, with those that only "and", "or" or a comma parts from it; else empty."""
    found: list[str] = []
    after = None
    for box in list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))[:-21:-1]:
        start, end = box.end(), _closing(text, box.end())
        if end is None or (after and not re.fullmatch(r"[\s$,，、]*(?:and|or|和|或)?[\s$]*", text[end + 1 : after])):
            break
        found.insert(0, text[start:end])
        after = box.start()
    return ", ".join(dict.fromkeys(found))


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for brace in re.finditer(r"(?<!\\)[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    return None


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The text with one sign for each thing, in LaTeX, without marks around it and dots at its end."""
    text = "".join(map(_unfolded, text))
    text = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}".replace("−", "-"), text)
    text = _SIGN.sub(lambda sign: _SIGNS[sign[0]], fold(text))
    text = _bare(text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    return " ".join(text.split())


def without_text(text: str) -> str:
    r"""A tidy text with the words of its `\text{}` standing free."""
    return " ".join(_TEXT.sub(lambda words: f" {words[1] or words[2] or ''} ", text).split())


def _unfolded(character: str) -> str:
    if unicodedata.decomposition(character).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", character).replace("⁄", "/")
    return {"\N{DEGREE CELSIUS}": "°C", "！": "."}.get(character, character)  # "!" is a factorial, "！" is none


def _bare(text: str) -> str:
    for _ in range(4):
        before = text
        text = text.strip().rstrip(".,;").strip()
        for left, right in _AROUND:
            inside = text[len(left) : -len(right)]
            if len(text) >= len(left + right) and text.startswith(left) and text.endswith(right) and left not in inside:
                text = inside
        if text == before:
            break
    return text
