"""The status of an answer, and the reasons why an answer is not judged by its numbers."""

from enum import StrEnum


class Status(StrEnum):
    """How far an answer is. The values are stored in the file of grades."""

    RIGHT = "right"
    PARTLY = "partly"  # the values are right, and something else is not
    WRONG = "wrong"
    FORM = "form"  # the code cannot be judged by its numbers
    NOT_STARTED = "not started"


class Fault(StrEnum):
    """The reason why an answer is not judged by its numbers. The values are stored in the file of grades."""

    NONE = ""
    # The function was not run, or was stopped.
    SIGNATURE = "signature"
    ENDLESS = "endless"
    EXIT = "exit"
    UNREACHED = "unreached"  # a case after the one that was stopped
    # It ran, and what it did has the wrong form.
    ERROR = "error"  # an exception
    TYPE = "kind"  # a value of another type
    SHAPE = "shape"
    DTYPE = "dtype"
    INPLACE = "inplace"  # an argument was changed in place
    DETACHED = "detached"  # the right value without a gradient
    # It is not the student's function.
    LIBRARY = "library"  # the library's own function, or a call of it
    STALE = "stale"  # the function in memory is not the one on the page
    STOPPED = "stopped"  # in a grading: there are no outcomes to judge
