"""The committed notebooks are executed, clean, small and in step with their text."""

import json
import re
from pathlib import Path

import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 550_000  # figures have twice the resolution of the page
FOLD = "# The "  # "# The figure: open this line, then the result below it."

pytest.importorskip("jupytext")
build = load_script("notebooks/build.py")


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def outputs(path: Path) -> list[dict]:
    return [output for cell in cells(path, "code") for output in cell["outputs"]]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_there_is_a_text_for_every_notebook():
    assert NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} == {path.stem for path in (ROOT / "notebooks" / "text").glob("*.md")}


def test_text_and_notebook_have_the_same_cells(notebook):
    assert build.differences(ROOT / "notebooks" / "text" / f"{notebook.stem}.md") == []


def test_every_code_cell_has_run_in_order_and_none_failed(notebook):
    counts = [cell["execution_count"] for cell in cells(notebook, "code") if "".join(cell["source"]).strip()]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in outputs(notebook) if output["output_type"] == "error"]


def test_outputs_of_lessons_are_clean_and_small(notebook):
    assert notebook.stat().st_size <= MAX_BYTES
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert "widgets" not in document["metadata"]
    assert not [cell for cell in document["cells"] if "execution" in cell["metadata"]]
    text_of_outputs = json.dumps(
        [{k: v for k, v in o.get("data", {}).items() if k != "image/png"} for o in outputs(notebook)]
    )
    text_of_outputs += "".join("".join(o["text"]) for o in outputs(notebook) if o["output_type"] == "stream")
    text_of_outputs = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=\\n]*", "", text_of_outputs)
    assert not re.search(
        r"Warning:|/home/|/root/|/Users/|/tmp/|[A-Z]:\\\\Users|site-packages|\d\d:\d\d:\d\d", text_of_outputs
    )
    assert not re.search(r"(?<![\w.])/[\w./-]+/python", text_of_outputs), "where a machine keeps its Python"
    assert build.WIDGET not in text_of_outputs


def test_every_picture_has_alternative_text(notebook):
    for output in outputs(notebook):
        html = "".join(output.get("data", {}).get("text/html", ""))
        for image in re.findall(r"<img[^>]*>", html):
            assert re.search(r'alt="[^"]{20,}"', image), image[:80]
        if "image/png" in output.get("data", {}):
            assert len(output["metadata"].get("image/png", {}).get("alt", "")) >= 20


def test_a_folded_result_begins_with_a_line_that_gives_nothing_away(notebook):
    for cell in cells(notebook, "code"):
        if "hide-output" in cell["metadata"].get("tags", []) and cell["outputs"]:
            assert build.is_result_line(cell["outputs"][0]), "".join(cell["source"])


def test_code_cells_of_lessons_are_short(notebook):
    lines = [[line for line in cell["source"] if not line.startswith(FOLD)] for cell in cells(notebook, "code")]
    assert not [source[0] for source in lines if len(source) > 25]


def test_folded_cells_begin_with_a_line_on_how_to_open_them(notebook):
    for cell in cells(notebook, "code"):
        if {"hide-input", "hide-output"} <= set(cell["metadata"].get("tags", [])):
            assert cell["source"][0].startswith(FOLD), "".join(cell["source"])
