"""An environment in plain text: what it answers, and the strings that end a turn of the policy."""

from tests.support.worlds import END

STOPS = ("=", "b+", END)  # PAD ends an episode, END a turn


def answers(texts):
    """Replies of several lengths, of none, and ends; made from the text alone."""
    replies = ["ab0", "", "=", None, "c" + "d" * 3, "f"]
    return [replies[len(text) % len(replies)] for text in texts]
