"""Check how a command refuses wrong input: by one line and exit code 2."""

import contextlib
import io
from collections.abc import Callable


def refusal_of(main: Callable[[list[str]], int], *arguments: str) -> str:
    """Call a command and return its one line of error; other output or another exit code is an AssertionError."""
    error_output, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(error_output), contextlib.redirect_stdout(printed):
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    lines = error_output.getvalue().splitlines()
    assert code == 2 and len(lines) == 1, (code, error_output.getvalue())
    assert not printed.getvalue(), printed.getvalue()
    return lines[0]
