"""Every mutant of an anchored line of mathematics is killed, and the mutation test itself works."""

import ast
import builtins
import os
import re
import subprocess
import symtable
import sys

import pytest

from grpo_lab.formulas.lines import with_lines
from tests.mutants.mutant import (
    FIRST_TEST_FILES,
    ROOT,
    Mutant,
    anchored_modules,
    anchors,
    check_entries,
    errata_mutants,
    line_mutants,
    planted,
    read,
    reason_equivalent,
    swapped,
    without_names,
)
from tests.mutants.pool import run_mutants
from tests.support.equations import formula_map

KL, RULES = "grpo_lab/kl.py", "grpo_lab/rewards/rules.py"


@pytest.fixture(scope="module")
def mutants_of_lines() -> list[Mutant]:
    return [m for path in anchored_modules() for m in line_mutants(path)]


@pytest.mark.slow
def test_every_mutant_of_an_anchored_line_is_killed():
    """Run the mutation test in two processes, or in one if the tests themselves run in several."""
    workers = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"
    command = [sys.executable, "-m", "tests.mutants", "--family", "lines", "--workers", workers]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"(?m)^mutants: [1-9]\d* killed, 0 survived$", result.stdout)


@pytest.mark.slow
def test_every_equation_has_mutants_that_are_not_equivalent(mutants_of_lines):
    tags = {tag for path in anchored_modules() for tag in anchors(read(path))}
    assert tags == set(formula_map())
    for tag in tags:
        mutants = [m for m in mutants_of_lines if m.name.startswith(f"({tag}) ")]
        assert sum(reason_equivalent(m) is None for m in mutants) >= 2, tag


def test_lists_of_mutants_fit_the_source(mutants_of_lines):
    check_entries(mutants_of_lines)
    new_name = "(1.9) ends = end - end.cumsum(-1, dtype=int)"
    old_name = "(1.9) before = is_end - is_end.cumsum(-1, dtype=int)"
    assert without_names(new_name) == without_names(old_name) != without_names(old_name.replace("- is_end", "- before"))
    mutants = errata_mutants()
    assert len({m.name + m.path for m in (*mutants, *mutants_of_lines)}) == len(mutants) + len(mutants_of_lines)
    for mutant in mutants:
        ast.parse(mutant.mutated)
    for mutant in (*mutants, *mutants_of_lines):  # a mutant of a line is made from a syntax tree, so it can be parsed
        assert any((ROOT / test).exists() for test in mutant.tests), f"no test file for {mutant.path}"
        assert mutant.mutated != mutant.original


def undefined_names(source: str) -> set[str]:
    """Return the names that the source of a module reads and never binds."""
    module = symtable.symtable(source, "module", "exec")
    bound = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    bound |= {table.get_name() for table in module.get_children()} | {*vars(builtins), "__file__", "__name__"}
    names, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return names - bound


def test_planted_lines_read_and_bind_the_names_of_the_module():
    """A mutant with a name that does not exist fails whatever is tested, and so says nothing about the tests."""
    undefined = {
        (mutant.name, mutant.path): undefined_names(mutant.mutated) - undefined_names(mutant.original)
        for mutant in errata_mutants()
        if mutant.name != "always-fast: return True"  # the name that it does not bind is read behind the return
    }
    assert {mutant: names for mutant, names in undefined.items() if names} == {}


def test_modules_and_test_files_of_first_test_files_exist():
    for module, patterns in FIRST_TEST_FILES.items():
        assert (ROOT / "grpo_lab" / f"{module}.py").exists(), module
        for pattern in patterns:
            assert list((ROOT / "tests").glob(pattern)), f"{module}: {pattern}"


def test_a_swap_reaches_whoever_imported_the_function_and_is_undone():
    import torch

    from grpo_lab.kl import kl_estimate
    from grpo_lab.rewards import format_fault

    ones, zero = torch.ones(1, 1), torch.zeros(1, 1)
    reversed_k1 = planted("kl-reversed", KL, "kl_estimate", {"4.8": "k1 = d"})
    no_dotall = planted(
        "regex-no-dotall", RULES, "", {"[format]": "FORMAT_PATTERN = re.compile(FORMAT_PATTERN.pattern)"}
    )
    text = "<think>\n</think><answer>2</answer>"
    for _ in range(2):
        assert kl_estimate(ones, zero, "k1").item() == 1 and format_fault(text) is None
        with swapped(reversed_k1), swapped(no_dotall):
            assert kl_estimate(ones, zero, "k1").item() == -1 and format_fault(text) == "text outside"


def mutants_of_k1(**expressions: str) -> list[Mutant]:
    """Return mutants whose line of Eq. (4.8) has these expressions, by name, and one test that could kill them."""
    source, tests = read(KL), ("tests/mutants/test_sample.py",)
    mutated = {name: with_lines(source, {"4.8": f"k1 = {new}"}) for name, new in expressions.items()}
    return [Mutant(name, KL, "kl_estimate", source, text, tests) for name, text in mutated.items()]


@pytest.mark.slow
def test_mutant_that_no_test_notices_survives():
    results = {
        result.mutant.name: result for result in run_mutants(mutants_of_k1(harmless="-d + 0", wrong="d"), workers=1)
    }
    assert results["wrong"].killer == "tests/mutants/test_sample.py::test_k1"
    assert results["harmless"].killer is None and results["harmless"].detail == "1 tests passed"


@pytest.mark.slow
def test_mutant_that_hangs_or_exits_is_killed(monkeypatch):
    monkeypatch.setattr("tests.mutants.pool.MUTANT_SECONDS", 2)
    mutants = mutants_of_k1(hangs="[__import__('time').sleep(600), d][1]", ends="__import__('os')._exit(3)")
    assert [result.killer for result in run_mutants(mutants, workers=1)] == ["(the process)", "(the process)"]
