"""What a command says when it refuses: one line, and exit code 2."""

import contextlib
import io
from collections.abc import Callable


def refused(main: Callable[[list[str]], int], *arguments: str) -> str:
    """The one line; an AssertionError if there are more, if there is a result, or if the exit code is another one."""
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
