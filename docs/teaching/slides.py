"""Slides for four lectures: `python docs/teaching/slides.py` writes build/slides/*.html, with figures of the lessons.

The text of a lecture is slides/1_policy_gradient.md, and slides/1_policy_gradient.zh-CN.md. `---` alone on a line parts
two slides; `![05: token boxes]` is the figure of lesson 05 whose alternative text has these words. The lessons are read
as they are committed, so nothing runs. The pages are reveal.js by nbconvert; they fetch reveal.js when they are shown,
from where nbconvert says, or from the folder that --reveal names.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTEBOOKS = ROOT / "notebooks"
FIGURE = re.compile(r"!\[(\d\d\w?): ([^\]]+)\](?!\()")
CHINESE = ".zh-CN"
# Text that is read from the last row, and figures that leave room for it; lengths are of a slide of 960 x 700.
STYLE = """<style>
.reveal .slides p, .reveal .slides li { font-size: 26px; line-height: 1.35; }
.reveal section img { display: block; margin: 0.2em auto; max-width: 100%; max-height: 350px; }
</style>
"""


def sources() -> list[Path]:
    return sorted((HERE / "slides").glob("*.md"))


def lecture(source: Path) -> nbformat.NotebookNode:
    """The notebook of a lecture: a cell for each slide, with its figures attached."""
    chinese = source.stem.endswith(CHINESE)
    cells = []
    for text in re.split(r"^---$", source.read_text(encoding="utf-8"), flags=re.MULTILINE):
        cell = nbformat.v4.new_markdown_cell(text.strip(), id=f"slide-{len(cells)}")
        cell.metadata = nbformat.from_dict({"slideshow": {"slide_type": "slide"}})
        attachments = {}
        for number, (lesson, words) in enumerate(FIGURE.findall(cell.source)):
            picture, alt = figure(lesson, words, chinese)
            attachments[f"{number}.png"] = {"image/png": picture}
            cell.source = FIGURE.sub(lambda _, n=number, a=alt: f"![{a}](attachment:{n}.png)", cell.source, count=1)
        if attachments:
            cell.attachments = nbformat.from_dict(attachments)
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata={"title": source.stem.removesuffix(CHINESE)})


def figure(lesson: str, words: str, chinese: bool = False) -> tuple[str, str]:
    """The picture of a lesson whose alternative text has these English words, and that text.

    Raises:
        InputError: if there is no such figure, or more than one.
    """
    (path,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    found = [place for place, alt in _alternatives(path).items() if words in alt]
    if len(found) != 1:
        raise InputError("figure", f"{lesson}: {words}", "expected the words of one", found=f"is that of {len(found)}")
    cell, output = found[0]
    page = NOTEBOOKS / "zh" / path.name if chinese else path
    shown = json.loads(page.read_text(encoding="utf-8"))["cells"][cell]["outputs"][output]
    return "".join(shown["data"]["image/png"]), shown["metadata"]["image/png"]["alt"].replace("]", ")")


def _alternatives(path: Path) -> dict[tuple[int, int], str]:
    """Alternative text of each figure, by the numbers of its cell and its output."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = {(c, o): out for c, cell in enumerate(cells) for o, out in enumerate(cell.get("outputs", []))}
    pictures = {place: out.get("metadata", {}).get("image/png", {}) for place, out in outputs.items()}
    return {place: picture["alt"] for place, picture in pictures.items() if "alt" in picture}


@command("docs/teaching/slides.py")
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "slides", metavar="DIR")
    parser.add_argument("--reveal", metavar="URL", help="where reveal.js lies, such as a folder beside the slides")
    args = parser.parse_args(arguments)
    exporter = SlidesExporter(**{"reveal_url_prefix": args.reveal} if args.reveal else {})
    args.output.mkdir(parents=True, exist_ok=True)
    for source in sources():
        page, _ = exporter.from_notebook_node(lecture(source))
        page = page.replace("</head>", f"{STYLE}</head>", 1)
        path = args.output / f"{source.stem}.slides.html"
        path.write_text(page, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
