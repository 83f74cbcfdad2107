"""Right answers to the exercises of notebook 06."""

import re

from grpo_lab.rewards import accuracy_reward, completion_text, extract_answer, format_fault, normalise_text

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def fault_by_tags_found(text):
    tags = re.findall(r"</?(?:think|answer)>", text)
    if set(tags) != set(TAGS):
        return "missing tag"
    if len(tags) > 4:
        return "repeated tag"
    if tags != list(TAGS):
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
    answers = [extract_answer(completion_text(y)) for y in completions]
    answers = [None if g is None else normalise_text(g) for g in answers]
    expected = [None if a is None else normalise_text(f"{a}") for a in answer]
    return [None if a is None else float(g == a) for g, a in zip(answers, expected, strict=True)]


def short_and_right(completions, answer, **kwargs):
    """Reward 1 for a right answer in a short completion, and 0 for everything else."""
    right = accuracy_reward(completions, [a or None for a in answer])
    return [None if r is None else float(r == 1 and len(y) < 400) for r, y in zip(right, completions, strict=True)]


def right_and_a_little_for_the_rest(completions, answer, **kwargs):
    """Reward the answer and a little the form, and subtract in proportion to the length above a limit."""
    rewards = []
    for text, expected in zip(completions, answer, strict=True):
        block = extract_answer(text)
        right = (
            bool(expected and expected.strip())
            and block is not None
            and block.replace(",", "") == expected.replace(",", "")
        )
        too_long = max(len(text) - 200, 0) / 4000
        rewards.append(2.0 * right * (1 - too_long) + 0.001 * (format_fault(text) is None))
    return rewards


RIGHT = {
    "format_fault": (fault_by_tags_found,),
    "extract_answer": (extract_by_partition,),
    "accuracy_reward": (accuracy_in_columns,),
    "design_reward": (short_and_right, right_and_a_little_for_the_rest),
}
