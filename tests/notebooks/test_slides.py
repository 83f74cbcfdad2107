"""The slides of four lectures: figures come from the lessons, and both languages have the same content."""

import base64
import re

import pytest

from grpo_lab.base.checks import InputError
from tests.support.scripts import load_script

slides = load_script("docs/teaching/slides.py")
ENGLISH = [source for source in slides.sources() if not source.stem.endswith(slides.CHINESE)]
FORMULA = re.compile(r"\$\$?.+?\$\$?", re.DOTALL)


def test_there_are_four_lectures_in_two_languages():
    assert len(ENGLISH) == 4 and len(slides.sources()) == 8


@pytest.mark.parametrize("source", ENGLISH, ids=lambda source: source.stem)
def test_both_languages_have_the_same_slides_figures_and_formulas(source):
    chinese = source.with_name(f"{source.stem}{slides.CHINESE}.md")
    pairs = [re.split(r"^---$", path.read_text(encoding="utf-8"), flags=re.MULTILINE) for path in (source, chinese)]
    for english, translated in zip(*pairs, strict=True):
        assert slides.FIGURE.findall(english) == slides.FIGURE.findall(translated)
        assert FORMULA.findall(english) == FORMULA.findall(translated)
        assert re.search("[\u4e00-\u9fff]", translated)


@pytest.mark.parametrize("source", slides.sources(), ids=lambda source: source.stem)
def test_every_figure_comes_from_a_lesson_with_its_alternative_text(source):
    cells = slides.lecture(source).cells
    assert len(cells) >= 8 and sum("attachments" in cell for cell in cells) >= 5
    for cell in cells:
        assert not slides.FIGURE.search(cell.source), "a figure that was not found"
        assert len(cell.source.split()) < 120, "a slide, and no page"
        for picture in cell.get("attachments", {}).values():
            assert base64.b64decode(picture["image/png"])[:4] == b"\x89PNG"


def test_a_figure_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="is that of 0"):
        slides.figure("05", "a unicorn")


def test_nbconvert_makes_pages_of_reveal_js(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slides, "sources", lambda: ENGLISH[:1])
    assert slides.main(["--output", str(tmp_path), "--reveal", "reveal.js"]) == 0
    page = (tmp_path / f"{ENGLISH[0].stem}.slides.html").read_text(encoding="utf-8")
    assert page.count("<section>") > 8 and "reveal.js/dist/reveal" in page and page.count("data:image/png") >= 6
