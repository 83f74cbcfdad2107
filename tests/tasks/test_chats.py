"""The chat problems in both languages."""

from functools import partial

import pytest

from grpo_lab import tasks


def test_chat_tasks_have_their_answers_in_both_languages():
    texts = {"zh": ["czq是神！", "4", "I like machine learning", "通义千问"],
            "en": ["czq is a legend!", "4", "I like machine learning", "Tongyi Qianwen"]}  # fmt: skip
    for language, answers in texts.items():
        rows = tasks.chat_tasks(language)
        assert [row["answer"] for row in rows] == answers
        assert tasks.chat_tasks() == tasks.chat_tasks("zh")
        assert all([message["role"] for message in row["prompt"]] == ["user"] for row in rows)
    for make in (tasks.chat_tasks, partial(tasks.word_problems, "train", 1, 0)):
        with pytest.raises(ValueError, match="language is 'fr'; expected one of 'en', 'zh'"):
            make("fr")
