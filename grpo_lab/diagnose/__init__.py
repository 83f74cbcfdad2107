"""What looks wrong in the log of a run, ours or TRL's, what it may come from, and what to try first."""

from grpo_lab.diagnose.logs import Log, read_log
from grpo_lab.diagnose.rules import RULES, Finding, diagnose, notes
