"""Mutants: one file of the package with one small change each, and the test files that have to fail with it.

`errata_mutants` makes those of mistakes in circulation, from `teaching.bugs` and from errata.txt. `line_mutants` makes
those of the anchored lines: the lines of mathematics whose comment ends in the tag of an equation. equivalent.txt lists
the mutants of anchored lines that no test can kill, because the change has no visible effect, with the reason.
`python -m tests.mutants --family equivalent` runs these; if a test kills one, its reason is wrong.
"""

import ast
import difflib
import functools
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path, PurePosixPath

from grpo_lab.formulas.lines import replaced_code, with_lines
from grpo_lab.formulas.source import ANCHOR, trailing_comments
from grpo_lab.teaching.bugs import BUGS, read_bugs
from tests.mutants.operators import variants

ROOT = Path(__file__).resolve().parents[2]
_DEFINED = ast.FunctionDef | ast.ClassDef
# The tests that fail first for a module, if not the tests with its name: patterns below tests/.
FIRST_TEST_FILES = {
    "chat": ("test_chat.py",),
    "trainer/collecting": ("trainer/test_loop_step.py", "trainer/test_collecting.py"),
    "trainer/run/inputs": ("trainer/run/test_run.py", "trainer/run/test_resume.py"),
    "trainer/experience": ("trainer/test_loop_step.py", "trainer/test_experience.py"),
    "trainer/loop": ("trainer/test_loop_step.py",),
    "trainer/rewarding": ("trainer/test_rewarding.py", "trainer/test_loop_step.py"),
    "trainer/run/run": ("trainer/run/test_run.py", "trainer/run/test_resume.py"),
    "objective/losses": ("objective/test_loss.py", "objective/test_loss_batches.py", "objective/test_surrogates.py"),
    "rollout/model": ("rollout/decoding/test_decoder.py", "models/test_selfcheck.py", "rollout/test_model.py"),
    "rollout/prompts": ("rollout/test_prompts.py", "rollout/test_sample.py"),
    "rollout/sample": (
        "rollout/test_sample.py",
        "rollout/decoding/test_sampling_request.py",
        "rollout/decoding/test_graph_decoder.py",
    ),
    "rollout/decoding/sampling_request": (
        "rollout/test_sample.py",
        "rollout/decoding/test_sampling_request.py",
        "rollout/environments/test_text_environment.py",
    ),
    "rollout/decoding/graph_decoder": ("rollout/decoding/test_graph_decoder.py", "rollout/decoding/test_decoder.py"),
    "rollout/decoding/cache": ("rollout/forward/test_attention.py", "rollout/decoding/test_decoder.py"),
    "rollout/forward/packing": ("rollout/forward/test_attention.py", "rollout/test_sample.py"),
}


@dataclass(frozen=True)
class Mutant:
    name: str  # "clip-inverted: torch.max(...", or "(5.7) surrogate = torch.max(..."
    path: str  # path of the changed file from the repository's root, with forward slashes
    qualified_name: str  # qualified name of the changed function; "" for a constant of the module
    original: str
    mutated: str
    tests: tuple[str, ...]  # paths of test files

    @property
    def function(self) -> str:
        """The name by which tests call the changed function."""
        return self.qualified_name.rpartition(".")[2]

    @property
    def group(self) -> tuple[str, str]:
        """The file and function of the mutant; mutants of the same group are likely killed by the same test."""
        return self.path, self.qualified_name

    def diff(self) -> str:
        original_lines, mutated_lines = self.original.splitlines(), self.mutated.splitlines()
        return "\n".join(difflib.unified_diff(original_lines, mutated_lines, self.path, "mutant", lineterm="", n=1))


@contextmanager
def swapped(mutant: Mutant) -> Iterator[None]:
    """Put the mutant in place of the original inside the `with`; for a constant, run the changed assignments."""
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if mutant.qualified_name:
        with replaced_code(mutant.mutated, module, mutant.qualified_name):
            yield
        return
    live = vars(importlib.import_module(module))
    original_statements = {ast.dump(s) for s in ast.parse(mutant.original).body}
    changed = [s for s in ast.parse(mutant.mutated).body if ast.dump(s) not in original_statements]
    old_names = dict(live)
    exec(compile(ast.Module(changed, []), module, "exec"), live)
    try:
        yield
    finally:
        live.update(old_names)


@functools.lru_cache(maxsize=256)
def files_of_tests(path: str) -> tuple[str, ...]:
    """Return the test files of a module: those with its name, of its folder, then of its package."""
    module = PurePosixPath(path).with_suffix("").relative_to("grpo_lab")
    folders = [*module.parents][:-1]  # innermost folder first, the package last
    of_name = [f"{folder}/test_{module.name}*.py" for folder in folders or [PurePosixPath(".")]]
    of_package = [f"{folder}/test_*.py" for folder in folders]
    of_package += [f"{folder}/**/test_*.py" for folder in folders[-1:]]
    patterns = [*FIRST_TEST_FILES.get(f"{module}", ()), *of_name, *of_package]
    files = [p for pattern in patterns for p in sorted((ROOT / "tests").glob(pattern))]
    return tuple(dict.fromkeys(p.relative_to(ROOT).as_posix() for p in files))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def enclosing_function(source: str, line: int) -> str:
    """Return the qualified name of the function or method around a line, or "" outside of functions."""
    names, body = [], ast.parse(source).body
    while around_line := [s for s in body if isinstance(s, _DEFINED) and s.lineno <= line <= s.end_lineno]:
        names.append(around_line[0].name)
        body = around_line[0].body if isinstance(around_line[0], ast.ClassDef) else []
    return ".".join(names)


