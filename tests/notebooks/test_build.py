"""The build folds the cells that are tagged as hidden, and counts the reading time of the visible ones."""

import sys
from pathlib import Path

import nbformat
import pytest

from tests.support.scripts import load_script

pytest.importorskip("jupytext")
build = load_script("notebooks/build.py")

TEXT = """---
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# 11 · A small one

```{code-cell} ipython3
:tags: [hide-input]

print("some code")
```

```{code-cell} ipython3
:tags: [hide-input]

x = dict(caption="a figure, say")
```

```{code-cell} ipython3
:tags: [hide-output]

print("the truth is 7")  # guess.truth(7)
```

```{code-cell} ipython3
print("in sight")
```
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Build a series of one notebook, and return its folder."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "11_small.md").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(build, "TEXT", tmp_path / "text")
    monkeypatch.setattr(build, "HERE", tmp_path)
    build.build(tmp_path / "text" / "11_small.md", timeout=60)
    return tmp_path


def test_tags_become_what_jupyterlab_collapses_by(folder):
    built = nbformat.read(folder / "11_small.ipynb", as_version=4)
    assert [dict(cell.metadata.get("jupyter", {})) for cell in built.cells] == [
        {},
        {"source_hidden": True},
        {"source_hidden": True},
        {"outputs_hidden": True},
        {},
    ]
    assert not build.differences(folder / "text" / "11_small.md")
    del built.cells[3].metadata["jupyter"]
    nbformat.write(built, folder / "11_small.ipynb")
    assert build.differences(folder / "text" / "11_small.md") == ["cell 3 differs"], "an answer would stand open"


def cell(source: str, kind: str = "markdown", tags: tuple[str, ...] = ()):
    make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
    return make(source, metadata={"tags": list(tags)})


@pytest.mark.parametrize(
    ("cells", "minutes"),
    [
        ([cell("word " * 3250)], 25),
        ([cell("word " * 1950), cell("<details>\n\n" + "word " * 3000 + "\n\n</details>")], 15),
        ([cell("$$\na = b \\cdot c\n$$\n\n" * 20)], 10),
        ([cell("x = 1\n" * 15, "code") for _ in range(10)], 10),
        ([cell('guess = predict("How many?", 0, 1)', "code") for _ in range(20)], 10),
        ([cell("x = 1\n" * 100, "code", ("hide-input",)) for _ in range(20)], 15),
        ([cell("word")], 5),
    ],
)
def test_reading_time_counts_visible_cells(cells, minutes):
    assert build.reading_minutes(nbformat.v4.new_notebook(cells=cells)) == minutes


def test_built_outputs_contain_no_path_of_the_machine():
    output = nbformat.v4.new_output("execute_result", {"text/markdown": f"at {sys.executable}, in {build.HERE.parent}"})
    assert build.clean_output(output).data["text/markdown"] == "at .venv/bin/python, in ."
