"""A student's evening: open an assignment, get it wrong, read why, get it right, see it at work, hand it in."""

import csv
import json
import subprocess
import sys

import pytest

from tests.browser.conftest import open_notebook, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "02_baselines_and_advantages"
RUN_SECONDS = 900
WRONG = "def rloo_advantages(rewards):\n    return rewards - rewards.mean(-1, keepdim=True)\n"
RIGHT = """def rloo_advantages(rewards):
    if rewards.ndim != 2 or rewards.shape[1] < 2 or not rewards.isfinite().all():
        raise ValueError("finite rewards of shape (P, G), G at least 2")
    G = rewards.shape[-1]
    return rewards - (rewards.sum(-1, keepdim=True) - rewards) / (G - 1)
"""
WRITE = "([id, source]) => { const all = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;"
WRITE += " all.find(c => c.id === id).setSource(source); }"
OUTPUT = """(id) => {
    const panel = window.jupyterapp.shell.currentWidget;
    const index = panel.content.model.sharedModel.cells.findIndex(c => c.id === id);
    return panel.content.widgets[index].node.querySelector('.jp-Cell-outputWrapper').innerText;
}"""

FOLDED = OUTPUT.replace("innerText", "textContent")


def test_a_students_evening(page, lab, tmp_path):
    open_notebook(page, lab, f"assignments/{NAME}")
    run_all(page, RUN_SECONDS)
    verdict = page.evaluate(OUTPUT, "a02-rloo_advantages-check")
    assert "not written yet" in verdict

    page.evaluate(WRITE, ["a02-rloo_advantages-stub", WRONG])
    run_all(page, RUN_SECONDS)
    verdict = page.evaluate(OUTPUT, "a02-rloo_advantages-check")
    assert "not right yet" in verdict and "part of it" in verdict
    assert "yours     [[0.5, -0.5]]" in verdict and "expected  [[1, -1]]" in verdict
    assert "Eq. (2.5)" not in verdict and "Eq. (2.5)" in page.evaluate(FOLDED, "a02-rloo_advantages-check")
    assert "not written yet" in page.evaluate(OUTPUT, "a02-best_of_group-check")

    page.evaluate(WRITE, ["a02-rloo_advantages-stub", RIGHT])
    run_all(page, RUN_SECONDS)
    verdict = page.evaluate(OUTPUT, "a02-rloo_advantages-check")
    assert "✓" in verdict and "not right" not in verdict

    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    marks, report = hand_in(page, tmp_path)
    assert marks["student"] == "ada" and marks["rloo_advantages"] == "3" and marks["points"] == "3"

    page.goto(report.as_uri())
    shown = page.inner_text("body")
    assert "rloo_advantages" in shown and "ada" in shown


def hand_in(page, tmp_path):
    """What was saved, as a submission of ada's, graded by the command: her row of grades.csv, and her page."""
    saved = page.evaluate(
        """async () => {
            const context = window.jupyterapp.shell.currentWidget.context;
            await context.save();
            return JSON.stringify(context.model.toJSON());
        }"""
    )
    folder, results = tmp_path / "handed in" / "ada", tmp_path / "results"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").write_text(json.dumps(json.loads(saved)), encoding="utf-8")
    command = [sys.executable, "-m", "grpo_lab.course", "grade", str(folder.parent), "--trust"]
    command += ["--output", str(results)]
    subprocess.run(command, check=True, timeout=600)
    with open(results / "grades.csv", encoding="utf-8-sig", newline="") as file:
        (marks,) = csv.DictReader(file)
    (report,) = results.rglob("ada.html")
    return marks, report
