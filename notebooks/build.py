"""Build the notebooks from their text: `python notebooks/build.py 01 04` (or all of them, without arguments).

The text form in notebooks/text/*.md (MyST, read by jupytext) is what you edit and review. This script executes it and
writes notebooks/*.ipynb with clean outputs: without timings of cells, widget state, progress bars and paths of this
machine.

Five options execute nothing:
`--check` reports whether each notebook has the same cells as its text.
`--sources` writes the text into the cells and keeps their outputs, for changes that alter no output.
`--take 03` writes the text from a notebook that was edited in JupyterLab.
`--reading` estimates the minutes of reading that the head of each lesson states.
`--lang zh_CN` brings po/zh_CN/*.po in step with the English, and writes the Chinese pages from these files.

Two tags keep an answer out of sight, collapsed in JupyterLab and folded on the site: hide-input hides the code of a
cell, hide-output its outputs.
"""

import argparse
import base64
import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
import translations
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError, check_at_least
from grpo_lab.teaching.notebook.beginning import HIDE_OUTPUT, RESULT_LINE
from grpo_lab.teaching.plots.style import SECOND_LANGUAGE as FIGURES_IN

HERE = Path(__file__).parent
TEXT = HERE / "text"
WIDGET = "application/vnd.jupyter.widget-view+json"
HIDING = {"hide-input": "source_hidden", "hide-output": "outputs_hidden"}  # tag of a cell: JupyterLab's key
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
PROGRESS_BAR = re.compile(r"\d+%\|.*\||\d+it \[|\d+step \[|\?it/s|\?step/s")


# Pictures that the READMEs show: notebook, a part of the picture's alternative text, file.
PICTURES = (
    ("07_r1_zero_on_a_laptop", "The probability of thinking rises", "first_run.png"),
    ("zh/07_r1_zero_on_a_laptop", "思考的概率在大约十五步内", "first_run.zh-CN.png"),
    ("11_tools_and_turns", "Above, a tangle of lines between all numbers", "search_tree.png"),
)


def texts(names: list[str]) -> list[Path]:
    """Return the texts whose names begin with one of `names`, or all texts if `names` is empty."""
    all_texts = sorted(TEXT.glob("*.md"))
    chosen = [path for path in all_texts if not names or any(path.stem.startswith(name) for name in names)]
    if missing := [name for name in names if not any(path.stem.startswith(name) for path in all_texts)]:
        raise InputError(
            "names", missing, f"expected one of {', '.join(path.stem.partition('_')[0] for path in all_texts)}",
            problem=f"is {', '.join(missing)}",
        )  # fmt: skip
    return chosen


def notebook_of(text: Path) -> Path:
    return HERE / f"{text.stem}.ipynb"


def read_text(path: Path) -> nbformat.NotebookNode:
    """Return the notebook that the text describes, without outputs; the cells' ids are made from their order."""
    notebook = jupytext.read(path, fmt="md:myst")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem.partition('_')[0]}-{index:03d}"
        cell["source"] = cell["source"].strip()
        if hidden := {word: True for tag, word in HIDING.items() if tag in cell.metadata.get("tags", [])}:
            cell.metadata["jupyter"] = nbformat.from_dict(hidden)
    return notebook


