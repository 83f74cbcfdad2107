"""Messages with placeholders: what counts as a number, and how a translation gets its numbers."""

import ast
import io
import re
from pathlib import Path

import nbformat
import pytest

from grpo_lab.base.language import PO, PRINTS, SLOT, confirmed_messages
from grpo_lab.teaching import messages
from grpo_lab.teaching.messages import (
    display_width,
    message_and_numbers,
    print_in_readers_language,
    printed_messages,
    translate_message,
    translate_printed_text,
)


def test_numbers_of_a_text_become_placeholders_but_digits_of_names_stay():
    assert message_and_numbers("k3, 95%, R1, v0→1, 2e-4") == ("k3, {0}, R1, v0→{1}, {2}", ["95%", "1", "2e-4"])


def test_translation_takes_the_numbers_of_the_text_in_its_own_order():
    translations = {"{0} of {1}": "{1} 个中 {0} 个", "seed 0": "种子零"}
    assert translate_message("15 of 24", translations) == "24 个中 15 个"
    assert translate_message("seed 0", translations) == "种子零"
    assert translate_message("seed 1", translations) == "seed 1"


NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(path for path in NOTEBOOKS.glob("*.ipynb"))
KNOWN = {"rounds {0} to {1}": "第 {0} 到 {1} 轮", "right": "正确", "calculator": "计算器"}


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(messages, "print_translations", lambda target_language: KNOWN)


def test_translated_prints_keep_numbers_and_unknown_words(known):
    assert translate_printed_text("rounds 5 to 1,024\nright\nwritten by a model", "zh_CN") == (
        "第 5 到 1,024 轮\n正确\nwritten by a model"
    )


def test_columns_of_a_translated_table_end_where_the_english_ones_do(known):
    english = "  calculator     0.25   right    0.5"
    chinese = translate_printed_text(english, "zh_CN")
    assert chinese.split() == ["计算器", "0.25", "正确", "0.5"]
    assert chinese.startswith("  ")
    assert display_width(chinese) == len(english)
    assert display_width(chinese[: chinese.index("0.25")]) == english.index("0.25")


def test_a_wide_cell_of_a_translated_table_is_followed_by_one_space(monkeypatch):
    monkeypatch.setattr(messages, "print_translations", lambda target_language: {"a": "甲乙丙丁"})
    assert translate_printed_text("a  1  2", "zh_CN") == "甲乙丙丁 1 2"


def test_print_speaks_the_language_of_the_reader(known, monkeypatch, capsys):
    namespace: dict = {}
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    print_in_readers_language(namespace)
    namespace["print"]("rounds", 5, "to", 7, end="\n\n")
    namespace["print"]("right", file=(file := io.StringIO()))
    assert capsys.readouterr().out == "第 5 到 7 轮\n\n"
    assert file.getvalue() == "right\n"  # text that is printed into a file is not translated
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    print_in_readers_language(namespace)
    assert "print" not in namespace


def test_every_message_keeps_its_numbers():
    for message in confirmed_messages(PO / "zh_CN" / PRINTS):
        assert sorted(SLOT.findall(message.id)) == sorted(SLOT.findall(message.string)), message.id


def sentences(source: str) -> set[str]:
    """Return the texts of at least three words in the `print` calls of a cell."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    prints_of_cell = [call for call in calls if getattr(call.func, "id", "") == "print"]
    texts = [node.value for call in prints_of_cell for node in ast.walk(call) if isinstance(node, ast.Constant)]
    lines = [line.strip() for text in texts if isinstance(text, str) for line in text.split("\n")]
    return {line for line in lines if len(re.findall(r"[A-Za-z]{2,}", line)) >= 3}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_sentence_that_a_lesson_prints_is_left_in_english(path):
    chinese = nbformat.read(NOTEBOOKS / "zh" / path.name, as_version=4)
    same_in_chinese = {
        message.id for message in confirmed_messages(PO / "zh_CN" / PRINTS) if message.id == message.string
    }
    for cell in (cell for cell in chinese.cells if cell.cell_type == "code"):
        shown = "\n".join(output.text for output in cell.outputs if output.output_type == "stream")
        english = [text for text in sentences(cell.source) if text in shown]
        assert not [
            text for text in english if not any(message in same_in_chinese for message in printed_messages(text))
        ], path.stem


def test_every_message_is_printed_somewhere():
    printed = [
        output.text
        for path in LESSONS
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    ]
    messages_of_lessons = {message for text in printed for message in printed_messages(text)}
    unused = [
        m.id
        for m in confirmed_messages(PO / "zh_CN" / PRINTS)
        if m.id not in messages_of_lessons and "live" not in m.auto_comments
    ]
    assert not unused
