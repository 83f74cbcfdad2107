"""An environment that replies in plain text, such as a calculator inside a thought."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.rollout.environments.episodes import sample_episodes
from grpo_lab.rollout.prompting.prompt_checks import check_prompts
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.tasks import Rows


@dataclass(frozen=True)
class TextEnvironment(Environment):
    """An environment that replies by one function from texts to texts, called when a stop string ends a turn.

    respond, stop_strings, max_turns: The arguments of `sample_episodes`.
    """

    respond: Callable[[list[str]], Sequence[str | None]]
    stop_strings: Sequence[str] = ()
    max_turns: int | None = None

    def with_max_turns(self, max_turns: int) -> "TextEnvironment":
        """Return the environment with this maximum number of turns."""
        return replace(self, max_turns=max_turns)

    def sample(
        self,
        model,
        tokenizer,
        rows: list[dict],
        num_generations: int,
        max_completion_length: int,
        *,
        record_turns: bool = False,
        **sampling,
    ) -> Rollout:
        """Sample G episodes of each row of the data, as `Environment.sample` describes.

        record_turns: No effect, since a text environment has neither a reward nor a state to record.
        """
        prompts = [row["prompt"] for row in rows]
        return sample_episodes(
            model, tokenizer, prompts, num_generations, max_completion_length, self.respond,
            stop_strings=self.stop_strings, max_turns=self.max_turns, **sampling,
        )  # fmt: skip

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first prompt that cannot be encoded, or that is too long for the context."""
        check_prompts(model.config, tokenizer, (row["prompt"] for row in rows), max_completion_length, name)

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the environment, which a resumed run compares with those it began with."""
        return [self.respond], {"stop_strings": list(self.stop_strings), "max_turns": self.max_turns}
