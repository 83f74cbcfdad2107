"""Write the slides of four lectures, with figures of the lessons, into build/slides: `python docs/teaching/slides.py`.

The text of a lecture is in two files, such as slides/1_policy_gradient.md and slides/1_policy_gradient.zh-CN.md. A line
`---` separates two slides. `![05: token boxes]` is the figure of lesson 05 whose alternative text contains these words.
The figures are read from the committed lessons, so no lesson is executed. nbconvert writes the pages for reveal.js. A
browser fetches reveal.js from nbconvert's default address, or from the address that --reveal names.
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
# Text that is legible from the last row, and figures that leave room for text, on a slide of 960 x 700 pixels.
STYLE = """<style>
.reveal .slides p, .reveal .slides li { font-size: 26px; line-height: 1.35; }
.reveal section img { display: block; margin: 0.2em auto; max-width: 100%; max-height: 350px; }
</style>
"""


def sources() -> list[Path]:
    return sorted((HERE / "slides").glob("*.md"))


def lecture(source: Path) -> nbformat.NotebookNode:
    """Return a lecture as a notebook: one cell per slide, with the figures of the slide attached."""
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
    """Return the picture of a lesson whose alternative text contains these English words, and that text.

    Raises:
        InputError: if there is no such figure, or more than one.
    """
    (path,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    matches = [position for position, alt in _alternatives(path).items() if words in alt]
    if len(matches) != 1:
        count = f"is that of {len(matches)}"
        raise InputError("figure", f"{lesson}: {words}", "expected the words of one", problem=count)
    cell, output = matches[0]
    page = NOTEBOOKS / "zh" / path.name if chinese else path
    shown = json.loads(page.read_text(encoding="utf-8"))["cells"][cell]["outputs"][output]
    return "".join(shown["data"]["image/png"]), shown["metadata"]["image/png"]["alt"].replace("]", ")")


def _alternatives(path: Path) -> dict[tuple[int, int], str]:
    """Return the alternative text of each figure, by the numbers of its cell and its output."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = {(c, o): out for c, cell in enumerate(cells) for o, out in enumerate(cell.get("outputs", []))}
    pictures = {position: out.get("metadata", {}).get("image/png", {}) for position, out in outputs.items()}
    return {position: picture["alt"] for position, picture in pictures.items() if "alt" in picture}


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
