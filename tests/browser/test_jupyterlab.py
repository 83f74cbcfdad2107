"""Saved notebooks open in JupyterLab without errors and with all formulas rendered, and predictions work there."""

import re
import time
from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import assert_no_error, open_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
RENDER_SECONDS = 120


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_saved_notebook_has_no_error_and_every_formula_renders(page, lab, notebook):
    open_notebook(page, lab, notebook.stem)
    assert_no_error(page)
    # On a busy machine formulas may still be typeset after the page has loaded, so the test waits.
    page.wait_for_timeout(3000)
    end = time.monotonic() + RENDER_SECONDS
    while (unrendered := unrendered_formula(page)) and time.monotonic() < end:
        page.wait_for_timeout(1000)
    assert not unrendered, f"{notebook.stem}: not rendered: {unrendered}"
    assert page.evaluate("document.querySelectorAll('mjx-merror, [data-mml-node=\"merror\"]').length") == 0


def unrendered_formula(page) -> str:
    """Return a formula of the page that is shown as TeX, "any formula" if none is rendered, or ""."""
    rendered = page.evaluate("document.querySelectorAll('mjx-container').length")
    text = page.evaluate(
        """[...document.querySelectorAll('.jp-RenderedMarkdown')].map(e => {
            const copy = e.cloneNode(true);
            copy.querySelectorAll('code, pre, mjx-container').forEach(c => c.remove());
            return copy.textContent;
        }).join(' ')"""
    )
    leftover = re.search(r"\$[^$\n]+\$|\\tag\{|\\frac|\\mathrm|\$\$", text)
    if leftover:
        return repr(leftover[0])
    return "" if rendered > 0 else "any formula"


def open_cells(page, lab, cells: list) -> None:
    """Save a notebook with these cells, and open it."""
    kernel = {"kernelspec": nbformat.read(NOTEBOOKS[-1], as_version=4).metadata.kernelspec}
    open_notebook(page, lab, NOTEBOOKS[-1].stem)
    page.evaluate(
        """content => window.jupyterapp.serviceManager.contents.save(
            'made.ipynb', {type: 'notebook', format: 'json', content: JSON.parse(content)})""",
        nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)),
    )
    open_notebook(page, lab, "made")


PREDICTIONS = (
    "from grpo_lab.teaching.notebook import begin, how_well_did_you_predict, predict\n\nbegin()",
    'share = predict("Which share is it?", 0, 1)',
    'which = predict("Which of the two is it?", choices=("the first", "the second"))',
    'share.truth(0.5)\nwhich.truth("the second")\nhow_well_did_you_predict()',
)


def test_folded_outputs_of_a_saved_page_show_only_their_heading(page, lab):
    open_notebook(page, lab, NOTEBOOKS[0].stem)
    folds = page.evaluate(
        "[...document.querySelectorAll('.jp-Cell-outputWrapper .jp-Placeholder')].map(e => e.innerText)"
    )
    assert folds and all(fold.startswith("The result:") for fold in folds), folds


def test_a_prediction_widget_stores_a_guess_and_judges_it(page, lab):
    """Move the lower handle and click a choice, then run the cell with the truth."""
    cells = [nbformat.v4.new_code_cell(source) for source in PREDICTIONS]
    cells[-1].metadata = {"tags": ["hide-output"], "jupyter": {"outputs_hidden": True}}
    open_cells(page, lab, cells)
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.ready; }")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-above')")
    page.focus(".jupyter-widgets .noUi-handle-lower")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.locator("input[type=radio]").first.click()
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("Of 1 choice, 0 were right.").wait_for()
    cell_text = page.locator(".jp-Notebook:visible .jp-Cell").nth(3).inner_text()
    assert cell_text.index("The result:") < cell_text.index("Truth: 0.5. You said 0.2 to 1: that holds it.")
    assert "Truth: the second. You said the first: wrong." in cell_text
    assert "You answered 2 of 2 predictions. Of 1 range, 1 held the truth" in cell_text


def test_run_all_warns_before_the_first_answer_and_where_each_question_stood_and_runs_to_the_end(page, lab):
    open_cells(page, lab, [nbformat.v4.new_code_cell(source) for source in PREDICTIONS])
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.ready; }")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.get_by_text("No predictions were made in this run.").wait_for()
    assert_no_error(page)
    _, first, second, truths = page.locator(".jp-Notebook:visible .jp-Cell").all_inner_texts()
    assert "Restart Kernel" in first and "Restart Kernel" in second
    assert truths.index("Run All tells this answer") < truths.index("Truth: 0.5.")
    assert page.locator(".jp-Notebook:visible .noUi-handle, .jp-Notebook:visible input[type=radio]").count() == 0
