"""What works on this machine, and for what does not, which command mends it: `python -m grpo_lab.doctor`."""

from grpo_lab.doctor.checks import CHECKS, doctor
from grpo_lab.doctor.report import Check, Report
