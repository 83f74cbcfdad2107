"""What every sampler takes and returns: a request with the episodes that grow in it, and the samples.

An episode grows while it is sampled: the policy draws until its turn ends, then the environment's reply is written. No
row waits, and no token is read twice. A reply is a queue of tokens: at each step the row writes the next one instead of
a drawn token, while the other rows go on drawing. So the keys and values of a row stay where they are, its positions
have no gap, and a rollout takes as many token steps as its longest episode has tokens.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.rollout import EncodedPrompts

NONFINITE_LOGITS_MESSAGE = (
    "the model's logits are not finite, so nothing can be sampled: its weights are damaged, or have grown beyond all "
    "bounds in training (look at learning_rate, and go on from an earlier checkpoint)"
)
NOT_FORCED = -1  # in place of a token id: the policy draws the token


@dataclass(frozen=True)
class SamplingRequest:
    """A request to draw G completions of each of P prompts: those of a rollout, or of a part of it."""

    prompts: EncodedPrompts
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]  # the tokens that end a completion
    pad_token_id: int  # fills a row after its end
    # Supplies the environment's tokens, and says which rows have ended. None without an environment.
    episode_tokens: "EpisodeTokens | None" = None
    # The place of a part in its rollout. A part draws the random numbers of all rows of the rollout, so that the split
    # changes no completion.
    first_row: int = 0  # number of its first row in the rollout
    num_rollout_rows: int | None = None  # number of rows of the rollout; None if the request is not a part

    @property
    def num_rows(self) -> int:
        """B = P * G, the number of completions."""
        return len(self.prompts.ids) * self.sampling_params.num_generations

    def in_parts(self, num_parts: int) -> list["SamplingRequest"]:
        """Split the request into `num_parts` requests for equally many consecutive prompts; `num_parts` divides P."""
        assert len(self.prompts.ids) % num_parts == 0, f"{num_parts} parts of {len(self.prompts.ids)} prompts"
        rows_per_part = self.num_rows // num_parts
        prompts = zip(self.prompts.ids.chunk(num_parts), self.prompts.mask.chunk(num_parts), strict=True)
        return [
            replace(
                self,
                prompts=EncodedPrompts(ids, mask),
                first_row=part_index * rows_per_part,
                num_rollout_rows=self.num_rows,
            )
            for part_index, (ids, mask) in enumerate(prompts)
        ]


class Samples(NamedTuple):
    """The completions that a sampler has drawn."""

    sequences: Int[Tensor, "B S"]  # prompt and completion, padded after the end
    logp: Float[Tensor, "B T"]  # undefined after the end
    entropy: Float[Tensor, "B T"]  # undefined after the end
    num_token_steps: int  # number of token steps that the sampler took


def apply_sampling_params(
    sampling_params: SamplingParams, ids: Int[Tensor, "B S"], logits: Float[Tensor, "B V"]
) -> Float[Tensor, "B V"]:
    """Return the logits of the distribution that tokens are drawn from: minus infinity at excluded tokens.

    Args:
        sampling_params: The settings of the sampler.
        ids: The tokens of each row so far, for the repetition penalty. Padding must be replaced by a token of the row;
            otherwise the padding token is penalised as well.
        logits: The logits of the model for the next token.
    """
    warpers = (
        (RepetitionPenaltyLogitsProcessor, float(sampling_params.repetition_penalty), 1.0),
        (TemperatureLogitsWarper, float(sampling_params.temperature), 1.0),
        (TopKLogitsWarper, sampling_params.top_k, 0),
        (TopPLogitsWarper, sampling_params.top_p, 1.0),
    )
    for warper, value, neutral in warpers:
        if value != neutral:
            logits = warper(value)(ids, logits)
    return logits


def entropy_of(log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Float[Tensor, " B"]:
    """Return the entropy of each row in nats; a token of probability 0 (log-probability -infinity) adds nothing."""
    return -log_pi.clamp(min=-1e9).mul_(pi).sum(-1)


class Turn(NamedTuple):
    """A turn of the policy: the tokens that it wrote after the environment's last reply."""

    row: int  # index of the episode
    ids: list[int]  # the sampled tokens, up to and including the one that ended the turn
    earlier_ids: list[int]  # tokens of the episode before this turn, without the prompt


class StopStrings:
    """Strings that end a turn as soon as the policy's text in this turn contains one of them.

    They are searched for in the decoded text, so it does not matter how the tokenizer splits them. A turn ends with the
    token that completes a stop string. The turn keeps this token whole, even if it goes on after the stop string.
    """

    def __init__(self, tokenizer, stop_strings: Iterable[str]):
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.last_characters = {text[-1] for text in self.stop_strings}
        # Decoding may strip a space at the end of a single token, so the filter of `_can_complete` would miss it.
        self.checks_every_token = any(character.isspace() for character in self.last_characters)
        self._can_complete_by_id: dict[int, bool] = {}

    def completed_by(self, ids: list[int]) -> bool:
        """Return True if the last of these tokens completes a stop string."""
        return self._can_complete(ids[-1]) and any(text in self._text(ids) for text in self.stop_strings)

    def _can_complete(self, token_id: int) -> bool:
        """Return False for a token without the last character of any stop string: then the text need not be decoded."""
        if token_id not in self._can_complete_by_id:
            text = self._text([token_id])
            # A replacement character stands for a part of a character; the other parts are in other tokens.
            is_undecided = self.checks_every_token or "\N{REPLACEMENT CHARACTER}" in text
            can_complete = is_undecided or not self.last_characters.isdisjoint(text)
            self._can_complete_by_id[token_id] = bool(self.stop_strings) and can_complete
        return self._can_complete_by_id[token_id]

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class EpisodeTensors(NamedTuple):
    """The tokens of B episodes, padded on the right; the fields are those of a `Rollout`."""

    completion_ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]  # True at all tokens of the episode; False at padding
    policy_mask: Bool[Tensor, "B T"]  # True at tokens that the policy wrote
    turn_of_token: Int[Tensor, "B T"]  # index of the turn that a token belongs or replies to; -1 at padding


