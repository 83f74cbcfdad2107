"""Call a function in a process of its own that has imported what this one has: seconds less than a script."""

import multiprocessing
import sys
import traceback
from collections.abc import Callable


def in_a_fork(function: Callable, *arguments):
    """Return what the function returns in a fork of this process, or in a fresh process where the system is not Linux.

    The result and, on other systems, the arguments are pickled. Whatever is raised fails with the fork's traceback.
    """
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        result, failure = ours.recv()
    except EOFError:
        result, failure = None, "the fork sent nothing"
    process.join()
    assert not failure, failure
    return result


def _send(connection, function: Callable, arguments: tuple) -> None:
    try:
        connection.send((function(*arguments), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
