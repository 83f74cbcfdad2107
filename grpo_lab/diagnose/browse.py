"""Page through the completions that a run recorded, a group at a time, coloured by their advantage."""

import html
import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from grpo_lab.display import View, in_ipython, text_table
from grpo_lab.plots.style import BACKGROUND
from grpo_lab.plots.tokens import shade, visible

COMPLETIONS = "completions.jsonl"


def browse(folder: str | Path, step: int | None = None, group: int = 0, tokenizer=None) -> View:
    """One group of the completions in a run's folder; in a live notebook also sliders that page through all of them.

    A token is blue where its completion has an advantage above zero and orange below, the stronger the further away;
    blue pushes it up, orange down.

    Args:
        folder: of a run with `log_completions=True`.
        step: one of those that were recorded; None: the last.
        group: which prompt of that step, from 0.
        tokenizer: cuts the text into tokens; None: that of the model in the folder, or words where there is none.

    Raises:
        FileNotFoundError: if the folder holds no recorded completions.
        ValueError: for a step or a group that is not there.
    """
    path = Path(folder) / COMPLETIONS
    if not path.is_file():
        raise FileNotFoundError(f"folder {str(folder)!r} holds no {COMPLETIONS}; train with log_completions=True")
    steps = _groups(path)
    step = max(steps) if step is None else step
    if step not in steps:
        raise ValueError(f"step is {step}; expected one that was recorded: {', '.join(map(str, steps))}")
    if not 0 <= group < len(steps[step]):
        raise ValueError(f"group is {group}; expected 0 to {len(steps[step]) - 1}")
    cut = _cutter(Path(folder), tokenizer)
    if in_ipython():
        _show_sliders(steps, step, group, cut)
    return _view(steps[step][group], cut)


def _groups(path: Path) -> dict[int, list[list[dict]]]:
    """The records of each step, those of a prompt together."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        step: [list(some) for _, some in groupby(of_step, key=lambda record: record["prompt"])]
        for step, of_step in groupby(records, key=lambda record: record["step"])
    }


def _cutter(folder: Path, tokenizer) -> Callable[[str], list[str]]:
    if tokenizer is None and (folder / "tokenizer_config.json").is_file():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer is None:
        return lambda text: text.replace(" ", " \0").split("\0")
    return lambda text: [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False).input_ids]


def _view(records: list[dict], cut: Callable[[str], list[str]]) -> View:
    prompt, head = records[0]["prompt"], ("reward", *records[0]["rewards"], "advantage")
    asked = prompt if isinstance(prompt, str) else "\n".join(f"{one['role']}: {one['content']}" for one in prompt)
    limit = max(abs(record["advantage"]) for record in records) or 1.0
    numbers = [[_written((record["rewards"] | record)[name]) for name in head] for record in records]
    title = f"step {records[0]['step']}: {asked}"
    cells = [
        "".join(f"<td>{number}</td>" for number in line)
        + f'<td style="text-align:left">{_coloured(cut(record["completion"]), record["advantage"] / limit)}</td>'
        for line, record in zip(numbers, records, strict=True)
    ]
    names = "".join(f"<th>{html.escape(name)}</th>" for name in (*head, "completion"))
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    box = f'<div style="background-color:{BACKGROUND};color:#000000;padding:8px 12px;border:1px solid #CCCCCC">'
    markup = f'{box}<p style="white-space:pre-wrap">{html.escape(title)}</p><table><tr>{names}</tr>{rows}</table></div>'
    lines = [(*line, repr(record["completion"])) for line, record in zip(numbers, records, strict=True)]
    return View(markup, f"{title}\n{text_table((*head, 'completion'), lines)}", "text/html")


def _coloured(tokens: list[str], share: float) -> str:
    style = f"background-color:{shade(share)};color:#000000;padding:1px 2px;border-radius:3px;margin-right:1px"
    return "".join(f'<code style="{style}">{html.escape(visible(token))}</code>' for token in tokens)


def _written(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _show_sliders(steps: dict[int, list], step: int, group: int, cut: Callable) -> None:
    """A saved notebook does not keep them: the group below them stands for all."""
    try:
        import ipywidgets
    except ImportError:
        return
    from IPython.display import display

    of_steps = ipywidgets.SelectionSlider(options=list(steps), value=step, description="step")
    of_groups = ipywidgets.IntSlider(value=group, min=0, max=len(steps[step]) - 1, description="prompt")
    page = ipywidgets.HTML()

    def show(_=None) -> None:
        of_groups.max = len(steps[of_steps.value]) - 1
        page.value = _view(steps[of_steps.value][of_groups.value], cut).rich

    for slider in (of_steps, of_groups):
        slider.observe(show, "value")
    show()
    display(ipywidgets.VBox([of_steps, of_groups, page]))
