r"""A final number that may be given in other ways than asked for: full reward between answer tags, half elsewhere.

Where nearly every answer of an untrained model is right and nearly none is between tags, an all-or-nothing reward sees
a wall of zeros, and groups of equal rewards teach nothing. Half a reward makes them differ, and the tags still pay.

Where it departs from the usual code, on purpose: the number has to be claimed as the answer, in one of a few forms,
and all claims have to agree. The last number of a text, wherever it stands, is no answer, and nor is a list of guesses.
"""

import re
from typing import Any

from grpo_lab.rewards.exact import number_reward, same_number
from grpo_lab.rewards.text import completion_text, expected_texts, extract_answer, fold

OTHERWISE = 0.5  # for a right number in another form than asked for
_NUMBER = r"[-+\N{MINUS SIGN}]?[$€£¥]?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?"
_END = r"(?![0-9])(?P<rest>[^\n]*)"
# "#### 5" as in GSM8K, "The answer is 5.", "Answer: **$5**", "答案是5。", "\boxed{5}".
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"####\s*(?P<number>{_NUMBER}){_END}",
        rf"\banswer\b[*_]*(?:\s+is\b|\s*=|\s*:)[\s:*_$]*(?P<number>{_NUMBER}){_END}",
        rf"答案(?:是|为|等于|[:=])[\s:*_$]*(?P<number>{_NUMBER}){_END}",
        rf"\\boxed\{{\s*(?P<number>{_NUMBER})(?P<rest>[^{{}}]*)\}}",
    )
)
_ALONE = re.compile(rf"(?P<before>[^0-9]*?)(?P<number>{_NUMBER}){_END}")
_SENTENCE = re.compile(r"[.!?](?:\s|$)|[。！？]")
_MORE = re.compile(
    r"[0-9%]|percent|百分|\bnot?\b|n't\b|不", re.IGNORECASE
)  # beside a number: another one, a percentage, a denial


def final_answer_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the last answer block is the expected number; half of it for the number in another clear form; else 0.0.

    The other forms are "#### 5", "The answer is 5." or "Answer: 5", "答案是5。" and `\boxed{5}`, after the thinking;
    and an answer block that holds the number among words. All numbers that are claimed have to be the expected one.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected numbers as texts or ints, one a completion. The reward does not apply (None) where it is
            None.
        kwargs: other columns, unused.

    Raises:
        ValueError: if an expected text is no number; the message names the row.
    """
    expected = expected_texts("final_answer_reward", completions, answer)
    rewards = number_reward(completions, expected)
    for row, (y, a) in enumerate(zip(completions, expected, strict=True)):
        if rewards[row] == 0 and _claimed(completion_text(y), a):
            rewards[row] = OTHERWISE
    return rewards


def _claimed(text: str, expected: str) -> bool:
    """Whether the text claims a number as its answer, and no other than the expected one."""
    claims = _claims(text)
    return bool(claims) and all(same_number(claim, expected) for claim in claims)


def _claims(text: str) -> list[str]:
    """What is claimed after the thinking; a claim with more beside it than words, such as "5 or 6", is empty."""
    said = text.rpartition("</think>")[2].partition("<think>")[0]
    claims = [_claim(found) for form in _FORMS for found in form.finditer("\n".join(map(fold, said.splitlines())))]
    if block := fold(extract_answer(text) or ""):
        found = _ALONE.match(block)
        claims.append(_claim(found) if found else "")
    return claims


def _claim(found: re.Match) -> str:
    beside = found.groupdict().get("before", "") + _SENTENCE.split(found["rest"])[0]
    return "" if _MORE.search(beside) else re.sub("[$€£¥]", "", found["number"].rstrip(","))
