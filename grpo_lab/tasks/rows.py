"""Rows of tasks: their form, their splits, and the messages and system prompts of their prompts.

A row is a plain dict. `prompt` is a list of chat messages, or a text if the model gets it without a chat template.
`answer` is the expected text, and every further key is a column that reward functions receive as a keyword argument. A
hash of the problem decides its split, so for any seeds and numbers of problems no problem is in both splits.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.tasks.lazy_rows import LazyRows, Row, Table


@runtime_checkable
class Rows(Protocol):
    """The interface that a list of dicts shares with a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index): ...

    if TYPE_CHECKING:  # at run time, __getitem__ is enough to iterate

        def __iter__(self) -> Iterator[dict]: ...


SPLITS = ("train", "test")
TEST_SHARE = 0.1
THINK_SYSTEM_PROMPT = (
    "Solve the problem. First reason step by step between <think> and </think>, "
    "then give only the final answer between <answer> and </answer>."
)
# The system prompt in Chinese. It asks for fractions, because answers are compared exactly: 2/3 is not 0.67.
THINK_SYSTEM_PROMPT_ZH = (
    "请解答下面的问题。先在<think>和</think>之间一步一步地思考，"
    "再在<answer>和</answer>之间给出最后的答案，请只输出数字，不带单位；除不尽时写成分数，例如2/3。"
)
THINK_SYSTEM_PROMPTS = {"en": THINK_SYSTEM_PROMPT, "zh": THINK_SYSTEM_PROMPT_ZH}
_THINK_TAGS = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def split_of(*key: object, test_share: float = TEST_SHARE) -> str:
    """Return the split of a problem, "train" or "test".

    key: Values that identify the problem.
    test_share: The probability of the split "test".
    """
    return split_of_hash(hash_of(*key), test_share)


def hash_of(*key: object) -> int:
    """Return a hash below 2**64, the same in every process; a million keys have a collision with probability 3e-8."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode("utf-8"), digest_size=8).digest(), "big")


def split_of_hash(number: int, test_share: float = TEST_SHARE) -> str:
    """Return the split of a problem with this hash, "train" or "test"."""
    return "test" if number < test_share * 2**64 else "train"


def chat_messages(
    question: str, system: str | None = None, example: tuple[str, str] | None = None
) -> list[dict[str, str]]:
    """Return the chat messages of a prompt: a system message, an example with its answer, and the user's question."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    if example is not None:
        example_turns = zip(("user", "assistant"), example, strict=True)
        messages += [{"role": role, "content": content} for role, content in example_turns]
    return [*messages, {"role": "user", "content": question}]


def row_with_messages(table: Table, index: int) -> Row:
    """Return a row of a table with its prompt as chat messages; a prompt that is a text becomes the user's message."""
    row = table.row(index)
    if isinstance(prompt := row["prompt"], str):
        row["prompt"] = chat_messages(prompt)
    return row


def mapped(rows: Iterable[Row], change: Callable[[Row], Row]) -> Sequence[Row]:
    """Apply `change` to each row; lazy rows stay lazy, all other rows become a list."""
    return rows.map(change) if isinstance(rows, LazyRows) else [change(row) for row in rows]


def with_system(rows: Iterable[Row], system: str | None, replace: bool = False) -> Sequence[Row]:
    """Return the rows with a system message in front of each prompt.

    rows: Rows whose prompts are lists of chat messages.
    system: The system message; None adds none.
    replace: Whether a prompt's own system message is replaced, or removed if `system` is None; otherwise it is kept.
    """
    system_messages = [] if system is None else [{"role": "system", "content": system}]

    def prefixed(messages: list[dict[str, str]]) -> list[dict[str, str]]:
        has_system = messages[0]["role"] == "system"
        return messages if has_system and not replace else system_messages + messages[has_system:]

    if system is None and not replace:
        return rows if isinstance(rows, LazyRows) else list(rows)
    return mapped(rows, lambda row: row | {"prompt": prefixed(row["prompt"])})


def as_text(prompt: list[dict[str, str]] | str) -> str:
    """Return a prompt as plain text without a chat template: the contents of its messages, separated by empty lines."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)


def in_parts(rows: Rows, size: int) -> Iterator[list[Row]]:
    """Yield the rows in lists of `size` rows, in their order; the last list may be shorter."""
    for start in range(0, len(rows), size):
        yield [rows[index] for index in range(start, min(start + size, len(rows)))]


def has_thinking(text: str) -> bool:
    """Return True if a response has a pair of think tags with more than white space between them."""
    reasoning = _THINK_TAGS.search(text)
    return bool(reasoning and reasoning[1].strip())


def check_problem_count(n: int, split: str, limits: dict[str, int]) -> None:
    """Raise InputError for an unknown split, or unless `n` is a whole number from 1 to the limit of the split.

    limits: The largest `n` of each split.
    """
    check_choice("split", split, SPLITS)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= limits[split]:
        raise InputError("n", n, f"it must be a whole number from 1 to {limits[split]} for the split {split!r}")
