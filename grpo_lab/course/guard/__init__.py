"""What keeps a student's function from harming its own process: time, output, changes of the library."""

from grpo_lab.course.guard.limits import Ran, guarded
from grpo_lab.course.guard.watch import forget, snapshot
