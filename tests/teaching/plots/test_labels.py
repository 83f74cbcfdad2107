"""Labels of figures in Chinese: they are translated with their numbers, and the font has every character."""

import base64
import io
import json
import warnings
from pathlib import Path

import pytest

from grpo_lab.base.language import FIGURES, PO, SLOT, confirmed_messages
from grpo_lab.teaching import plots
from grpo_lab.teaching.messages import message_and_numbers
from grpo_lab.teaching.plots import style

plt = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("babel")
CHINESE = "zh_CN"
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@pytest.fixture
def catalogue(monkeypatch) -> dict[str, str]:
    """Use a small catalogue instead of the file."""
    entries = {"step": "步数", "{0} of {1}:\nright": "{1} 个中 {0} 个\n正确", "seed 0": "种子零", "right": "正确"}
    monkeypatch.setattr(style, "label_translations", lambda target_language: entries)
    return entries


def test_numbers_are_kept_and_may_change_their_order(catalogue):
    for text, expected in {
        "step": "步数",
        "15 of 24:\nright": "24 个中 15 个\n正确",
        "0.5 of −1e-4:\nright": "−1e-4 个中 0.5 个\n正确",
        "seed 0": "种子零",
        "seed 1": "seed 1",
        "DAPO": "DAPO",
        "": "",
    }.items():
        assert style.translate_label(text, CHINESE) == expected


def test_titles_axes_ticks_legends_and_texts_of_a_figure_are_translated(catalogue):
    fig, (left, right) = plt.subplots(1, 2)
    left.plot([0, 1], label="right"), left.legend(), left.set(title="right", xlabel="step")
    left.set_yticks([0, 1], ["right", "DAPO"])
    right.bar(["right", "2"], [1, 2]), right.text(0, 0, "15 of 24:\nright")
    png = style.png(fig)
    assert set(style.figure_labels(fig)) == {"step", "right", "DAPO", "15 of 24:\nright"}
    style.translate_labels(fig, CHINESE)
    with warnings.catch_warnings(record=True) as missing:
        warnings.simplefilter("always")
        new_png = style.png(fig)
    assert not [str(warning.message) for warning in missing if "Glyph" in str(warning.message)]
    assert set(style.figure_labels(fig)) == {"DAPO"}
    assert png != new_png
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["正确", "2"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["正确", "DAPO"]
    assert left.get_legend().get_texts()[0].get_text() == left.get_title() == "正确"


def test_a_build_gets_the_figure_in_both_languages(catalogue, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv(style.SECOND_LANGUAGE, CHINESE)
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    fig, ax = plt.subplots()
    ax.set(xlabel="step")
    content, metadata = style.picture(fig, "An empty figure.")
    (picture,) = metadata.values()
    assert picture["labels"] == ["step"]
    assert picture[CHINESE] != content["image/png"]
    for encoded in (content["image/png"], picture[CHINESE]):
        assert image.open(io.BytesIO(base64.b64decode(encoded))).width == 2 * picture["width"] == 1440


def test_the_font_has_each_sign_of_the_catalogue_and_numbers_are_kept():
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    signs = set()
    for font in (style.CHINESE_FONT, font_manager.findfont("DejaVu Sans")):
        signs |= set(map(chr, FT2Font(str(font)).get_charmap()))
    entries = confirmed_messages(PO / CHINESE / FIGURES)
    assert len(entries) > 200
    for entry in entries:
        assert set(entry.string) - {"\n"} <= signs, entry.string
        assert "$" not in entry.string, "a formula is set in another font, which has no Chinese"
        assert sorted(SLOT.findall(entry.id)) == sorted(SLOT.findall(entry.string)), entry.id
        assert len(message_and_numbers(SLOT.sub("1", entry.id))[1]) == len(SLOT.findall(entry.id)), entry.id


def test_each_label_of_the_built_lessons_is_in_the_catalogue():
    """A build stores the labels with each figure. Names such as DAPO are in the catalogue, with the same text."""
    known = style.label_translations(CHINESE)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        written = [text for o in outputs for text in o.get("metadata", {}).get("image/png", {}).get("labels", ())]
        unknown = [text for text in written if not {text, message_and_numbers(text)[0]} & known.keys()]
        assert not unknown, f"{path.name}: add to po/zh_CN/{FIGURES}: {unknown}"


def test_stages_of_the_loop_diagram_have_chinese_names():
    fig = plots.diagrams._row(("reward",), ("prompts",))
    style.translate_labels(fig, CHINESE)
    assert not style.figure_labels(fig), "all seven stages have a Chinese name"
