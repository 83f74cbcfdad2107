"""Rewards for programs: what passes, and what the column `tests` may contain."""

import functools
import json
import sqlite3
from contextlib import closing

import pytest

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.rewards import code_reward, pass_rate_reward, programs, sql_reward
from grpo_lab.rewards.functions import check_signatures
from grpo_lab.rewards.named import check_reward_columns, find_rewards
from grpo_lab.rewards.programs import ProgramTest, read_tests
from grpo_lab.sandbox import python
from tests.support.bubblewrap import needs_bubblewrap

DOUBLE = "def double(n):\n    return 2 * n\n"
PRINTS = "print(2 * int(input()))\n"
ASSERTS = ["assert double(2) == 4", "assert double(-1) == -2", "assert double('a') == 'aa'"]
PAIRS = {"inputs": ["2\n", "-1", "10"], "outputs": ["4", "-2\n", "20 \n\n"]}


def block(code: str, language: str = "python") -> str:
    return f"Here it is.\n```{language}\n{code}```\nIt doubles."


@pytest.mark.parametrize(
    ("tests", "cases"),
    [
        ("assert f(1)", [ProgramTest("assert f(1)")]),
        (["assert f(1)", "assert f(2)"], [ProgramTest("assert f(1)"), ProgramTest("assert f(2)")]),
        ('["assert f(1)"]', [ProgramTest("assert f(1)")]),
        ("[f(1)] == [2] or 1 / 0", [ProgramTest("[f(1)] == [2] or 1 / 0")]),
        ([{"input": "a", "output": "b", "type": "stdin_stdout"}], [ProgramTest(None, "a", "b")]),
        ({"inputs": ["a", ""], "outputs": ["b", "c"]}, [ProgramTest(None, "a", "b"), ProgramTest(None, "", "c")]),
        (json.dumps({"inputs": ["a"], "outputs": ["b"], "fn_name": None}), [ProgramTest(None, "a", "b")]),
    ],
)
def test_read_tests_accepts_statements_and_pairs(tests, cases):
    assert read_tests(tests) == cases


WRONG = [
    "", " ", [], {}, "[]", 3, [3], [""], {"inputs": ["a"]}, {"inputs": ["a"], "outputs": []},
    {"inputs": "a", "outputs": "b"},
    [{"input": "a"}], [{"input": "a", "output": 3}], [{"input": "a", "output": "b", "type": "function_call"}],
    {"inputs": [[1]], "outputs": [2]},
]  # fmt: skip


@pytest.mark.parametrize("tests", WRONG, ids=repr)
def test_read_tests_refuses_other_values_with_their_location(tests, monkeypatch):
    monkeypatch.setattr(python, "machine_sandbox", lambda: ("bubblewrap", ""))
    with pytest.raises(InputError, match="^tests (is|has) .*; expected statements, or pairs of input and output"):
        read_tests(tests)
    rows = [{"prompt": "?", "tests": ["assert 1"]}, {"prompt": "?", "tests": tests}]
    with pytest.raises(InputError, match=r"^mine.jsonl, line 2: tests (is|has) .*; expected statements, or pairs"):
        check_reward_columns(["code"], rows, ["mine.jsonl, line 1", "mine.jsonl, line 2"])


def test_calls_of_a_function_are_written_as_asserts():
    with pytest.raises(InputError, match="tests has an fn_name; write calls of a function as assert statements"):
        read_tests({"inputs": [[1]], "outputs": [2], "fn_name": "double"})


def test_program_rewards_name_rows_without_their_column(monkeypatch):
    monkeypatch.setattr(python, "machine_sandbox", lambda: ("bubblewrap", ""))
    with pytest.raises(InputError, match="reward_funcs has 'code', which needs the column 'tests'; row 0 lacks it"):
        check_reward_columns(["code"], [{"prompt": "?", "answer": "1"}])
    check_reward_columns(["pass_rate"], [{"prompt": "?", "tests": None}, {"prompt": "?", "tests": "assert 1"}])


