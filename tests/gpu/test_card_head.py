"""On a card: the chunked head has the values and gradients of the plain one, in float32 and in bf16."""

import pytest
import torch

from grpo_lab.logprobs import chunked_logprobs_and_entropy, token_entropy, token_logprobs

pytestmark = pytest.mark.gpu


def outcome(inputs, ids, chunk_size=None):
    """Log-probabilities, entropies, and the gradients of a mixture of both."""
    hidden, weight = (x.detach().clone().requires_grad_() for x in inputs)
    if chunk_size is None:
        logits = hidden @ weight.T
        logp, entropy = token_logprobs(logits, ids), token_entropy(logits)
    else:
        logp, entropy = chunked_logprobs_and_entropy(hidden, weight, ids, chunk_size=chunk_size)
    mixture = torch.linspace(-1, 1, logp.numel(), device="cuda").view_as(logp)
    gradients = torch.autograd.grad((mixture * logp).sum() + 0.1 * entropy.sum(), (hidden, weight))
    return [x.detach().double() for x in (logp, entropy, *gradients)]


def distance(tensors, references):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(tensors, references, strict=True)]


@pytest.mark.parametrize("chunk_size", [7, 64, 448])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunked_is_as_near_to_the_truth_as_plain(dtype, chunk_size):
    """The truth is float64 on the same numbers; in bf16 both round, and the chunked head may not round worse."""
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(2, 100, 192, generator=generator, device="cuda").to(dtype)
    weight = (0.1 * torch.randn(4096, 192, generator=generator, device="cuda")).to(dtype)
    ids = torch.randint(4096, (2, 100), generator=generator, device="cuda")
    truth = outcome((hidden.double(), weight.double()), ids)
    plain = distance(outcome((hidden, weight), ids), truth)
    chunked = distance(outcome((hidden, weight), ids, chunk_size), truth)
    floor = 1e-5 if dtype == torch.float32 else 1e-3
    for ours, theirs in zip(chunked, plain, strict=True):
        assert ours < max(1.5 * theirs, floor), (chunked, plain)
        assert ours < (1e-4 if dtype == torch.float32 else 2e-2)
