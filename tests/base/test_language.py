"""Tests of the reader's language: how it is chosen, and how texts with values in them are translated."""

import ast
import pickle
from pathlib import Path

import pytest

from grpo_lab.base import language
from grpo_lab.base.language import Phrase, _, counted, enter_lesson_folder, fill, translate
from grpo_lab.course.checking.verdict import Part, Verdict
from grpo_lab.teaching.notebook import predict
from grpo_lab.teaching.plots.style import show_caption

MESSAGES = {
    "{0} of {1} right: {2}.": "{1}中 {0} 个正确：{2}。",
    "Half of it is right: yes.": "对了一半。",
    "Truth: {0}.": "答案：{0}。",
    "Figure.": "图。",
    "It has shape {0}; {1} is expected.": "形状应为 {1}，你的是 {0}。",
    "An axis is missing.": "少了一个轴。",
    "the right sum": "正确的和",
    "After <think>: {0}% of {1} answers.": "{1} 个回答中，<think> 之后：{0}%。",
    "How many? (Before: 2.)": "多少个？之前是 2 个。",
    "not right yet": "还不对",
    "{0} case": "{0} 个用例",
    "{0} cases": "{0} 个用例",
    "{0} ✓": "{0} ✓",
}
FILLED = (
    '#. grpo_lab/course/checking/difference.py\nmsgid "{0} is {1}"\nmsgstr "{0}是{1}"\n\n'
    '#. grpo_lab/course/checking/difference.py\nmsgid "{0} is {1}; {2} is expected."\nmsgstr "{0}是 {1}，应为 {2}。"\n'
)
UNUSED = '#, fuzzy\nmsgid "To be confirmed."\nmsgstr "待确认。"\n\n#. block\nmsgid "Of a page."\nmsgstr "页面上的。"\n'


@pytest.fixture
def chinese(tmp_path, monkeypatch):
    """Set the language to Chinese, with a catalogue of a few messages."""
    (tmp_path / "zh_CN").mkdir()
    entries = [f'msgid "{english}"\nmsgstr "{chinese}"\n' for english, chinese in MESSAGES.items()]
    (tmp_path / "zh_CN" / "some.po").write_text("\n".join([*entries, FILLED, UNUSED]), encoding="utf-8")
    monkeypatch.setattr(language, "PO", tmp_path)
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    yield forget()
    forget()


def forget() -> None:
    language.catalogue.cache_clear()
    language._translate_text.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Truth: 0.25.", "答案：0.25。"),
        ("Truth: the right sum.", "答案：正确的和。"),  # the value is translated, too
        ("It has shape (2, 3); (2,) is expected. An axis is missing.", "形状应为 (2,)，你的是 (2, 3)。少了一个轴。"),
        ("Truth: the right sum, 7.", "答案：正确的和、7。"),
        ("**Truth: 0.25.** Nobody knows this.", "**答案：0.25。** Nobody knows this."),
        ("*(the right sum / another number)*", "*（正确的和 / another number）*"),
        ("How many? (Before: 2.) *(Between 0 and 1.)*", "多少个？之前是 2 个。 *（Between 0 and 1.）*"),
        ("After &lt;think>: 85% of 2,000 answers.", "2,000 个回答中，&lt;think> 之后：85%。"),  # escaped as in Markdown
        ("**Figure.** Half of it is right: yes.", "**图。** 对了一半。"),  # bold type never belongs to a value
        ("the right sum; another number", "正确的和；another number"),
        ("To be confirmed. Of a page.", "To be confirmed. Of a page."),
        ("", ""),
        (r"$a,\; b$", r"$a,\; b$"),
        # Sentences of `check` are not matched by a pattern, since their values can be sentences.
        ("The ratio where the mask is True is None", "The ratio where the mask is True is None"),
    ],
)
def test_translation_finds_a_text_as_a_whole_or_part_by_part(chinese, text, expected):
    assert _(text) == expected


