"""What sampling returns: the rows of a `Rollout`, and the `Episode` of each where there is an environment."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class Episode:
    """What is recorded of an episode besides its tokens: calls, messages, instance, rewards."""

    calls: int = 0  # replies of a text environment; calls of tools
    failures: int = 0  # calls that failed: no such tool, wrong arguments, an exception, no answer in time
    prompt: Any = None  # where the environment has changed it; None: that of the row
    messages: list[dict] | None = None  # the completion with its tool calls and their results; None: a text
    environment: Any = None  # the instance that this episode was played in
    reward: float | None = None  # that the environment gave, if it gives one
    # Where turns are compared: what each turn but the last has added to that reward, and the state each begins in.
    turn_rewards: list[float] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    reply_tokens: int = 0  # that the environment wrote


@dataclass(frozen=True)
class Rollout:
    """P prompts with G completions each, B = P*G rows. `rollout[rows]` is a rollout of some rows, with all prompts."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]
    prompt_of_row: Int[Tensor, " B"]  # which prompt a row answers
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # up to and with the first end token
    logp: Float[Tensor, "B T"]  # recorded while sampling; 0 where the mask is False
    entropy: Float[Tensor, "B T"]  # recorded while sampling
    truncated: Bool[Tensor, " B"]  # stopped by the length limit
    texts: list[str]  # as the rewards see them, with the tags that the prompt opened or that are special tokens
    policy_mask: Bool[Tensor, "B T"]  # tokens that the policy wrote; `mask` has the environment's, too
    turn: Int[Tensor, "B T"]  # the turn of each token, or to which it is the reply, from 0; -1 for none
    episodes: list[Episode] | None  # where there is an environment: one per row; else None
    group: Int[Tensor, " B"]  # the row of the data of each; a prompt may be one episode's alone

    @classmethod
    def without_environment(
        cls, prompt_ids, prompt_mask, prompt_of_row, completion_ids, mask, logp, entropy, truncated, texts
    ) -> "Rollout":
        """A rollout whose tokens are all the policy's, in one turn; the arguments are the fields of these names."""
        return cls(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            prompt_of_row=prompt_of_row,
            completion_ids=completion_ids,
            mask=mask,
            logp=logp,
            entropy=entropy,
            truncated=truncated,
            texts=texts,
            policy_mask=mask,
            turn=mask.long() - 1,
            episodes=None,
            group=prompt_of_row,
        )

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Rollout":
        by_row = (
            "prompt_of_row", "completion_ids", "mask", "logp", "entropy", "truncated", "policy_mask", "turn", "group",
        )  # fmt: skip
        cut: dict = {name: getattr(self, name)[rows] for name in by_row}
        indices = torch.arange(len(self.texts))[rows if isinstance(rows, slice) else rows.cpu()].tolist()
        cut["texts"] = [self.texts[index] for index in indices]
        if self.episodes is not None:
            cut["episodes"] = [self.episodes[index] for index in indices]
        return replace(self, **cut)

    def episode_per_row(self) -> list[Episode]:
        """The episode of each row; where there is no environment, one in which nothing is recorded."""
        return [Episode() for _ in self.texts] if self.episodes is None else self.episodes
