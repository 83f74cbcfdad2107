r"""Writing a mathematical text in one notation, LaTeX: "７½" becomes "7 1/2", and "$7\dfrac{1}{2}$." "7\frac{1}{2}"."""

import re
import unicodedata
from functools import lru_cache

from grpo_lab.rewards.text import nfkc_text

# Characters that have the same meaning as an ASCII character or a LaTeX command.
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
# The replacement of each pattern, applied in this order.
_REWRITES = {
    # Code marks, bold type and quotation marks around the whole text.
    r"^\s*```[a-z]+ (.*)```\s*$": r" \1 ",
    r"^\s*(`{1,3}|[*_]{1,3}|['\"])(.*)\1\s*$": r" \2 ",
    r"^\s*[“‘「『«„‹](.*)[”’」』»“›]\s*$": r" \1 ",
    # Commands that concern only the look of a formula.
    r"\\displaystyle(?![a-z])": " ",
    r"\\(?:left|right)(?![a-z])\.?|\\!": "",
    r"\^\s*\{?\s*\\(?:top|intercal|(?:mathsf|mathrm|text) ?\{ ?T ?\})(?![a-z])\s*\}?": "^T",
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|underline|textcolor ?\{\w+\})\s*\{([^{}]*)\}": r" \1 ",
    # Brackets, spaces and dollar signs.
    r"\\langle(?![a-z])": "(",
    r"\\rangle(?![a-z])": ")",
    r"\+/-": r"\\pm ",
    r"\\[()\[\]]|\$\$|\\[,;: ]|~|\\q?quad(?![a-z])": " ",
    r"^\s*\*\*(.*?)\*\*\s*$|\$([^$]+)\$": r" \1\2 ",
    # Numbers, fractions, signs and units.
    r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))": "",
    r"\{,\}": ",",
    r"\\[dtc]frac": r"\\frac",
    r"\{\s*([+-])\s+(?=[0-9])": r"{\1",
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\})": "°",
    r"\\%|\s*\b(?:per ?cent|pct)\b": "%",
    r"\\\$": "$",
    r"\*\*": "^",
    r"^\s*(?:负|零下|(?i:minus|negative) (?=[0-9$]))": "-",
    # Words that have a command.
    rf"{_WORD_START}(pi|log|ln|sin|cos|tan)(?![a-zA-Z])": r"\\\1 ",
    rf"(?:√|{_WORD_START}sqrt)\s*\(([^()]*)\)|√\s*([0-9]+|[a-z])": r"\\sqrt{\1\2}",
    rf"{_WORD_START}oo(?![a-zA-Z])": r"\\infty ",
    r"\\varnothing|^\s*no (?:real )?solutions?\s*$|^\s*(?:无解|空集)\s*$": r"\\emptyset ",
}


@lru_cache(maxsize=4096)
def normalise_notation(text: str) -> str:
    """Return a text in one notation, LaTeX, without quotation marks around it and full stops at its end."""
    text = _MIXED_NUMBER_GAP.sub(" ", text)
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}".replace("−", "-"), text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = nfkc_text(text.translate(_SIGNS)).rstrip(" .,;")
    if r"\begin{" in text:
        text = _COLUMN_FORMAT.sub(lambda columns: re.sub(r"[|\s]", "", columns[0]), text)
        text = _ROW_END_PATTERN.sub(lambda end: "" if "hline" in end[0] else _ROW_END, text)
        text = text.replace("{smallmatrix}", "{matrix}")
    for pattern, replacement in _REWRITES.items():
        text = re.sub(pattern, replacement, text)
    return " ".join(text.replace(_ROW_END, r" \\ ").split()).rstrip(" .,;")
