"""The check of an exercise: run a student's function on the cases, compare, and explain what is not right yet."""

from grpo_lab.course.checking.judging import judge
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.session import check, finished, hint, progress
from grpo_lab.course.checking.stand_ins import using
from grpo_lab.course.checking.verdict import Verdict
