"""A conversation: what was said so far, as far as the model's context reaches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers.utils import logging

from grpo_lab.chat.answer import reply
from grpo_lab.checks import check_at_least
from grpo_lab.rollout import encode_prompts
from grpo_lab.rollout.fast_paths import context_length


class Conversation:
    """Remembers what was said; the oldest turns are left out where there is no room for them.

    system: what the model is told before everything else; never left out. "" leaves it to the chat template.
    max_new_tokens, temperature: of each reply, as in `reply`.
    forgotten: how many turns had to be left out so far. A turn is a question and its reply.
    """

    def __init__(self, model, tokenizer, system: str = "", max_new_tokens: int = 256, temperature: float = 0.0):
        if not tokenizer.chat_template:
            raise ValueError("name is a model without a chat template; expected one that was trained to chat")
        self.model, self.tokenizer, self.system = model, tokenizer, system
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        self.context = context_length(model.config)
        if self.context is not None and not max_new_tokens < self.context:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; expected less than the model's {self.context}")
        check_at_least("max_new_tokens", max_new_tokens, 1)
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.turns: list[list[dict]] = []
        self.forgotten = 0

    def ask(self, question: str, write: Callable[[str], object] | None = None) -> str:
        """Put a question; the reply. What is interrupted or refused was never said.

        write: as in `reply`.

        Raises:
            ValueError: if the question alone is longer than the model's context, less the room for a reply; or if the
                chat template takes no such messages.
        """
        asked = {"role": "user", "content": question}
        left_out = self._left_out(asked)
        kept = self.turns[left_out:]
        text = reply(
            self.model, self.tokenizer, self._messages(kept, asked), self.max_new_tokens, self.temperature, write
        )
        self.turns = [*kept, [asked, {"role": "assistant", "content": text}]]
        self.forgotten += left_out
        return text

    def _messages(self, turns: list[list[dict]], asked: dict) -> list[dict]:
        told = [{"role": "system", "content": self.system}] if self.system else []
        return [*told, *(message for turn in turns for message in turn), asked]

    def _left_out(self, asked: dict) -> int:
        """How many of the oldest turns have to go, so that question and reply have room."""
        for count in range(len(self.turns) + 1):
            tokens = self._tokens(self._messages(self.turns[count:], asked))
            if self.context is None or tokens + self.max_new_tokens <= self.context:
                return count
        room = self.context - self.max_new_tokens
        raise ValueError(
            f"the question is {tokens} tokens long; expected at most {room}: the model has room for {self.context}, "
            f"of which max_new_tokens = {self.max_new_tokens} are kept for the reply"
        )

    def _tokens(self, messages: list[dict]) -> int:
        try:
            with _without_warnings():
                return encode_prompts(self.tokenizer, [messages])[0].shape[1]
        except ValueError as error:
            if self.system:
                raise ValueError(f"system is {self.system!r}; {error}") from error
            raise


@contextmanager
def _without_warnings() -> Iterator[None]:
    """transformers would say of what is too long that it will fail; here it is left out, or refused."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
