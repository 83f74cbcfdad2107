"""The reward for SQL statements: which results count as equal, and which rows are refused."""

import sqlite3
from contextlib import closing

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.rewards import sql_reward
from grpo_lab.rewards.named import check_reward_columns


def block(statement: str, language: str = "sql") -> str:
    return f"Here it is.\n```{language}\n{statement}```\nIt is short."


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE things (name TEXT, euros REAL)")
        connection.executemany("INSERT INTO things VALUES (?, ?)", [("chair", 0.1), ("desk", 0.2), ("lamp", 0.3)])
        connection.commit()


@pytest.mark.parametrize(
    ("statement", "expected", "reward"),
    [
        ("SELECT name FROM things", "SELECT name FROM things ORDER BY name", 1.0),
        ("SELECT name AS n FROM things ORDER BY name DESC", "SELECT name FROM things", 1.0),
        ("SELECT name FROM things ORDER BY name DESC", "SELECT name FROM things ORDER BY name", 0.0),
        ("SELECT euros, name FROM things", "SELECT name, euros FROM things", 0.0),
        ("SELECT name FROM things UNION ALL SELECT 'lamp'", "SELECT name FROM things", 0.0),
        ("SELECT 0.3 + 0.2 + 0.1", "SELECT sum(euros) FROM things", 1.0),
        ("SELECT 3", "SELECT 3.0", 1.0),
        ("SELECT '3'", "SELECT 3", 0.0),
        ("SELECT NULL", "SELECT NULL", 1.0),
        ("DELETE FROM things", "SELECT name FROM things", 0.0),
        ("nonsense", "SELECT name FROM things", 0.0),
        ("WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i FROM n", "SELECT 1", 0.0),
    ],
)
def test_sql_reward_of_statements(statement, expected, reward, shop):
    assert sql_reward([block(statement + "\n")], [expected], ["shop.db"]) == [reward]


def test_sql_reward_requires_a_block(shop):
    completions = ["SELECT 1", block("SELECT 1\n", "python"), block("SELECT 1\n", ""), block("SELECT 1\n", "SQL")]
    assert sql_reward(completions, ["SELECT 1"] * 4, ["shop.db"] * 4) == [0.0, 0.0, 1.0, 1.0]
    assert sql_reward(completions[-1:], [None], [None]) == [None]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"sql": "DELETE FROM things"},
            "row 1: sql is 'DELETE FROM things'; expected a SELECT that the database answers",
        ),
        ({"sql": "SELECT absent"}, "row 1: sql is 'SELECT absent'; expected a SELECT .* no such column"),
        ({"sql": 3}, "row 1: sql is 3; expected a SELECT"),
        ({"database": "none.db"}, "row 1: database is 'none.db'; expected a SQLite file; there is none in"),
        ({"database": 3}, "row 1: database is 3; expected a SQLite file"),
        (
            {"sql": "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"},
            "expected a result of at most 10,000 rows",
        ),
    ],
)
def test_sql_rows_without_a_usable_expected_result_are_named(row, words, shop):
    rows = [{"prompt": "?", "sql": "SELECT name FROM things", "database": "shop.db"}] * 2
    check_reward_columns(["sql"], rows)
    with pytest.raises(InputError, match=words):
        check_reward_columns(["sql"], [rows[0], rows[1] | row])
