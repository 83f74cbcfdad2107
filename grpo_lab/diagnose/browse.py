"""Page through the completions that a run recorded, a group at a time, coloured by their advantage."""

import html
import json
from collections.abc import Callable
from pathlib import Path

from grpo_lab.commands.checks import InputError, InputFileError
from grpo_lab.commands.display import View, in_ipython, text_table
from grpo_lab.diagnose.logs import SETTINGS, whole_lines
from grpo_lab.teaching.plots.style import BACKGROUND
from grpo_lab.teaching.plots.tokens import patch, visible

COMPLETIONS = "completions.jsonl"
BOX = f"background-color:{BACKGROUND};color:#000000;padding:8px 12px;border:1px solid #CCCCCC"


def browse(folder: str | Path, step: int | None = None, group: int = 0) -> View:
    """One group of the completions in a run's folder; in a live notebook also sliders that page through all of them.

    A token is blue where its completion has an advantage above zero (it is pushed up) and orange below, the stronger
    the further away. Tokens are those of the model in the folder; words where there is none.

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
        raise InputFileError(
            "folder", folder, "train with log_completions=True", found=f"{str(folder)!r} holds no {COMPLETIONS}"
        )
    records = [json.loads(line) for line in whole_lines(path.read_text(encoding="utf-8"))]
    size = json.loads((Path(folder) / SETTINGS).read_bytes())["num_generations"]  # one prompt twice is two groups
    steps: dict[int, list[list[dict]]] = {}  # of each step the groups, of each group the records
    for start in range(0, len(records), size):
        steps.setdefault(records[start]["step"], []).append(records[start : start + size])
    step = max(steps) if step is None else step
    if step not in steps:
        raise InputError("step", step, f"expected one that was recorded: {', '.join(map(str, steps))}")
    if not 0 <= group < len(steps[step]):
        raise InputError("group", group, f"expected 0 to {len(steps[step]) - 1}")
    cut = _cutter(Path(folder))
    if in_ipython():
        _show_sliders(steps, step, group, cut)
    return _view(steps[step][group], cut)


def _cutter(folder: Path) -> Callable[[str], list[str]]:
    if not (folder / "tokenizer_config.json").is_file():
        return lambda text: text.replace(" ", " \0").split("\0")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False).input_ids]


def _view(records: list[dict], cut: Callable[[str], list[str]]) -> View:
    prompt, head = records[0]["prompt"], ("reward", *records[0]["rewards"], "advantage")
    asked = prompt if isinstance(prompt, str) else "\n".join(f"{one['role']}: {one['content']}" for one in prompt)
    title = f"step {records[0]['step']}: {asked}"
    limit = max(abs(record["advantage"]) for record in records) or 1.0
    rows, lines = [], []
    for record in records:
        values = [(record["rewards"] | record)[name] for name in head]
        numbers = ["none" if value is None else f"{value:.3g}" for value in values]
        tokens = [patch(visible(token), record["advantage"] / limit) for token in cut(record["completion"])]
        cells = "".join(f"<td>{number}</td>" for number in numbers)
        rows.append(f'<tr>{cells}<td style="text-align:left">{"".join(tokens)}</td></tr>')
        lines.append((*numbers, repr(record["completion"])))
    names = "".join(f"<th>{html.escape(name)}</th>" for name in (*head, "completion"))
    table = f"<table><tr>{names}</tr>{''.join(rows)}</table>"
    markup = f'<div style="{BOX}"><p style="white-space:pre-wrap">{html.escape(title)}</p>{table}</div>'
    return View(markup, f"{title}\n{text_table((*head, 'completion'), lines)}", "text/html")


def _show_sliders(steps: dict[int, list], first: int, group: int, cut: Callable) -> None:
    """A saved notebook does not keep them: the group below them stands for all."""
    try:
        from ipywidgets import IntSlider, SelectionSlider, interact
    except ImportError:
        return
    most = max(map(len, steps.values())) - 1
    sliders = {"step": SelectionSlider(options=list(steps), value=first), "prompt": IntSlider(group, 0, most)}
    interact(lambda step, prompt: _view(steps[step][min(prompt, len(steps[step]) - 1)], cut), **sliders)
