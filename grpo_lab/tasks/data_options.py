"""Options for reading the user's own data: its configuration, its splits, its columns, and a template of the prompt."""

import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.base.option import NamedCode, option, option_specs

EXAMPLE_RECORD = '{"prompt": "6 * 7 = ?", "answer": "42"}'


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options for reading the user's own data; None stands for the default in each help text.

    Rewards get the column with the answers as `answer` and under its own name. In the template of the prompt, {{
    stands for a brace.
    """

    dataset_config: str | None = option(
        None,
        "configuration of a hub data set, or a folder in the folder",
        group="data of your own",
        named_code=NamedCode.PATH,
        passed_to_evaluate=True,
    )
    dataset_split: str | None = option(
        None,
        "split to train on, or the beginning of its files' names in a folder",
        named_code=NamedCode.NOTHING,
        default_text="train",
        aliases=("dataset_train_split",),
        passed_to_evaluate=True,
    )
    dataset_test_split: str | None = option(
        None,
        "split that is held out",
        named_code=NamedCode.NOTHING,
        default_text="of a hub data set a tenth of the problems; in a folder test, if any",
        passed_to_evaluate=True,
    )
    prompt_column: str | None = option(
        None,
        "column with the prompts",
        named_code=NamedCode.NOTHING,
        default_text="prompt",
        passed_to_evaluate=True,
    )
    answer_column: str | None = option(
        None,
        "column with the answers, for rewards that read one",
        named_code=NamedCode.NOTHING,
        default_text="answer",
        passed_to_evaluate=True,
    )
    prompt_template: str | None = option(
        None,
        "prompt as a text with names of columns, such as 'Q: {question}'; in place of --prompt_column",
        named_code=NamedCode.NOTHING,
        metavar="TEXT",
        passed_to_evaluate=True,
    )

    def __post_init__(self):
        for name in DATA_OPTION_NAMES:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise InputError(name, value, "expected a text")
        if self.prompt_template is not None and self.prompt_column is not None:
            expected = "expected one of prompt_column and prompt_template, which names the columns that it puts in"
            raise InputError("prompt_column", self.prompt_column, expected)
        _ = self.template_pieces  # raises InputError for a template that cannot be filled in

    @cached_property
    def template_pieces(self) -> list[tuple[str, str | None]]:
        """The template as pairs of a text and the column after it; raises InputError for braces without a column."""
        if self.prompt_template is None:
            return []
        expected = "expected a text with names of columns in braces, such as 'Q: {question}'; {{ and }} are braces"
        try:
            parts = list(string.Formatter().parse(self.prompt_template))
        except ValueError as error:
            raise InputError("prompt_template", self.prompt_template, f"{expected} ({error})") from error
        names = [name for _, name, _, _ in parts if name is not None]
        if not names or any(
            not name or format_spec or conversion for _, name, format_spec, conversion in parts if name is not None
        ):
            raise InputError("prompt_template", self.prompt_template, expected)
        return [(text, name) for text, name, _, _ in parts]

    @cached_property
    def needed_columns(self) -> dict[str, str]:
        """The required columns, each with the option that requires it."""
        needed = {name: "prompt_template" for _, name in self.template_pieces if name is not None}
        if not needed:
            needed[self.prompt_column or "prompt"] = "prompt_column"
        return needed | ({self.answer_column: "answer_column"} if self.answer_column else {})

    @property
    def prompt_name(self) -> str:
        """The name of the column with the prompts, or "prompt" with a template."""
        return "prompt" if self.prompt_template else self.prompt_column or "prompt"

    def prompt_of(self, record: dict, location: str) -> Any:
        """Return the prompt of a record, which is a column, or the template with the values of columns in it.

        location: The location of the record in its file, for error messages.
        """
        if self.prompt_template is None:
            return record[self.prompt_name]
        text = ""
        for literal, name in self.template_pieces:
            text += literal
            if name is not None:
                if isinstance(value := record[name], bool) or not isinstance(value, str | int | float):
                    expected = f"expected a text or a number, for prompt_template {self.prompt_template!r}"
                    raise InputError(f"{location}: {name}", value, expected, problem=f"is {value!r:.80}")
                text += str(value)
        return text

    def check_needed_columns(self, record: dict, location: str) -> None:
        """Raise InputError with all required columns that a record lacks."""
        if self.needed_columns.keys() <= record.keys():
            return
        missing = {name: option for name, option in self.needed_columns.items() if name not in record}
        names = ", ".join(sorted(map(str, record))) or "none"
        if "prompt" in missing and self.prompt_column is None and self.prompt_template is None:
            expected = (
                f"an object with a prompt, such as {EXAMPLE_RECORD}; or name another column as --prompt_column, or "
            )
            expected += "several in --prompt_template"
        else:
            expected = " and ".join(f"{name!r}, which {option} names" for name, option in missing.items())
        raise InputError(location, record, f"expected {expected}", problem=f"has the columns {names}")

    def check_unused(self, reason: str, names: Iterable[str] = ()) -> None:
        """Raise InputError if an option was given that nothing reads.

        reason: Why nothing reads the options, for the message.
        names: The options to check; all of them if empty.
        """
        for name in names or DATA_OPTION_NAMES:
            if (value := getattr(self, name)) is not None:
                raise InputError(name, value, f"leave it out: {reason}")


DATA_OPTIONS = option_specs(DataOptions)
DATA_OPTION_NAMES = tuple(DATA_OPTIONS)
DEFAULT_DATA_OPTIONS = DataOptions()
