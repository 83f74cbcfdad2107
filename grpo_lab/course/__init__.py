"""Exercises: functions of grpo_lab that students write themselves, with a check that explains what is not right yet.

    from grpo_lab.course import check, hint, progress, using

    check(kl_estimate)                          tell what is right or wrong about the function, on which input, and why
    hint("kl_estimate")                         show a hint; each further call shows the next one as well
    with using(kl_estimate=kl_estimate): ...    train with this function in place of the library's
    progress()                                  list the exercises with points and status

All of this also works outside a notebook. A check runs the student's code in this process and only helps to learn.
Marks come from `python -m grpo_lab.course grade`, which runs each submission in its own process.
"""

from grpo_lab.course.checking import Verdict, check, finished, hint, progress, using
from grpo_lab.course.exercise import Case, Exercise, Mistake
from grpo_lab.course.stub import stub_source
