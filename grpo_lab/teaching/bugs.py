"""Mistakes in circulation as single changes of the live source: to be planted, shown as a diff, and taken out again.

    with planted("off-by-one"):
        history = train(...)  # makes the mistake
    show_bugs({"C": "off-by-one"})

Notebook 09 hunts them; the test suite has to kill each of them as a mutant.
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

from grpo_lab.base.display import display
from grpo_lab.base.language import _, fill
from grpo_lab.formulas.lines import running, with_lines, without_markers

BLOCK = "background-color:#FCFCFC;color:#000;font-family:monospace;padding:8px;white-space:pre-wrap;word-break:normal"
AFTER = {"accuracy": "right", "KL computed anew": "kl"}  # what a recorded run has beside its log, measured at its end
COLOURS = {"-": "background-color:#CFE5F5", "+": "background-color:#FBD9C4"}  # as in figures: blue is the repaired code


@dataclass(frozen=True)
class Bug:
    """One mistake: in `function` of `module`, other lines at these addresses (see `grpo_lab.formulas.lines`)."""

    module: str
    function: str
    lines: Mapping[str, str]

    def planted(self) -> AbstractContextManager:
        """The function with the mistake, inside the `with`."""
        source = inspect.getsource(importlib.import_module(self.module))
        return running(with_lines(source, self.lines, self.function), self.module, self.function)

    def diff(self) -> str:
        """The lines that differ, without the indentation that they share."""
        function = inspect.unwrap(pkgutil.resolve_name(f"{self.module}:{self.function}"))
        right_source = textwrap.dedent(inspect.getsource(function))
        sources = (
            without_markers(source).splitlines() for source in (right_source, with_lines(right_source, self.lines))
        )
        changed = [line for line in difflib.unified_diff(*sources, n=0) if not line.startswith(("---", "+++", "@@"))]
        dedented = textwrap.dedent("\n".join(line[1:] for line in changed)).split("\n")
        return "\n".join(f"{line[0]} {code_line}" for line, code_line in zip(changed, dedented, strict=True))


def read_bugs(file: Path) -> Iterator[tuple[str, Bug]]:
    """The mistakes of a file by name: of each, a line with name, module and function, and one for each address."""
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        rows = [row for row in block.splitlines() if not row.startswith("#")]
        if rows:
            name, module, function = rows[0].split()
            changes = "\n".join(rows[1:]).replace("\n ", "\0").splitlines()
            lines = dict(change.replace("\0", "\n").split(": ", 1) for change in changes)
            yield name, Bug(module, function.strip("-"), lines)


BUGS = dict(read_bugs(Path(__file__).with_suffix(".txt")))


def planted(name: str) -> AbstractContextManager:
    """The mistake of this name inside the `with`; "healthy" is none."""
    return nullcontext() if name == "healthy" else BUGS[name].planted()


def show_bugs(runs: Mapping[str, str]) -> None:
    """Show each run's mistake as the lines that differ from the live source; only the first of them is unfolded."""
    for number, (run, name) in enumerate(runs.items()):
        bug = BUGS[name]
        values = run, name, f"{bug.module}.{bug.function}"
        if number == 0:
            head = _(fill("<details open><summary>Run {0}: {1}, in <code>{2}</code></summary>", *values))
        else:
            head = _(fill("<details><summary>Run {0}: {1}, in <code>{2}</code></summary>", *values))
        lines = [f'<span style="{COLOURS[line[0]]}">{html.escape(line)}</span>' for line in bug.diff().splitlines()]
        code = f'<pre style="{BLOCK}">{chr(10).join(lines)}</pre>'
        text = f"{re.sub('<[^>]+>', '', head)}\n{bug.diff()}"
        display({"text/html": f"{head}{code}</details>", "text/plain": text})


def print_log_lines(arms: Mapping[str, list[dict]], bugs: Mapping[str, str], lines: Sequence[tuple]) -> None:
    """Print single values of recorded logs, one for each seed, beside those of healthy runs.

    arms: the recorded runs of each arm. bugs: run: name of its mistake, which is its arm.
    lines: (run, metric, step), or (run, measure of `AFTER`, None). A fourth member names the arm of healthy runs,
    where it is not "healthy".
    """
    print(f"{'run':5}{'in the log':31}{'step':7}{'with the mistake':31}healthy")
    for run, name, step, *healthy in lines:
        values = []
        for arm in (bugs[run], *(healthy or ["healthy"])):
            runs = arms[arm]
            seeds = [log[AFTER[name]] if step is None else log["metrics"][name][step - 1] for log in runs]
            values.append(" ".join("NaN" if value is None else f"{value:.3g}" for value in seeds))
        print(f"{run:5}{name:31}{'end' if step is None else step!s:7}{values[0]:31}{values[1]}")
