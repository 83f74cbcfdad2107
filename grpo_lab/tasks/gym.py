"""The problems of reasoning-gym (Stojanovski et al., 2025): some hundred generators, each with a verifier of its own.

"chain_sum" names one, "chain_sum:max_terms=3,max_digits=2" the same with options. A hash of the question decides
whether a problem is held out, as for the other tasks. So a question that is trained on is never measured, whatever the
two seeds are: reasoning-gym's own seeds 0 and 1 share all but one of their problems.
"""

import contextlib
import difflib
import io
import json
import os
import random
import re
from dataclasses import fields
from functools import lru_cache
from typing import Any

import yaml

from grpo_lab.commands.checks import InputError, InputPackageError, check_choice
from grpo_lab.tasks.rows import SPLITS, Row, asking, split_of

PREFIX = "gym:"
HELD_OUT = 0.25
USUAL = {"train": 1000, "test": 200}  # problems where nothing is said: some take milliseconds to make
SIZE = 5000  # problems that one seed offers; some generators make them all before the first
PATIENCE = 1000  # problems in a row that are known already: then there are no others
# These go through sets of texts, whose order is Python's hash seed's.
BY_HASH_SEED = (
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder",
)  # fmt: skip
OURS = ("seed", "size")  # options that the split needs
LEFT_OUT = ("codeio", "composite")  # one runs programs of others, which write files into your folder; one reads files


def gym_problems(split: str, n: int | None, seed: int, generator: str) -> list[Row]:
    """`n` different problems of one split; None for as many as are usual, or fewer where there are not so many.

    Returns:
        Rows {"prompt": messages, "answer": one that is right, "gym": which problem it is}. The same arguments always
        give the same rows; a longer list starts with the shorter one.

    Raises:
        ValueError: for a generator or an option that is not known or not allowed, and for more problems than there are.
        ImportError: if reasoning-gym is not installed.
    """
    check_choice("split", split, SPLITS)
    of_seed = random.Random(f"gym/{seed}").randrange(2**31)
    name, options, problems = make_generator(generator, of_seed)
    found, in_vain, fault = {}, 0, ""
    for index in range(SIZE):
        in_vain += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # `bf` prints a dot for some
                problem = problems[index]
        except Exception as error:  # such as: no problem found within the options, in so many attempts
            problem, fault, in_vain = None, f"; reasoning-gym could not make some ({error})", in_vain + PATIENCE // 20
        question = problem and problem["question"]
        if problem and question not in found and split_of("gym", question, test_share=HELD_OUT) == split:
            which = {"generator": name, "options": options, "index": index}
            found[question] = {"prompt": asking(question), "answer": problem["answer"], "gym": which}
            in_vain = 0
        if len(found) == (n or USUAL[split]) or in_vain >= PATIENCE:
            break
    if len(found) < (n or 1):
        there_are = f"{PREFIX}{generator} has {len(found)} problems in the split {split!r}{fault}"
        raise InputError("n", n or 1, there_are)
    return list(found.values())


@lru_cache(maxsize=8)
def make_generator(generator: str, seed: int = 0) -> tuple[str, str, Any]:
    """A generator's name, its options as JSON, and its dataset, of which `[index]` makes a problem."""
    datasets = _reasoning_gym().factory.DATASETS
    name, _, text = generator.partition(":")
    if name not in datasets:
        near = " or ".join(difflib.get_close_matches(name, datasets))
        meant = f"did you mean {near}?" if near else f"expected {PREFIX}NAME;"
        raise InputError("task", PREFIX + generator, f"{meant} `python -m grpo_lab.tasks gym` lists the names")
    if name in LEFT_OUT:
        raise _refused(generator, "which runs programs or reads files of others", "expected another generator")
    if name in BY_HASH_SEED and not os.environ.get("PYTHONHASHSEED", "").isdigit():
        remedy = "PYTHONHASHSEED=0 in the environment keeps them the same"
        raise _refused(generator, "whose problems are others in each process", remedy)
    make, settings = datasets[name]
    options = _options(generator, text, _usual(settings)) | {"seed": seed, "size": SIZE}
    try:
        problems = make(settings(**options))
    except Exception as error:  # assertions, and whatever a value of another type leads to
        said = f"which reasoning-gym refuses ({type(error).__name__}: {error})"
        raise _refused(generator, said, f"usual are {usual_options(name)}") from error
    return name, json.dumps(options), problems


def _refused(generator: str, why: str, allowed: str) -> InputError:
    return InputError("task", PREFIX + generator, allowed, found=f"is '{PREFIX}{generator}', {why}")


def _options(generator: str, text: str, usual: dict[str, Any]) -> dict[str, Any]:
    """The options in "a=1,b=[2,3],c=true"; a value that is no YAML is a text. usual: name -> default."""
    options = {}
    for part in re.split(r",\s*(?=\w*=)", text) if text else []:
        option, equals, value = part.partition("=")
        if not equals or option not in usual:
            wanted = f"expected NAME=VALUE, of {', '.join(sorted(usual))}"
            raise _refused(generator, f"whose option {part!r} is not known", wanted)
        try:
            options[option] = yaml.safe_load(value)
        except yaml.YAMLError:
            options[option] = value
    return options


def generator_names() -> list[str]:
    """Every generator, in the order of the alphabet."""
    return sorted(_reasoning_gym().factory.DATASETS.keys() - {*LEFT_OUT})


def usual_options(name: str) -> str:
    """The options of a generator with their defaults, as they are typed: "min_terms=2,max_terms=6"."""
    _, settings = _reasoning_gym().factory.DATASETS[name]
    return ",".join(f"{option}={value}" for option, value in _usual(settings).items())


def _usual(settings: type) -> dict[str, Any]:
    usual = settings()
    return {field.name: getattr(usual, field.name) for field in fields(usual) if field.name not in OURS}


def _reasoning_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        said = f"is {PREFIX}..., and reasoning-gym is not installed: pip install reasoning-gym"
        raise InputPackageError("task", PREFIX, found=said) from error
    return reasoning_gym
