"""The number that a running text gives as its answer, such as "It is $9,500." or "so 2 1/2 cups"."""

import re

from grpo_lab.rewards.mathematics.extraction import extract_final_answer, is_answer_cut_off
from grpo_lab.rewards.mathematics.notation import normalise_notation
from grpo_lab.rewards.mathematics.quantities import CURRENCY_SIGNS, parse_quantity, with_plain_numbers
from grpo_lab.rewards.text import MAX_ANSWER_LENGTH, after_thinking

_MARKUP = re.compile(r"(?<![0-9a-zA-Z)])(?:\*\*|__)|(?:\*\*|__)(?![0-9a-zA-Z(])|`")
# Text before a number that is only a part of an expression, such as a root or a logarithm.
_EXPRESSION_BEFORE = re.compile(r"\\(?:sqrt|overline|ln|log|sin|cos|tan)(?: ?_\S+)? *[{(]?$|[a-zA-Z})] ?/ ?$")
# A number in a running text that is not an index, an exponent or a part of another number.
_NUMBER_IN_TEXT = re.compile(
    r"(?<![0-9.])(?<![\^_])(?<![\^_][+{-])(?<![\^_]\{[+-])"
    rf"(?P<number>[+-]?(?:[{CURRENCY_SIGNS}] ?[+-]?)?(?:"
    r"[0-9]*\.[0-9]*+(?:\\overline ?\{ ?[0-9]+ ?\}|\([0-9]+\))"
    r"|(?:[0-9]++(?: ?又 ?| ))?+[0-9]++(?: ?/ ?|:)[+-]?0*[1-9][0-9]*+"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?+|\.[0-9]++)"
    r"(?: ?[%‰])?)"
    # A continuation that changes the number, or makes it a part of an expression.
    r"(?P<continuation>\.[0-9]|[eE][+-]?[0-9]| ?[/^:] ?[({+-]*[0-9]| ?\\(?:pi|sqrt)|\.?\\overline"
    r"|(?:k|(?-i:M)| ?[mb]n)\b|(?<=\b0)x[0-9a-f]+\b"
    r"| ?(?:[万亿百]|千(?![米克])|(?:hundred|thousand|dozen|[a-z]{1,5}illion)s?\b))?",
    re.IGNORECASE,
)


def last_number(text: str) -> str:
    """Return the number that a text gives as its answer, without its unit: "-3", "1000", "1/2"; "" without a number.

    If the answer block, the box or the whole text is a number, this number is returned. Otherwise it is the last number
    of the text. If the last number is a part of an expression (2^10, 5 million) or has no value (1/0), the result is
    "". It is also "" if the text was cut off in its thinking, in a box, or in an answer block after another one.
    """
    text = after_thinking(text)
    # A single answer tag that is not closed is ignored: the number is then read from the text.
    if is_answer_cut_off(text) and re.search(r"</answer>|\\boxed", text):
        return ""
    if parse_quantity(answer := normalise_notation(extract_final_answer(text) or text[: MAX_ANSWER_LENGTH + 1])):
        if not re.search("[0-9]", answer):  # a number in Chinese words, such as 三十
            return answer
        text = answer
    text = _normalise_running_text(text)
    *_, last = [None, *(match for match in _NUMBER_IN_TEXT.finditer(text) if not _is_in_word(match))]
    if last is None or last["continuation"] or _EXPRESSION_BEFORE.search(text[: last.start()]):
        return ""
    preceding = text[: last.start()].rstrip()[-1:]
    is_operation = preceding.isdigit() or preceding in tuple(")]}%")
    number = last["number"].lstrip("+-") if is_operation else last["number"]
    # 2 3/2 is not a mixed number: then the number is 3/2.
    return number if parse_quantity(number) else number.rpartition(" ")[2]


def _is_in_word(match: re.Match) -> bool:
    """Return True if a number has letters on both sides, such as the 2 of H2O."""
    preceding, following = match.string[: match.start()], match.string[match.end() :]
    is_followed = following[:1].isascii() and following[:1].isalpha()
    return is_followed and bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z]+$", preceding[-20:]))


def _normalise_running_text(text: str) -> str:
    """Return a running text in the notation of `normalise_notation`, with plain numbers.

    In a running text, unlike in an answer, a dash may separate words, ** marks bold type, and a full-width comma
    separates numbers.
    """
    text = _MARKUP.sub(" ", text.replace("—", " , ").replace("，", ", "))
    text = re.sub("(?:负|零下|(?i:\\bminus|\\bnegative) )(?=[0-9$])", "-", text)
    return with_plain_numbers(normalise_notation.__wrapped__(text))  # not cached, since few running texts are repeated
