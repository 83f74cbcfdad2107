"""The problems of reasoning-gym (Stojanovski et al., 2025): some hundred generators, each with a verifier of its own.

"chain_sum" names one, "chain_sum:max_terms=3,max_digits=2" the same with options. A hash of the question decides
whether a problem is held out, as for the other tasks. So a question that is trained on is never measured, whatever the
two seeds are: reasoning-gym's own seeds 0 and 1 share all but one of their problems.
"""

import contextlib
import io
import json
import random
from functools import lru_cache
from typing import Any

import yaml

from grpo_lab.base.checks import InputError, InputPackageError, check_choice
from grpo_lab.tasks.rows import SPLITS, Row, chat_messages, split_of

GYM_PREFIX = "gym:"
TEST_SHARE = 0.25
DEFAULT_COUNTS = {"train": 1000, "test": 200}  # problems where nothing is said: some take milliseconds to make
PROBLEMS_PER_SEED = 5000  # problems that one seed offers; some generators make them all before the first
MAX_MISSES = 1000  # problems in a row that are known already: then there are no others
EXCLUDED_GENERATORS = (
    "codeio", "composite",  # one runs programs of others, which write files into your folder; one reads files
    # These go through sets of texts, whose order is Python's hash seed's: other problems in each process.
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder",
)  # fmt: skip


def gym_problems(split: str, n: int | None, seed: int, generator: str) -> list[Row]:
    """`n` different problems of one split; None for as many as are usual, or fewer where there are not so many.

    Rows {"prompt": messages, "answer": one that is right, "gym": which problem it is}. The same arguments always give
    the same rows; a longer list starts with the shorter one.
    """
    check_choice("split", split, SPLITS)
    generator_seed = random.Random(f"gym/{seed}").randrange(2**31)
    name, options, problems = make_generator(generator, generator_seed)
    rows, misses = {}, 0
    for index in range(PROBLEMS_PER_SEED):
        misses += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # `bf` prints a dot for some
                problem = problems[index]
        except Exception:  # such as: no problem found within the options, in so many attempts
            misses += MAX_MISSES // 20
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
def make_generator(generator: str, seed: int = 0) -> tuple[str, str, Any]:
    """A generator's name, its options as JSON, and its dataset, of which `[index]` makes a problem."""
    name, _, options = generator.partition(":")
    if name not in generator_names():
        expected = f"expected {GYM_PREFIX}NAME, of those in reasoning-gym's GALLERY.md"
        raise InputError("task", GYM_PREFIX + generator, expected)
    dataset_class, config_class = _reasoning_gym().factory.DATASETS[name]
    try:
        user_options = yaml.safe_load("{" + options.replace("=", ": ") + "}")
        fixed_options = {"seed": seed, "size": PROBLEMS_PER_SEED}
        problems = dataset_class(config_class(**user_options, **fixed_options))
    except Exception as error:  # no YAML, an unknown option, an assertion, and whatever another type leads to
        refusal = f"reasoning-gym refuses it ({type(error).__name__}: {error!s:.200})"
        raise InputError("task", GYM_PREFIX + generator, refusal) from error
    return name, json.dumps(user_options | fixed_options), problems


def generator_names() -> list[str]:
    """Every generator that is taken, in the order of the alphabet."""
    return sorted(_reasoning_gym().factory.DATASETS.keys() - {*EXCLUDED_GENERATORS})


def _reasoning_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        message = f'is {GYM_PREFIX}..., and reasoning-gym is not installed: pip install "grpo-lab[gym]"'
        raise InputPackageError("task", GYM_PREFIX, found=message) from error
    return reasoning_gym
