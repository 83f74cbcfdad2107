"""The conditions of the faults: for each fault in faults.toml, one small function that looks for it in a log.

A condition returns the evidence as a sentence, or None if the log does not show the fault. It raises `MissingMetric` if
the log has too few numbers of a metric that it needs. Importing this package registers all conditions in `CONDITIONS`.
"""

from grpo_lab.diagnose.conditions import policy, rewards, update
from grpo_lab.diagnose.conditions.evidence import CONDITIONS
