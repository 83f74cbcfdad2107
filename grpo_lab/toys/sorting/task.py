"""The task of sorting numbers: its prompts, and three reward functions for B prompts and responses of T numbers."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from grpo_lab.base.checks import InputError, check_at_least, check_choice, check_dtype, check_shapes
from grpo_lab.policy_gradient import enumerate_sequences

DUPLICATES = ("none", "only")
TEST_SHARE = 0.2  # share of the multisets of numbers whose prompts are all held out


class SortingPrompts(NamedTuple):
    """The prompts for training, the held-out prompts, and V: all of them consist of numbers from 0 to V - 1."""

    train: Int[Tensor, "N T"]
    held_out: Int[Tensor, "M T"]
    numbers: int


def make_prompts(numbers: int = 10, length: int = 4, duplicates: str = "none") -> SortingPrompts:
    """List all prompts, and hold some of them out by the multiset of their numbers.

    If a prompt is held out, so is every other order of its numbers. So no prompt for training has the right answer of a
    held-out prompt.

    Args:
        numbers: V, the number of different numbers: 0 to V - 1.
        length: T, the length of a prompt, at least 2.
        duplicates: "none" for the prompts whose numbers all differ; "only" for those in which at least two are equal.
    """
    check_choice("duplicates", duplicates, DUPLICATES)
    check_at_least("length", length, 2)
    prompts = enumerate_sequences(numbers, length)
    sorted_prompts = prompts.sort(-1).values
    has_duplicates = (sorted_prompts[:, 1:] == sorted_prompts[:, :-1]).any(-1)
    admitted = has_duplicates == (duplicates == "only")
    multisets, multiset_index = sorted_prompts[admitted].unique(dim=0, return_inverse=True)
    count = round(TEST_SHARE * len(multisets))
    if count == 0:
        problem = f"there are {len(multisets)} multisets of {length} out of {numbers}"
        raise InputError("numbers", numbers, "expected more, of which some can be held out", problem=problem)
    held_out_multisets = torch.randperm(len(multisets), generator=torch.Generator().manual_seed(0))[:count]
    is_held_out = torch.isin(multiset_index, held_out_multisets)
    return SortingPrompts(prompts[admitted][~is_held_out], prompts[admitted][is_held_out], numbers)


def ascending_pairs(responses: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    r"""Count the neighbouring pairs of each response that are in ascending order.

    O_b = \sum_{t<T} \mathbb{1}\big[\, y_{b,t} \le y_{b,t+1} \big] \tag{3.1}

    Args:
        responses: y, the responses.
    """
    pairs = (responses[:, :-1] <= responses[:, 1:]).sum(-1)  # B (3.1)
    return pairs


def sorting_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""Give a point for each number of the prompt that the response contains, and one for each pair in order.

    I_b = \sum_t \mathbb{1}\big[\, x_{b,t} \in \{y_{b,1}, \ldots, y_{b,T}\} \big] \tag{3.2}
    R_b = I_b + O_b \tag{3.3}

    The maximum is 2T - 1. This reward can be hacked: if a number occurs twice in the prompt, the response gets both
    points for containing it once.

    Args:
        prompts: x, the prompts.
        responses: y, the responses.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    present = (rearrange(prompts, "B t -> B t 1") == rearrange(responses, "B u -> B 1 u")).any(-1).sum(-1)  # B (3.2)
    rewards = (present + ascending_pairs(responses)).float()  # B (3.3)
    return rewards


def repaired_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""Give a point for each number that prompt and response share, with repetition, and one for each pair in order.

    n_{b,v}(s) = \sum_t \mathbb{1}[\, s_{b,t} = v ], \quad s \in \{x, y\} \tag{3.10}
    I'_b = \sum_v \min\big(n_{b,v}(x),\; n_{b,v}(y)\big) \tag{3.9}
    R'_b = I'_b + O_b \tag{3.11}

    n(x) and n(y) count how often a number occurs in the prompt and in the response. So a number that occurs twice in
    the prompt gives two points only if the response contains it twice, unlike in Eq. (3.2). O counts the neighbouring
    pairs in order, y_t <= y_{t+1}, Eq. (3.1); `ascending_pairs(responses)` computes it. Only the sorted prompt gets the
    maximum of 2T - 1.

    Args:
        prompts: x, the prompts: whole numbers from 0 to some thousands.
        responses: y, the responses: whole numbers of the same range.

    Returns:
        R', the reward of each response, in float32.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    check_dtype("prompts", prompts, "int")
    check_dtype("responses", responses, "int")
    copies = one_hot(torch.stack([prompts, responses])).sum(2)  # 2 B V (3.10)
    included = torch.minimum(*copies).sum(-1)  # B (3.9)
    rewards = (included + ascending_pairs(responses)).float()  # B (3.11)
    return rewards


def exact_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""Reward a response with 1 if it is the sorted prompt, and with 0 otherwise.

    R^{\mathrm{all}}_b = \prod_t \mathbb{1}\big[\, y_{b,t} = \mathrm{sort}(x_b)_t \big] \tag{3.12}

    Args:
        prompts: x, the prompts.
        responses: y, the responses.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    correct = (responses == prompts.sort(-1).values).all(-1).float()  # B (3.12)
    return correct
