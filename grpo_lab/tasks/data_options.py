"""How data of one's own is read: which configuration and split, which columns, and the text of the prompt."""

import string
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from grpo_lab.base.checks import InputError

EXAMPLE = '{"prompt": "6 * 7 = ?", "answer": "42"}'


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How data of one's own is read; None is what is usual.

    dataset_config: the configuration of a data set of the hub, or the name of a folder in the folder.
    dataset_split: "train" if None; of a folder, the files whose names begin with it.
    dataset_test_split: the split that is held out.
    prompt_column: "prompt" if None. answer_column: "answer" if None. Rewards get both under these names, too.
    prompt_template: the prompt as a text with names of columns, such as "{question} Answer:"; {{ is a brace.
    """

    dataset_config: str | None = None
    dataset_split: str | None = None
    dataset_test_split: str | None = None
    prompt_column: str | None = None
    answer_column: str | None = None
    prompt_template: str | None = None

    def __post_init__(self):
        for name in DATA_OPTION_NAMES:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise InputError(name, value, "expected a text")
        if self.prompt_template is not None and self.prompt_column is not None:
            expected = "expected one of prompt_column and prompt_template, which names the columns that it puts in"
            raise InputError("prompt_column", self.prompt_column, expected)
        _ = self.template_pieces

    @cached_property
    def template_pieces(self) -> list[tuple[str, str | None]]:
        """The template as texts, each with the column that follows it; InputError for braces that hold none."""
        if self.prompt_template is None:
            return []
        expected = "expected a text with names of columns in braces, such as 'Q: {question}'; {{ and }} are braces"
        try:
            parts = list(string.Formatter().parse(self.prompt_template))
        except ValueError as error:
            raise InputError("prompt_template", self.prompt_template, f"{expected} ({error})") from error
        names = [name for _, name, _, _ in parts if name is not None]
        if not names or any(not name or how or kind for _, name, how, kind in parts if name is not None):
            raise InputError("prompt_template", self.prompt_template, expected)
        return [(text, name) for text, name, _, _ in parts]

    @cached_property
    def needed_columns(self) -> dict[str, str]:
        """The columns that there must be, each with the option that says so."""
        needed = {name: "prompt_template" for _, name in self.template_pieces if name is not None}
        if not needed:
            needed[self.prompt_column or "prompt"] = "prompt_column"
        return needed | ({self.answer_column: "answer_column"} if self.answer_column else {})

    @property
    def prompt_name(self) -> str:
        """The name of the prompt's column, for messages."""
        return "prompt" if self.prompt_template else self.prompt_column or "prompt"

    def prompt_of(self, record: dict, location: str) -> Any:
        """The prompt of a record: the column, or the template with the columns in it."""
        if self.prompt_template is None:
            return record[self.prompt_name]
        text = ""
        for literal, name in self.template_pieces:
            text += literal
            if name is not None:
                if isinstance(value := record[name], bool) or not isinstance(value, str | int | float):
                    expected = f"expected a text or a number, for prompt_template {self.prompt_template!r}"
                    raise InputError(f"{location}: {name}", value, expected, found=f"is {value!r:.80}")
                text += str(value)
        return text

    def check_columns(self, record: dict, location: str) -> None:
        """Raise InputError for columns that are needed and not there, all of them."""
        if self.needed_columns.keys() <= record.keys():
            return
        missing = {name: option for name, option in self.needed_columns.items() if name not in record}
        names = ", ".join(sorted(map(str, record))) or "none"
        if "prompt" in missing and self.prompt_column is None and self.prompt_template is None:
            expected = f"an object with a prompt, such as {EXAMPLE}; or name another column as --prompt_column, or "
            expected += "several in --prompt_template"
        else:
            expected = " and ".join(f"{name!r}, which {option} names" for name, option in missing.items())
        raise InputError(location, record, f"expected {expected}", found=f"has the columns {names}")

    def check_unused(self, reason: str, names: Iterable[str] = ()) -> None:
        """Raise InputError for one of these options, or of all, that was given and that nothing reads."""
        for name in names or DATA_OPTION_NAMES:
            if (value := getattr(self, name)) is not None:
                raise InputError(name, value, f"leave it out: {reason}")


DATA_OPTION_NAMES = tuple(field.name for field in fields(DataOptions))
DEFAULT_DATA_OPTIONS = DataOptions()
