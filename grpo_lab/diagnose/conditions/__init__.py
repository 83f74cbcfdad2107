"""The conditions of the faults: one small function for each fault of faults.toml, which looks for it in a log.

A condition returns the evidence as a sentence, or None if the log does not show the fault. It raises `MissingMetric` if
the log has too few numbers of a metric that it needs. Importing this package registers all of them in `CONDITIONS`.
"""

from grpo_lab.diagnose.conditions import policy, rewards, update
from grpo_lab.diagnose.conditions.evidence import CONDITIONS
