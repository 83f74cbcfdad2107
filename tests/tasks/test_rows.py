"""Rows get a system message, a completion is known to think, and lazy rows equal rows in a list."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab import tasks
from grpo_lab.config import GRPOConfig
from grpo_lab.tasks import with_system
from grpo_lab.tasks.rows import Column, LazyRows, Locations, Rows, chat_messages, in_parts, mapped
from grpo_lab.tasks.user_data import read_user_data
from grpo_lab.trainer.run.fingerprints import json_hash, rows_fingerprint
from grpo_lab.trainer.run.inputs import RunInputs, check_dataset
from tests.support.small_policy import make_policy

values = st.one_of(st.text(st.characters()), st.none(), st.integers(), st.lists(st.integers(), max_size=2))


def test_a_system_message_is_put_in_front_or_in_place_and_rows_are_not_touched():
    bare, led = {"prompt": chat_messages("q"), "answer": "1"}, {"prompt": chat_messages("q", "own"), "answer": "1"}
    new = {"prompt": chat_messages("q", "new"), "answer": "1"}
    assert tasks.with_system([bare, led], "new") == [new, led]
    assert tasks.with_system([bare, led], "new", replace=True) == [new, new]
    assert tasks.with_system([bare, led], None) == [bare, led]
    assert tasks.with_system([bare, led], None, replace=True) == [bare, bare]
    assert len(bare["prompt"]) == 1
    assert led["prompt"][0]["content"] == "own"


def test_has_thinking_is_true_for_text_between_think_tags():
    thinks = ["<think>1+1=2</think><answer>2</answer>", "<think>1+1=2\n2+3=5</think>"]
    does_not = ["<answer>2</answer>", "<think> \n</think><answer>2</answer>", "<think>1+1=2", "1+1=2</think>", ""]
    assert all(map(tasks.has_thinking, thinks))
    assert not any(map(tasks.has_thinking, does_not))


@given(st.lists(values, max_size=20))
def test_a_column_holds_what_was_appended(appended):
    column = Column()
    for value in appended:
        column.append(value)
    assert [*column] == appended
    assert len(column) == len(appended)
    assert [type(value) for value in column] == [type(value) for value in appended]


@given(st.lists(st.tuples(st.sampled_from(["a.csv, line", "b c.csv, row", "a"]), st.integers(0, 10**9)), max_size=20))
def test_locations_of_a_table_are_those_that_were_appended(locations_and_numbers):
    locations = Locations()
    for text, number in locations_and_numbers:
        locations.append(f"{text} {number}")
    assert [*locations] == [f"{text} {number}" for text, number in locations_and_numbers]


@pytest.fixture
def rows(tmp_path):
    """Return forty rows of a file as lazy rows and as a list."""
    file = tmp_path / "mine.jsonl"
    records = [{"prompt": f"{n}+1=?", "answer": n + 1, "level": [n]} for n in range(40)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    lazy = read_user_data(file).rows("train")
    return lazy, [*lazy]


def test_lazy_rows_are_a_sequence_and_each_access_makes_a_row(rows):
    lazy, listed = rows
    assert isinstance(lazy, LazyRows)
    assert isinstance(lazy, Rows)
    assert len(lazy) == len(listed)
    assert lazy == listed
    assert listed == lazy
    assert lazy != listed[1:]
    assert lazy != [*listed[:-1], {}]
    assert lazy[3] == listed[3]
    assert lazy[-1] == listed[-1]
    assert lazy[2:9:3] == listed[2:9:3]
    assert lazy + listed == listed + lazy == listed * 2
    assert repr(lazy[:1]) == repr(listed[:1])
    with pytest.raises(IndexError):
        lazy[len(lazy)]
    lazy[0]["answer"] = "changed"
    assert lazy[0] == listed[0]
    assert [*in_parts(lazy, 7)] == [*in_parts(listed, 7)]


def test_run_inputs_treat_lazy_rows_like_a_list(rows):
    lazy, listed = rows
    config = GRPOConfig(seed=3)
    lazy_inputs, listed_inputs = (RunInputs(*make_policy(), dataset, None, config) for dataset in rows)
    for step in range(9):
        assert lazy_inputs.read_data_rows(step) == listed_inputs.read_data_rows(step)
    contents = json_hash([json_hash(row) for row in listed])  # the fingerprint in runs of earlier versions
    assert rows_fingerprint(lazy) == rows_fingerprint(listed) == {"rows": len(listed), "contents": contents}
    check_dataset(lazy)
    for replace in (False, True):
        for system in (None, "Be brief."):
            assert with_system(lazy, system, replace) == with_system(listed, system, replace)
    assert isinstance(mapped(lazy, dict), LazyRows)
    assert isinstance(mapped(listed, dict), list)
