r"""A toy world for GRPO: sort a few numbers. The rewards, the policy and the losses of notebook 03.

A prompt is T numbers, the response T numbers as well. The policy is the smallest that can answer: it reads a prompt
once and chooses all T numbers of the response at the same time, where a language model chooses one after the other. So
one forward pass gives the probability of every response, and a training run (`sorting_training`) takes seconds.

Where this file departs from the usual code, on purpose: the tensors of the policy have an axis S of seeds in front.
Each seed has parameters and prompts of its own, and none touches another; they share the loop, so that eight runs cost
little more than one. Advantages, ratio, clipping and KL are those of `advantages`, `objective` and `kl`.

Axes: S seeds, P prompts, G responses of a prompt, T positions, V numbers to choose from, D width, B = S*P*G rows.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from grpo_lab.advantages import best_of_group, group_advantages
from grpo_lab.kl import kl_estimate
from grpo_lab.objective import aggregate, importance_ratio, policy_loss
from grpo_lab.policy_gradient import enumerate_sequences, reinforce_loss, sequence_logprob

LOSSES = ("naive", "unclipped", "clipped")
UPDATE_WEIGHTS = ("raw", "centred", "normalised", "best")
DUPLICATES = ("none", "any", "only")


class SortingPrompts(NamedTuple):
    """Prompts to train on, prompts held out, and V, the numbers they are made of: 0 to V - 1."""

    train: Int[Tensor, "N T"]
    held_out: Int[Tensor, "M T"]
    numbers: int


def make_prompts(
    numbers: int = 10, length: int = 4, duplicates: str = "none", held_out: float = 0.2, seed: int = 0
) -> SortingPrompts:
    """List every prompt, and hold some out by what they contain, so that no held-out answer was ever a right answer.

    Args:
        numbers: V, how many numbers there are.
        length: T, how many a prompt has, at least 2.
        duplicates: "none": all numbers of a prompt differ; "only": at least two are equal; "any": both.
        held_out: which share of the multisets of numbers is held out, in every order, between 0 and 1.
        seed: chooses them.
    """
    if duplicates not in DUPLICATES:
        raise ValueError(f"duplicates is {duplicates!r}; allowed are {', '.join(map(repr, DUPLICATES))}")
    if length < 2 or not 0 < held_out < 1:
        raise ValueError(f"length is {length} and held_out {held_out}; length >= 2 and 0 < held_out < 1 are needed")
    prompts = enumerate_sequences(numbers, length)
    ordered = prompts.sort(-1).values
    repeats = (ordered[:, 1:] == ordered[:, :-1]).any(-1)
    kept = {"none": ~repeats, "only": repeats, "any": repeats | ~repeats}[duplicates]
    contents, which = ordered[kept].unique(dim=0, return_inverse=True)
    count = round(held_out * len(contents))
    if not 0 < count < len(contents):
        raise ValueError(
            f"numbers is {numbers}, length {length}, held_out {held_out}: of {len(contents)} multisets of numbers "
            f"{count} would be held out; both parts need at least one"
        )
    chosen = torch.randperm(len(contents), generator=torch.Generator().manual_seed(seed))[:count]
    out = torch.isin(which, chosen)
    return SortingPrompts(prompts[kept][~out], prompts[kept][out], numbers)


def ascending_pairs(responses: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    r"""How many neighbours are in order?

    O_b = \sum_{t<T} \mathbb{1}\big[\, y_{b,t} \le y_{b,t+1} \big] \tag{3.1}

    Args:
        responses: y, shape (B, T).

    Returns:
        Shape (B,), from 0 to T - 1.
    """
    pairs = (responses[:, :-1] <= responses[:, 1:]).sum(-1)  # B (3.1)
    return pairs


def sorting_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""One point for each number of the prompt that the response contains, one for each pair in order.

    I_b = \sum_t \mathbb{1}\big[\, x_{b,t} \in \{y_{b,1}, \ldots, y_{b,T}\} \big] \tag{3.2}
    R_b = I_b + O_b \tag{3.3}

    The maximum is 2T - 1. It can be gamed: where a number stands twice in the prompt, once in the response is enough.

    Args:
        prompts: x, shape (B, T).
        responses: y, shape (B, T).

    Returns:
        Shape (B,).
    """
    _check_same_shape(prompts, responses)
    present = (rearrange(prompts, "B t -> B t 1") == rearrange(responses, "B u -> B 1 u")).any(-1).sum(-1)  # B (3.2)
    rewards = (present + ascending_pairs(responses)).float()  # B (3.3)
    return rewards


