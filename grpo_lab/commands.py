"""What every command of the package does alike: an error is one line, and the exit code says of which kind it is.

0: done. 1: done, and what was looked for failed (a test of a card, a proof with gaps). 2: an argument, a file or a
package is not as it has to be; the line says which one, what it was, and what is expected. 130, 143: stopped by Ctrl-C
and by SIGTERM. GRPO_LAB_TRACEBACK=1 shows where an error comes from.
"""

import functools
import os
import sys
from collections.abc import Callable

EXPECTED = (ValueError, TypeError, OSError, ImportError)  # what the package raises where its user has to act


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, by Ctrl-C or by SIGTERM, and has done what there was to do; the message says what.

    exit_code: what a shell expects of a process that this signal ended: 130 or 143.
    """

    def __init__(self, message: str, exit_code: int = 130):
        super().__init__(message)
        self.exit_code = exit_code


def command(module: str) -> Callable:
    """Make a `main(arguments) -> int | None` of the command `python -m <module>`; returns its exit code."""

    def decorate(main: Callable) -> Callable[..., int]:
        @functools.wraps(main)
        def run(arguments: list[str] | None = None) -> int:
            try:
                return main(arguments) or 0
            except KeyboardInterrupt as stop:
                print(f"\n{stop}" if str(stop) else "\nstopped", file=sys.stderr)
                return getattr(stop, "exit_code", 130)
            except EXPECTED as error:
                if os.environ.get("GRPO_LAB_TRACEBACK") == "1":
                    raise
                print(f"python -m {module}: error: {' '.join(str(error).split())}", file=sys.stderr)
                return 2

        return run

    return decorate
