"""Four chat problems in Chinese and in English: too few to hold any out, but enough to see that a policy changes."""

import tomllib
from pathlib import Path

from grpo_lab.base.checks import check_choice
from grpo_lab.tasks.rows import Row, chat_messages

CHATS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ANSWER_ONLY = {language: chat["instruction"] for language, chat in CHATS.items()}


def chat_tasks(language: str = "zh") -> list[Row]:
    """Return the four chat problems in a language; a response is right if it contains the expected text.

    The first one asks for a text that was in no training data. The policy never samples it, so it is never rewarded.
    """
    check_choice("language", language, ANSWER_ONLY)
    return [
        {"prompt": chat_messages(question), "answer": answer} for question, answer in CHATS[language]["answers"].items()
    ]
