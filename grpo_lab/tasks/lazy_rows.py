"""Rows that are made on access from packed values, so that 100,000 short rows take a few megabytes."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict  # {"prompt": list[dict[str, str]], "answer": str, ...}; rows.py describes it


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
