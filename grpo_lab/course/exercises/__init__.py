"""All exercises, by the name of the function that students write, and the assignments, in the order of the notebooks.

Each notebook has a module, such as nb04.py, that defines each exercise under its name in capitals: the reference, the
inputs and the common mistakes. The YAML file beside the module holds the points, the task, the hints, and the
explanation of each mistake. A module is imported when one of its exercises is looked up for the first time, so a check
of a function of notebook 01 does not load the language-model libraries.

nb07c.py is the shortest module; read it first. For each exercise a module has these parts, in this order:

- the reference, if it is not imported from grpo_lab: a function whose docstring is the task's text;
- functions that build inputs, for several cases at once;
- functions that make a mistake, if it cannot be written as changed lines of the reference;
- `after_...`, for an exercise that is not compared by its result alone: what is observed of a call;
- the `Exercise`.

"Adding an exercise" in CONTRIBUTING.md lists everything that a new one needs.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from grpo_lab.base.checks import check_choice
from grpo_lab.course.exercise import Exercise, Mistake

# The names of the exercises by notebook, in the order in which they are checked: an exercise may call earlier ones.
NAMES = {
    "01": (
        "token_logprobs", "token_entropy", "completion_mask", "sequence_logprob", "reinforce_loss",
        "score_function_objective", "sample_tokens",
    ),
    "02": ("group_advantages", "rloo_advantages"),
    "03": ("response_logprobs", "surrogate_loss", "repaired_reward", "learn_by_grpo"),
    "04": ("kl_estimate", "kl_exact", "kl_in_reward"),
    "05": ("importance_ratio", "clipped_surrogate", "aggregate", "policy_loss"),
    "06": ("format_fault", "extract_answer", "accuracy_reward", "design_reward"),
    "07": (
        "read_sequences", "compute_advantages", "microbatch_loss", "step_if_finite", "train_by_grpo",
        "dynamic_sampling",
    ),
    "07c": ("pass_at_k", "samples_until_right"),
    "08": ("stochastic_round", "first_step_movement"),
    "09": (
        "learn_to_stop", "stay_near_reference", "many_small_steps", "held_out_accuracy", "train_on_batch", "name_fault",
    ),
    "10": ("straggler_bubble", "completion_staleness"),
    "11": ("episode_masks", "append_reply", "read_tool_calls", "turn_advantages", "learn_by_playing"),
}  # fmt: skip
_NOTEBOOKS = {name: notebook for notebook, names in NAMES.items() for name in names}
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C, where PyYAML has it, is ten times as fast
_loaded: dict[str, Exercise] = {}
_class_exercises: dict[str, Exercise] = {}  # exercises of a class that replace those of the lessons


def find_exercise(name_or_function: str | Callable) -> Exercise:
    """Return an exercise by its name, or by a function with that name.

    If an exercise of a class was registered under the name, it is returned instead of the lesson's.

    Raises:
        KeyError: No exercise has this name; the message lists all names.
    """
    name = name_or_function if isinstance(name_or_function, str) else getattr(name_or_function, "__name__", "")
    return _class_exercises.get(name) or lesson_exercise(name)


def register_class_exercise(exercise: Exercise) -> None:
    """Register an exercise of a class, which `find_exercise` then returns instead of the lesson's of the same name."""
    _class_exercises[exercise.name] = exercise
    all_exercises.cache_clear()


def lesson_exercise(name: str) -> Exercise:
    """Return the lesson's exercise of this name, even if an exercise of a class is registered under it.

    Raises:
        KeyError: No exercise has this name; the message lists all names.
    """
    if name not in _loaded:
        if name not in _NOTEBOOKS:
            raise KeyError(f"exercise is {name!r}; expected one of {', '.join(map(repr, _NOTEBOOKS))}")
        module = importlib.import_module(f"{__name__}.nb{_NOTEBOOKS[name]}")
        definition: Exercise = getattr(module, name.upper())
        texts = dict(texts_of(_NOTEBOOKS[name])[name])
        mistakes = _explained(definition, texts.pop("explanations"))
        task = (
            f"{texts['task']}\n\n```python\n{definition.demonstration}```"
            if definition.demonstration
            else texts["task"]
        )
        _loaded[name] = replace(definition, notebook=_NOTEBOOKS[name], mistakes=mistakes, **texts | {"task": task})
    return _loaded[name]