@functools.cache
def errata_mutants() -> list[Mutant]:
    """Return a mutant for every mistake; raise ValueError if the address of a line is not in the source."""
    entries = (*BUGS.items(), *read_bugs(Path(__file__).with_name("errata.txt")))
    return [planted(name, f"{bug.module.replace('.', '/')}.py", bug.function, bug.lines) for name, bug in entries]


def planted(name: str, path: str, function: str, lines: dict[str, str]) -> Mutant:
    """Return the mutant with a mistake in `function` of the file, or in the module's constants if `function` is ""."""
    source, description = read(path), " ".join(" ".join(lines.values()).split())
    return Mutant(
        f"{name}: {description}", path, function, source, with_lines(source, lines, function), files_of_tests(path)
    )


def anchored_modules() -> list[str]:
    """Return the files with anchored lines, without those of the course, whose exercises may repeat such lines."""
    paths = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "grpo_lab").rglob("*.py")))
    return [path for path in paths if path.split("/")[1] not in ("course", "formulas") and anchors(read(path))]


def anchors(source: str) -> dict[str, int]:
    """Return the line number of each tag, from the comments `# P 1 (n.m)` at the ends of lines."""
    anchors = ((ANCHOR.fullmatch(comment), line) for line, comment in trailing_comments(source))
    return {match["tag"]: line for match, line in anchors if match}


def line_mutants(path: str) -> list[Mutant]:
    """Return every mutant of every anchored line of a file, including those that `equivalent` lists."""
    source = read(path)
    return [m for tag, line in anchors(source).items() for m in _mutants_of_line(path, source, tag, line)]


def _mutants_of_line(path: str, source: str, tag: str, line: int) -> Iterator[Mutant]:
    tree = ast.parse(source)
    statements = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not hasattr(s, "body")]
    statement = next(s for s in reversed(statements) if line in (s.lineno, s.end_lineno))
    original, texts, function = ast.unparse(statement), set(), enclosing_function(source, line)
    for new in variants(statement):
        text = ast.unparse(new)
        if text not in texts | {original}:
            texts.add(text)
            new = _replaced(source, statement, text)
            yield Mutant(f"({tag}) {text}", path, function, source, new, files_of_tests(path))


def _replaced(source: str, statement: ast.stmt, text: str) -> str:
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    # The number of lines stays, so that every other statement keeps its line number.
    blank = "\n" * (statement.end_lineno - statement.lineno)
    return "".join([*lines[: statement.lineno - 1], f"{indent}{text}\n{blank}", *lines[statement.end_lineno :]])


def read_reasons(file: Path) -> dict[str, str]:
    """Return the reason for each entry of a list; the reason is the line above its entries, which are indented."""
    reason_by_entry: dict[str, str] = {}
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        why, *entries = block.strip("\n").split("\n ")
        reason_by_entry |= dict.fromkeys(entries, why)
    return reason_by_entry


_REASON_BY_ENTRY = read_reasons(Path(__file__).with_name("equivalent.txt"))
EQUIVALENT = {code: why for code, why in _REASON_BY_ENTRY.items() if code.startswith("(")}
# Functions whose inputs are not differentiated, so that stopping a gradient in them changes nothing.
NO_GRADIENT = {name: why for name, why in _REASON_BY_ENTRY.items() if name.isidentifier()}


def without_names(code: str) -> str:
    """Return the code with numbers in place of variables, so that renaming one does not matter."""
    if "(" not in re.sub(r"^\(\d+\.\d+\) ", "", code):
        return code  # too short: without names, different lines would be equal
    numbers: dict[str, str] = {}

    def numbered(name: re.Match) -> str:
        return name[0] if iskeyword(name[0]) else numbers.setdefault(name[0], f"v{len(numbers)}")

    return re.sub(r"(?<![\w.'])[a-zA-Z_]\w*(?![\w(']|=[^=])", numbered, code)


_REASONS = {without_names(entry): why for entry, why in EQUIVALENT.items()}


def reason_equivalent(mutant: Mutant) -> str | None:
    """Return why no test can kill the mutant, or None if a test has to."""
    stops_gradient = mutant.name.endswith(".detach()")
    return _REASONS.get(without_names(mutant.name)) or (NO_GRADIENT.get(mutant.function) if stops_gradient else None)


def check_entries(mutants: list[Mutant]) -> None:
    """Raise ValueError for an entry that fits none of the mutants of the anchored lines."""
    known = {without_names(mutant.name) for mutant in mutants} | {mutant.function for mutant in mutants}
    if stale := [entry for entry in EQUIVALENT if without_names(entry) not in known] + list(NO_GRADIENT.keys() - known):
        raise ValueError(f"equivalent.txt has entries that fit no mutant: {stale}")
