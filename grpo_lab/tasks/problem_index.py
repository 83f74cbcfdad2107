"""The different problems of a table, with the rows that repeat or contradict earlier ones."""

from array import array
from collections.abc import Sequence

from grpo_lab.base.checks import InputError, combine_errors
from grpo_lab.tasks.lazy_rows import Table
from grpo_lab.tasks.rows import SPLITS, hash_of, row_with_messages, split_of_hash

EXPECTED_COLUMNS = ("answer", "tests", "sql")  # columns that say which completions are right


class ProblemIndex:
    """An index of the different problems in a table, with lists of the rows that repeat or contradict earlier ones.

    Two rows are the same problem if their prompts are equal, apart from white space and system messages. If the table
    has none of the `EXPECTED_COLUMNS`, for example because an environment's `reset` reads other columns, then all other
    columns have to be equal as well.
    """

    def __init__(self, table: Table):
        self.table = table
        self.columns = {name: column for name, column in table.columns.items() if name != "prompt"}
        self.expected_columns = [name for name in EXPECTED_COLUMNS if name in self.columns]
        self.compares_whole_rows = bool(self.columns) and not self.expected_columns
        # The index of the first row of each problem, by the problem's hash: that of its prompt, or of its whole row.
        self.first_rows: dict[int, int] = {}
        # The hash that decides the split of a problem, by the problem's hash, if the two hashes differ.
        self._split_hashes: dict[int, int] = {}
        self._prompt_hashes: set[int] = set()  # only filled if whole rows are compared
        # Indices of rows that repeat an earlier problem and are left out.
        self.repeats: list[int] = []
        # Indices of rows with the prompt of an earlier row that are other problems because of their other columns.
        self.repeated_prompts: list[int] = []
        self.contradictions: list[InputError] = []
        for index in range(len(table)):
            self._add(index)

    def _add(self, index: int) -> None:
        text = _text_without_system(self.table.columns["prompt"][index])
        prompt_hash = hash_of("own", text)
        if self.compares_whole_rows:
            self._add_whole_row(index, text, prompt_hash)
            return
        first = self.first_rows.setdefault(prompt_hash, index)
        if first != index:
            self.repeats.append(index)
            self._compare_expected(index, first)

    def _add_whole_row(self, index: int, text: str, prompt_hash: int) -> None:
        values = sorted((name, repr(column[index])) for name, column in self.columns.items())
        row_hash = hash_of("own", text, values)
        is_new_prompt = prompt_hash not in self._prompt_hashes
        self._prompt_hashes.add(prompt_hash)
        if self.first_rows.setdefault(row_hash, index) != index:
            self.repeats.append(index)
        elif is_new_prompt:  # the first row with a prompt has the split that it would have without other columns
            self._split_hashes[row_hash] = prompt_hash
        else:
            self.repeated_prompts.append(index)

    def _compare_expected(self, index: int, first: int) -> None:
        """Add the row to the contradictions if it expects another answer than the first row of the problem."""
        columns = self.columns
        different = [name for name in self.expected_columns if columns[name][first] != columns[name][index]]
        if different:
            self.contradictions.append(_contradiction(self.table, index, first, different[0]))

    def checked_notes(self) -> list[str]:
        """Return lines for the user on repeated rows; raise InputError if a problem has two answers."""
        if self.contradictions:
            raise combine_errors(self.contradictions)
        notes = []
        if self.repeats:
            location = self.table.locations[self.repeats[0]]
            notes.append(f"{len(self.repeats)} rows repeat an earlier problem and are left out (first: {location})")
        if self.repeated_prompts:
            location = self.table.locations[self.repeated_prompts[0]]
            notes.append(
                f"{len(self.repeated_prompts)} rows have an earlier row's prompt but other columns, and count as "
                f"problems (first: {location})"
            )
        return notes

    def indices_by_split(self) -> dict[str, Sequence[int]]:
        """Return the indices of the problems in each split, which their hashes decide."""
        indices_by_split = {split: array("q") for split in SPLITS}
        for problem_hash, index in self.first_rows.items():
            split_hash = self._split_hashes.get(problem_hash, problem_hash)
            indices_by_split[split_of_hash(split_hash)].append(index)
        return dict(indices_by_split)


def _contradiction(table: Table, index: int, first: int, column: str) -> InputError:
    environment_hint = ", or, where an environment reads it, another name for this column"
    return InputError(
        table.locations[index],
        row_with_messages(table, index),
        f"expected one of them{environment_hint if column == 'answer' else ''}",
        problem=f"has the problem of {table.locations[first]} with another {column}",
    )


def _text_without_system(prompt: str | list[dict[str, str]]) -> str:
    """Return the text of a prompt without its system messages, with single spaces."""
    if isinstance(prompt, str):
        return " ".join(["user:", *prompt.split()])
    return " ".join("\n".join(f"{m['role']}: {m['content']}" for m in prompt if m["role"] != "system").split())
