"""A reward for verl in one file, with the standard library alone: grpo_lab's `accuracy_reward`, for one completion.

verl 0.9.1 needs transformers below 5.11 and grpo_lab 5.17 or later, so the two are not installed together. Where verl
runs, name this file: `reward.custom_reward_function.path=docs/cluster/verl_reward.py`. A test compares it with
`grpo_lab.rewards.accuracy_reward`.
"""

import re
import unicodedata

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """1.0 if the last answer block of a completion holds the expected text, else 0.0.

    data_source, extra_info: columns of verl's data, which this reward does not read.
    solution_str: the completion, decoded.
    ground_truth: the expected text, the column `answer` of grpo_lab's problems.
    """
    blocks = _ANSWER.findall(solution_str)
    answer = normalise_text(blocks[-1]) if blocks else ""
    return float(answer != "" and answer == normalise_text(str(ground_truth)))


def normalise_text(text: str) -> str:
    """The form in which two texts are compared: NFKC, single spaces, no commas between thousands."""
    apart = ("<super>", "<sub>", "<fraction>")  # 10² is not 102, and 2½ is not 21/2
    letters = (x if unicodedata.decomposition(x).startswith(apart) else unicodedata.normalize("NFKC", x) for x in text)
    folded = " ".join(unicodedata.normalize("NFC", "".join(letters)).split())
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), folded)