class EpisodeTokens:
    """The tokens of B episodes while they grow: who wrote each token, and which token each row has to write next.

    An end token ends the episode. If the end token is also one of the stop strings, it ends only the turn.

    Args:
        num_rows: B, number of episodes.
        max_episode_tokens: Maximum number of tokens of an episode, including the environment's tokens.
        eos_token_ids: The end tokens.
        stop_strings: The strings that end a turn.
        reply: A function that gets the turns that have just ended, and returns for each of them the ids to append, or
            None if its episode has ended.
        max_turns: Maximum number of turns of the policy. The last one ends the episode without a call of `reply`,
            truncated unless it ends with an end token. None sets no limit.
    """

    def __init__(
        self,
        num_rows: int,
        max_episode_tokens: int,
        eos_token_ids: Iterable[int],
        stop_strings: StopStrings,
        reply: Callable[[list[Turn]], Sequence[list[int] | None]],
        max_turns: int | None = None,
    ):
        self.max_episode_tokens = max_episode_tokens
        self.eos_token_ids = {*eos_token_ids}
        self.stop_strings = stop_strings
        self.reply = reply
        self.max_turns = max_turns
        # One entry per row and token:
        self.ids: list[list[int]] = [[] for _ in range(num_rows)]
        self.is_policy: list[list[bool]] = [[] for _ in range(num_rows)]  # True if the policy wrote the token
        self.turn_of_token: list[list[int]] = [[] for _ in range(num_rows)]  # turn that it belongs or replies to
        # One entry per row:
        self.reply_queue: list[deque[int]] = [deque() for _ in range(num_rows)]  # tokens of a reply, not yet written
        self.turn_index = [0] * num_rows  # index of the current turn, from 0
        self.turn_start = [0] * num_rows  # index of the first token of the current turn in `ids`
        self.done, self.truncated = [False] * num_rows, [False] * num_rows
        self.num_replies = [0] * num_rows  # number of the environment's replies

    def next_forced_tokens(self) -> list[int]:
        """Return the id that each row has to write next; `NOT_FORCED` for a row in which the policy draws it."""
        return [queue[0] if queue else NOT_FORCED for queue in self.reply_queue]

    def append(self, rows: Iterable[int], tokens: Iterable[int]) -> None:
        """Append the token that each of these rows has just written, and get replies for the turns that it ended.

        For a row with a reply in its queue, the first token of the queue is appended instead of the given one.
        """
        rows_at_turn_end = []
        for row, token in zip(rows, tokens, strict=True):
            if self.done[row]:
                continue
            is_policy = not self.reply_queue[row]
            if not is_policy:
                token = self.reply_queue[row].popleft()
            self.ids[row].append(token)
            self.is_policy[row].append(is_policy)
            self.turn_of_token[row].append(self.turn_index[row])
            if is_policy and self.stop_strings.completed_by(self.ids[row][self.turn_start[row] :]):
                rows_at_turn_end.append(row)
            elif is_policy and token in self.eos_token_ids:
                self.done[row] = True
            else:
                if not is_policy and not self.reply_queue[row]:
                    self._begin_next_turn(row)
                self._stop_at_limit(row)
        self._end_turns(rows_at_turn_end)

    def _end_turns(self, rows: list[int]) -> None:
        """End the policy's turn in these rows: end the episode after the last turn, get a reply after any other."""
        turns = []
        for row in rows:
            if self.max_turns is not None and self.turn_index[row] + 1 >= self.max_turns:
                self.done[row] = True
                self.truncated[row] = self.ids[row][-1] not in self.eos_token_ids
            else:
                start = self.turn_start[row]
                turns.append(Turn(row, ids=self.ids[row][start:], earlier_ids=self.ids[row][:start]))
        if not turns:
            return
        for turn, ids in zip(turns, self.reply(turns), strict=True):
            row = turn.row
            if ids is None:
                self.done[row] = True
            elif len(self.ids[row]) + len(ids) > self.max_episode_tokens:  # a reply is never cut
                self.done[row] = self.truncated[row] = True
            elif ids:
                self.reply_queue[row].extend(ids)
                self.num_replies[row] += 1
            else:
                self._begin_next_turn(row)
                self._stop_at_limit(row)

    def _begin_next_turn(self, row: int) -> None:
        self.turn_index[row] += 1
        self.turn_start[row] = len(self.ids[row])

    def _stop_at_limit(self, row: int) -> None:
        if len(self.ids[row]) >= self.max_episode_tokens:
            self.done[row] = self.truncated[row] = True

    def tensors(self, pad_token_id: int, device) -> EpisodeTensors:
        """Return the episodes as tensors, in which `pad_token_id` fills the shorter ones."""
        turn_of_token = _padded(self.turn_of_token, -1, device)
        return EpisodeTensors(
            completion_ids=_padded(self.ids, pad_token_id, device),
            mask=turn_of_token >= 0,
            policy_mask=_padded(self.is_policy, False, device),
            turn_of_token=turn_of_token,
        )


def _padded(rows: list[list], padding: int | bool, device) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [padding] * (length - len(row)) for row in rows], device=device)
