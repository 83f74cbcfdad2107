"""What Qwen2-0.5B costs on a card: rollouts, updates, peaks of memory, and whole steps beside TRL's.

`compare` runs the measurements, each of them a worker in a fresh process (`rollout`, `train`, `memory`, `trl`); `table`
lays the report out.
"""

from grpo_lab.bench.gpu.harness import PARTS, compare, failures
from grpo_lab.bench.gpu.tables import table
