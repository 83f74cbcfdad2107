"""The child process of `math_reward`: compares expressions with Math-Verify, one JSON line in, one JSON line out.

It is run as a script by its path, so that it imports Math-Verify and nothing of the package (no torch: it starts at
once).

The time limit is kept by faulthandler's watchdog, a thread of the C library that needs neither a signal nor Python's
lock. So it works on Windows, and it ends even a computation inside one huge integer power. Ending it means ending this
process: whoever asked sees the pipe close. A worker whose parent has died ends likewise, at the end of its input or of
its time.
"""

import faulthandler
import functools
import json
import logging
import os
import signal
import sys


@functools.lru_cache(maxsize=1024)  # the expected answer comes back with every completion of its group
def read(text: str) -> list:
    """The expression in a text: of its `\\boxed{}` or of another LaTeX environment. Empty if there is none."""
    from math_verify import LatexExtractionConfig, parse

    # Without an anchor Math-Verify takes the last number that it finds in a sentence, whatever the sentence says.
    latex = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    return parse(text, extraction_config=[latex], fallback_mode="no_fallback", parsing_timeout=None)


def compare(expected: str, given: str) -> str:
    """One of "equal", "different", and "unreadable" where the expected text is not mathematics."""
    from math_verify import verify

    gold = read(expected)
    if not gold:
        return "unreadable"
    return "equal" if verify(gold, read(given), timeout_seconds=None) else "different"


def main() -> None:
    # Whatever a library prints must not end up among the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    # Ctrl-C in a terminal reaches the whole process group; only the parent has to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    try:
        # The first comparison loads the grammar: done here, it does not count against anyone's time.
        works = compare(r"\boxed{0.5}", r"\boxed{\frac{1}{2}}") == "equal"
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
