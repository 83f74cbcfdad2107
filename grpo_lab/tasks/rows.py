"""Rows of tasks: their form, their splits, the messages and system prompts of their prompts, and rows in packed form.

A row is a plain dict. `prompt` is a list of chat messages, or a text if the model gets it without a chat template.
`answer` is the expected text, and every further key is a column that reward functions receive as a keyword argument. A
hash of the problem decides its split, so for any seeds and numbers of problems no problem is in both splits.

Of a large file, rows are made on access from packed values, so that 100,000 short rows take a few megabytes.
"""

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from grpo_lab.base.checks import InputError, check_choice

Row = dict  # {"prompt": list[dict[str, str]], "answer": str, ...}, as above


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


def check_problem_count(n: int, split: str, limits: dict[str, int]) -> None:
    """Raise InputError for an unknown split, or unless `n` is a whole number from 1 to the limit of the split.

    limits: The largest `n` of each split.
    """
    check_choice("split", split, SPLITS)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= limits[split]:
        raise InputError("n", n, f"it must be a whole number from 1 to {limits[split]} for the split {split!r}")


def chat_messages(
    question: str, system: str | None = None, example: tuple[str, str] | None = None
) -> list[dict[str, str]]:
    """Return the chat messages of a prompt: a system message, an example with its answer, and the user's question."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    if example is not None:
        example_turns = zip(("user", "assistant"), example, strict=True)
        messages += [{"role": role, "content": content} for role, content in example_turns]
    return [*messages, {"role": "user", "content": question}]


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


def has_thinking(text: str) -> bool:
    """Return True if a response has a pair of think tags with more than white space between them."""
    reasoning = _THINK_TAGS.search(text)
    return bool(reasoning and reasoning[1].strip())


def in_parts(rows: Rows, size: int) -> Iterator[list[Row]]:
    """Yield the rows in lists of `size` rows, in their order; the last list may be shorter."""
    for start in range(0, len(rows), size):
        yield [rows[index] for index in range(start, min(start + size, len(rows)))]


def mapped(rows: Iterable[Row], change: Callable[[Row], Row]) -> Sequence[Row]:
    """Apply `change` to each row; lazy rows stay lazy, all other rows become a list."""
    return rows.map(change) if isinstance(rows, LazyRows) else [change(row) for row in rows]


class LazyRows(Sequence):
    """A sequence of rows that are made again at each access, as in a `datasets.Dataset`; changes to a row are lost.

    Slices are lazy, too. `[*rows]` makes a list.

    keys: The key of each row.
    make: A function that returns the row of a key.
    """

    def __init__(self, keys: Sequence[int], make: Callable[[int], Row]):
        self._keys, self._make = keys, make

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index):
        return LazyRows(self._keys[index], self._make) if isinstance(index, slice) else self._make(self._keys[index])

    def __iter__(self):
        return map(self._make, self._keys)

    def __eq__(self, other) -> bool:
        is_sequence = isinstance(other, Sequence) and len(self) == len(other)
        return is_sequence and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[Row]) -> list[Row]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Row]) -> list[Row]:
        return [*other, *self]

    def __repr__(self) -> str:
        beginning = repr([*self[:1]])[:-1]
        return f"{beginning}, ...]" if len(self) > 1 else f"{beginning}]"

    def map(self, change: Callable[[Row], Row]) -> "LazyRows":
        """Return lazy rows to which `change` is applied on access."""
        make = self._make
        return LazyRows(self._keys, lambda key: change(make(key)))


class Table:
    """Rows with the same columns, stored by column, and the location of each row in its file."""

    def __init__(self):
        self.columns: dict[str, Column] = {}
        self.locations = Locations()

    def __len__(self) -> int:
        return len(self.locations)

    def append(self, location: str, row: Row) -> None:
        if not self.columns:
            self.columns = {name: Column() for name in row}
        self.locations.append(location)
        for name, column in self.columns.items():  # the row may have its columns in another order
            column.append(row[name])

    def row(self, index: int) -> Row:
        return {name: column[index] for name, column in self.columns.items()}


def row_with_messages(table: Table, index: int) -> Row:
    """Return a row of a table with its prompt as chat messages; a prompt that is a text becomes the user's message."""
    row = table.row(index)
    if isinstance(prompt := row["prompt"], str):
        row["prompt"] = chat_messages(prompt)
    return row


class Column(Sequence):
    """A sequence to which values can be appended, stored in one buffer as long as all of them are strings."""

    def __init__(self):
        self._buffer, self._ends = bytearray(), array("q", [0])
        self._values: list | None = None  # replaces the buffer after the first value that is not a string

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._values is None else len(self._values)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if self._values is not None:
            return self._values[index]
        return self._buffer[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")

    def append(self, value: Any) -> None:
        if self._values is None and type(value) is str:
            self._buffer += value.encode("utf-8", "surrogatepass")
            self._ends.append(len(self._buffer))
            return
        if self._values is None:
            self._values = [self[index] for index in range(len(self))]
            self._buffer, self._ends = bytearray(), array("q")
        self._values.append(value)


class Locations(Sequence):
    """A sequence of the locations of rows, such as "mine.csv, line 7".

    The number at the end is stored for each row, the text before it once for each run of rows that share it.
    """

    def __init__(self):
        self._numbers = array("q")
        self._texts: list[str] = []
        self._starts: list[int] = []  # index of the first row of each run

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return f"{self._texts[bisect_right(self._starts, index) - 1]} {self._numbers[index]}"

    def append(self, location: str) -> None:
        """Append the location of a row, which has to end with a space and a number."""
        text, _, number = location.rpartition(" ")
        if not self._texts or self._texts[-1] != text:
            self._texts.append(text)
            self._starts.append(len(self._numbers))
        self._numbers.append(int(number))
