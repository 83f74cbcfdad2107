"""A few questions about what a policy could do before it was trained on something else.

No reward sees them. They are too few to measure ability; they are enough to notice that some of it has gone.
"""

import re
import tomllib
from pathlib import Path

# Pairs of a question, and what one of the answers that a child would give holds.
QUESTIONS = tuple(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items())


def remembers(question: int, reply: str) -> bool:
    """Look in a reply to one of the `QUESTIONS` for a word that answers it, in any case."""
    return any(re.search(rf"\b{re.escape(word)}(?!\d)", reply, re.IGNORECASE) for word in QUESTIONS[question][1])
