"""Tests that lazy rows are equal to rows in a list and take a few bytes each."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.config import GRPOConfig
from grpo_lab.tasks import with_system
from grpo_lab.tasks.lazy_rows import Column, LazyRows, Locations
from grpo_lab.tasks.rows import Rows, in_parts, mapped
from grpo_lab.tasks.user_data import read_user_data
from grpo_lab.trainer.run.fingerprints import json_hash, rows_fingerprint
from grpo_lab.trainer.run.inputs import RunInputs, check_dataset

values = st.one_of(st.text(st.characters()), st.none(), st.integers(), st.lists(st.integers(), max_size=2))


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
    lazy_inputs, listed_inputs = (RunInputs(None, None, dataset, None, config) for dataset in rows)
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


def test_a_row_of_a_file_takes_a_few_bytes_more_than_its_text(tmp_path):
    """The texts of a row have 20 and 6 bytes; a row as a dict with messages, in a list, takes 900 bytes."""
    file, count = tmp_path / "mine.csv", 20_000
    lines = (f"What is {n:06} plus 1?,{n + 1:06}\n" for n in range(count))
    file.write_text("prompt,answer\n" + "".join(lines), encoding="utf-8")
    read_user_data(file)  # a first call, so that imports and caches are not measured
    tracemalloc.start()
    try:
        data = read_user_data(file)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data.rows("train")) + len(data.rows("test")) == count
    assert current < 100 * count, (current / count, peak / count)
    assert peak < 300 * count, (current / count, peak / count)
