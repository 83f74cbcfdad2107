"""Build the notebooks from their text: `python notebooks/build.py 01 04` (or all of them, without arguments).

The text form in notebooks/text/*.md (MyST, read by jupytext) is what you edit and review. This script executes it and
writes notebooks/*.ipynb with clean outputs: no timings of cells, no widget state, no progress bars, no paths of this
machine.

`--check` executes nothing; it says whether each notebook has the same cells as its text. `--sources` executes nothing
either: it writes the text into the cells and leaves their outputs as they are, for changes that alter no output.
`--take 03` goes the other way, for those who edited a notebook in JupyterLab: its cells become the text.
`--reading` says how long each takes to read, which its head repeats.
`--lang zh_CN` executes nothing: it brings po/zh_CN/*.po in step with the English and writes Chinese pages from them.

Two tags keep an answer out of sight: the code of a cell tagged hide-input, or the outputs of one tagged hide-output,
are collapsed in JupyterLab and folded on the site.
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
from grpo_lab.teaching.notebook.beginning import HIDDEN, RESULT
from grpo_lab.teaching.plots.style import IN as FIGURES_IN

HERE = Path(__file__).parent
TEXT = HERE / "text"
WIDGET = "application/vnd.jupyter.widget-view+json"
HIDING = {"hide-input": "source_hidden", "hide-output": "outputs_hidden"}  # tag: JupyterLab's word
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
PROGRESS_BAR = re.compile(r"\d+%\|.*\||\d+it \[|\d+step \[|\?it/s|\?step/s")


# Pictures that the READMEs show: notebook, a piece of the picture's alternative text, file.
PICTURES = (
    ("07_r1_zero_on_a_laptop", "The probability of thinking rises", "first_run.png"),
    ("zh/07_r1_zero_on_a_laptop", "思考的概率在大约十五步内", "first_run.zh-CN.png"),
    ("11_tools_and_turns", "Above, a tangle of lines between all numbers", "search_tree.png"),
)


def texts(wanted: list[str]) -> list[Path]:
    found = sorted(TEXT.glob("*.md"))
    chosen = [path for path in found if not wanted or any(path.stem.startswith(name) for name in wanted)]
    if missing := [name for name in wanted if not any(path.stem.startswith(name) for path in found)]:
        raise InputError(
            "names", missing, f"expected one of {', '.join(path.stem.partition('_')[0] for path in found)}",
            found=f"is {', '.join(missing)}",
        )  # fmt: skip
    return chosen


def notebook_of(text: Path) -> Path:
    return HERE / f"{text.stem}.ipynb"


def read_text(path: Path) -> nbformat.NotebookNode:
    """The notebook that the text describes, without outputs; cell ids follow from the order, so they stay the same."""
    notebook = jupytext.read(path, fmt="md:myst")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem.partition('_')[0]}-{index:03d}"
        cell["source"] = cell["source"].strip()
        if hidden := {word: True for tag, word in HIDING.items() if tag in cell.metadata.get("tags", [])}:
            cell.metadata["jupyter"] = nbformat.from_dict(hidden)
    return notebook


def build(text: Path, timeout: int) -> tuple[float, dict[str, str]]:
    """Execute the lesson and write it: the seconds that it took, and its figures in the other language."""
    notebook = read_text(text)
    environment = os.environ | {"GRPO_LAB_LANG": "en", FIGURES_IN: translations.LANG}  # whatever this machine speaks
    started = time.perf_counter()
    where = {"metadata": {"path": str(HERE)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", coalesce_streams=True, resources=where)
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
            cell.outputs = [kept for output in cell.outputs if (kept := clean_output(output)) is not None]
    begin_hidden(notebook)


def begin_hidden(notebook: nbformat.NotebookNode) -> None:
    """Let folded outputs begin with a neutral line: JupyterLab shows the first one of a fold, which may be the answer.

    Live, `begin` sees to that.
    """
    for cell in notebook.cells:
        if HIDDEN in cell.metadata.get("tags", []) and cell.get("outputs") and not says_result(cell.outputs[0]):
            data = {"text/markdown": RESULT, "text/plain": RESULT}
            cell.outputs.insert(0, nbformat.v4.new_output("display_data", data))


def says_result(output: nbformat.NotebookNode) -> bool:
    return "".join(output.get("data", {}).get("text/plain", "")) == RESULT


def clean_output(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
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
    """Text that does not say where this machine keeps its Python and the course."""
    return text.replace(sys.executable, ".venv/bin/python").replace(str(HERE.parent), ".")


def save_pictures(stems: list[str]) -> None:
    """Copy what the README shows out of these notebooks."""
    for stem, piece, name in PICTURES:
        if stem.removeprefix("zh/") not in stems:
            continue
        notebook = nbformat.read(HERE / f"{stem}.ipynb", as_version=4)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
        (picture,) = (o.data["image/png"] for o in outputs if piece in o.metadata.get("image/png", {}).get("alt", ""))
        (HERE / "images").mkdir(exist_ok=True)
        (HERE / "images" / name).write_bytes(base64.b64decode(picture))


def differences(text: Path) -> list[str]:
    """What keeps a notebook from being its text with outputs; empty if nothing does."""
    path = notebook_of(text)
    if not path.exists():
        return [f"{path.name} does not exist"]
    ours, theirs = read_text(text), nbformat.read(path, as_version=4)
    said = [
        f"cell {i} differs" for i, (a, b) in enumerate(zip(ours.cells, theirs.cells, strict=False)) if not same(a, b)
    ]
    if len(ours.cells) != len(theirs.cells):
        said.append(f"{len(theirs.cells)} cells, the text has {len(ours.cells)}")
    return said


def same(one, other) -> bool:
    forms = [(cell.metadata.get("tags", []), cell.metadata.get("jupyter", {})) for cell in (one, other)]
    return one.cell_type == other.cell_type and one.source.strip() == other.source.strip() and forms[0] == forms[1]


def reading_minutes(notebook: nbformat.NotebookNode) -> int:
    """An estimate, to the nearest five minutes: what a reader who wants to understand takes, without the exercises.

    130 words of prose a minute, 15 lines of code, 30 seconds a displayed formula or a prediction, 45 a figure. What is
    folded (hints and answers) is not counted. A lesson's head says what readers took who had never seen it, at most
    ten minutes from this.
    """
    seconds = 0.0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
            prose = re.sub(r"\]\(\S+\.ipynb\)", "]", prose)  # nobody reads where a link leads
            formulas = re.findall(r"^\s*\$\$\s*$(.*?)^\s*\$\$\s*$", prose, re.MULTILINE | re.DOTALL)
            for formula in formulas:
                prose = prose.replace(formula, "")
            seconds += 30 * len(formulas) + 60 / 130 * len(re.findall(r"\w[\w'’-]*", prose))
        elif "hide-input" in cell.metadata.get("tags", []):
            seconds += 45
        else:
            asks = "= predict(" in cell.source
            seconds += 30 if asks else 4 * len([line for line in cell.source.splitlines() if line.strip()])
    return 5 * max(1, round(seconds / 300))


def write_sources(text: Path) -> None:
    """Give the notebook the cells of its text, each with the output that it has."""
    ours, theirs = read_text(text), nbformat.read(notebook_of(text), as_version=4)
    if [cell.cell_type for cell in ours.cells] != [cell.cell_type for cell in theirs.cells]:
        raise InputError(f"{text.stem}: its text has other cells than the notebook, so it has to be built")
    for cell, built in zip(ours.cells, theirs.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = built.outputs, built.execution_count
    begin_hidden(ours)
    nbformat.write(ours, notebook_of(text))


def take(text: Path) -> None:
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
        return int(translations.renew(args.names, args.check))
    failed, figures = False, {}
    for text in texts(args.names):
        if args.take:
            take(text)
        elif args.sources:
            write_sources(text)
        elif args.reading:
            print(f"{text.stem}: {len(read_text(text).cells)} cells, {reading_minutes(read_text(text))} min")
        elif args.check:
            said = differences(text)
            failed |= bool(said)
            print(f"{text.stem}: {'; '.join(said) or 'in step'}")
        else:
            seconds, figures[text.stem] = built(text, args.timeout)
            print(f"{text.stem}: {seconds:.0f} s, {notebook_of(text).stat().st_size / 1000:.0f} kB", flush=True)
    if not (args.check or args.take or args.reading):
        for name in {text.stem for text in texts(args.names)} & set(translations.written()):
            translations.write(name, figures.get(name))
    if not (args.check or args.sources or args.take or args.reading):
        save_pictures([text.stem for text in texts(args.names)])
    return int(failed)


def built(text: Path, timeout: int) -> tuple[float, dict[str, str]]:
    """`build`; a cell that fails is the author's to mend, so its own traceback is shown and this script's is not."""
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
    parser.add_argument("--lang", choices=[translations.LANG], help="write these pages in this language")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that one cell may take")
    return parser


if __name__ == "__main__":
    sys.exit(main())