@pytest.mark.parametrize(
    ("phrase", "english", "expected"),
    [
        # The values here are a text that could continue a message, a message itself, a known text and unknown words.
        (fill("Truth: {0}.", "the sum. Truth: 3"), "Truth: the sum. Truth: 3.", "答案：the sum. Truth: 3。"),
        (fill("Truth: {0}.", fill("Figure.")), "Truth: Figure..", "答案：图。。"),
        (fill("Truth: {0}.", "the right sum"), "Truth: the right sum.", "答案：正确的和。"),
        (fill("{0} of {1} right: {2}.", 1, 2, "x"), "1 of 2 right: x.", "2中 1 个正确：x。"),
        (
            fill("{0} of {1} right: {2}.", 1, counted(2, "case"), [fill("{0} ✓", "the right sum"), "x"]),
            "1 of 2 cases right: the right sum ✓, x.",
            "2 个用例中 1 个正确：正确的和 ✓、x。",
        ),
        (
            fill("{0} is {1}; {2} is expected.", "The ratio where the mask is True", "None", "a tensor"),
            "The ratio where the mask is True is None; a tensor is expected.",
            "The ratio where the mask is True是 None，应为 a tensor。",
        ),
        (fill("Truth: {0}.", 1) + " An axis is missing.", "Truth: 1. An axis is missing.", "答案：1。少了一个轴。"),
        ("An axis is missing. " + fill("Truth: {0}.", 1), "An axis is missing. Truth: 1.", "少了一个轴。答案：1。"),
        (Phrase("Nobody knows this. ", fill("New {0}.", 1)), "Nobody knows this. New 1.", "Nobody knows this. New 1."),
    ],
)
def test_filled_message_is_translated_before_its_values_are_put_in(chinese, monkeypatch, phrase, english, expected):
    assert phrase == english and _(phrase) == expected
    assert pickle.loads(pickle.dumps(phrase)) == english and _(pickle.loads(pickle.dumps(phrase))) == expected
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    assert _(phrase) == english


def test_predictions_translate_displayed_text_and_store_english(chinese, capsys):
    prediction = predict("Which?", choices=("the right sum", "another number"))
    assert prediction.make_widget().options == (("正确的和", "the right sum"), ("another number", "another number"))
    prediction.truth("the right sum")
    show_caption("An axis is missing.")
    assert capsys.readouterr().out.splitlines()[1:] == ["(Which?) 答案：正确的和。", "图。 少了一个轴。"]
    verdict = Verdict("kl_exact", "wrong", (Part("sentences", "An axis is missing."),))
    assert repr(verdict) == "✗ kl_exact: 还不对\n少了一个轴。" and "少了一个轴。" in verdict._repr_html_()
    assert verdict.message == "An axis is missing." and prediction.true_value == "the right sum"


def test_language_is_that_of_the_variable_or_else_of_the_machine(monkeypatch):
    for variables, expected in [
        ({"GRPO_LAB_LANG": "zh_CN", "LANG": "en_GB.UTF-8"}, "zh_CN"),
        ({"GRPO_LAB_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({}, "zh_CN"),  # Windows names the language in words
    ]:
        for name in ("GRPO_LAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(language.locale, "getlocale", lambda: ("Chinese (Simplified)_China", "936"))
        assert language.language() == expected
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    with pytest.raises(ValueError, match="GRPO_LAB_LANG is 'zh'; expected one of 'en', 'zh_CN'"):
        language.language()


@pytest.mark.parametrize("folder", ["", "assignments"])
def test_a_translated_lesson_speaks_its_language_and_finds_the_recorded_runs(tmp_path, monkeypatch, folder):
    (tmp_path / "zh" / folder).mkdir(parents=True)
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "zh" / folder)
    monkeypatch.delenv("GRPO_LAB_LANG")
    enter_lesson_folder()
    assert Path.cwd() == tmp_path / folder and language.language() == "zh_CN"
    enter_lesson_folder()
    assert Path.cwd() == tmp_path / folder


def test_no_message_of_the_package_is_looked_up_with_its_values_in_it():
    """`_(f"...")` would look up a message with its values in it; `fill` gets the message with {0} in place of one."""
    package = Path(language.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "base.language import" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "fill"):
                assert not isinstance(node.args[0], ast.JoinedStr), f"{path}:{node.lineno}"


def test_english_needs_no_translations(monkeypatch):
    with monkeypatch.context() as patches:
        patches.setattr(language, "_translate_text", lambda *_: pytest.fail("asked for a translation"))
        assert _("Truth: 0.25.") == "Truth: 0.25."
    assert translate("nothing of it is known", "zh_CN") == "nothing of it is known"


def test_the_semicolon_of_an_html_entity_is_not_translated():
    assert translate("r &lt; 0.8; r &gt; 1.2", "zh_CN") == "r &lt; 0.8；r &gt; 1.2"  # the semicolon of an HTML entity