def build(text: Path, timeout: int) -> tuple[float, dict[str, str]]:
    """Execute the lesson and write its notebook.

    Returns:
        The seconds that the execution took, and the figures with Chinese labels (see `translations.take_figures`).
    """
    notebook = read_text(text)
    # English output, independent of the language of this machine.
    environment = os.environ | {"GRPO_LAB_LANG": "en", FIGURES_IN: translations.LANGUAGE}
    started = time.perf_counter()
    folder = {"metadata": {"path": str(HERE)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", coalesce_streams=True, resources=folder)
    client.execute(env=environment)
    seconds = time.perf_counter() - started
    clean(notebook)
    figures = translations.take_figures(notebook)
    nbformat.write(notebook, notebook_of(text))
    return seconds, figures


def clean(notebook: nbformat.NotebookNode) -> None:
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(clean_output, cell.outputs) if output is not None]
    announce_folded_outputs(notebook)


def announce_folded_outputs(notebook: nbformat.NotebookNode) -> None:
    """Insert `RESULT_LINE` as the first output of each fold, because JupyterLab shows the first folded output.

    In a running notebook, `grpo_lab.teaching.notebook.beginning` does the same.
    """
    for cell in notebook.cells:
        if HIDE_OUTPUT in cell.metadata.get("tags", []) and cell.get("outputs") and not is_result_line(cell.outputs[0]):
            data = {"text/markdown": RESULT_LINE, "text/plain": RESULT_LINE}
            cell.outputs.insert(0, nbformat.v4.new_output("display_data", data))


def is_result_line(output: nbformat.NotebookNode) -> bool:
    return "".join(output.get("data", {}).get("text/plain", "")) == RESULT_LINE


def clean_output(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """Remove progress bars and paths from an output; return None if nothing is left, or if it is a widget."""
    if output.output_type == "stream":
        lines = [line.split("\r")[-1] for line in output.text.split("\n")]
        output.text = "\n".join(line for line in lines if not PROGRESS_BAR.search(line))
        output.text = without_paths(output.text)
        return output if output.text.strip() else None
    if output.output_type in ("display_data", "execute_result"):
        if WIDGET in output.data:
            return None
        output.data.update({k: without_paths(v) for k, v in output.data.items() if k.startswith("text/")})
    return output


def without_paths(text: str) -> str:
    """Replace the paths of this machine's Python and of the course by relative ones."""
    return text.replace(sys.executable, ".venv/bin/python").replace(str(HERE.parent), ".")


def save_pictures(stems: list[str]) -> None:
    """Copy the pictures that the READMEs show out of the notebooks with these names."""
    for stem, piece, name in PICTURES:
        if stem.removeprefix("zh/") not in stems:
            continue
        notebook = nbformat.read(HERE / f"{stem}.ipynb", as_version=4)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
        (picture,) = (o.data["image/png"] for o in outputs if piece in o.metadata.get("image/png", {}).get("alt", ""))
        (HERE / "images").mkdir(exist_ok=True)
        (HERE / "images" / name).write_bytes(base64.b64decode(picture))


def differences(text: Path) -> list[str]:
    """Return a line for each difference between a notebook and its text; an empty list if they agree."""
    path = notebook_of(text)
    if not path.exists():
        return [f"{path.name} does not exist"]
    expected, built = read_text(text).cells, nbformat.read(path, as_version=4).cells
    pairs = enumerate(zip(expected, built, strict=False))
    lines = [f"cell {i} differs" for i, (first, second) in pairs if not same_cell(first, second)]
    if len(expected) != len(built):
        lines.append(f"{len(built)} cells, the text has {len(expected)}")
    return lines


def same_cell(first, second) -> bool:
    """Return whether two cells have the same type, source, tags and folds."""
    first_parts, second_parts = (
        (cell.cell_type, cell.source.strip(), cell.metadata.get("tags", []), cell.metadata.get("jupyter", {}))
        for cell in (first, second)
    )
    return first_parts == second_parts


def reading_minutes(notebook: nbformat.NotebookNode) -> int:
    """Estimate, to the nearest five minutes, how long a reader takes to understand a lesson without its exercises.

    The estimate counts 130 words of prose or 15 lines of code per minute, 30 seconds per displayed formula and per
    prediction, and 45 seconds per figure. Folded hints and answers are not counted. The head of a lesson states the
    time that first readers took, which differs from this estimate by at most ten minutes.
    """
    seconds = 0.0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
            prose = re.sub(r"\]\(\S+\.ipynb\)", "]", prose)  # addresses of links are not read
            formulas = re.findall(r"^\s*\$\$\s*$(.*?)^\s*\$\$\s*$", prose, re.MULTILINE | re.DOTALL)
            for formula in formulas:
                prose = prose.replace(formula, "")
            seconds += 30 * len(formulas) + 60 / 130 * len(re.findall(r"\w[\w'’-]*", prose))
        elif "hide-input" in cell.metadata.get("tags", []):
            seconds += 45
        else:
            is_prediction = "= predict(" in cell.source
            seconds += 30 if is_prediction else 4 * len([line for line in cell.source.splitlines() if line.strip()])
    return 5 * max(1, round(seconds / 300))


def write_sources(text: Path) -> None:
    """Write the cells of the text into its notebook, and keep the output of each cell."""
    notebook, built = read_text(text), nbformat.read(notebook_of(text), as_version=4)
    if [cell.cell_type for cell in notebook.cells] != [cell.cell_type for cell in built.cells]:
        raise InputError(f"{text.stem}: its text has other cells than the notebook, so it has to be built")
    for cell, built_cell in zip(notebook.cells, built.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = built_cell.outputs, built_cell.execution_count
    announce_folded_outputs(notebook)
    nbformat.write(notebook, notebook_of(text))


def take_text(text: Path) -> None:
    """Write the text from the cells of its notebook."""
    notebook = nbformat.read(notebook_of(text), as_version=4)
    header = {"jupytext": {"notebook_metadata_filter": "kernelspec,-jupytext,-language_info"}, "kernelspec": KERNEL}
    notebook.metadata = nbformat.from_dict(header | {"language_info": {"name": "python", "pygments_lexer": "ipython3"}})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k == "tags"})
    jupytext.write(notebook, text, fmt="md:myst")


@command("notebooks/build.py")
def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    check_at_least("timeout", args.timeout, 1)
    if args.lang:
        return int(translations.update_all(args.names, args.check))
    failed, figures = False, {}
    for text in texts(args.names):
        if args.take:
            take_text(text)
        elif args.sources:
            write_sources(text)
        elif args.reading:
            print(f"{text.stem}: {len(read_text(text).cells)} cells, {reading_minutes(read_text(text))} min")
        elif args.check:
            lines = differences(text)
            failed |= bool(lines)
            print(f"{text.stem}: {'; '.join(lines) or 'in step'}")
        else:
            seconds, figures[text.stem] = build_or_report(text, args.timeout)
            print(f"{text.stem}: {seconds:.0f} s, {notebook_of(text).stat().st_size / 1000:.0f} kB", flush=True)
    if not (args.check or args.take or args.reading):
        for name in {text.stem for text in texts(args.names)} & set(translations.pages_with_chinese()):
            translations.write_chinese_page(name, figures.get(name))
    if not (args.check or args.sources or args.take or args.reading):
        save_pictures([text.stem for text in texts(args.names)])
    return int(failed)


def build_or_report(text: Path, timeout: int) -> tuple[float, dict[str, str]]:
    """Call `build`; if a cell fails, print the cell's traceback and raise an InputError without this script's."""
    try:
        return build(text, timeout)
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        raise InputError(
            f"{text.stem}: a cell failed ({error.ename}: {error.evalue}); the notebook is as it was"
        ) from error


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/build.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="beginnings of names, such as 01; none means all")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare only")
    mode.add_argument("--sources", action="store_true", help="write the cells and keep the outputs")
    mode.add_argument("--take", action="store_true", help="write the text from the notebook")
    mode.add_argument("--reading", action="store_true", help="estimate minutes of reading")
    parser.add_argument("--lang", choices=[translations.LANGUAGE], help="write these pages in this language")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that one cell may take")
    return parser


if __name__ == "__main__":
    sys.exit(main())
