"""Problems with known answers, as rows that TRL's trainers take too."""

from grpo_lab.tasks.gsm8k import gsm8k_problems
from grpo_lab.tasks.problems import (
    MAX_PROBLEMS,
    MAX_WORD_PROBLEMS,
    SPLITS,
    TEST_SHARE,
    THINK_SYSTEM_PROMPT,
    WORD_PROBLEMS,
    Row,
    Rows,
    WordProblem,
    addition_problems,
    addition_row,
    addition_split,
    chat_tasks,
    has_thinking,
    split_of,
    word_problems,
)

__all__ = [
    "MAX_PROBLEMS",
    "MAX_WORD_PROBLEMS",
    "SPLITS",
    "TEST_SHARE",
    "THINK_SYSTEM_PROMPT",
    "WORD_PROBLEMS",
    "Row",
    "Rows",
    "WordProblem",
    "addition_problems",
    "addition_row",
    "addition_split",
    "chat_tasks",
    "gsm8k_problems",
    "has_thinking",
    "split_of",
    "word_problems",
]
