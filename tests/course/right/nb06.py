"""Right answers to the exercises of notebook 06, each written differently; the check has to accept them all."""

import re

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


def extract_by_partition(text):
    head, closing, _ = text.rpartition("</answer>")
    while closing:
        _, opening, inside = head.rpartition("<answer>")
        if opening and "</answer>" not in inside:
            return inside.strip() or None
        head, closing, _ = head.rpartition("</answer>")
    return None


def accuracy_in_columns(completions, answer, **kwargs):
    given = [extract_answer(completion_text(y)) for y in completions]
    given = [None if g is None else normalise_text(g) for g in given]
    expected = [None if a is None else normalise_text(f"{a}") for a in answer]
    return [None if a is None else float(g == a) for g, a in zip(given, expected, strict=True)]


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


RIGHT = {
    "format_fault": (fault_by_tags_found,),
    "extract_answer": (extract_by_partition,),
    "accuracy_reward": (accuracy_in_columns,),
    "graded_reward": (graded_by_steps,),
}
