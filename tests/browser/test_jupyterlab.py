"""Every notebook in a real JupyterLab and a real browser, as saved and after Run All: no error, no broken formula.

A slider moves its plot, and the chat box answers.
"""

import re
import time
from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import assert_no_error, open_notebook, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
RUN_SECONDS, RENDER_SECONDS = 1500, 120
WITH_SLIDER = "04_kl_estimators"
CHAT = """
from grpo_lab.chat import ChatBox
from grpo_lab.models import load_policy

model, tokenizer = load_policy("tiny", device="cpu")
ChatBox({"before": model, "after": model}, tokenizer)
"""


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=named)
def test_saved_and_run_again_there_is_no_error_and_every_formula_renders(page, lab, notebook):
    open_notebook(page, lab, notebook.stem)
    assert_looks_right(page, notebook)
    page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    run_all(page, RUN_SECONDS)
    assert_looks_right(page, notebook)
    if notebook.stem == WITH_SLIDER:
        assert_slider_changes_its_plot(page)


def assert_looks_right(page, notebook: Path) -> None:
    assert_no_error(page)
    states = page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
        ".filter(c => c.cell_type === 'code' && c.source.trim()).map(c => c.execution_count)"
    )
    assert states and all(state is not None for state in states)
    assert_formulas_render(page, notebook)


def assert_formulas_render(page, notebook: Path) -> None:
    """On a busy machine the typesetting may still be at work when the page is there: then wait for it."""
    page.wait_for_timeout(3000)
    end = time.monotonic() + RENDER_SECONDS
    while (fault := what_is_not_rendered(page)) and time.monotonic() < end:
        page.wait_for_timeout(1000)
    assert not fault, f"{notebook.stem}: not rendered: {fault}"
    assert page.evaluate("document.querySelectorAll('mjx-merror, [data-mml-node=\"merror\"]').length") == 0


def what_is_not_rendered(page) -> str:
    rendered = page.evaluate("document.querySelectorAll('mjx-container').length")
    text = page.evaluate(
        """[...document.querySelectorAll('.jp-RenderedMarkdown')].map(e => {
            const copy = e.cloneNode(true);
            copy.querySelectorAll('code, pre, mjx-container').forEach(c => c.remove());
            return copy.textContent;
        }).join(' ')"""
    )
    leftover = re.search(r"\$[^$\n]+\$|\\tag\{|\\frac|\\mathrm|\$\$", text)
    return repr(leftover[0]) if leftover else "" if rendered > 0 else "any formula"


def assert_slider_changes_its_plot(page) -> None:
    """The first slider of `explore`, whose frame hangs below it; a range slider of a prediction has two handles."""
    box = page.locator(".widget-vbox:has(.widget-output):has(.noUi-handle)").first
    picture, handle = box.locator(".widget-output img"), box.locator(".noUi-handle").first
    picture.wait_for()
    before = picture.get_attribute("src")
    handle.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    end = time.monotonic() + RENDER_SECONDS
    while (after := picture.get_attribute("src")) == before and time.monotonic() < end:
        page.wait_for_timeout(500)
    assert after != before


def test_the_chat_of_08_answers(page, lab):
    kernel = {"kernelspec": nbformat.read(NOTEBOOKS[-1], as_version=4).metadata.kernelspec}
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CHAT.strip())], metadata=kernel)
    open_notebook(page, lab, NOTEBOOKS[-1].stem)
    page.evaluate(
        """content => window.jupyterapp.serviceManager.contents.save(
            'chat.ipynb', {type: 'notebook', format: 'json', content: JSON.parse(content)})""",
        nbformat.writes(content),
    )
    open_notebook(page, lab, "chat")
    run_all(page, RUN_SECONDS)
    line = page.locator(".widget-text input")
    line.fill("34+56+78=?")
    line.press("Tab")
    page.locator(".jupyter-widgets button", has_text="Send").click()
    replies = page.locator(".widget-html", has_text="34+56+78=?")
    replies.wait_for()
    said = replies.inner_text()
    assert said.startswith("you: 34+56+78=?") and "before: " in said and "after: " in said
    assert line.input_value() == ""
