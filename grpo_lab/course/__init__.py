"""Exercises: functions of grpo_lab to write yourself, a check that says at once what is not right yet, and why.

    from grpo_lab.course import check, hint, progress, using

    check(kl_estimate)                          what is right or wrong about your function, on which input, and why
    hint("kl_estimate")                         a hint; called again, the next one
    with using(kl_estimate=kl_estimate): ...    your function in place of the library's, in a real training run
    progress()                                  how far you are

It needs no notebook. A check runs your code in this process and is a help, not a mark: `python -m grpo_lab.course`
marks, in a process of its own.
"""

from grpo_lab.course.checking import Verdict, check, finished, hint, progress, using
from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.stub import stub_source
