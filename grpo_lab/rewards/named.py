"""Reward functions by name, for the commands: those of this room, and one's own as module:function."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from grpo_lab.rewards.exact import number_reward
from grpo_lab.rewards.final import final_answer_reward
from grpo_lab.rewards.last import last_number_reward
from grpo_lab.rewards.mathematics import math_reward
from grpo_lab.rewards.own import own_reward
from grpo_lab.rewards.rules import accuracy_reward, contains_reward, format_reward, graded_reward
from grpo_lab.rewards.text import completion_text, expected_texts
from grpo_lab.tasks import Row, has_thinking


def think_rate(completions: Any, **kwargs: Any) -> list[float | None]:
    """Say of each completion whether it thinks. With weight 0 it is no reward; its mean is reported."""
    return [float(has_thinking(completion_text(completion))) for completion in completions]


NAMED = {
    "accuracy": accuracy_reward,
    "math": math_reward,
    "number": number_reward,
    "final": final_answer_reward,
    "last": last_number_reward,
    "format": format_reward,
    "graded": graded_reward,
    "contains": contains_reward,
    "think": think_rate,
}
READ_TAGS = set(NAMED) - {"contains", "last"}
# A right answer earns less than 1 here, because its length is charged for; whether it is right has no price.
RIGHT = {"contains": partial(contains_reward, penalty_per_character=0.0)}


def short_name(name: str) -> str:
    """ "accuracy" for "accuracy_reward", as TRL calls it; a name that is none of these stays as it is."""
    of_function = {function.__name__: short for short, function in NAMED.items()}
    return of_function.get(name, name)


def find_rewards(names: Iterable[str]) -> list[Callable]:
    """The reward functions of these names.

    A name is one of `NAMED` (or its function's own), or "module:function": the module is looked for in the current
    folder first, then among those that are installed.

    Raises:
        ValueError: for another name, and for one that occurs twice.
        ImportError: for a module that is not there, or fails; for a function that is not in it.
        TypeError: for something that cannot be called.
    """
    shorts = [short_name(name) for name in names]
    if twice := next((name for name in shorts if shorts.count(name) > 1), None):
        raise ValueError(
            f"reward_funcs has {twice!r} twice; expected each once: reward_weights says how much it counts"
        )
    if unknown := next((name for name in shorts if name not in NAMED and ":" not in name), None):
        raise ValueError(f"reward_funcs has {unknown!r}; expected {', '.join(NAMED)}, or module:function of your own")
    return [NAMED[name] if name in NAMED else own_reward(name) for name in shorts]


def right_by(name: str) -> Callable:
    """The function by which a completion counts as right, where it gives at least 1: that of this name."""
    short = short_name(name)
    return RIGHT[short] if short in RIGHT else find_rewards([short])[0]


def priced(function: Callable) -> Callable | None:
    """What says whether a completion is right, where this function does not by reaching 1; None where it does."""
    return next((RIGHT[short] for short in RIGHT if function is NAMED[short]), None)


def read_tags(names: Iterable[str]) -> bool:
    """Whether one of these rewards looks for think or answer tags; of one's own it is not known, so it does not."""
    return any(short_name(name) in READ_TAGS for name in names)


def check_columns(names: list[str], rows: list[Row], places: list[str] | None = None) -> None:
    """Raise ValueError if a reward needs what the rows do not have; the message says where, if `places` are given.

    Also for an `answer` that it cannot compare with: None where no reward applies without one, and, for those that
    compare numbers, a text that is no number.
    """
    places = places or [f"row {index}" for index in range(len(rows))]
    needs = {name: _needed(function) for name, function in zip(names, find_rewards(names), strict=True)}
    given = {"prompts", "completions", "completion_ids", *rows[0]}
    for name, columns in needs.items():
        if missing := sorted(columns - given):
            raise ValueError(f"reward_funcs has {name!r}, which needs the column {missing[0]!r}; {places[0]} lacks it")
    empty = [place for place, row in zip(places, rows, strict=True) if row.get("answer", "") is None]
    if empty and all("answer" in columns for columns in needs.values()):
        raise ValueError(f"{empty[0]}: answer is null; expected a text, since no reward here applies without one")
    blank = [place for place, row in zip(places, rows, strict=True) if str(row.get("answer", "-")).strip() == ""]
    if blank and any(short_name(name) in NAMED and "answer" in columns for name, columns in needs.items()):
        raise ValueError(f"{blank[0]}: answer is empty; expected a text, since nothing could be right")
    for name in names:
        if short_name(name) in NAMED and "answer" in needs[name]:
            _check_answers(short_name(name), rows, places)


def _check_answers(name: str, rows: list[Row], places: list[str]) -> None:
    for place, row in zip(places, rows, strict=True):
        try:
            expected_texts(name, [""], [row["answer"]])
            if name in ("number", "final"):
                NAMED[name]([""], answer=[row["answer"]])
        except (TypeError, ValueError) as error:
            wanted = "a number" if name in ("number", "final") else "a text or a whole number"
            raise ValueError(f"{place}: answer is {row['answer']!r:.60}; expected {wanted} for {name!r}") from error


def _needed(function: Callable) -> set[str]:
    """The parameters that a call has to give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, or otherwise without a signature
        return set()
    return {p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
