"""A database that can only be read: which queries are answered, refused, stopped or shortened."""

import itertools
import sqlite3
from contextlib import closing

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.sandbox import database
from grpo_lab.sandbox.database import QueryError, sqlite_tool


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE things (name TEXT, euros INTEGER, stock INTEGER)")
        furniture = [("chair", 45, 3), ("desk", 120, 1), ("lamp", 19, 8), ("shelf", 60, 0)]
        connection.executemany("INSERT INTO things VALUES (?, ?, ?)", furniture)
        connection.execute("CREATE VIEW cheap AS SELECT name FROM things WHERE euros < 50")
        connection.commit()
    return tmp_path / "shop.db"


def test_sqlite_tool_description_lists_the_tables(shop):
    from transformers.utils import get_json_schema

    schema = get_json_schema(sqlite_tool("shop.db"))["function"]
    assert schema["name"] == "query"
    assert schema["parameters"]["required"] == ["sql"]
    assert "things(name, euros, stock), cheap(name)." in schema["description"]


def test_sqlite_tools_of_two_databases_have_different_fingerprints(shop):
    """A resumed run compares the tool by this fingerprint."""
    first = sqlite_tool(shop)
    assert sqlite_tool("shop.db").fingerprint == first.fingerprint
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE others (a)")
    assert sqlite_tool("shop.db").fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT name, euros FROM things WHERE stock > 2 ORDER BY euros", "lamp | 19\nchair | 45"),
        ("SELECT sum(euros * stock), upper('a') FROM things", "407 | A"),
        ("WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n", "1\n2\n3"),
        ("SELECT * FROM things WHERE name = 'sofa'", "no rows"),
        ("", "no rows"),
        ("SELECT name FROM cheap", "chair\nlamp"),
        ("SELECT NULL, 1.5, x'ff'", "None | 1.5 | b'\\xff'"),
        ("SELECT CAST(x'ff61' AS TEXT)", "\ufffda"),
        ("SELECT 1 FROM things a, things b, things c", "1\n" * 20 + "... there are more rows"),
        ("WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i FROM n",
         "\n".join(map(str, range(1, 21))) + "\n... there are more rows"),
    ],
)  # fmt: skip
def test_sqlite_tool_answers_a_query(sql, answer, shop):
    assert sqlite_tool(shop)(sql) == answer


REFUSED = [
    "INSERT INTO things VALUES ('bed', 1, 1)", "UPDATE things SET euros = 0", "DELETE FROM things",
    "DROP TABLE things", "CREATE TABLE others (a)", "CREATE TEMP TABLE others (a)", "CREATE INDEX i ON things (name)",
    "ATTACH 'other.db' AS other", "ATTACH ':memory:' AS other", "VACUUM", "VACUUM INTO 'copy.db'", "BEGIN",
    "SAVEPOINT s", "ANALYZE", "PRAGMA user_version = 5", "PRAGMA journal_mode = WAL", "PRAGMA writable_schema = 1",
    "PRAGMA temp_store_directory = '.'", "SELECT load_extension('other')", "SELECT 1; DELETE FROM things",
    "WITH t AS (SELECT 1) DELETE FROM things", "SELECT zeroblob(1000000000)", "nonsense", "SELECT '\0'",
    f"SELECT '{'a' * 200_000}'", "SELECT '\ud800'",
    f"SELECT {'1 UNION SELECT ' * 2000} 1", f"SELECT 'a' LIKE '{'%a' * 100}'",
]  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: ascii(sql[:40]))
def test_sqlite_tool_refuses_statements_that_write(sql, shop):
    before = {path.name: path.read_bytes() for path in shop.parent.iterdir()}
    with pytest.raises(QueryError, match="; only one SELECT is allowed$"):
        sqlite_tool(shop)(sql)
    assert {path.name: path.read_bytes() for path in shop.parent.iterdir()} == before


def test_read_only_database_refuses_a_write(shop, monkeypatch):
    """The file is read-only even if the authorizer permits every action."""
    monkeypatch.setattr(database, "READ_ACTIONS", range(1000))
    with pytest.raises(QueryError, match="attempt to write a readonly database"):
        sqlite_tool(shop)(REFUSED[0])


@pytest.mark.parametrize(
    "sql",
    [
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n WHERE i > 1",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n ORDER BY i",
    ],
)
def test_sqlite_tool_ends_an_endless_query(sql, shop, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(
        database.time, "monotonic", lambda: next(ticks) / 10
    )  # simulates the clock, so that the test need not wait
    with pytest.raises(QueryError, match="stopped after 2 seconds: ask for less"):
        sqlite_tool(shop)(sql)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "there is no such file in"), (b"no database " * 100, "expected a SQLite database")]
)
def test_sqlite_tool_names_files_that_are_no_database(content, words, tmp_path):
    if content is not None:
        (tmp_path / "shop.db").write_bytes(content)
    with pytest.raises(InputError, match=f"sqlite is .*shop.db.*{words}"):
        sqlite_tool(tmp_path / "shop.db")
