"""A plain-text environment: its replies, and the strings that end a turn of the policy."""

from tests.support.small_policy import END

STOP_STRINGS = ("=", "b+", END)  # PAD ends an episode, END a turn


def reply_by_length(texts):
    """Return replies that depend on the length of each text: texts of several lengths, "", and None for the end."""
    replies = ["ab0", "", "=", None, "c" + "d" * 3, "f"]
    return [replies[len(text) % len(replies)] for text in texts]
