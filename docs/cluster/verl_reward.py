"""Define grpo_lab's `accuracy_reward` for verl: for one completion, in one file, with the standard library alone.

verl 0.9.1 needs transformers below 5.11, and grpo_lab needs 5.17 or later, so they cannot be installed together. Set
`reward.custom_reward_function.path=docs/cluster/verl_reward.py` in verl. A test compares this reward with
`grpo_lab.rewards.accuracy_reward`.
"""

import re
import unicodedata

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """Return 1.0 if the last answer block of a completion holds the expected text, else 0.0.

    Args:
        data_source: Column of verl's data that this reward does not read.
        solution_str: The decoded completion.
        ground_truth: The expected text, which is the column `answer` of grpo_lab's problems.
        extra_info: Column of verl's data that this reward does not read.
    """
    blocks = _ANSWER.findall(solution_str)
    answer = normalise_text(blocks[-1]) if blocks else ""
    return float(answer != "" and answer == normalise_text(str(ground_truth)))


def normalise_text(text: str) -> str:
    """Return the text in the form that is compared: NFKC, single spaces, no commas between thousands."""
    excluded = ("<super>", "<sub>", "<fraction>")  # decompositions not applied: 10² is not 102, 2½ is not 21/2
    letters = (
        x if unicodedata.decomposition(x).startswith(excluded) else unicodedata.normalize("NFKC", x) for x in text
    )
    normalised = " ".join(unicodedata.normalize("NFC", "".join(letters)).split())
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), normalised)
