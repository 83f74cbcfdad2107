"""The package is laid out by purpose: each part may import from those before it, and from none after it."""

import ast
import re
import sys
from pathlib import Path

import pytest

import grpo_lab
from tests.support.layout import MATHEMATICS

PACKAGE = Path(grpo_lab.__file__).parent
LANGUAGE_MODELS = ("sandbox", "config", "tasks", "rewards", "rollout", "models")
TRAINING = (
    "trainer",
    "task_spec",
    "command_options",
    "memory",
    "evaluate",
    "train",
    "chat",
)
INSTRUMENTS = ("formulas", "teaching", "diagnose", "plot", "doctor", "bench")
PARTS = ("base", *MATHEMATICS, "toys", *LANGUAGE_MODELS, *TRAINING, *INSTRUMENTS, "course")


def modules(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / f"{part}.py"]


def top(folder: Path) -> set[str]:
    """Return the names of the modules and packages directly in a folder."""
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return names - {"__init__", "__main__"}


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, also in functions; `from a import b` counts as a and as a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_at_the_top(path: Path) -> set[str]:
    """Return every module that a file imports when it is imported itself."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {
        name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }


def parts_of(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported(path)]
    return {part[1] for part in parts if part[0] == "grpo_lab" and len(part) > 1 and part[1] != "__version__"}


def test_every_module_is_in_a_part_and_none_is_private_at_the_top():
    assert top(PACKAGE) == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_imports_between_parts_go_one_way(part):
    earlier_parts = set(PARTS[: PARTS.index(part) + 1])
    for path in modules(part):
        assert not parts_of(path) - earlier_parts, path.relative_to(PACKAGE)


def test_the_mathematics_needs_torch_and_einops_alone():
    allowed = {"torch", "einops", "jaxtyping", "grpo_lab", *sys.stdlib_module_names}
    for path in [file for part in MATHEMATICS for file in modules(part)]:
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path.relative_to(PACKAGE)


@pytest.mark.parametrize("part", [part for part in PARTS if (PACKAGE / part).is_dir()])
def test_the_files_of_a_part_form_no_circle(part):
    """The `__init__` is excluded, because it imports from its files and they do not import from it."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in modules(part)}
    imports = {name: imported(path) & set(paths) for name, path in paths.items() if path.stem != "__init__"}
    while leaves := [name for name, targets in imports.items() if not targets & set(imports) - {name}]:
        for name in leaves:
            del imports[name]
    assert not imports, f"a circle through {sorted(imports)}"


def test_the_table_of_packages_in_contributing_is_that_of_the_layout():
    table = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| packages of `grpo_lab`")[2]
    first_column = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert re.findall(r"`(\w+)/?`", " ".join(first_column)) == list(PARTS)


def test_only_a_run_on_trl_imports_trl():
    """TRL is an extra. The modules that need it import it at the top, and all others import these in functions."""
    imports = {path: imported_at_the_top(path) for path in PACKAGE.rglob("*.py")}
    needing_trl = {path for path, names in imports.items() if any(name.split(".")[0] == "trl" for name in names)}
    while True:
        names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in needing_trl}
        importers = {path for path in imports if imports[path] & names} - needing_trl
        if not importers:
            break
        needing_trl |= importers
    assert {path.relative_to(PACKAGE).as_posix() for path in needing_trl} == {
        "train/trl/run.py",
        "train/trl/trainer.py",
    }


def test_a_run_on_our_own_loop_without_a_file_imports_nothing_of_train_trl():
    for path in (PACKAGE / "train").glob("*.py"):
        assert not any(name.startswith("grpo_lab.train.trl") for name in imported_at_the_top(path)), path.name


# In reading order, like the parts of the package.
COURSE = (
    "exercise",
    "stub",
    "exercises",
    "checking",
    "variant",
    "release",
    "grading",
)


def test_the_parts_of_the_course_import_one_way():
    assert top(PACKAGE / "course") == set(COURSE)
    for number, part in enumerate(COURSE, 1):
        names = {name for path in modules(f"course/{part}") for name in imported(path)}
        course_parts = {name.split(".")[2] for name in names if name.startswith("grpo_lab.course.")} & set(COURSE)
        assert course_parts <= set(COURSE[:number]), part


# In reading order, too.
ROLLOUT = (
    "rollout",
    "model",
    "forward",
    "completion_texts",
    "prompts",
    "decoding",
    "sample",
    "environments",
)
# Here the last file is read first: the loop calls all others.
TRAINER = (
    "optim",
    "experience",
    "metrics",
    "rewarding",
    "collecting",
    "evaluation",
    "run",
    "loop",
)
TRAIN = ("processes", "engines", "trl", "options", "plan", "checks", "cli")

ROOMS = {"rollout": ROLLOUT, "trainer": TRAINER, "train": TRAIN}


@pytest.mark.parametrize(("part", "rooms"), ROOMS.items(), ids=ROOMS)
def test_the_rooms_of_a_part_import_one_way(part, rooms):
    assert top(PACKAGE / part) == set(rooms)
    for number, room in enumerate(rooms, 1):
        names = {name for path in modules(f"{part}/{room}") for name in imported(path)}
        imported_rooms = {name.split(".")[2] for name in names if name.startswith(f"grpo_lab.{part}.")} & set(rooms)
        assert imported_rooms <= set(rooms[:number]), room
