"""The Chinese pages have the English cells and outputs, and are in step with po/zh_CN."""

import functools
import json
import re

import nbformat
import pytest

from grpo_lab.teaching.messages import translate_printed_text
from tests.support.scripts import load_script

pytest.importorskip("babel")
translations = load_script("notebooks/translations.py")
read_catalogue = translations.confirmed_messages
translations.confirmed_messages = functools.cache(read_catalogue)  # links to a page need its catalogue, too
WRITTEN = translations.pages_with_chinese()
NAMES = [*translations.PAGES, translations.PACKAGE, translations.VARIANTS]
# Translations of a term beside that of the glossary, because a word has other meanings and shorter forms.
ALSO = {"logits": "logit", "seed": "种子", "bias": "偏", "token": "结束符", "discount": "折扣", "mask": "屏蔽"}
ALSO |= {"score": "分 判 比较", "return": "返回", "reward to go": "奖励", "prompt": "题 问", "completion": "样本"}
ALSO |= {
    "sampler": "采样",
    "trainer": "训练 框架",
    "estimator": "估计",
    "judge": "裁判 判断 验证器 只看",
    "control": "控制",
    "off-policy": "单步异步",  # translates "one-step off-policy"
    "policy": "单步异步",
}
SPARED = {  # entries that need not have the term, by the beginning of their English
    ("policy", "Check the derivation without"),
    ("completion", "An invariance test finds S, "),
    ("control", "Shuffling moves the rewards "),
    ("control", "- Each formula stands beside"),
    ("agent", "Your own data, rewards and l"),  # the name of a page
    ("reward", "D rises. Its logit falls by "),
    ("score", "The mean of $R \\, S$ over $B"),
    ("policy", "The same samples, used for f"),
    ("prompt", "If partial credit can be gam"),
    ("return", "`sample_completions` returns"),
    ("return", "Rounded to the nearest, the "),
    ("group", "One standard deviation divid"),
    ("reward", "Four equations, four lines. "),
    ("token", "Before the first update, the"),
}


@pytest.mark.parametrize("name", NAMES)
def test_translations_keep_what_is_no_prose_and_pages_are_in_step(name):
    if name in (translations.PACKAGE, translations.VARIANTS):
        assert not translations.translation_faults(name) and not translations.untranslated(name)
    else:
        assert not translations.differences(name)
        assert name in WRITTEN or translations.untranslated(name), "all of it is translated, and it has no Chinese page"


@pytest.mark.parametrize("name", [name for name in WRITTEN if translations.PAGES[name].suffix == ".ipynb"])
def test_a_chinese_notebook_has_the_same_code_ids_and_outputs(name):
    page = translations.PAGES[name]
    ours, theirs = (nbformat.read(path, as_version=4) for path in (translations.chinese_path(page), page))
    assert ours.metadata == theirs.metadata
    for our_cell, their_cell in zip(ours.cells, theirs.cells, strict=True):
        for attribute in ("id", "cell_type", "metadata"):
            assert getattr(our_cell, attribute) == getattr(their_cell, attribute)
        if our_cell.cell_type == "code":
            assert our_cell.source == their_cell.source
            for output in their_cell.outputs:
                if output.output_type == "stream":
                    output.text = translate_printed_text(output.text, translations.LANGUAGE)
            assert list(map(as_run, our_cell.outputs)) == list(map(as_run, their_cell.outputs))


def as_run(output) -> str:
    """Return an output as JSON without the texts that are translated.

    A picture with Chinese labels is replaced by the mark of its English picture.
    """
    data = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("text/")}
    if picture := data.get("image/png"):
        drawn_from = output.get("metadata", {}).get("image/png", {}).get(translations.DRAWN_FROM)
        data["image/png"] = drawn_from or translations.figure_hash(picture)
    page = re.sub(' alt="[^"]*"|(?<=<summary>)[^<]*|value:|数值：', "", output.get("data", {}).get("text/html", ""))
    return json.dumps([data, page, output.get("text"), output.output_type])


