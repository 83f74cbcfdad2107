"""Notebooks in a real JupyterLab and a real browser: Run All, no error, no broken formula; a slider moves its plot."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
START_SECONDS, RUN_SECONDS = 120, 600
CELL = ".jp-Notebook .jp-Cell"
WITH_SLIDER = "04_kl_estimators"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS[0].parent, folder / "notebooks", ignore=shutil.ignore_patterns("assignments"))
    tracker = folder / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}', encoding="utf-8")  # render every cell, not only those in view
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    environment |= {"GRPO_LAB_PROFILE": "fast", "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "JUPYTER_PLATFORM_DIRS": "1"}
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=", "--ServerApp.password="]
    options += [f"--ServerApp.root_dir={folder / 'notebooks'}", "--LabApp.expose_app_in_browser=True"]
    options += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_for_port(port, server, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def _wait_for_port(port: int, server: subprocess.Popen, log: Path) -> None:
    for _ in range(2 * START_SECONDS):
        assert server.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise TimeoutError(log.read_text(encoding="utf-8"))


@pytest.fixture
def page(chromium: str, lab: str) -> Iterator:
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=quiet)
        page = browser.new_page(viewport={"width": 1250, "height": 1000})
        page.set_default_timeout(1000 * START_SECONDS)
        yield page
        browser.close()


def open_notebook(page, lab: str, name: str) -> None:
    page.goto(f"{lab}/doc/tree/{name}.ipynb?reset")
    page.wait_for_selector(CELL)
    page.wait_for_function("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_run_all_gives_no_error_and_every_formula_renders(page, lab, notebook):
    open_notebook(page, lab, notebook.stem)
    finished = page.evaluate(
        f"""async () => {{
            const panel = window.jupyterapp.shell.currentWidget;
            await panel.sessionContext.ready;
            await window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs');
            const late = new Promise(done => setTimeout(() => done('not finished'), {1000 * RUN_SECONDS}));
            return Promise.race([late, window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => 'ran')]);
        }}"""
    )
    assert finished == "ran"
    failed = """[...document.querySelectorAll('[data-mime-type$="jupyter.error"]')].map(e => e.innerText)"""
    problems = page.evaluate(failed)
    assert not problems, problems[0]
    states = page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
        ".filter(c => c.cell_type === 'code' && c.source.trim()).map(c => c.execution_count)"
    )
    assert states and all(state is not None for state in states)
    assert_formulas_render(page, notebook)


def assert_formulas_render(page, notebook: Path) -> None:
    page.wait_for_timeout(3000)
    assert page.evaluate("document.querySelectorAll('mjx-merror, [data-mml-node=\"merror\"]').length") == 0
    rendered = page.evaluate("document.querySelectorAll('mjx-container').length")
    text = page.evaluate(
        """[...document.querySelectorAll('.jp-RenderedMarkdown')].map(e => {
            const copy = e.cloneNode(true);
            copy.querySelectorAll('code, pre, mjx-container').forEach(c => c.remove());
            return copy.textContent;
        }).join(' ')"""
    )
    assert rendered > 0
    leftover = re.search(r"\$[^$\n]+\$|\\tag\{|\\frac|\\mathrm|\$\$", text)
    assert leftover is None, f"{notebook.stem}: not rendered: {leftover[0]!r}"


def test_moving_the_slider_changes_its_plot(page, lab):
    open_notebook(page, lab, WITH_SLIDER)
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".jupyter-widgets .noUi-handle")
    picture = (
        ".jp-OutputArea:has(.jupyter-widgets .noUi-handle) .widget-output img, .jupyter-widgets.widget-interact img"
    )
    before = page.get_attribute(picture, "src")
    page.focus(".jupyter-widgets .noUi-handle")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(f"(old) => document.querySelector({picture!r})?.src !== old", arg=before)
    assert page.get_attribute(picture, "src") != before
