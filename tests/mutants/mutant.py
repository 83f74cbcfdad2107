"""A mutant: one file of the package with one small change, and the test files that have to notice it."""

import ast
import difflib
import functools
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
# Where the behaviour of a module shows first, if not in the test with its name: patterns below tests/.
TELLING = {
    "chat": ("test_chat.py",),
    "models/frozen": ("trainer/test_loop.py",),
    "trainer/experience": ("trainer/test_step.py", "trainer/test_loop.py"),
    "trainer/logprobs": ("trainer/test_logprobs.py", "trainer/test_step.py"),
    "trainer/loop": ("trainer/test_step.py",),
    "trainer/run": ("trainer/test_loop.py", "trainer/folder/test_resume.py"),
    "rollout/dynamic": ("rollout/test_sample.py", "rollout/test_settings.py"),
    "rollout/cache": ("rollout/test_attention.py", "rollout/test_static.py"),
    "rollout/packing": ("rollout/test_attention.py", "rollout/test_sample.py"),
    "rollout/prompt_checks": ("rollout/test_settings.py",),
    "rollout/fast_paths": ("rollout/test_static.py", "models/test_selfcheck.py"),
}


@dataclass(frozen=True)
class Mutant:
    name: str  # "clip-inverted: torch.max(...", or "(5.7) surrogate = torch.max(..."
    path: str  # of the changed file, from the repository's root, with forward slashes
    function: str  # that is changed; "" for a constant of the module
    original: str
    mutated: str
    tests: tuple[str, ...]  # files

    @property
    def group(self) -> tuple[str, str]:
        """Mutants of one group are likely killed by the same test."""
        return self.path, self.function

    def diff(self) -> str:
        before, after = self.original.splitlines(), self.mutated.splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.path, "mutant", lineterm="", n=1))


def make_mutant(name: str, path: str, line: int, original: str, mutated: str) -> Mutant:
    """A mutant whose change starts on this line of the original."""
    return Mutant(name, path, _function(original, line), original, mutated, files_of_tests(path))


@functools.lru_cache(maxsize=256)
def files_of_tests(path: str) -> tuple[str, ...]:
    """The test files of a module: those with its name, then those of its package."""
    module = PurePosixPath(path).with_suffix("").relative_to("grpo_lab")
    of_package = [f"{module.parent}/test_*.py"] if module.parent.name else []
    patterns = [*TELLING.get(f"{module}", ()), f"{module.parent}/test_{module.name}*.py", *of_package]
    found = [p for pattern in patterns for p in sorted((ROOT / "tests").glob(pattern))]
    return tuple(dict.fromkeys(p.relative_to(ROOT).as_posix() for p in found))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=256)
def _function(source: str, line: int) -> str:
    """The innermost function around a line; for a constant of the module, the first function that uses it."""
    tree = ast.parse(source)
    defs = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [d.name for d in defs if d.lineno <= line <= d.end_lineno]
    assigned = [s for s in tree.body if isinstance(s, ast.Assign) and s.lineno <= line <= s.end_lineno]
    constants = {target.id for s in assigned for target in s.targets if isinstance(target, ast.Name)}
    users = [d.name for d in defs if constants & {n.id for n in ast.walk(d) if isinstance(n, ast.Name)}]
    return (around[-1:] or users[:1] or [""])[0]
