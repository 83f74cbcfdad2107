"""An environment that replies in plain text: a calculator inside a thought needs only a stop string and a function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError, RunError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.completion_texts import CompletionTexts
from grpo_lab.rollout.decoding.sampling_request import Turn
from grpo_lab.rollout.environments.environment import Environment, encode_reply, sample_episodes_from_ids
from grpo_lab.rollout.prompts import check_prompts, encode_prompts, end_token_ids
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.tasks import Rows


@dataclass(frozen=True)
class TextEnvironment(Environment):
    """An environment that replies by one function from texts to texts, called when a stop string ends a turn.

    `sample_episodes` describes the fields, which are its arguments.
    """

    respond: Callable[[list[str]], Sequence[str | None]]  # function from the texts of episodes to the replies
    stop_strings: Sequence[str] = ()  # a turn ends as soon as its text contains one of these strings
    max_turns: int | None = None  # maximum number of turns of the policy; None sets no limit

    def with_max_tool_calling_iterations(self, limit: int) -> "TextEnvironment":
        """Return the environment with this maximum number of turns to which it replies; one more turn may follow."""
        return replace(self, max_turns=limit + 1)

    def sample(
        self, model, tokenizer, rows: list[dict], sampling_params: SamplingParams, *, record_turns: bool = False
    ) -> Rollout:
        """Sample G episodes of each row of the data, as `sample_episodes` describes.

        record_turns: No effect, since a text environment has neither a reward nor a state to record.
        """
        strings = self.stop_strings
        if isinstance(strings, str) or not all(isinstance(string, str) and string for string in strings):
            raise InputTypeError("stop_strings", strings, "expected a list of texts, none of them empty")
        encoded = encode_prompts(tokenizer, [row["prompt"] for row in rows])
        eos_token_ids = end_token_ids(model, tokenizer)
        completion_texts = CompletionTexts(tokenizer, encoded, sampling_params.num_generations, eos_token_ids)

        def reply(turns: list[Turn]) -> list[list[int] | None]:
            texts = [completion_texts.text(turn.row, turn.earlier_ids + turn.ids) for turn in turns]
            replies = _checked_replies(self.respond, texts)
            return [None if text is None else encode_reply(tokenizer, text) for text in replies]

        return sample_episodes_from_ids(
            model, tokenizer, encoded, sampling_params, reply, stop_strings=self.stop_strings, max_turns=self.max_turns
        )

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first prompt that cannot be encoded, or that is too long for the context."""
        check_prompts(model.config, tokenizer, (row["prompt"] for row in rows), max_completion_length, name)

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the environment, which a resumed run compares with those it began with."""
        return [self.respond], {"stop_strings": list(self.stop_strings), "max_turns": self.max_turns}


def sample_episodes(
    model,
    tokenizer,
    prompts: list,
    num_generations: int,
    max_completion_length: int,
    respond: Callable[[list[str]], Sequence[str | None]],
    *,
    stop_strings: Sequence[str] = (),
    max_turns: int | None = None,
    **sampling: Any,
) -> Rollout:
    """Sample G episodes of each prompt, in which an environment replies whenever the policy's turn ends.

    A turn ends with the token that completes a stop string. This token stays whole, even if it goes on after the stop
    string, and the reply follows it. An end token ends the episode. If its text is one of the stop strings, as in a
    chat, it ends only the turn.

    Args:
        model, tokenizer: The policy and its tokenizer, as `load_policy` returns them.
        prompts: P prompts, each a string or a list of messages.
        num_generations: G, number of episodes of each prompt.
        max_completion_length: Maximum number of tokens of an episode, including the replies. An episode that reaches it
            is truncated. A reply that has no room left is not appended, and the episode ends before it, truncated.
        respond: A function that gets the texts of the episodes whose turn has just ended, each with everything that was
            written after the prompt. For each of them it returns a text to append: "" appends nothing and lets the
            policy go on; None ends the episode. It may be called for a few rows at a time.
        stop_strings: A turn ends as soon as its text contains one of these strings, however it is split into tokens.
        max_turns: Maximum number of turns of the policy. `respond` is not called after the last one, and the episode is
            truncated unless this turn ends with an end token. None sets no limit.
        sampling: The keyword arguments of `sample_completions`, from `temperature` on.

    Returns:
        A `Rollout`. Its `mask` is True at all tokens of an episode, its `policy_mask` at the tokens that the policy
        wrote. Only the latter have a log-probability in `logp`.

    Raises:
        ValueError: if an argument is out of its range (before anything is sampled), or if `respond` returns anything
            but a list of texts and None.
    """
    environment = TextEnvironment(respond, stop_strings, max_turns)
    rows = [{"prompt": prompt} for prompt in prompts]
    return environment.sample(
        model, tokenizer, rows, SamplingParams(num_generations, max_completion_length, **sampling)
    )


def _checked_replies(respond: Callable, texts: list[str]) -> list[str | None]:
    """Call `respond` and check the replies that it returns.

    Raises:
        RunError: if `respond` raises an exception.
        InputError: if it does not return one text or None for each of the texts.
    """
    try:
        replies = respond(list(texts))
    except Exception as error:  # the code of an environment may raise anything
        raise RunError("respond", problem=f"failed: {type(error).__name__}: {error}") from error
    is_list = isinstance(replies, list | tuple)
    if not is_list or len(replies) != len(texts):
        problem = f"returned {len(replies)} replies" if is_list else f"returned {replies!r:.60}"
        raise InputError("respond", replies, f"expected a list of {len(texts)}, one per text", problem=problem)
    for text in replies:
        if not isinstance(text, str | None):
            raise InputTypeError("respond", text, "expected a text, or None", problem=f"returned {text!r:.60}")
    return list(replies)
