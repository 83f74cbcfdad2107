"""Right answers to the exercises of notebook 06, each written differently; the check has to accept them all."""

import re
from fractions import Fraction

from grpo_lab.rewards import completion_text, extract_answer, normalise_text

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def fault_by_tags_found(text):
    found = re.findall(r"</?(?:think|answer)>", text)
    if set(found) != set(TAGS):
        return "missing tag"
    if len(found) > 4:
        return "repeated tag"
    if found != list(TAGS):
        return "wrong order"
    before, _, rest = text.partition(TAGS[0])
    between = rest.partition(TAGS[1])[2].partition(TAGS[2])[0]
    after = text.partition(TAGS[3])[2]
    return "text outside" if (before + between + after).strip() else None


def fault_by_splitting(text):
    pieces = re.split(r"(<think>|</think>|<answer>|</answer>)", text)
    tags, outside = pieces[1::2], pieces[0::4]
    for tag in TAGS:
        if tag not in tags:
            return "missing tag"
    if len(tags) != len(TAGS):
        return "repeated tag"
    if any(a != b for a, b in zip(tags, TAGS, strict=True)):
        return "wrong order"
    return "text outside" if any(piece.strip() for piece in outside) else None


def extract_by_partition(text):
    head, closing, _ = text.rpartition("</answer>")
    while closing:
        _, opening, inside = head.rpartition("<answer>")
        if opening and "</answer>" not in inside:
            return inside.strip() or None
        head, closing, _ = head.rpartition("</answer>")
    return None


def extract_by_walking(text):
    answer, start = None, None
    for found in re.finditer(r"</?answer>", text):
        if found[0] == "<answer>":
            start = found.end()
        elif start is not None:
            answer, start = text[start : found.start()], None
    return None if answer is None or answer.isspace() or not answer else answer.strip()


def accuracy_in_columns(completions, answer, **kwargs):
    given = [extract_answer(completion_text(y)) for y in completions]
    given = [None if g is None else normalise_text(g) for g in given]
    expected = [None if a is None else normalise_text(f"{a}") for a in answer]
    return [None if a is None else float(g == a) for g, a in zip(given, expected, strict=True)]


def accuracy_by_index(completions, answer, **kwargs):
    def one(row):
        found = extract_answer(completion_text(completions[row]))
        return int(found is not None and normalise_text(found) == normalise_text(str(answer[row])))

    return [one(row) if answer[row] is not None else None for row in range(len(completions))]


def graded_by_steps(completions, answer, **kwargs):
    rewards = [None if a is None else 0.01 for a in answer]
    for row, (y, a) in enumerate(zip(completions, answer, strict=True)):
        found = extract_answer(completion_text(y))
        if found is None or a is None or not normalise_text(str(a)):
            continue
        found, expected = normalise_text(found), normalise_text(str(a))
        if found.find(expected) >= 0:
            rewards[row] = 0.5
        if found == expected:
            rewards[row] = 1
    return rewards


def graded_by_table(completions, answer, **kwargs):
    def grade(y, a):
        given = normalise_text(extract_answer(completion_text(y)) or "")
        return (0.01, 0.5, 1.0)[bool(a) and (a in given) + (a == given)]

    return [
        None if a is None else grade(y, normalise_text(str(a))) for y, a in zip(completions, answer, strict=True)
    ]  # fmt: skip


def number_by_error(given, expected):
    """Fraction reads a little more than asked for; its letters are looked at first."""
    texts = normalise_text(given), normalise_text(expected)
    if any(set(text) - set("-./0123456789") for text in texts):
        return False
    try:
        return Fraction(texts[0]) == Fraction(texts[1])
    except (ValueError, ZeroDivisionError):
        return False


def number_by_whole_numbers(given, expected):
    """Numerator and denominator as ints, then cross-multiplied."""

    def parts(text):
        found = re.fullmatch(r"(-?)(\d*)(?:\.(\d*)|/(\d+))?", normalise_text(text))
        if not found or not (found[2] or found[3]) or (found[4] and not int(found[4])):
            return None
        decimals = found[3] or ""
        top = int(found[2] + decimals or 0) * (-1 if found[1] else 1)
        return top, int(found[4]) if found[4] else 10 ** len(decimals)

    a, b = parts(given), parts(expected)
    return a is not None and b is not None and a[0] * b[1] == b[0] * a[1]


RIGHT = {
    "format_fault": (fault_by_tags_found, fault_by_splitting),
    "extract_answer": (extract_by_partition, extract_by_walking),
    "accuracy_reward": (accuracy_in_columns, accuracy_by_index),
    "graded_reward": (graded_by_steps, graded_by_table),
    "same_number": (number_by_error, number_by_whole_numbers),
}
