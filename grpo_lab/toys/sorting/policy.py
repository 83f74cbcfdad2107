r"""The policy of the sorting task: a small model that answers a prompt in one forward pass.

It chooses all T numbers of the response at the same time, whereas a language model chooses one after the other. So one
forward pass gives the probability of every response, and a training run takes seconds.

Axes: S seeds, P prompts, G responses of a prompt, T positions, V numbers to choose from, D width. Each seed has its own
parameters and prompts and does not affect the others. All seeds are trained in the same tensors, so that eight runs
cost little more than one.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputError, check_shapes


class SortingPolicy(NamedTuple):
    """The parameters of S policies, in the order of the arguments of `position_logprobs`."""

    embedding: Float[Tensor, "S V D"]
    encode: Float[Tensor, "S T D D"]
    decode: Float[Tensor, "S T D D"]

    def copy(self) -> "SortingPolicy":
        """Return a copy of the parameters that requires no gradient, such as a reference policy."""
        return SortingPolicy(*(weight.detach().clone() for weight in self))


def position_logprobs(
    prompts: Int[Tensor, "S P T"],
    embedding: Float[Tensor, "S V D"],
    encode: Float[Tensor, "S T D D"],
    decode: Float[Tensor, "S T D D"],
) -> Float[Tensor, "S P T V"]:
    r"""Compute the log-probability of each number at each position of the response: the policy itself.

    e_{p,t} = E_{x_{p,t}} \tag{3.15}
    z_p = \sum_t e_{p,t} W_t \tag{3.16}
    h_{p,t} = z_p U_t \tag{3.17}
    \ell_{p,t,v} = \langle h_{p,t},\, E_v \rangle \tag{3.18}
    \log \pi_{p,t,v} = \ell_{p,t,v} - \log \sum_w e^{\ell_{p,t,w}} \tag{3.19}

    The equations leave out the axis S, since they hold for each seed.

    Args:
        prompts: x, the prompts: numbers from 0 to V - 1.
        embedding: E, the embedding of the prompt's numbers; the output layer is its transpose (tied embeddings).
        encode: W, a matrix for each position of the prompt.
        decode: U, a matrix for each position of the response.

    Returns:
        The log-probabilities. Given the prompt, the numbers at different positions are independent of each other.
    """
    lowest, highest = prompts.aminmax()
    if lowest < 0 or highest >= embedding.shape[1]:
        raise InputError(f"prompts holds numbers from {lowest} to {highest}; expected 0 to {embedding.shape[1] - 1}")
    seeds = torch.arange(len(embedding))[:, None, None]
    embedded = embedding[seeds, prompts]  # S P T D (3.15)
    encoded = einsum(embedded, encode, "S P T D, S T D H -> S P H")  # S P D (3.16)
    decoded = einsum(encoded, decode, "S P H, S T H D -> S P T D")  # S P T D (3.17)
    logits = einsum(decoded, embedding, "S P T D, S V D -> S P T V")  # S P T V (3.18)
    logp = logits.log_softmax(-1)  # S P T V (3.19)
    return logp


def sample_responses(logp: Float[Tensor, "S P T V"], uniform: Float[Tensor, "S P G T"]) -> Int[Tensor, "S P G T"]:
    r"""Draw G responses to each prompt: at each position the first number whose cumulative probability exceeds u.

    F_{p,t,v} = \sum_{w \le v} \pi_{p,t,w} \tag{3.20}
    y_{p,i,t} = \sum_{v=0}^{V-2} \mathbb{1}\big[\, F_{p,t,v} \le u_{p,i,t} \big] \tag{3.21}

    Args:
        logp: \log \pi, the log-probabilities of all numbers at each position.
        uniform: u, random numbers from [0, 1), one for each number that is drawn.
    """
    cumulated = rearrange(logp.exp().cumsum(-1), "S P T V -> S P 1 T V")  # S P 1 T V (3.20)
    responses = (cumulated[..., :-1] <= uniform[..., None]).sum(-1)  # S P G T (3.21)
    return responses


def response_logprobs(logp: Float[Tensor, "S P T V"], responses: Int[Tensor, "S P G T"]) -> Float[Tensor, "S P G T"]:
    r"""Look up the log-probability of each number that was drawn.

    \log \pi_{p,i,t} = \log \pi_{p,t,\, y_{p,i,t}} \tag{3.22}

    The axis S, which the equation leaves out, is one of seeds: independent policies that are trained side by side.

    Args:
        logp: The log-probabilities of all V numbers at each position. -inf is allowed, and returned if that number was
            drawn.
        responses: y, the numbers drawn: G responses of T numbers for each of P prompts.

    Returns:
        The log-probability of each number of each response, with a gradient to `logp`.
    """
    check_shapes(logp=(logp, "S P T V"), responses=(responses, "S P G T"))
    numbers = rearrange(responses, "S P G T -> S P T G")
    drawn_logp = rearrange(logp.gather(-1, numbers), "S P T G -> S P G T")  # S P G T (3.22)
    return drawn_logp


def init_policy(numbers: int, length: int, width: int, generators: list[torch.Generator]) -> SortingPolicy:
    """Draw small random parameters that require gradients, for one policy per generator.

    Args:
        numbers: V, the number of different numbers.
        length: T, the number of positions.
        width: D, the width of the policy.
        generators: The random number generator of each of the S policies.
    """
    shapes = [(numbers, width), (length, width, width), (length, width, width)]
    deviations = [width**-0.5, (length * width) ** -0.5, width**-0.5]
    return SortingPolicy(
        *(
            torch.stack([std * torch.randn(shape, generator=generator) for generator in generators]).requires_grad_()
            for shape, std in zip(shapes, deviations, strict=True)
        )
    )
