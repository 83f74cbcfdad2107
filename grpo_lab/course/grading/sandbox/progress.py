"""How far a worker has come, as it says itself: only onward, and only along what was asked of it.

What it writes is a stranger's. The file is made and held open here, so that whoever deletes or replaces it is no longer
heard; a step counts once; and whatever else is written means that the first cell has begun.
"""

import json
import os
from pathlib import Path

END = {"at": "done"}
MAX_READ, MAX_LINE = 1_000_000, 4_000  # bytes of one look, and of a line that is not at its end


class Progress:
    """A context manager around the file `path`.

    Args:
        path: a file that does not exist yet; the worker appends a line of JSON for each step.
        cells: numbers of the cells in order.
        exercises: names, in order, which come after the cells.
    """

    def __init__(self, path: Path, cells: list[int], exercises: list[str]):
        path.parent.mkdir(exist_ok=True)
        self._file = open(path, "x+b", buffering=0)  # noqa: SIM115 (closed by __exit__)
        self._steps = [*({"at": "cell", "cell": number} for number in cells)]
        self._steps += [*({"at": "exercise", "exercise": name} for name in exercises), END]
        self._numbers = {json.dumps(step).encode(): number for number, step in enumerate(self._steps)}
        self._untouched, self._reached, self._rest = self._state(), -1, b""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        self._file.close()

    def went_on(self) -> bool:
        """Whether it has come further since this was last asked."""
        *lines, rest = (self._rest + self._file.read(MAX_READ)).split(b"\n")
        self._rest = rest[-MAX_LINE:]
        begun = [0] if self._state() != self._untouched else []
        said = [self._numbers[line.rstrip()] for line in lines if line.rstrip() in self._numbers]
        before, self._reached = self._reached, max([self._reached, *begun, *said])
        return self._reached > before

    @property
    def where(self) -> dict:
        """The step that it is at; nothing if it has not begun."""
        return self._steps[self._reached] if self._reached >= 0 else {}

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns
