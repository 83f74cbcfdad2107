"""The data of a rollout: encoded prompts, completions with their prompts, and the `Rollout` with its `Episode`s."""

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class EncodedPrompts(NamedTuple):
    """P prompts as token ids, padded on the left."""

    ids: Int[Tensor, "P L"]
    mask: Bool[Tensor, "P L"]  # False at padding

    def to(self, device: torch.device | str) -> "EncodedPrompts":
        return EncodedPrompts(self.ids.to(device), self.mask.to(device))

    def unpadded_ids(self) -> list[list[int]]:
        """Return the token ids of each prompt, without padding."""
        return [ids[is_token].tolist() for ids, is_token in zip(self.ids, self.mask, strict=True)]


class LogprobInputs(NamedTuple):
    """B completions with the P prompts that they answer, in the order of the arguments of `compute_logprobs`."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]  # False at padding
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # True at tokens of the completions, False at padding
    prompt_of_row: Int[Tensor, " B"]  # index of the prompt that a row answers

    def to(self, device: torch.device | str) -> "LogprobInputs":
        return LogprobInputs(*(tensor.to(device) for tensor in self))


@dataclass
class Episode:
    """The record of one episode apart from its tokens: calls, messages, environment and rewards."""

    num_calls: int = 0  # number of calls of tools; in a text environment, which has none, of its replies
    num_failures: int = 0  # number that failed: unreadable, unknown tool, wrong arguments, exception or timeout
    prompt: Any = None  # the prompt, if `reset` changed it; None if it is the prompt of the data row
    messages: list[dict] | None = None  # the completion with its tool calls and results; None for a text environment
    environment: Any = None  # the environment object of this episode
    reward: float | None = None  # the reward that the environment gave; None if it gives none
    # The next two are recorded only for advantages that are computed per turn.
    turn_rewards: list[float] = field(default_factory=list)  # the part of `reward` added in each turn but the last
    states: list[Any] = field(default_factory=list)  # the state of the environment before each turn
    num_reply_tokens: int = 0  # number of tokens that the environment wrote


# The fields of `Rollout` with an entry for each prompt; all others have an entry for each row.
PROMPT_FIELDS = ("prompt_ids", "prompt_mask")


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """P prompts with G completions each, B = P*G rows. `rollout[rows]` selects rows and keeps all prompts."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]  # False at padding
    prompt_of_row: Int[Tensor, " B"]  # index of the prompt that a row answers
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # True at all tokens of the completion, including its end token; False at padding
    logp: Float[Tensor, "B T"]  # log-probabilities recorded while sampling; 0 where `policy_mask` is False
    entropy: Float[Tensor, "B T"]  # entropies recorded while sampling; 0 where `policy_mask` is False
    truncated: Bool[Tensor, " B"]  # True for a row that a limit of tokens or of turns cut off
    texts: list[str]  # the completions as the rewards see them (`CompletionTexts`)
    policy_mask: Bool[Tensor, "B T"]  # True at tokens of the policy; `mask` is True at the environment's tokens, too
    turn_of_token: Int[Tensor, "B T"]  # index of the turn that a token belongs or replies to; -1 at padding
    episodes: list[Episode] | None  # one per row; None without an environment
    group_of_row: Int[Tensor, " B"]  # index of a row's group among the sampled data rows

    @classmethod
    def without_environment(
        cls,
        *,
        prompt_ids: Int[Tensor, "P L"],
        prompt_mask: Bool[Tensor, "P L"],
        prompt_of_row: Int[Tensor, " B"],
        completion_ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        logp: Float[Tensor, "B T"],
        entropy: Float[Tensor, "B T"],
        truncated: Bool[Tensor, " B"],
        texts: list[str],
    ) -> "Rollout":
        """Make a rollout in which the policy wrote all tokens, in one turn. The arguments are fields of the rollout."""
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
            turn_of_token=mask.long() - 1,
            episodes=None,
            group_of_row=prompt_of_row,
        )

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Rollout":
        indices = torch.arange(len(self.texts))[rows if isinstance(rows, slice) else rows.cpu()].tolist()
        selected: dict[str, Any] = {}
        for name in (row_field.name for row_field in fields(self) if row_field.name not in PROMPT_FIELDS):
            value = getattr(self, name)
            if isinstance(value, list):
                selected[name] = [value[index] for index in indices]
            elif value is not None:
                selected[name] = value[rows]
        return replace(self, **selected)

    def episode_per_row(self) -> list[Episode]:
        """Return the episode of each row; without an environment, an empty `Episode` for each."""
        return [Episode() for _ in self.texts] if self.episodes is None else self.episodes

    def turn_texts(self, tokenizer) -> list[list[dict[str, str]]]:
        """Return the texts of each row in order, each as {"policy": text} or {"environment": text} by its author."""
        texts_by_row = []
        for row, length in enumerate(self.mask.sum(-1).tolist()):
            is_policy = self.policy_mask[row, :length].tolist()
            turns = self.turn_of_token[row, :length].tolist()
            token_ids = self.completion_ids[row, :length].tolist()
            tokens = zip(is_policy, turns, token_ids, strict=True)
            texts = []
            for (by_policy, _), tokens_of_author in itertools.groupby(tokens, lambda token: token[:2]):
                author = "policy" if by_policy else "environment"
                texts.append({author: tokenizer.decode([token_id for _, _, token_id in tokens_of_author])})
            texts_by_row.append(texts)
        return texts_by_row


def turns_as_text(turns: list[dict[str, str]]) -> str:
    """Return the turns of an episode as one text; angle quotation marks enclose the texts of the environment.

    turns: The texts of one row, as `Rollout.turn_texts` returns them.
    """
    return "".join(turn["policy"] if "policy" in turn else f"\u00ab{turn['environment']}\u00bb" for turn in turns)