def _explained(exercise: Exercise, explanations: Mapping[str, str]) -> tuple[Mistake, ...]:
    """Return the mistakes of an exercise with their texts.

    Raises:
        ValueError: If a mistake has no text. A text without a mistake is allowed: the copy of the package that a
            submission imports has no mistakes.
    """
    if missing := [mistake.name for mistake in exercise.mistakes if mistake.name not in explanations]:
        raise ValueError(f"the YAML file has no explanation of {', '.join(missing)}, a mistake of {exercise.name}")
    return tuple(replace(mistake, explanation=explanations[mistake.name]) for mistake in exercise.mistakes)


@cache
def texts_of(notebook: str) -> dict:
    """Read the YAML file of a notebook: by the name of each exercise its text fields, and the question in words."""
    text = (Path(__file__).parent / f"nb{notebook}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=YAML_LOADER)


def earlier_names(name: str) -> tuple[str, ...]:
    """Return the names of the earlier exercises of the same notebook; empty for an unknown name."""
    names = NAMES[_NOTEBOOKS[name]] if name in _NOTEBOOKS else (name,)
    return names[: names.index(name)]


def exercises_of_notebook(notebook: str) -> dict[str, Exercise]:
    """Return the exercises of a notebook, such as "04", by name and in order; empty for a notebook without any."""
    return {name: find_exercise(name) for name in NAMES.get(notebook, ())}


@cache
def all_exercises() -> dict[str, Exercise]:
    """Return all exercises by name, in the order of the notebooks."""
    return {name: find_exercise(name) for name in _NOTEBOOKS}


@dataclass(frozen=True)
class Assignment:
    """An assignment.

    Attributes:
        stem: The name of its file without the ending, such as "07c_what_training_buys"; that of the lesson is the same.
        title: The title of the lesson.
    """

    stem: str
    title: str

    @property
    def number(self) -> str:
        """The number of the lesson, such as "07c"."""
        return self.stem.partition("_")[0]

    @property
    def exercise_names(self) -> tuple[str, ...]:
        return NAMES[self.number]

    @property
    def exercises(self) -> dict[str, Exercise]:
        """The exercises by name, in order."""
        return exercises_of_notebook(self.number)


_ALL = (
    Assignment("01_policy_gradient", "Policy gradient"),
    Assignment("02_baselines_and_advantages", "Baselines and advantages"),
    Assignment("03_sorting_with_grpo", "Sorting with GRPO"),
    Assignment("04_kl_estimators", "KL estimators"),
    Assignment("05_grpo_objective", "The GRPO objective"),
    Assignment("06_rewards_and_verifiers", "Rewards and verifiers"),
    Assignment("07_r1_zero_on_a_laptop", "R1-Zero on a laptop"),
    Assignment("07c_what_training_buys", "What training buys"),
    Assignment("08_grpo_on_qwen2", "GRPO on Qwen2"),
    Assignment("09_find_the_bug", "Find the bug"),
    Assignment("10_beyond_one_machine", "Beyond one machine"),
    Assignment("11_tools_and_turns", "Tools and turns"),
)
ASSIGNMENTS = {assignment.number: assignment for assignment in _ALL}
ASSIGNMENTS_BY_STEM = {assignment.stem: assignment for assignment in _ALL}


def find_assignment(name: str) -> Assignment:
    """Return the assignment of this number, such as "05", or with this file stem.

    Raises:
        InputError: If there is no such assignment.
    """
    if name in ASSIGNMENTS_BY_STEM:
        return ASSIGNMENTS_BY_STEM[name]
    check_choice("assignment", name, list(ASSIGNMENTS))
    return ASSIGNMENTS[name]
