"""Figures have a look that everyone can read, and captions and alternative texts in the output."""

import base64
import io

import numpy as np
import pytest

from grpo_lab.teaching import plots

matplotlib = pytest.importorskip("matplotlib")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture
def shown(monkeypatch) -> list[list]:
    """Replace the notebook: record the MIME bundle and the metadata of each displayed object."""
    ipython = pytest.importorskip("IPython")
    displayed = []

    def display(bundle, metadata, raw):
        assert raw
        displayed.append([bundle, metadata])

    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    monkeypatch.setattr(ipython.display, "display", display)
    return displayed


def test_lines_differ_in_colour_and_in_dashes_on_a_light_opaque_background():
    _, ax = plt.subplots()
    lines = [ax.plot([0, 1])[0] for _ in plots.OKABE_ITO]
    colours = {matplotlib.colors.to_hex(line.get_color()).upper() for line in lines}
    assert colours < {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert len(colours) == len(lines) == len({str(line._dash_pattern) for line in lines})
    for name in ("figure.facecolor", "axes.facecolor", "savefig.facecolor"):
        red, green, blue, alpha = matplotlib.colors.to_rgba(plt.rcParams[name])
        assert min(red, green, blue) > 0.95
        assert alpha == 1


def test_finish_stores_alt_text_and_shows_the_caption(shown):
    fig, ax = plt.subplots()
    plots.band(ax, range(50), np.random.default_rng(0).normal(size=(5, 50)), "noise")
    plots.finish(fig, caption="Noise has no trend.", alt="A flat line with a band.")
    (bundle, metadata), (caption, _) = shown
    assert metadata == {"image/png": {"alt": "A flat line with a band.", "width": 720}}
    assert bundle["text/plain"] == "A flat line with a band."
    assert caption["text/markdown"] == "**Figure.** Noise has no trend."
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert image.size == (1440, 720)
    assert len(bundle["image/png"]) < 60_000
    assert not plt.fignum_exists(fig.number)  # the notebook would show an open figure again


def test_in_a_shell_finish_prints_the_caption(capsys):
    fig, _ = plt.subplots()
    plots.finish(fig, caption="See.", alt="Seen.")
    assert capsys.readouterr().out == "Figure. See.\n"
    assert plt.get_fignums() == [fig.number]
