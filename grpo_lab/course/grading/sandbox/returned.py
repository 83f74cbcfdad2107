"""What came back of a worker, and how it ended. Its files are a stranger's: each is bounded, and none is believed."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.checking import Outcome
from grpo_lab.course.checking.outcome_file import load_outcomes

MAX_REPLY = 1_000_000
ENDLESS = "took longer than the time limit"


@dataclass
class Result:
    """What came back of one exercise: outcomes by seed, or in `fault` why there are none (kind, text)."""

    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    fault: tuple[str, str] = ("", "")


@dataclass
class Returned:
    """What came back of a notebook: a result for each exercise, and why cells failed, by their numbers.

    calls: the other exercises that each function calls, as far as its process said. deadly: numbers of the cells that
    ended it. end: when, on the monotonic clock, this notebook's time is over.
    """

    results: dict[str, Result] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    calls: dict[str, set[str]] = field(default_factory=dict)
    deadly: list[str] = field(default_factory=list)
    end: float = math.inf


@dataclass(frozen=True)
class Death:
    """How a worker ended early: what it was at, why it was ended (or ""), its exit code, the end of what it said."""

    where: dict
    why: str
    code: int
    said: str

    def text(self) -> str:
        return self.why or f"ended the whole process (exit code {self.code})"


def after_death(died: Death | None, cells: list[dict], left: dict, back: Returned) -> list[dict]:
    """Blame the cell or the exercise at which it died; returns the cells to run the next time."""
    if died is None:
        for name in list(left):
            back.results[name] = Result(fault=("lost", "no outcome came back"))
            del left[name]
        return cells
    at = died.where.get("at")
    if at == "exercise" and died.where.get("exercise") in left:
        name = died.where["exercise"]
        back.results[name] = Result(fault=("endless" if died.why == ENDLESS else "exit", died.text()))
        del left[name]
        return cells
    number = died.where.get("cell")
    if at == "cell" and any(cell["number"] == number for cell in cells):
        back.cells[str(number)] = died.text()
        back.deadly.append(str(number))
        return [cell for cell in cells if cell["number"] != number]
    kind, text = ("lost", died.text()) if at else ("start", f"the worker did not start: {died.said[-500:]}")
    for name in list(left):
        back.results[name] = Result(fault=(kind, text))
        del left[name]
    return cells


def read_result(out: Path, name: str, seeds: list[int]) -> Result | None:
    for kind in ("missing", "broken"):
        if (content := _read_any(out / f"{name}.{kind}.json")) is not None:
            return Result(fault=(kind, content if isinstance(content, str) else error_text(content)))
    paths = {seed: out / f"{name}.{seed}.safetensors" for seed in seeds}
    if not all(_is_file(path) for path in paths.values()):
        return None
    try:
        return Result({seed: load_outcomes(path) for seed, path in paths.items()})
    except ValueError as error:
        return Result(fault=("unreadable", str(error)[:300]))


def read_calls(out: Path, name: str) -> set[str]:
    content = _read_any(out / f"{name}.calls.json")
    return {one for one in content if isinstance(one, str)} if isinstance(content, list) else set()


def _is_file(path: Path) -> bool:
    """An ordinary file, no link and no pipe: the worker is dead by now, so it stays what it is."""
    return path.is_file() and not path.is_symlink()


def _read_any(path: Path):
    try:
        if not _is_file(path) or path.stat().st_size > MAX_REPLY:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def read_json(path: Path) -> dict:
    content = _read_any(path)
    return content if isinstance(content, dict) else {}


def error_text(error) -> str:
    if not isinstance(error, dict):
        return str(error)[:500]
    kind, text, where = (str(error.get(k, ""))[:500] for k in ("type", "text", "where"))
    return f"{kind}: {text}" + (f" ({where})" if where else "")
