"""`check` and what it needs: run a student's function on the cases, compare, and say what is not right yet.

`run_case` and `card` are not imported here: they load much that `using` and `hint` do not need.
"""

from grpo_lab.course.checking.carried import check
from grpo_lab.course.checking.judging import expectations, judge, not_started, worth
from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.checking.session import finished, hint, progress
from grpo_lab.course.checking.stand_ins import using
from grpo_lab.course.checking.verdict import Verdict
