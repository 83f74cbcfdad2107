"""Page through the completions that a run recorded, a group at a time, coloured by their advantage."""

import html
import json
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from grpo_lab.display import View, in_ipython, text_table
from grpo_lab.plots.tokens import shade

COMPLETIONS = "completions.jsonl"


def browse(folder: str | Path, step: int | None = None, group: int = 0) -> View:
    """One group of the completions in a run's folder; in a live notebook also sliders that page through all of them.

    A completion is blue if its advantage is above zero (it is pushed up) and orange below, the stronger the further
    away.

    Args:
        folder: of a run with `log_completions=True`.
        step: one of those that were recorded; None: the last.
        group: which prompt of that step, from 0.

    Raises:
        FileNotFoundError: if the folder holds no recorded completions.
        ValueError: for a step or a group that is not there.
    """
    path = Path(folder) / COMPLETIONS
    if not path.is_file():
        raise FileNotFoundError(f"folder {str(folder)!r} holds no {COMPLETIONS}; train with log_completions=True")
    steps: dict[int, list[list[dict]]] = {}  # of each step the groups, of each group the records
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for (at, _), some in groupby(records, key=lambda record: (record["step"], record["prompt"])):
        steps.setdefault(at, []).append(list(some))
    step = max(steps) if step is None else step
    if step not in steps:
        raise ValueError(f"step is {step}; expected one that was recorded: {', '.join(map(str, steps))}")
    if not 0 <= group < len(steps[step]):
        raise ValueError(f"group is {group}; expected 0 to {len(steps[step]) - 1}")
    if in_ipython() and find_spec("ipywidgets"):  # a saved notebook keeps no sliders: the group below stands for all
        from ipywidgets import IntSlider, SelectionSlider, interact

        most = max(map(len, steps.values())) - 1
        sliders = {"step": SelectionSlider(options=list(steps), value=step), "prompt": IntSlider(group, 0, most)}
        interact(lambda step, prompt: _view(steps[step][min(prompt, len(steps[step]) - 1)]), **sliders)
    return _view(steps[step][group])


def _view(records: list[dict]) -> View:
    prompt, head = records[0]["prompt"], ("reward", *records[0]["rewards"], "advantage")
    asked = prompt if isinstance(prompt, str) else "\n".join(f"{one['role']}: {one['content']}" for one in prompt)
    title = f"step {records[0]['step']}: {asked}"
    limit = max(abs(record["advantage"]) for record in records) or 1.0
    rows, lines = [], []
    for record in records:
        values = [(record["rewards"] | record)[name] for name in head]
        numbers = ["none" if value is None else f"{value:.3g}" for value in values]
        style = f"background-color:{shade(record['advantage'] / limit)};color:#000000;text-align:left"
        said = f'<td style="{style};white-space:pre-wrap">{html.escape(record["completion"])}</td>'
        rows.append(f"<tr>{''.join(f'<td>{number}</td>' for number in numbers)}{said}</tr>")
        lines.append((*numbers, repr(record["completion"])))
    names = "".join(f"<th>{html.escape(name)}</th>" for name in (*head, "completion"))
    markup = f'<p style="white-space:pre-wrap">{html.escape(title)}</p><table><tr>{names}</tr>{"".join(rows)}</table>'
    return View(markup, f"{title}\n{text_table((*head, 'completion'), lines)}", "text/html")
