"""Find faults in the log of a run, ours or TRL's, with their likely causes and the first remedies to try."""

from grpo_lab.diagnose.logs import Log, read_log
from grpo_lab.diagnose.rules import RULES, Finding, diagnose, harmless_signs
