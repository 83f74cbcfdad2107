"""Define a mutant: one file of the package with one small change, and the test files that have to fail with it."""

import ast
import difflib
import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grpo_lab.formulas.lines import replaced_code

ROOT = Path(__file__).resolve().parents[2]
_DEFINED = ast.FunctionDef | ast.ClassDef
# The tests that fail first for a module, if not the tests with its name: patterns below tests/.
FIRST_TEST_FILES = {
    "chat": ("test_chat.py",),
    "models/frozen": ("trainer/run/test_run.py",),
    "trainer/collecting": ("trainer/test_loop_step.py", "trainer/test_collecting.py"),
    "trainer/run/inputs": ("trainer/run/test_run.py", "trainer/run/folder/test_resume.py"),
    "trainer/experience": ("trainer/test_loop_step.py", "trainer/test_experience.py"),
    "trainer/experience_logprobs": ("trainer/test_experience_logprobs.py", "trainer/test_loop_step.py"),
    "trainer/loop": ("trainer/test_loop_step.py",),
    "trainer/rewarding": ("trainer/test_rewarding.py", "trainer/test_loop_step.py"),
    "trainer/run/run": ("trainer/run/test_run.py", "trainer/run/folder/test_resume.py"),
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
