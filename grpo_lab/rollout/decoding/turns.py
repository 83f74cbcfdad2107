"""Whose turn it is in each row: the policy draws tokens until its turn ends, then the environment's reply is written.

No row waits and nothing is read twice. A reply is a queue of tokens that the row writes one by one in the place of what
would be drawn, while the other rows draw theirs: keys and values of a row stay where they are, its positions have no
gap, and a rollout takes as many token steps as its longest episode has tokens.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

DRAWN = -1  # in the place of a token id: the policy draws it


class Turn(NamedTuple):
    """The tokens that the policy wrote from the environment's last reply to the stop string that ended its turn."""

    row: int
    ids: list[int]  # as they were sampled
    earlier_ids: list[int]  # those of the episode before this turn, without the prompt's


class StopStrings:
    """Texts that end a turn as soon as they stand in what the policy wrote in it.

    They are looked for in the decoded text, however the tokenizer splits them. A turn ends with the token that
    completes one, and keeps that token whole, also where it goes on after the stop string.
    """

    def __init__(self, tokenizer, stop_strings: Iterable[str]):
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.last_characters = {text[-1] for text in self.stop_strings}
        # Decoding may strip a space at the end.
        self.checks_every_token = any(character.isspace() for character in self.last_characters)
        self._may_complete: dict[int, bool] = {}

    def completed_by(self, ids: list[int]) -> bool:
        """True if the last of these tokens completes a stop string."""
        return self._can_complete(ids[-1]) and any(text in self._text(ids) for text in self.stop_strings)

    def _can_complete(self, token_id: int) -> bool:
        """False for a token without the last character of any stop string, so that few texts are decoded."""
        if token_id not in self._may_complete:
            text = self._text([token_id])
            # A replacement character is a part of a character, whose rest is in other tokens.
            is_open = self.checks_every_token or "\N{REPLACEMENT CHARACTER}" in text
            possible = bool(self.stop_strings) and (is_open or not self.last_characters.isdisjoint(text))
            self._may_complete[token_id] = possible
        return self._may_complete[token_id]

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class Turns:
    """The tokens of B episodes as they grow, who wrote each of them, and what each row is to write next.

    An end token ends the episode, unless it is one of the stop strings, which end a turn.
    limit: tokens of an episode, the environment's among them.
    reply: gives for each of some turns that have ended the ids to append, or None where the episode is over.
    max_turns: turns of the policy; the end of the last one is the end of the episode, and nobody is asked. None: any.
    """

    def __init__(
        self,
        num_rows: int,
        limit: int,
        eos_token_ids: Iterable[int],
        stop_strings: StopStrings,
        reply: Callable[[list[Turn]], Sequence[list[int] | None]],
        max_turns: int | None = None,
    ):
        self.limit = limit
        self.eos_token_ids = {*eos_token_ids}
        self.stop_strings = stop_strings
        self.reply = reply
        self.max_turns = max_turns
        self.ids: list[list[int]] = [[] for _ in range(num_rows)]
        self.is_policy: list[list[bool]] = [[] for _ in range(num_rows)]  # of each token: whether the policy wrote it
        # Of each token: the turn that it belongs to, or that it replies to.
        self.turn_of_token: list[list[int]] = [[] for _ in range(num_rows)]
        self.reply_queue: list[deque[int]] = [deque() for _ in range(num_rows)]  # still to be written
        self.turn_index = [0] * num_rows  # of the current turn of each row, from 0
        self.turn_start = [0] * num_rows  # the index of its first token among `ids`
        self.done, self.truncated = [False] * num_rows, [False] * num_rows
        self.num_replies = [0] * num_rows  # of the environment, per row

    def forced(self) -> list[int]:
        """The id that each row has to write next; `DRAWN` where the policy draws."""
        return [queue[0] if queue else DRAWN for queue in self.reply_queue]

    def append(self, rows: Iterable[int], tokens: Iterable[int]) -> None:
        """Add the token that each of these rows has just written, and ask the environment where that ended a turn."""
        ended = []
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
                ended.append(row)
            elif is_policy and token in self.eos_token_ids:
                self.done[row] = True
            else:
                if not is_policy and not self.reply_queue[row]:
                    self._begin_next_turn(row)
                self._stop_at_limit(row)
        self._end_turns(ended)

    def _end_turns(self, rows: list[int]) -> None:
        """End a turn of the policy in these rows: the last one ends the episode, after any other comes a reply."""
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
            elif len(self.ids[row]) + len(ids) > self.limit:  # a reply is appended whole or not at all
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
        if len(self.ids[row]) >= self.limit:
            self.done[row] = self.truncated[row] = True

    def tensors(
        self, pad_token_id: int, device
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Bool[Tensor, "B T"], Int[Tensor, "B T"]]:
        """The ids, padded on the right; which tokens exist; which the policy wrote; the turn of each, -1 at padding."""
        ids = _padded(self.ids, pad_token_id, device)
        is_policy = _padded(self.is_policy, False, device)
        turn = _padded(self.turn_of_token, -1, device)
        return ids, turn >= 0, is_policy, turn


def _padded(rows: list[list], value, device) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [value] * (length - len(row)) for row in rows], device=device)
