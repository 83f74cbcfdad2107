"""Common mistakes as small changes of the source: a mistake can be planted, shown as a diff, and removed again.

    with planted("off-by-one"):
        history = train(...)  # trains with the mistake
    show_bugs({"C": "off-by-one"})

Readers find these mistakes in notebook 09, and the test suite has to notice each of them as a mutant.
"""

import difflib
import html
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.display import display
from grpo_lab.base.language import _, fill
from grpo_lab.formulas.lines import replaced_code, with_lines, without_markers

BLOCK = "background-color:#FCFCFC;color:#000;font-family:monospace;padding:8px;white-space:pre-wrap;word-break:normal"
# Measurements at the end of a recorded run, which are not in its log: name in a lesson -> key of the record.
MEASURED_AT_END = {"accuracy": "right", "KL computed anew": "kl"}
# The colours of figures: blue is the repaired code, and orange is the mistake.
DIFF_COLOURS = {"-": "background-color:#CFE5F5", "+": "background-color:#FBD9C4"}


@dataclass(frozen=True)
class Bug:
    """A mistake in a function or a module: some lines of its source replaced.

    Attributes:
        module: The full name of the module, such as "grpo_lab.kl".
        function: The name of the function; "" if the lines are outside functions.
        lines: The address of a line -> the wrong line that replaces it. `grpo_lab.formulas.lines` describes addresses.
    """

    module: str
    function: str
    lines: Mapping[str, str]

    def planted(self) -> AbstractContextManager:
        """Return a context manager within which the mistake is planted."""
        source = inspect.getsource(importlib.import_module(self.module))
        return replaced_code(with_lines(source, self.lines, self.function), self.module, self.function)

    def diff(self) -> str:
        """Return the lines that differ, marked - (right) or + (wrong), without their common indentation."""
        function = inspect.unwrap(pkgutil.resolve_name(f"{self.module}:{self.function}"))
        right_source = textwrap.dedent(inspect.getsource(function))
        wrong_source = with_lines(right_source, self.lines)
        right, wrong = (without_markers(source).splitlines() for source in (right_source, wrong_source))
        diff_lines = difflib.unified_diff(right, wrong, n=0)
        changed_lines = [line for line in diff_lines if not line.startswith(("---", "+++", "@@"))]
        dedented = textwrap.dedent("\n".join(line[1:] for line in changed_lines)).split("\n")
        return "\n".join(f"{line[0]} {code_line}" for line, code_line in zip(changed_lines, dedented, strict=True))


def read_bugs(file: Path) -> Iterator[tuple[str, Bug]]:
    """Read the mistakes of a file and yield each with its name; a comment in bugs.txt describes the form."""
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        rows = [row for row in block.splitlines() if not row.startswith("#")]
        if not rows:
            continue
        name, module, function = rows[0].split()
        # A row that begins with a space continues the row before it.
        changes = "\n".join(rows[1:]).replace("\n ", "\0").splitlines()
        lines = dict(change.replace("\0", "\n").split(": ", 1) for change in changes)
        yield name, Bug(module, function.strip("-"), lines)


BUGS = dict(read_bugs(Path(__file__).with_suffix(".txt")))


def planted(name: str) -> AbstractContextManager:
    """Return a context manager that plants the mistake of this name; for "healthy" it changes nothing."""
    return nullcontext() if name == "healthy" else BUGS[name].planted()


def show_bugs(runs: Mapping[str, str]) -> None:
    """Show the mistake of each run as a diff; the first one is unfolded.

    Args:
        runs: The letter of a run -> the name of its mistake.
    """
    for number, (run, name) in enumerate(runs.items()):
        bug = BUGS[name]
        values = run, name, f"{bug.module}.{bug.function}"
        if number == 0:
            head = _(fill("<details open><summary>Run {0}: {1}, in <code>{2}</code></summary>", *values))
        else:
            head = _(fill("<details><summary>Run {0}: {1}, in <code>{2}</code></summary>", *values))
        diff = bug.diff()
        lines = [f'<span style="{DIFF_COLOURS[line[0]]}">{html.escape(line)}</span>' for line in diff.splitlines()]
        code = f'<pre style="{BLOCK}">{chr(10).join(lines)}</pre>'
        text = f"{re.sub('<[^>]+>', '', head)}\n{diff}"
        display({"text/html": f"{head}{code}</details>", "text/plain": text})


class LogLine(NamedTuple):
    """A line of `print_log_lines`: a value of the runs with a mistake beside that of runs without it."""

    run: str  # letter of the run with the mistake
    metric: str  # metric of the log, or a key of `MEASURED_AT_END` if there is no step
    step: int | None
    compared_arm: str = "healthy"  # arm of the runs without the mistake


def print_log_lines(arms: Mapping[str, list[dict]], bugs: Mapping[str, str], lines: Sequence[tuple]) -> None:
    """Print values of recorded runs with a mistake, one for each seed, next to those of runs without it.

    Args:
        arms: The name of an arm -> its recorded runs, one for each seed.
        bugs: The letter of a run -> the name of its mistake, which is also the name of its arm.
        lines: The fields of a `LogLine` for each line to print.
    """
    print(f"{'run':5}{'in the log':31}{'step':7}{'with the mistake':31}healthy")
    for line in (LogLine(*fields) for fields in lines):
        with_mistake = _values_by_seed(arms[bugs[line.run]], line)
        healthy = _values_by_seed(arms[line.compared_arm], line)
        step = "end" if line.step is None else str(line.step)
        print(f"{line.run:5}{line.metric:31}{step:7}{with_mistake:31}{healthy}")


def _values_by_seed(recorded_runs: list[dict], line: LogLine) -> str:
    """Return the values of a line in the runs of an arm as text."""
    if line.step is None:
        values = [recorded_run[MEASURED_AT_END[line.metric]] for recorded_run in recorded_runs]
    else:
        values = [recorded_run["metrics"][line.metric][line.step - 1] for recorded_run in recorded_runs]
    return " ".join("NaN" if value is None else f"{value:.3g}" for value in values)
