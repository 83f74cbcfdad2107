"""Parts of the rows of tasks, for the tests that compare them."""


def question_of(row: dict) -> str:
    """Return the content of the last message of a row's prompt."""
    return row["prompt"][-1]["content"]
