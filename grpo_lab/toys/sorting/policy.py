r"""The policy of the toy world: the smallest that can answer.

It reads a prompt once and chooses all T numbers of the response at the same time, where a language model chooses one
after the other. So one forward pass gives the probability of every response, and a training run takes seconds.

Axes: S seeds, P prompts, G responses of a prompt, T positions, V numbers to choose from, D width. Each of the S seeds
has parameters and prompts of its own, and none touches another; they share the loop, so that eight runs cost little
more than one.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputError, check_shapes


class SortingPolicy(NamedTuple):
    """The parameters of S policies, in the order in which `position_logprobs` takes them."""

    embedding: Float[Tensor, "S V D"]
    encode: Float[Tensor, "S T D D"]
    decode: Float[Tensor, "S T D D"]

    def copy(self) -> "SortingPolicy":
        """A frozen copy of the parameters, such as a reference policy is."""
        return SortingPolicy(*(weight.detach().clone() for weight in self))


def position_logprobs(
    prompts: Int[Tensor, "S P T"],
    embedding: Float[Tensor, "S V D"],
    encode: Float[Tensor, "S T D D"],
    decode: Float[Tensor, "S T D D"],
) -> Float[Tensor, "S P T V"]:
    r"""Log-probability of each number at each position of the response: the policy itself.

    e_{p,t} = E_{x_{p,t}} \tag{3.15}
    z_p = \sum_t e_{p,t} W_t \tag{3.16}
    h_{p,t} = z_p U_t \tag{3.17}
    \ell_{p,t,v} = \langle h_{p,t},\, E_v \rangle \tag{3.18}
    \log \pi_{p,t,v} = \ell_{p,t,v} - \log \sum_w e^{\ell_{p,t,w}} \tag{3.19}

    The axis S of seeds is left out of the equations: the same happens in each.

    Args:
        prompts: x, numbers from 0 to V - 1.
        embedding: E; it reads the prompt and, transposed, writes the response (tied embeddings).
        encode: W, one matrix for each position of the prompt.
        decode: U, one matrix for each position of the response.

    Returns:
        Given the prompt, the positions are independent of each other.
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
    r"""Draw G responses for each prompt: the number at which the cumulated probability passes a uniform draw.

    F_{p,t,v} = \sum_{w \le v} \pi_{p,t,w} \tag{3.20}
    y_{p,i,t} = \sum_{v=0}^{V-2} \mathbb{1}\big[\, F_{p,t,v} \le u_{p,i,t} \big] \tag{3.21}

    Args:
        logp: log-probabilities of all numbers.
        uniform: u, draws from [0, 1); each seed brings its own.
    """
    cumulated = rearrange(logp.exp().cumsum(-1), "S P T V -> S P 1 T V")  # S P 1 T V (3.20)
    responses = (cumulated[..., :-1] <= uniform[..., None]).sum(-1)  # S P G T (3.21)
    return responses


def response_logprobs(logp: Float[Tensor, "S P T V"], responses: Int[Tensor, "S P G T"]) -> Float[Tensor, "S P G T"]:
    r"""Log-probability of each number that was drawn.

    \log \pi_{p,i,t} = \log \pi_{p,t,\, y_{p,i,t}} \tag{3.22}

    Args:
        logp: log-probabilities of all V numbers; -inf is allowed, and returned where that number was drawn. The axis S
            counts seeds: independent policies, trained side by side.
        responses: y, the numbers drawn: G responses of T numbers for each of P prompts.
    """
    check_shapes(logp=(logp, "S P T V"), responses=(responses, "S P G T"))
    numbers = rearrange(responses, "S P G T -> S P T G")
    drawn_logp = rearrange(logp.gather(-1, numbers), "S P T G -> S P G T")  # S P G T (3.22)
    return drawn_logp


def init_policy(numbers: int, length: int, width: int, generators: list[torch.Generator]) -> SortingPolicy:
    """Small random parameters, one policy for each generator; they require gradients."""
    shapes = [(numbers, width), (length, width, width), (length, width, width)]
    deviations = [width**-0.5, (length * width) ** -0.5, width**-0.5]
    return SortingPolicy(
        *(
            torch.stack([std * torch.randn(shape, generator=generator) for generator in generators]).requires_grad_()
            for shape, std in zip(shapes, deviations, strict=True)
        )
    )
