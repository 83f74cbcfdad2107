"""Questions of general knowledge: they show whether training on a task makes a policy forget what it knew.

No reward uses them. They are too few to measure ability, but enough to notice its loss.
"""

import re
import tomllib
from pathlib import Path

# Pairs of a question and a list of words, each of which shows that a reply is right.
QUESTIONS = tuple(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items())


def remembers(question_index: int, reply: str) -> bool:
    """Return True if a reply to the question with this index in `QUESTIONS` contains one of its words, in any case."""
    return any(re.search(rf"\b{re.escape(word)}(?!\d)", reply, re.IGNORECASE) for word in QUESTIONS[question_index][1])