@needs_bubblewrap
def test_code_and_pass_rate_rewards_of_programs_with_asserts():
    wrong_once = "def double(n):\n    return 2 * n if n != -1 else 0\n"
    completions = [block(code) for code in (DOUBLE, wrong_once, "def f(:\n", "exit()\n")] + [
        "def double(n): return 2 * n"
    ]
    assert code_reward(completions, [ASSERTS] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert pass_rate_reward(completions, [ASSERTS] * 5) == [1.0, 2 / 3, 0.0, 0.0, 0.0]
    assert code_reward(completions[:2], [None, "assert double(2) == 4"]) == [None, 1.0]


@needs_bubblewrap
def test_code_and_pass_rate_rewards_compare_printed_output():
    wrong_once = "n = int(input())\nprint(2 * n if n > 0 else 0)\n"
    fails_late = "print(2 * int(input()))\nraise SystemExit(1)\n"
    completions = [block(code) for code in (PRINTS, wrong_once, fails_late, "print(' 4')\n")]
    assert code_reward(completions, [PAIRS] * 4) == [1.0, 0.0, 0.0, 0.0]
    assert pass_rate_reward(completions, [PAIRS] * 4) == [1.0, 2 / 3, 0.0, 0.0]


@needs_bubblewrap
def test_a_program_that_loops_earns_nothing_and_costs_its_limit():
    reward = functools.partial(code_reward, seconds=1.0)
    assert reward([block("while True: pass\n"), block(DOUBLE)], [ASSERTS[:1]] * 2) == [0.0, 1.0]


def test_code_reward_runs_nothing_after_the_first_failure(monkeypatch):
    executed = []

    def execute(code, stdin, statement, seconds):
        executed.append(statement)
        return python.Execution("", "", 1, "")

    monkeypatch.setattr(programs, "execute", execute)
    assert code_reward([block(DOUBLE)], [ASSERTS]) == [0.0]
    assert executed == ASSERTS[:1]
    assert pass_rate_reward([block(DOUBLE)], [ASSERTS]) == [0.0]
    assert executed[1:] == ASSERTS


@pytest.mark.parametrize("name", ["code", "pass_rate"])
def test_program_rewards_are_refused_without_a_sandbox(name, monkeypatch):
    monkeypatch.setattr(python, "machine_sandbox", lambda: ("", "bubblewrap: cannot be started (FileNotFoundError)"))
    words = f"reward_funcs has '{name}_reward'; what a model writes is run in a sandbox only, .*Install bubblewrap"
    with pytest.raises(RunError, match=words):
        check_reward_columns([name], [{"prompt": "?"}])
    with pytest.raises(RunError, match=words):
        check_signatures(find_rewards([name]), ["tests"])
    with pytest.raises(RunError, match="sandbox is missing"):
        find_rewards([name])[0]([block(DOUBLE)], [ASSERTS])


def sql_block(statement: str, language: str = "sql") -> str:
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
        (
            "SELECT name, euros > 0 FROM things ORDER BY name DESC",
            "SELECT name, row_number() OVER (ORDER BY name) > 0 FROM things",
            1.0,
        ),
        (
            "SELECT name FROM things ORDER BY name DESC",
            "SELECT name FROM (SELECT name FROM things ORDER BY name LIMIT 3)",
            1.0,
        ),
        (
            "SELECT name FROM things ORDER BY name DESC",
            "SELECT name FROM things WHERE name NOT IN (')', '(') ORDER /* ( */ BY name -- (",
            0.0,
        ),
        (
            "SELECT 'ORDER BY' FROM things UNION ALL SELECT 'x'",
            "SELECT 'x' UNION ALL SELECT 'ORDER BY' FROM things",
            1.0,
        ),
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
    assert sql_reward([sql_block(statement + "\n")], [expected], ["shop.db"]) == [reward]


def test_sql_reward_requires_a_block(shop):
    completions = [
        "SELECT 1",
        sql_block("SELECT 1\n", "python"),
        sql_block("SELECT 1\n", ""),
        sql_block("SELECT 1\n", "SQL"),
    ]
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
