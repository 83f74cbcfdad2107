"""Rows of tasks: their form, their split, the prompt that asks for thinking, and files of them.

A row is a plain dict: `prompt` is a list of chat messages, or a text where the model is to get it without a chat
template; `answer` is the expected text, and every further key is a column that reward functions receive by keyword. A
hash of the problem itself decides its split, so no seed and no number of problems can bring one into both.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.tasks.lazy_rows import LazyRows

Row = dict  # {"prompt": list[dict[str, str]], "answer": str, ...}


@runtime_checkable
class Rows(Protocol):
    """The interface that a list of dicts shares with a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index): ...

    if TYPE_CHECKING:  # indices are enough for Python to go through them

        def __iter__(self) -> Iterator[dict]: ...


SPLITS = ("train", "test")
TEST_SHARE = 0.1
THINK_SYSTEM_PROMPT = (
    "Solve the problem. First reason step by step between <think> and </think>, "
    "then give only the final answer between <answer> and </answer>."
)
# The same in Chinese. A fraction is named since accuracy is exact: 2/3 is not 0.67.
THINK_SYSTEM_PROMPT_ZH = (
    "请解答下面的问题。先在<think>和</think>之间一步一步地思考，"
    "再在<answer>和</answer>之间给出最后的答案，请只输出数字，不带单位；除不尽时写成分数，例如2/3。"
)
_THINK_TAGS = re.compile(r"<think>(.*?)</think>", re.DOTALL)
THINK_SYSTEM_PROMPTS = {"en": THINK_SYSTEM_PROMPT, "zh": THINK_SYSTEM_PROMPT_ZH}


def split_of(*key: object, test_share: float = TEST_SHARE) -> str:
    """The split, "train" or "test", that a problem belongs to; `key` is whatever identifies the problem."""
    return split_of_hash(hash_of(*key), test_share)


def hash_of(*key: object) -> int:
    """A number below 2**64 that is the same in every process; two of a million keys share one with odds of 1e-8."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode("utf-8"), digest_size=8).digest(), "big")


def split_of_hash(number: int, test_share: float = TEST_SHARE) -> str:
    """The split of what has this hash."""
    return "test" if number < test_share * 2**64 else "train"


def chat_messages(
    question: str, system: str | None = None, example: tuple[str, str] | None = None
) -> list[dict[str, str]]:
    """The chat messages of a prompt: the user's question, after a system message and an example with its answer."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    if example is not None:
        example_turns = zip(("user", "assistant"), example, strict=True)
        messages += [{"role": role, "content": content} for role, content in example_turns]
    return [*messages, {"role": "user", "content": question}]


def mapped(rows: Iterable[Row], change: Callable[[Row], Row]) -> Sequence[Row]:
    """The rows as `change` makes them: each when it is accessed, where the rows are made then, else in a list."""
    return rows.map(change) if isinstance(rows, LazyRows) else [change(row) for row in rows]


def with_system(rows: Iterable[Row], system: str | None, replace: bool = False) -> Sequence[Row]:
    """The rows with this system message in front of each prompt that has none; of every prompt if `replace`.

    None adds nothing, and with `replace` takes away what there is.
    """
    system_messages = [] if system is None else [{"role": "system", "content": system}]

    def prefixed(messages: list[dict[str, str]]) -> list[dict[str, str]]:
        has_system = messages[0]["role"] == "system"
        return messages if has_system and not replace else system_messages + messages[has_system:]

    if system is None and not replace:
        return rows if isinstance(rows, LazyRows) else list(rows)
    return mapped(rows, lambda row: row | {"prompt": prefixed(row["prompt"])})


def as_text(prompt: list[dict[str, str]] | str) -> str:
    """A prompt without a chat template: what its messages say, with an empty line between them."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)


def in_parts(rows: Rows, size: int) -> Iterator[list[Row]]:
    """Cut rows into lists of `size`, in their order; the last one may be smaller."""
    for start in range(0, len(rows), size):
        yield [rows[index] for index in range(start, min(start + size, len(rows)))]


def has_thinking(text: str) -> bool:
    """Look in a response for reasoning: a pair of think tags with more than white space between."""
    reasoning = _THINK_TAGS.search(text)
    return bool(reasoning and reasoning[1].strip())


def check_number(n: int, split: str, limits: dict[str, int]) -> None:
    """Check `split`, and that it has `n` different problems; `limits` says how many a split has at most."""
    check_choice("split", split, SPLITS)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= limits[split]:
        raise InputError("n", n, f"it must be a whole number from 1 to {limits[split]} for the split {split!r}")


def json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """The value of each line of a file with the line's number, from 1; empty lines are passed over."""
    for number, value in parsed_lines(file):
        if isinstance(value, InputError):
            raise value
        yield number, value


def parsed_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """The value of each line with its number, as `json_lines` has it; an InputError in place of what is no JSON."""
    for number, line in decoded_lines(file):
        if isinstance(line, InputError):
            yield number, line
        elif text := line.strip():
            try:
                yield number, checked_json(json.loads(text))
            except (ValueError, RecursionError) as error:
                yield number, _no_json(file, number, error, line.encode("utf-8", "replace"))


def decoded_lines(file: Path) -> Iterator[tuple[int, str | InputError]]:
    """Each line of a file in UTF-8 with its number and its end; an InputError in place of what is no UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except ValueError as error:
                yield number, _no_json(file, number, error, line)


def checked_json(value: Any) -> Any:
    """The value, unless it is no JSON: a NaN, or half a letter, such as "\\ud83d", which has no bytes."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return value


def _no_json(file: Path, number: int, error: Exception, line: bytes) -> InputError:
    form = "UTF-8" if file.suffix in (".csv", ".tsv") else "JSON in UTF-8"
    refusal = InputError(
        f"{file.name}, line {number}", found=f"is no {form}: {getattr(error, 'msg', error)}, {line[:60]!r}"
    )
    refusal.__cause__ = error
    return refusal
