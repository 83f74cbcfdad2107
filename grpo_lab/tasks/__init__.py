"""Tasks: problems with known answers, as rows in the form that TRL's trainers also take.

`rows.py` says what a row is, and `task_table.py` has the tasks by name. Their problems are in `builtin_problems.py`,
`short_sums.py`, `gsm8k.py` and `gym.py`. The user's own problems are in `user_data.py`, which reads `records.py` with
the options of `data_options.py`.
"""

from grpo_lab.tasks.builtin_problems import (
    MAX_PROBLEMS,
    MAX_WORD_PROBLEMS,
    WORD_PROBLEMS,
    WordProblem,
    addition_problems,
    addition_row,
    addition_split,
    chat_tasks,
    word_problems,
)
from grpo_lab.tasks.gsm8k import gsm8k_problems
from grpo_lab.tasks.rows import SPLITS, THINK_SYSTEM_PROMPT, Row, Rows, as_text, has_thinking, in_parts, with_system
from grpo_lab.tasks.task_table import TASKS, Task, find_task
