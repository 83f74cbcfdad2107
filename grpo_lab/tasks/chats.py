"""Four small chat tasks, in Chinese and in English: too few to hold any out, and enough to see a policy change."""

import tomllib
from pathlib import Path

from grpo_lab.base.checks import check_choice
from grpo_lab.tasks.rows import Row, chat_messages

CHATS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ANSWER_ONLY = {language: chat["instruction"] for language, chat in CHATS.items()}


def chat_tasks(language: str = "zh") -> list[Row]:
    """Four small chat tasks; a response is right when it contains the expected text.

    The first asks for what nobody told the policy: what is never sampled is never rewarded.
    """
    check_choice("language", language, ANSWER_ONLY)
    return [
        {"prompt": chat_messages(question), "answer": answer} for question, answer in CHATS[language]["answers"].items()
    ]
