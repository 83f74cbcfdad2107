"""What recorders of several small runs share: the tiny model, loaded without a word, and problems made once."""

import contextlib
import io
from functools import cache

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems

cached_problems = cache(addition_problems)


def load_quietly(precision: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The tiny model and its tokenizer."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu", precision=precision)
