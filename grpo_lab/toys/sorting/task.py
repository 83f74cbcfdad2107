"""The task of sorting: prompts, and three rewards of a response, in B rows of T numbers."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from grpo_lab.base.checks import InputError, check_at_least, check_choice, check_dtype, check_shapes
from grpo_lab.policy_gradient import enumerate_sequences

DUPLICATES = ("none", "only")
TEST_SHARE = 0.2  # which share of the multisets of numbers is held out, in every order


class SortingPrompts(NamedTuple):
    """Prompts to train on, prompts held out, and V, the numbers they are made of: 0 to V - 1."""

    train: Int[Tensor, "N T"]
    held_out: Int[Tensor, "M T"]
    numbers: int


def make_prompts(numbers: int = 10, length: int = 4, duplicates: str = "none") -> SortingPrompts:
    """List every prompt, and hold some out by what they contain, so that no held-out answer was ever a right answer.

    Args:
        numbers: V, how many numbers there are.
        length: T, how many a prompt has, at least 2.
        duplicates: "none": all numbers of a prompt differ; "only": at least two are equal.
    """
    check_choice("duplicates", duplicates, DUPLICATES)
    check_at_least("length", length, 2)
    prompts = enumerate_sequences(numbers, length)
    ordered = prompts.sort(-1).values
    admitted = (ordered[:, 1:] == ordered[:, :-1]).any(-1) == (duplicates == "only")
    multisets, multiset_index = ordered[admitted].unique(dim=0, return_inverse=True)
    count = round(TEST_SHARE * len(multisets))
    if count == 0:
        problem = f"there are {len(multisets)} multisets of {length} out of {numbers}"
        raise InputError("numbers", numbers, "expected more, of which some can be held out", found=problem)
    held_out_multisets = torch.randperm(len(multisets), generator=torch.Generator().manual_seed(0))[:count]
    is_held_out = torch.isin(multiset_index, held_out_multisets)
    return SortingPrompts(prompts[admitted][~is_held_out], prompts[admitted][is_held_out], numbers)


def ascending_pairs(responses: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    r"""Number of neighbouring pairs that are in order.

    O_b = \sum_{t<T} \mathbb{1}\big[\, y_{b,t} \le y_{b,t+1} \big] \tag{3.1}

    Args:
        responses: y.
    """
    pairs = (responses[:, :-1] <= responses[:, 1:]).sum(-1)  # B (3.1)
    return pairs


def sorting_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""One point for each number of the prompt that the response contains, one for each pair in order.

    I_b = \sum_t \mathbb{1}\big[\, x_{b,t} \in \{y_{b,1}, \ldots, y_{b,T}\} \big] \tag{3.2}
    R_b = I_b + O_b \tag{3.3}

    The maximum is 2T - 1. It can be gamed: where a number stands twice in the prompt, once in the response is enough.

    Args:
        prompts: x.
        responses: y.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    present = (rearrange(prompts, "B t -> B t 1") == rearrange(responses, "B u -> B 1 u")).any(-1).sum(-1)  # B (3.2)
    rewards = (present + ascending_pairs(responses)).float()  # B (3.3)
    return rewards


def repaired_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""The reward without its hole: a number that stands twice in the prompt has to stand twice in the response.

    n_{b,v}(s) = \sum_t \mathbb{1}[\, s_{b,t} = v ], \quad s \in \{x, y\} \tag{3.10}
    I'_b = \sum_v \min\big(n_{b,v}(x),\; n_{b,v}(y)\big) \tag{3.9}
    R'_b = I'_b + O_b \tag{3.11}

    O counts the neighbours in order, y_t <= y_{t+1}: `ascending_pairs(responses)`, Eq. (3.1). Only the sorted prompt
    scores the maximum, 2T - 1.

    Args:
        prompts: x, whole numbers from 0 to some thousands.
        responses: y, the same.

    Returns:
        As float32.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    check_dtype("prompts", prompts, "int")
    check_dtype("responses", responses, "int")
    copies = one_hot(torch.stack([prompts, responses])).sum(2)  # 2 B V (3.10)
    included = torch.minimum(*copies).sum(-1)  # B (3.9)
    rewards = (included + ascending_pairs(responses)).float()  # B (3.11)
    return rewards


def exact_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""All or nothing, no partial credit.

    R^{\mathrm{all}}_b = \prod_t \mathbb{1}\big[\, y_{b,t} = \mathrm{sort}(x_b)_t \big] \tag{3.12}

    Arguments as in `sorting_reward`; the result is 0 or 1.
    """
    check_shapes(prompts=(prompts, "B T"), responses=(responses, "B T"))
    correct = (responses == prompts.sort(-1).values).all(-1).float()  # B (3.12)
    return correct
