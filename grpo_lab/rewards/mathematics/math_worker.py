"""A child process of `math_reward`: compares expressions with Math-Verify, one JSON line in, one JSON line out.

It is run as a script by its path, so that it imports Math-Verify and nothing of the package (no torch: it starts at
once).

The time limit is kept by faulthandler's watchdog, a thread of the C library that needs neither a signal nor Python's
lock. So it works on Windows, and it ends even a computation inside one huge integer power. Ending it means ending this
process: whoever asked sees the pipe close. A worker whose parent has died ends likewise, at the end of its input or of
its time.
"""

import contextlib
import faulthandler
import functools
import json
import logging
import os
import signal
import sys

MEMORY = 4 * 2**30  # bytes of addresses; several workers may be at a huge number at the same time


@functools.lru_cache(maxsize=1)
def reading() -> list:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig

    # Units are looked after before; Math-Verify's would drop the d of "x + 2 d".
    as_written = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    # Without an anchor Math-Verify takes the last number that it finds in a sentence, whatever the sentence says.
    boxes = {"boxed_match_priority": 0, "try_extract_without_anchor": False, "normalization_config": as_written}
    return [LatexExtractionConfig(**boxes)]


@functools.lru_cache(maxsize=1024)  # the expected answer comes back with every completion of its group
def read(text: str) -> list:
    """The whole of a text as one expression: in a box, so that no number is picked out of it. Empty if it is none."""
    from math_verify import parse

    boxed = rf"\boxed{{{text}}}"
    found = parse(boxed, extraction_config=reading(), fallback_mode="no_fallback", parsing_timeout=None)
    return [united(expression) for expression in found]


def united(expression):
    """Inequalities joined by "or" are the union of their sets: "x < 2 or x > 3" is read as a list of two."""
    parts = expression.args if type(expression).__name__ == "FiniteSet" else ()
    if parts and all(getattr(part, "is_Relational", False) and part.rel_op not in ("==", "!=") for part in parts):
        from sympy import Union

        with contextlib.suppress(Exception):  # what SymPy cannot write as a set stays a list
            return Union(*(part.as_set() for part in parts))
    return expression


def compare(expected: str, given: str) -> str:
    """One of "equal", "different", and "unreadable" where the expected text is not mathematics."""
    from math_verify import verify

    gold = read(expected)
    if not gold:
        return "unreadable"
    # x > 3 is the interval from 3 on, whichever of the two is expected.
    same = verify(gold, read(given), timeout_seconds=None, allow_set_relation_comp=True)
    return "equal" if same else "different"


def limit_memory() -> None:
    # Windows has no such limit, and some systems refuse to set it.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main() -> None:
    # Whatever a library prints must not end up among the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    # Ctrl-C in a terminal reaches the whole process group; only the parent has to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    limit_memory()
    try:
        # The first comparison loads the grammar: done here, it does not count against anyone's time.
        works = compare("0.5", r"\frac{1}{2}") == "equal"
        status = "ready" if works else "it does not find 0.5 equal to 1/2"
    except Exception as error:
        status = f"{type(error).__name__}: {error}"
    print(json.dumps(status), file=replies, flush=True)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        for line in sys.stdin:
            expected, given, time_limit = json.loads(line)
            faulthandler.dump_traceback_later(time_limit, exit=True, file=nowhere)
            verdict = compare(expected, given)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    main()
