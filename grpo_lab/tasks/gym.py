"""The problems of reasoning-gym (Stojanovski et al., 2025), which has about a hundred generators with a verifier each.

A generator is named as "chain_sum", or with options as "chain_sum:max_terms=3,max_digits=2". A hash of the question
decides whether a problem is held out, as for the other tasks, so no problem is in both splits. Splitting by the seeds
of reasoning-gym would not do: its seeds 0 and 1 share all but one of their problems.
"""

import contextlib
import io
import json
import random
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from grpo_lab.base.checks import InputError, InputPackageError, check_choice
from grpo_lab.tasks.rows import SPLITS, Row, chat_messages, split_of

GYM_PREFIX = "gym:"
TEST_SHARE = 0.25
DEFAULT_COUNTS = {"train": 1000, "test": 200}  # small, since some problems take milliseconds to make
PROBLEMS_PER_SEED = 5000  # some generators make all of them before the first is read
MAX_MISSES = 1000  # misses in succession after which a generator counts as exhausted
MISSES_PER_FAILURE = 50  # misses that a problem counts as which the generator fails to make, since failures are slow
EXCLUDED_GENERATORS = (
    # The first runs programs that write files into the working folder; the second reads files.
    "codeio", "composite",
    # These iterate over sets of strings, whose order depends on Python's hash seed, so problems differ by process.
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder",
)  # fmt: skip


class Generator(NamedTuple):
    """A generator of reasoning-gym with its options."""

    name: str
    options: str  # the options as JSON
    problems: Any  # the dataset of reasoning-gym, in which indexing makes a problem


def gym_problems(split: str, n: int | None, seed: int, generator: str) -> list[Row]:
    """Return `n` different problems of one split of a generator.

    A row is {"prompt": messages, "answer": a right answer, "gym": generator, options and index of the problem}. The
    same arguments always give the same rows, and a larger `n` appends rows to those of a smaller `n`.

    Args:
        split: "train" or "test".
        n: Number of problems; None for the usual number, or fewer if the generator has fewer.
        seed: Seed of the problems.
        generator: The name of a generator, with its options after a colon.

    Raises:
        InputError: if the generator has fewer than `n` problems, and for an unknown generator or option.
    """
    check_choice("split", split, SPLITS)
    generator_seed = random.Random(f"gym/{seed}").randrange(2**31)
    name, options, problems = make_generator(generator, generator_seed)
    rows: dict[str, Row] = {}  # {question: row}
    misses = 0
    for index in range(PROBLEMS_PER_SEED):
        misses += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the generator `bf` prints dots
                problem = problems[index]
        except Exception:  # a generator raises if it finds no problem for its options
            misses += MISSES_PER_FAILURE
        else:
            question = problem["question"]
            if question not in rows and split_of("gym", question, test_share=TEST_SHARE) == split:
                spec = {"generator": name, "options": options, "index": index}
                rows[question] = {"prompt": chat_messages(question), "answer": problem["answer"], "gym": spec}
                misses = 0
        if len(rows) == (n or DEFAULT_COUNTS[split]) or misses >= MAX_MISSES:
            break
    if len(rows) < (n or 1):
        raise InputError("n", n or 1, f"{GYM_PREFIX}{generator} has {len(rows)} problems in the split {split!r}")
    return list(rows.values())


@lru_cache(maxsize=8)
def make_generator(generator: str, seed: int = 0) -> Generator:
    """Make a generator from its name, with its options after a colon."""
    name, _, options = generator.partition(":")
    if name not in generator_names():
        expected = f"expected {GYM_PREFIX}NAME with a name from reasoning-gym's GALLERY.md"
        raise InputError("task", GYM_PREFIX + generator, expected)
    dataset_class, config_class = _reasoning_gym().factory.DATASETS[name]
    try:
        user_options = yaml.safe_load("{" + options.replace("=", ": ") + "}")
        fixed_options = {"seed": seed, "size": PROBLEMS_PER_SEED}
        problems = dataset_class(config_class(**user_options, **fixed_options))
    except Exception as error:  # invalid YAML, an unknown option or one of a wrong type, or a failed assertion
        refusal = f"reasoning-gym refuses it ({type(error).__name__}: {error!s:.200})"
        raise InputError("task", GYM_PREFIX + generator, refusal) from error
    return Generator(name, json.dumps(user_options | fixed_options), problems)


def generator_names() -> list[str]:
    """Return the names of all generators that are not excluded, in alphabetical order."""
    return sorted(_reasoning_gym().factory.DATASETS.keys() - {*EXCLUDED_GENERATORS})


def _reasoning_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        message = f'is {GYM_PREFIX}..., and reasoning-gym is not installed: pip install "grpo-lab[gym]"'
        raise InputPackageError("task", GYM_PREFIX, problem=message) from error
    return reasoning_gym
