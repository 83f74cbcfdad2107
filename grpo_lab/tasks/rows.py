"""What the rows of every task share: their form, their split, and the prompt that asks for thinking.

A row is a plain dict: `prompt` is a list of chat messages, `answer` is the expected text, and every further key is a
column that reward functions receive by keyword. `datasets.Dataset.from_list(rows)` accepts them as they are.

Training and held-out problems are disjoint by construction: a hash of the problem itself decides its split, so no seed
and no number of problems can bring one into both.
"""

import hashlib
import re
from typing import Protocol, runtime_checkable

from grpo_lab.checks import check_choice

Row = dict  # {"prompt": list[dict[str, str]], "answer": str, ...}


@runtime_checkable
class Rows(Protocol):
    """What a list of dicts and a `datasets.Dataset` have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self, index): ...


SPLITS = ("train", "test")
TEST_SHARE = 0.1
THINK_SYSTEM_PROMPT = (
    "Solve the problem. First reason step by step between <think> and </think>, "
    "then give only the final answer between <answer> and </answer>."
)

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def split_of(*key: object) -> str:
    """The split, "train" or "test", that a problem belongs to; `key` is whatever identifies the problem."""
    digest = hashlib.blake2b(repr(key).encode("utf-8"), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def asking(question: str, system: str | None = None) -> list[dict[str, str]]:
    """The chat messages of a prompt: the user's question, after a system message if there is one."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": question}]


def has_thinking(text: str) -> bool:
    """Whether a response holds some reasoning: a think tag pair with more than white space between."""
    found = _THINK.search(text)
    return bool(found and found.group(1).strip())


def check_number(n: int, split: str, most: dict[str, int]) -> None:
    """Both arguments of a task that can make so many different problems of a split, and no more."""
    check_choice("split", split, SPLITS)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= most[split]:
        raise ValueError(f"n is {n!r}; it must be a whole number from 1 to {most[split]} for the split {split!r}")