def repaired_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""The same with multiset inclusion: a number that stands twice in the prompt has to stand twice in the response.

    n_{b,v}(s) = \sum_t \mathbb{1}[\, s_{b,t} = v ], \quad s \in \{x, y\} \tag{3.4}
    I'_b = \sum_v \min\big(n_{b,v}(x),\; n_{b,v}(y)\big) \tag{3.5}
    R'_b = I'_b + O_b \tag{3.6}

    Only the sorted prompt scores the maximum, 2T - 1. Arguments and result as in `sorting_reward`.
    """
    _check_same_shape(prompts, responses)
    copies = one_hot(torch.stack([prompts, responses])).sum(2)  # 2 B V (3.4)
    included = copies.amin(0).sum(-1)  # B (3.5)
    rewards = (included + ascending_pairs(responses)).float()  # B (3.6)
    return rewards


def exact_reward(prompts: Int[Tensor, "B T"], responses: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""All or nothing, no partial credit.

    E_b = \prod_t \mathbb{1}\big[\, y_{b,t} = \mathrm{sort}(x_b)_t \big] \tag{3.7}

    Arguments as in `sorting_reward`; the result is 0 or 1.
    """
    _check_same_shape(prompts, responses)
    correct = (responses == prompts.sort(-1).values).all(-1).float()  # B (3.7)
    return correct


def position_logprobs(
    prompts: Int[Tensor, "S P T"],
    embedding: Float[Tensor, "S V D"],
    encode: Float[Tensor, "S T D D"],
    decode: Float[Tensor, "S T D D"],
) -> Float[Tensor, "S P T V"]:
    r"""The policy: how likely is each number at each position of the response?

    e_{p,t} = E_{x_{p,t}} \tag{3.8}
    z_p = \sum_t e_{p,t} W_t \tag{3.9}
    h_{p,t} = z_p U_t \tag{3.10}
    \ell_{p,t,v} = \langle h_{p,t},\, E_v \rangle \tag{3.11}
    \log \pi_{p,t,v} = \ell_{p,t,v} - \log \sum_w e^{\ell_{p,t,w}} \tag{3.12}

    The axis S of seeds is left out of the equations: the same happens in each.

    Args:
        prompts: x, shape (S, P, T), numbers from 0 to V - 1.
        embedding: E, shape (S, V, D); it reads the prompt and, transposed, writes the response (tied embeddings).
        encode: W, one matrix for each position of the prompt.
        decode: U, one matrix for each position of the response.

    Returns:
        Shape (S, P, T, V). Given the prompt, the positions are independent of each other.
    """
    _check_numbers(prompts, embedding.shape[1])
    seeds = torch.arange(len(embedding))[:, None, None]
    embedded = embedding[seeds, prompts]  # S P T D (3.8)
    encoded = einsum(embedded, encode, "S P T D, S T D H -> S P H")  # S P D (3.9)
    decoded = einsum(encoded, decode, "S P H, S T H D -> S P T D")  # S P T D (3.10)
    logits = einsum(decoded, embedding, "S P T D, S V D -> S P T V")  # S P T V (3.11)
    logp = logits.log_softmax(-1)  # S P T V (3.12)
    return logp


def sample_responses(logp: Float[Tensor, "S P T V"], uniform: Float[Tensor, "S P G T"]) -> Int[Tensor, "S P G T"]:
    r"""Draw G responses for each prompt: the number at which the cumulated probability passes a uniform draw.

    F_{p,t,v} = \sum_{w \le v} \pi_{p,t,w} \tag{3.13}
    y_{p,i,t} = \sum_{v=0}^{V-2} \mathbb{1}\big[\, F_{p,t,v} \le u_{p,i,t} \big] \tag{3.14}

    Args:
        logp: log-probabilities, shape (S, P, T, V).
        uniform: u, draws from [0, 1), shape (S, P, G, T); each seed brings its own.
    """
    cumulated = rearrange(logp.exp().cumsum(-1), "S P T V -> S P 1 T V")  # S P 1 T V (3.13)
    responses = (cumulated[..., :-1] <= uniform[..., None]).sum(-1)  # S P G T (3.14)
    return responses


def response_logprobs(logp: Float[Tensor, "S P T V"], responses: Int[Tensor, "S P G T"]) -> Float[Tensor, "S P G T"]:
    r"""How likely was each number that was drawn?

    \log \pi_{p,i,t} = \log \pi_{p,t,\, y_{p,i,t}} \tag{3.15}

    Args:
        logp: log-probabilities of all numbers, shape (S, P, T, V).
        responses: y, shape (S, P, G, T).
    """
    numbers = rearrange(responses, "S P G T -> S P T G")
    taken = rearrange(logp.gather(-1, numbers), "S P T G -> S P G T")  # S P G T (3.15)
    return taken


def update_weights(rewards: Float[Tensor, "P G"], mode: str = "normalised") -> Float[Tensor, "P G"]:
    """What each response is weighted with in the update: one of four answers to "compared with what?".

    Args:
        rewards: r, shape (P, G).
        mode: "raw": the reward itself; "centred": minus the mean of its group; "normalised": also divided by the
            standard deviation of the group, as in GRPO; "best": the reward of the best of the group, the others zero.
    """
    if mode == "raw":
        return rewards
    if mode == "centred":
        return group_advantages(rewards, scale="none")
    if mode == "normalised":
        return group_advantages(rewards)
    if mode == "best":
        return best_of_group(rewards)
    raise ValueError(f"mode is {mode!r}; allowed are {', '.join(map(repr, UPDATE_WEIGHTS))}")


