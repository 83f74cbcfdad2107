"""Prompts as token ids, and completions with their prompts: the inputs of sampling and of log-probabilities."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
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