@pytest.mark.parametrize("name", [*WRITTEN, translations.PACKAGE])
def test_untranslated_messages_are_reported(name):
    """Skip, and report what is missing, because a changed paragraph need not be translated before `make test-all`."""
    if untranslated := translations.untranslated(name):
        share = f"{len(untranslated)} of {len(translations.messages(name))}"
        pytest.skip(f"{share} to translate, such as {untranslated[0][:60]!r}")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "glossary"])
def test_chinese_terms_are_those_of_the_glossary(name):
    page = translations.PAGES["glossary"].read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (?!term )([a-z][^|]+) \| ([^|]*[\u4e00-\u9fff][^|]*) \| [^|]+ \|$", page)
    terms = [(term.split(" (")[0], chinese) for terms, chinese in rows for term in terms.split(", ")]
    terms = [(term, chinese) for term, chinese in terms if re.fullmatch(r"[a-z][A-Za-z -]{2,}", term)]
    missing = []
    for message in translations.confirmed_translations(name):
        titles = r'"[^"]*"|\[\*.+?\*\]|(?s:^- .*arxiv\.org.*)'  # titles of papers
        english = translations.UNCHANGED_PARTS.sub(" ", re.sub(titles, " ", message.id))
        for term, chinese in terms:
            if term.lower() not in english.lower():
                continue  # the search below would take most of the time of the test
            words = [*re.findall(r"[^（），、/ ]+", chinese), *ALSO.get(term, "").split()]
            if re.search(rf"\b{term}s?\b", english, re.IGNORECASE) and not any(w in message.string for w in words):
                missing.append((term, message.id[:28]))
    assert not set(missing) - SPARED


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITTEN, *[translations.PACKAGE] * bool(WRITTEN)])
def test_a_page_that_is_published_is_translated(name):
    assert not translations.untranslated(name)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Write a series of one lesson, and yield the path of its Chinese twin."""
    lesson = nbformat.v4.new_notebook()
    code = "finish(fig, caption=f'Of {n} sums, {right:.0%} are right.', alt='Bars.')\nprint('Of 9 sums')"
    output = {
        "text/markdown": "**Figure.** Of 9 sums, 85% are right.",
        "text/plain": "Figure. Of 9 sums, 85% are right.",
    }
    outputs = [nbformat.v4.new_output("display_data", output), nbformat.v4.new_output("stream", text="Of 9 sums\n")]
    markdown = "# A lesson\n\nBy $x = 1$ see `f(2)`, [next](02_b.ipynb).\n\n$$\ny\n\n\\tag{1.2}\n$$"
    lesson.cells = [nbformat.v4.new_markdown_cell(markdown), nbformat.v4.new_code_cell(code, outputs=outputs)]
    nbformat.write(lesson, tmp_path / "01_a.ipynb")
    monkeypatch.setattr(translations, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(translations, "PAGES", {"01_a": tmp_path / "01_a.ipynb"})
    monkeypatch.setattr(translations, "PO", tmp_path / "po")
    monkeypatch.setattr(translations, "confirmed_messages", read_catalogue)  # the tests change the catalogue
    monkeypatch.setattr("grpo_lab.base.language.PO", tmp_path / "po")
    (tmp_path / "po" / "zh_CN").mkdir(parents=True)
    forget()
    yield tmp_path / "zh" / "01_a.ipynb"
    forget()


def forget() -> None:
    from grpo_lab.base import language

    for cached in (translations.messages, language.catalogue, language._translate_text):
        cached.cache_clear()


def translate(page, english: str, chinese: str) -> None:
    path = page.parents[1] / "po" / "zh_CN" / "01_a.po"
    head, tail = path.read_text(encoding="utf-8").split(f'msgid "{english}"\nmsgstr ""', 1)
    path.write_text(f'{head}msgid "{english}"\nmsgstr "{chinese}"{tail}', encoding="utf-8")
    forget()


def test_a_lesson_is_extracted_and_what_is_missing_stays_english_and_is_marked(page):
    translations.update_all(["01"], check=False)
    assert list(translations.messages("01_a")) == [
        "# A lesson",
        "By $x = 1$ see `f(2)`, [next](02_b.ipynb).",
        "Of {0} sums, {1} are right.",
        "Bars.",
    ]
    text = nbformat.read(page, as_version=4).cells[0].source
    assert text.count(translations.UNTRANSLATED) == 2 and text.endswith("$$\ny\n\n\\tag{1.2}\n$$")
    translate(page, "# A lesson", "# 一课")
    translate(page, "By $x = 1$ see `f(2)`, [next](02_b.ipynb).", "由 $x = 1$，见 `f(2)`，[下一课](02_b.ipynb)。")
    translate(page, "Of {0} sums, {1} are right.", "{0} 道题中 {1} 正确。")
    assert translations.differences("01_a") == [
        "the Chinese page is not in step: python notebooks/build.py --lang zh_CN"
    ]
    translations.update_all([], check=False)
    lesson = nbformat.read(page, as_version=4)
    assert lesson.cells[0].source.startswith("# 一课\n\n由 $x = 1$，见 `f(2)`，[下一课](../02_b.ipynb)。\n\n$$")
    assert lesson.cells[1].outputs[0].data["text/markdown"] == "**Figure.** 9 道题中 85% 正确。"
    assert lesson.cells[1].outputs[1].text == "Of 9 sums\n"
    assert translations.differences("01_a") == [] and translations.untranslated("01_a") == ["Bars."]


def test_a_link_within_a_page_leads_to_the_chinese_heading():
    known = {"## Two words": "## 两个 词", "see [there](#Two-words)": "见[那里](#Two-words)"}
    page = translations.PAGES["00_start_here"]
    assert translations.translate_markdown("see [there](#Two-words)", page, known) == "见[那里](#两个-词)"


def test_changed_english_marks_its_translation_for_confirmation(page):
    translations.update_all(["01"], check=False)
    translate(page, "By $x = 1$ see `f(2)`, [next](02_b.ipynb).", "由 $x = 1$，见 `f(2)`，[下一课](02_b.ipynb)。")
    english = translations.PAGES["01_a"]
    english.write_text(english.read_text(encoding="utf-8").replace("$x = 1$ see", "$x = 1$ you see"), encoding="utf-8")
    forget()
    translations.update_all([], check=False)
    assert "By $x = 1$ you see `f(2)`, [next](02_b.ipynb)." in translations.untranslated("01_a")
    assert "#, fuzzy" in (page.parents[1] / "po" / "zh_CN" / "01_a.po").read_text(encoding="utf-8")


def test_a_link_leads_to_a_chinese_page_that_was_written_without_a_po_file(tmp_path):
    for file in ("a.md", "a.zh-CN.md", "b.md"):
        (tmp_path / file).write_text("")
    links = [translations.relink(file, "#c", tmp_path / "d.md", {}) for file in ("a.md", "b.md")]
    assert links == ["a.zh-CN.md#c", "b.md#c"]


def test_large_numbers_are_counted_in_the_units_of_each_language():
    units = translations.in_chinese_units
    assert (
        units("494 million weights, 7.6 billion") == "4.94 亿 weights, 76 亿"
        and units("135 M, 2 mill") == "135 M, 2 mill"
    )


@pytest.mark.parametrize(
    ("chinese", "marks"),
    [
        ("由 $x = 2$，见 `f(2)`，[下一课](02_b.ipynb)。", "$x = 1$, $x = 2$"),
        ("由 $x = 1$，见 `f(2)`，[下一课](03_b.ipynb)。", "](02_b.ipynb), ](03_b.ipynb)"),
        ("由 $x = 1$，见 `f(2)`，[下 1 课](02_b.ipynb)。", "1"),
    ],
)
def test_translation_fault_names_the_missing_marks(page, chinese, marks):
    translations.update_all(["01"], check=False)
    translate(page, "By $x = 1$ see `f(2)`, [next](02_b.ipynb).", chinese)
    (fault,) = translations.translation_faults("01_a")
    assert fault.endswith(f"not as often as in English: {marks}")