def surrogate_loss(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    loss: str = "clipped",
    epsilon: float = 0.2,
) -> Float[Tensor, ""]:
    r"""Three losses with the same gradient at the first inner step, and different ones from the second on.

    L_{\text{naive}} = -\frac{1}{B T} \sum_{b,t} A_b \log \pi_{b,t} \tag{3.16}
    L_{\text{unclipped}} = -\frac{1}{B T} \sum_{b,t} r_{b,t} \, A_b \tag{3.17}
    L_{\text{clipped}} = -\frac{1}{B T} \sum_{b,t} \min\big( r_{b,t} \, A_b,\; \bar r_{b,t} \, A_b \big) \tag{3.18}

    r is the importance ratio of Eq. (5.2), \bar r the clipped one of Eq. (5.5). Every response has T numbers, so the
    mean over responses and the mean over numbers are the same here.

    Args:
        logp: log-probabilities under the policy that is being trained, shape (B, T).
        old_logp: the same under the policy that sampled, stored then; no gradient flows into them.
        advantages: A, the update weights, shape (B,).
        loss: "naive", "unclipped" or "clipped".
        epsilon: clip range of "clipped".
    """
    mask = torch.ones_like(logp, dtype=torch.bool)
    if loss == "naive":
        return reinforce_loss(sequence_logprob(logp, mask) / logp.shape[1], advantages)  # scalar (3.16)
    if loss == "unclipped":
        return aggregate(-importance_ratio(logp, old_logp, mask) * advantages[:, None], mask, "grpo")  # scalar (3.17)
    if loss == "clipped":
        return policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)[0]  # scalar (3.18)
    raise ValueError(f"loss is {loss!r}; allowed are {', '.join(map(repr, LOSSES))}")


def kl_penalty(logp: Float[Tensor, "B T"], ref_logp: Float[Tensor, "B T"], beta: float) -> Float[Tensor, ""]:
    r"""What it costs to move away from the reference; added to the loss.

    K = \frac{\beta}{B T} \sum_{b,t} k_3(\log \pi_{b,t},\; \log \pi^{\mathrm{ref}}_{b,t}) \tag{3.19}

    k3 is the estimator of low variance, Eq. (4.4).

    Args:
        logp: log-probabilities under the policy that is being trained, shape (B, T).
        ref_logp: under the reference; no gradient flows into them.
        beta: weight of the penalty, at least 0.
    """
    if not beta >= 0:
        raise ValueError(f"beta is {beta}; it has to be at least 0")
    penalty = beta * kl_estimate(logp, ref_logp, "k3").mean()  # scalar (3.19)
    return penalty


class SortingPolicy(NamedTuple):
    """The parameters of S policies, in the order in which `position_logprobs` takes them."""

    embedding: Float[Tensor, "S V D"]
    encode: Float[Tensor, "S T D D"]
    decode: Float[Tensor, "S T D D"]

    def copy(self) -> "SortingPolicy":
        """The same values, frozen: what a reference policy is."""
        return SortingPolicy(*(weight.detach().clone() for weight in self))


def hand_built_policy(numbers: int, length: int, sharpness: float = 40.0) -> SortingPolicy:
    r"""A policy that sorts, written down instead of trained: proof that the architecture can.

    \tau_t = \frac{t - 1/2}{T} \tag{3.20}
    d_{x,v} = x - v \tag{3.21}
    U_{t,x,v} = -c \, \max\big( \tau_t \, d_{x,v},\; (\tau_t - 1) \, d_{x,v} \big) \tag{3.22}

    With E and W the identity, z counts how often each number occurs, and the logit of v at position t is minus the
    quantile ("pinball") loss of v over the prompt. Its minimum lies at the t-th smallest number.

    Args:
        numbers: V, here also the width D.
        length: T.
        sharpness: c; the larger, the surer.
    """
    position, values, eye = torch.arange(1, length + 1), torch.arange(numbers), torch.eye(numbers)
    quantile = (position[:, None, None] - 0.5) / length  # T 1 1 (3.20)
    distance = values[:, None] - values  # V V (3.21)
    decode = -sharpness * torch.maximum(quantile * distance, (quantile - 1) * distance)  # T V V (3.22)
    return SortingPolicy(eye[None], repeat(eye, "V D -> 1 T V D", T=length), decode[None])


def _check_same_shape(prompts: Tensor, responses: Tensor) -> None:
    if prompts.shape != responses.shape:
        raise ValueError(
            f"responses has shape {tuple(responses.shape)}; the prompts' is needed, {tuple(prompts.shape)}"
        )


def _check_numbers(prompts: Tensor, numbers: int) -> None:
    lowest, highest = prompts.aminmax()
    if lowest < 0 or highest >= numbers:
        raise ValueError(f"prompts holds numbers from {lowest} to {highest}; the policy knows 0 to {numbers - 1}")
