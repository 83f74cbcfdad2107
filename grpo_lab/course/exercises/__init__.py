"""All exercises, by the name of the function that is to be written, in the order of the notebooks.

One module a notebook; in it, each exercise under its name in capitals: the inputs, and wrong answers as people write
them. Beside it lies what it is worth and what is said, as YAML: the task, hints, and a word about each mistake. A
module is imported when somebody asks for one of its exercises: whoever checks a function of notebook 01 does not wait
for the language-model libraries.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from grpo_lab.course.exercise import Exercise

# Of each notebook, in the order in which they are judged: an exercise may call those before it.
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
    "08": ("stochastic_round", "first_step_test"),
    "09": (
        "learn_to_stop", "stay_near_reference", "many_small_steps", "held_out_accuracy", "train_on_batch", "name_fault",
    ),
    "10": ("straggler_bubble", "answer_ages"),
    "11": ("episode_masks", "append_reply", "read_tool_calls", "turn_advantages", "learn_by_playing"),
}  # fmt: skip
_NOTEBOOKS = {name: notebook for notebook, names in NAMES.items() for name in names}
_loaded: dict[str, Exercise] = {}
_of_class: dict[str, Exercise] = {}  # variants, in the notebook of a student


def exercise(name_or_function: str | Callable) -> Exercise:
    """The exercise of that name; a function is looked up by its `__name__`.

    Raises:
        KeyError: if there is none; the message lists the names.
    """
    name = name_or_function if isinstance(name_or_function, str) else getattr(name_or_function, "__name__", "")
    return _of_class.get(name) or lesson_exercise(name)


def put(exercise: Exercise) -> None:
    """Let `exercise` find this one, which is a class's, under its name from now on."""
    _of_class[exercise.name] = exercise
    _all.cache_clear()


def lesson_exercise(name: str) -> Exercise:
    """The exercise of that name with the formula of the lesson, whatever a class has."""
    if name not in _loaded:
        if name not in _NOTEBOOKS:
            raise KeyError(f"exercise is {name!r}; expected one of {', '.join(map(repr, _NOTEBOOKS))}")
        module = importlib.import_module(f"{__name__}.nb{_NOTEBOOKS[name]}")
        definition: Exercise = getattr(module, name.upper())
        texts = texts_of(_NOTEBOOKS[name])[name]
        task = f"{texts['task']}\n\n```python\n{definition.shows}```" if definition.shows else texts["task"]
        _loaded[name] = replace(definition, notebook=_NOTEBOOKS[name], **texts | {"task": task})
    return _loaded[name]


@cache
def texts_of(notebook: str) -> dict:
    """The texts of a notebook's exercises, by name: fields of `Exercise`; and the question in words."""
    return yaml.safe_load((Path(__file__).parent / f"nb{notebook}.yaml").read_text(encoding="utf-8"))


def earlier(name: str) -> tuple[str, ...]:
    """The exercises of the same notebook that stand before this one; none for a name that there is not."""
    names = NAMES[_NOTEBOOKS[name]] if name in _NOTEBOOKS else (name,)
    return names[: names.index(name)]


def of_notebook(notebook: str) -> dict[str, Exercise]:
    """The exercises of a notebook ("04"), in order; none for one without."""
    return {name: exercise(name) for name in NAMES.get(notebook, ())}


@cache
def _all() -> dict[str, Exercise]:
    return {name: exercise(name) for name in _NOTEBOOKS}


def __getattr__(name: str) -> dict[str, Exercise]:
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _all()
