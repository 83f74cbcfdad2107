"""The outcome of a function on one case: everything about a call that a check compares or shows."""

from dataclasses import dataclass, field
from typing import Any

from grpo_lab.course.checking.status import Fault


@dataclass(frozen=True)
class Outcome:
    """The outcome of a function on one case. Results and arguments are plain data (`as_plain_data`).

    Attributes:
        value: The result; None if the exercise compares observations.
        gradients: The gradients of the result by argument; None for an argument that no gradient reaches.
        has_gradient: Whether the result carries a gradient.
        changed_arguments: The arguments that were changed in place, with their new values.
        observed: What `Exercise.observations` returned; None if the exercise compares the result.
        error: The type of the exception that was raised; "" if there was none.
        message: The text of the exception.
        trace: The lines of the student's own code on the way to the exception.
        fault: The reason why the function was not run, was stopped, or did not reach this case.
        printed: The beginning of what the function printed.
    """

    value: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    has_gradient: bool = False
    changed_arguments: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, Any] | None = None
    error: str = ""
    message: str = ""
    trace: str = ""
    fault: Fault = Fault.NONE
    printed: str = ""
