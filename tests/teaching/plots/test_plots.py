"""Figures: correct intervals, a look that everyone can read, and captions and alternative texts in the output."""

import base64
import html
import io
import re
import statistics

import numpy as np
import pytest
import torch

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


def test_mean_interval_is_the_textbook_formula():
    for df in (1, 2, 3, 4, 5, 9, 17, 29, 30, 35, 47, 90, 119, 500, 5000):
        # With t = sqrt(df) tan(angle), the density of Student's t is a power of the cosine.
        angle = np.linspace(0, np.pi / 2, 100_001)
        density = np.cos(angle) ** (df - 1)
        mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
        inside = np.interp(np.arctan(plots.t_quantile(df) / np.sqrt(df)), angle, mass)
        assert inside / mass[-1] == pytest.approx(0.95, abs=1e-5)
    runs = [[1.0, 5.0], [2.0, 5.0], [4.5, 5.0], [0.5, 5.0]]
    mean, half = plots.mean_interval(runs)
    column = [run[0] for run in runs]
    assert mean == pytest.approx([statistics.mean(column), 5.0])
    assert half == pytest.approx([3.18245 * statistics.stdev(column) / 2, 0.0], abs=1e-4)
    for runs in ([1.0, 2.0], [[1.0, 2.0]], [[1.0], [float("nan")]]):
        with pytest.raises(ValueError, match="runs "):
            plots.mean_interval(runs)


def test_a_band_is_the_mean_and_its_interval_and_ends_where_values_end():
    _, ax = plt.subplots()
    runs = torch.tensor([[0.0, 0.9], [0.2, 1.0]], requires_grad=True)
    line = plots.band(ax, torch.arange(2), runs, "a share")
    plots.band(ax, [0, 1], runs, "clipped", clip=(0, 1))
    mean, half = plots.mean_interval(runs)
    assert line.get_ydata() == pytest.approx(mean)
    assert line.get_label() == "a share"
    free, clipped = (filled.get_paths()[0].get_extents().intervaly for filled in ax.collections)
    assert free == pytest.approx([(mean - half).min(), (mean + half).max()])
    assert list(clipped) == [0, 1]
    assert free[0] < 0
    assert free[1] > 1
    assert matplotlib.colors.same_color(ax.collections[0].get_facecolor()[0][:3], line.get_color())


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


def words(markup: str) -> list[str]:
    """Return the texts of an HTML page without its tags."""
    return [html.unescape(text) for text in re.findall("(?:^|>)([^<]+)", markup) if text.strip()]


def test_token_heat_escapes_tokens_and_makes_white_space_visible():
    tokens = ["<script>alert(1)</script>", " a&b", "\n", "", "$x$", "答案", '"']
    page = plots.token_heat(tokens, torch.arange(-3.0, 4.0)).rich
    assert set(re.findall(r"<(\w+)", page)) == {"div", "code", "sub", "br"}
    assert {"<script>alert(1)</script>", "·a&b", "⏎", "∅", "$x$", "答案", '"'} <= set(words(page))


def test_token_heat_tells_the_sign_without_colour_where_there_is_one():
    drawn = plots.token_heat(["a", "b", "c"], [0.5, -0.25, 0.0])
    assert words(drawn.rich)[:6] == ["a", "+0.50", "b", "-0.25", "c", "0"]
    assert drawn._repr_mimebundle_()["text/plain"] == repr(drawn) == "a[+0.50] b[-0.25] c[0]"
    drawn = plots.token_heat(["a", "b"], [0.25, 1.0], limit=1.0, signs=False)
    assert words(drawn.rich) == ["a", "0.25", "b", "1.00", "value: ", "0", "0.50", "1.00"]
    for values in ([1.0], [[1.0, 2.0]], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values h"):
            plots.token_heat(["a", "b"], values)
