"""What a policy could do before it was trained on something else: a few questions.

No reward sees them. They are too few to measure ability; they are enough to notice that some of it has gone.
"""

import re

# Question, and what one of the answers that a child would give holds.
QUESTIONS = (
    ("What is the capital of France?", ("Paris",)),
    ("What is the capital of Italy?", ("Rome",)),
    ("Which planet do we live on?", ("Earth",)),
    ("What is the opposite of hot?", ("cold",)),
    ("How many days does a week have?", ("7", "seven")),
    ("What do bees make?", ("honey",)),
    ("Which animal barks?", ("dog",)),
    ("What is frozen water called?", ("ice",)),
    ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    ("What gas do plants take from the air?", ("carbon dioxide", "CO2")),
)


def remembers(question: int, reply: str) -> bool:
    """Whether a reply to one of the `QUESTIONS` holds what is looked for as a word, in whichever case."""
    return any(re.search(rf"\b{re.escape(word)}(?!\d)", reply, re.IGNORECASE) for word in QUESTIONS[question][1])
